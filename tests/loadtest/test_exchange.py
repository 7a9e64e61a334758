"""Which chunk is a token and when it came: exact times on a clock of our own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest

from roofline.loadtest import failures
from roofline.loadtest.exchange import Exchange, error_message
from roofline.loadtest.failures import Failure
from roofline.loadtest.http import Head
from roofline.records import RequestRecord

STREAM = Head(200, {"content-type": "text/event-stream"})
DONE = "[DONE]"


def delta(**values: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": values, "finish_reason": None}]}


def usage(tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}}


def played(packets: Iterable[tuple[float, list[Any]]], *, requested: int = 8, head: Head = STREAM, keep_text: bool = False) -> Exchange:
    """An exchange after these packets (time, events), and a clean end of the body at time 99."""

    async def play() -> Exchange:
        exchange = Exchange(requested, keep_text=keep_text)
        exchange.on_head(head, 0.0)
        for now, events in packets:
            data = "".join(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events)
            try:
                exchange.on_body(data.encode(), now)
            except Failure as failure:  # as the connection does
                exchange.on_end(failure, now)
        exchange.on_end(None, 99.0)
        return exchange

    return asyncio.run(play())


def record_of(exchange: Exchange) -> RequestRecord:
    record = RequestRecord(0, 0, start_s=10.0, requested_output_tokens=8)
    exchange.fill(record, 0.0)
    return record


@pytest.mark.parametrize("role", [delta(role="assistant", content=""), delta(role="assistant", content=None), delta(role="assistant")])
def test_a_role_is_no_token(role: dict[str, Any]) -> None:
    packets = [(10.0, [role]), (10.5, [delta(content="a")]), (10.7, [delta(content="b")]), (10.8, [delta(content="")])]
    record = record_of(played([*packets, (11.1, [delta(content="c")]), (11.1, [delta(), usage(3), DONE])]))
    assert record.ok
    assert (record.ttft_s, record.e2el_s) == (pytest.approx(0.5), pytest.approx(1.1))
    assert record.tpot_s == pytest.approx(0.3)
    assert list(record.gaps_s) == pytest.approx([0.2, 0.4])
    assert (record.input_tokens, record.output_tokens, record.tokens_source, record.end_s) == (7, 3, "usage", 11.1)


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_counts_and_the_answer_has_its_own_time(key: str) -> None:
    packets = [(10.2, [delta(**{key: "hm"})]), (10.3, [delta(**{key: "so"})]), (10.4, [delta(content="x")]), (10.4, [usage(3), DONE])]
    record = record_of(played(packets))
    assert (record.first_token_s, record.first_answer_s, record.tpot_s) == (10.2, 10.4, pytest.approx(0.1))


def test_a_tool_call_is_a_token() -> None:
    call = delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}])
    assert record_of(played([(10.2, [call]), (10.3, [DONE])])).first_token_s == 10.2


def test_completions() -> None:
    record = record_of(played([(10.2, [{"choices": [{"text": " a"}]}]), (10.4, [{"choices": [{"text": " b"}]}, DONE])]))
    assert (record.ttft_s, record.output_tokens, record.tokens_source) == (pytest.approx(0.2), 2, "chunks")


def test_several_tokens_in_a_chunk() -> None:
    packets = [(10 + 0.08 * k, [delta(content=" the" * 4)]) for k in range(1, 9)]
    record = record_of(played([*packets, (10.64, [usage(32), DONE])], requested=32))
    assert (record.first_chunk_tokens, record.chunks, record.output_tokens) == (4, 8, 32)
    assert record.tpot_s == pytest.approx(0.02)


def test_events_of_one_packet_have_one_time() -> None:
    record = record_of(played([(10.3, [delta(content="a"), delta(content="b")]), (10.9, [delta(content="c"), DONE])]))
    assert list(record.gaps_s) == pytest.approx([0.0, 0.6])
    assert record.tpot_s == pytest.approx(0.6)  # one token came after the first packet


def test_one_token_has_no_tpot() -> None:
    record = record_of(played([(10.3, [delta(content="a"), DONE])]))
    assert record.ok
    assert record.tpot_s != record.tpot_s


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([delta(content="a"), {"error": {"message": "engine died"}}, DONE], failures.ERROR_EVENT),
        ([{"object": "error", "message": "old style"}], failures.ERROR_EVENT),
        ([delta(content="a")], failures.CLOSED),
        ([delta(role="assistant"), usage(0), DONE], failures.NO_CONTENT),
        ([], failures.NO_CONTENT),
        (["{not json"], failures.BAD_EVENT),
        (["[1]"], failures.BAD_EVENT),
        ([{"choices": ["x"]}], failures.BAD_EVENT),
        ([delta(content="x")] * 200, failures.ENDLESS),
    ],
)
def test_streams_that_fail(events: list[Any], kind: str) -> None:
    record = record_of(played([(10.1, events)]))
    assert (record.error, record.ok) == (kind, False)


@pytest.mark.parametrize(
    ("head", "kind"),
    [(Head(503, {}), "503"), (Head(429, {"retry-after": "3"}), "429"), (Head(200, {"content-type": "text/html"}), failures.NOT_A_STREAM)],
)
def test_answers_that_are_no_streams(head: Head, kind: str) -> None:
    async def play() -> Exchange:
        exchange = Exchange(8)
        exchange.on_head(head, 0.0)
        exchange.on_body(b'{"error": {"message": "over\\nloaded"}}', 1.0)
        exchange.on_end(None, 2.0)
        return exchange

    exchange = asyncio.run(play())
    assert exchange.failure is not None
    assert (exchange.failure.kind, "over loaded" in exchange.failure.detail) == (kind, True)
    assert exchange.failure.retry_after_s == (3.0 if kind == "429" else 0.0)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "a"}}', "a"),
        (b'{"object": "error", "message": "b"}', "b"),
        (b'{"detail": "c"}', "c"),
        (b'{"detail": [{"loc": 1}]}', '[{"loc": 1}]'),
        (b"<h1>Bad\nGateway</h1>", "<h1>Bad Gateway</h1>"),
        (b"", ""),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_the_servers_words(body: bytes, text: str) -> None:
    assert error_message(body) == text


def test_texts_are_kept_only_on_demand() -> None:
    packets = [(10.1, [delta(content="a")]), (10.2, [delta(content="b"), DONE])]
    assert played(packets).pieces is None
    assert played(packets, keep_text=True).pieces == ["a", "b"]
