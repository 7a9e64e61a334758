"""Records made up for tests."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from roofline.loadtest.statistics import StageData
from roofline.records import RequestRecord


def record(
    index: int = 0, *, start: float = 0.0, ttft: float = 0.2, gap: float = 0.02, tokens: int = 5, late: float = 0.0, error: str = ""
) -> RequestRecord:
    """A request whose tokens came one by one, evenly."""
    made = RequestRecord(0, index, due_s=start - late, start_s=start, requested_input_tokens=16, requested_output_tokens=tokens)
    made.in_flight, made.error, made.end_s = 1, error, start + ttft
    if not error:
        made.first_token_s = made.first_answer_s = start + ttft
        made.last_token_s = made.end_s = start + ttft + gap * (tokens - 1)
        made.input_tokens, made.output_tokens, made.chunks = 16, tokens, tokens
        made.first_chunk_tokens, made.tokens_source = 1, "usage"
        made.gaps_s = array("f", [gap] * (tokens - 1))
    return made


def stage(records: Iterable[RequestRecord]) -> StageData:
    """Their columns."""
    data = StageData()
    for each in records:
        data.add(each)
    return data
