"""One request to a server, real or simulated, with its times and lengths."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from roofline.errors import RecordError

NAN = math.nan


@dataclass(slots=True)
class RequestRecord:
    """What was asked, what came, and when. Times in seconds on one clock from the start of the run; NaN = did not happen.

    stage, index: place in the run; phase: "warmup" or "measured".
    due_s: when it should have been sent (its arrival in an open loop, the end of its predecessor in a closed one).
    start_s: when its bytes were handed to an open connection; connect_s: seconds spent opening one before that (0 = it was open).
    first_token_s: first content or reasoning token; first_answer_s: first content token; last_token_s: last of either.
    end_s: end of the response, good or bad.
    tokens_source: usage (the server counted), tokenizer, or chunks (each chunk with text taken as one token).
    first_chunk_tokens: tokens that arrived with the first one, in its chunk and its packet.
    chunks: chunks with text; gaps_s: seconds between them.
    error: "" or the kind of failure (an HTTP status as text, "timeout", …); detail: what the server or the system said.
    in_flight: requests of this client that were open when it started, itself included.
    """

    stage: int
    index: int
    phase: str = "measured"
    due_s: float = NAN
    start_s: float = NAN
    connect_s: float = 0.0
    first_token_s: float = NAN
    first_answer_s: float = NAN
    last_token_s: float = NAN
    end_s: float = NAN
    requested_input_tokens: int = 0
    input_tokens: int = 0
    requested_output_tokens: int = 0
    output_tokens: int = 0
    tokens_source: str = ""
    first_chunk_tokens: int = 0
    chunks: int = 0
    in_flight: int = 0
    error: str = ""
    detail: str = ""
    gaps_s: array[float] = field(default_factory=lambda: array("f"))

    @property
    def ok(self) -> bool:
        """Whether it was answered to the end."""
        return not self.error

    @property
    def ttft_s(self) -> float:
        """Time to first token: first content or reasoning token − start."""
        return self.first_token_s - self.start_s

    @property
    def e2el_s(self) -> float:
        """End-to-end latency: last token − start."""
        return self.last_token_s - self.start_s

    @property
    def tpot_s(self) -> float:
        """Time per output token: (last − first) / (tokens − those that came with the first); NaN if nothing came later."""
        after = self.output_tokens - self.first_chunk_tokens
        return (self.last_token_s - self.first_token_s) / after if after > 0 else NAN

    @property
    def send_delay_s(self) -> float:
        """How late the client was: start − due, without the time the connection took."""
        return self.start_s - self.due_s - self.connect_s

    def to_json(self) -> dict[str, Any]:
        """The record as one JSON object: times to the microsecond, unset ones left out."""
        row: dict[str, Any] = {"kind": "request"}
        for name in _NAMES:
            value = getattr(self, name)
            if isinstance(value, float):
                if value == value:
                    row[name] = round(value, 6)
            elif isinstance(value, array):
                row[name] = [round(gap, 6) for gap in value]
            else:
                row[name] = value
        return row

    @classmethod
    def from_json(cls, row: Mapping[str, Any], where: str = "") -> RequestRecord:
        """The record in a JSON object. where: file:line for messages. Raises RecordError for missing or unknown keys."""
        values = {key: value for key, value in row.items() if key != "kind"}
        values["gaps_s"] = array("f", values.get("gaps_s", ()))
        try:
            return cls(**values)
        except TypeError as error:
            raise RecordError(f"{where or 'record'}: not a request: {error}") from None


_NAMES = tuple(each.name for each in fields(RequestRecord))
