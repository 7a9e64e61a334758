"""One request and its streamed answer: which event is a token, when it came, how the stream ended."""

from __future__ import annotations

import asyncio
import json
import math
from array import array
from typing import Any

from roofline.loadtest import failures
from roofline.loadtest.failures import Failure
from roofline.loadtest.http import Head
from roofline.loadtest.sse import EventParser
from roofline.records import RequestRecord

_MOST_PLAIN_BYTES = 1 << 20


class Exchange:
    """Receives one response of /chat/completions or /completions and keeps its times.

    A token is a chunk with text: content, reasoning (as `reasoning` or `reasoning_content`) or a tool call. A chunk with a role
    or an empty text is none. All events of one packet carry that packet's time.
    keep_text: keep the pieces of text, for counting their tokens afterwards.
    """

    __slots__ = (
        "_chars",
        "_ended",
        "_error_body",
        "_finished",
        "_first_chars",
        "_first_chunks",
        "_head",
        "_most_chunks",
        "_parser",
        "answer_s",
        "chunks",
        "done",
        "end_s",
        "failure",
        "first_s",
        "gaps_s",
        "last_s",
        "pieces",
        "usage",
    )

    def __init__(self, requested_tokens: int, *, keep_text: bool = False) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.first_s = self.answer_s = self.last_s = self.end_s = math.nan
        self.gaps_s = array("f")
        self.chunks = 0
        self.usage: dict[str, Any] = {}
        self.pieces: list[str] | None = [] if keep_text else None
        self.failure: Failure | None = None
        self._chars = self._first_chars = self._first_chunks = 0
        self._most_chunks = 4 * requested_tokens + 64
        self._parser = EventParser()
        self._head: Head | None = None
        self._error_body = b""
        self._ended = self._finished = False

    def on_head(self, head: Head, now: float) -> None:
        """Notes the status."""
        self._head = head

    def on_body(self, data: bytes, now: float) -> None:
        """Reads events, or keeps the text of an error."""
        assert self._head is not None  # noqa: S101 - a body follows a head
        if self._head.status != 200 or "event-stream" not in self._head.headers.get("content-type", "event-stream"):
            self._error_body += data[: _MOST_PLAIN_BYTES - len(self._error_body)]
            return
        for payload in self._parser.feed(data):
            self._event(payload, now)

    def on_end(self, failure: Failure | None, now: float) -> None:
        """The body is complete or broken."""
        if failure is None and not self._ended:
            try:
                failure = self._judge(now)
            except Failure as found:
                failure = found
        self.finish(failure, now)

    def finish(self, failure: Failure | None, now: float) -> None:
        """Ends the exchange once; a later call changes nothing."""
        if self._ended:
            return
        self._ended = True
        self.failure, self.end_s = failure, now
        if not self.done.done():
            self.done.set_result(None)

    @property
    def ended(self) -> bool:
        """Whether the outcome is known."""
        return self._ended

    def _judge(self, now: float) -> Failure | None:
        """A body that ended without [DONE]: what was it?"""
        head = self._head
        if head is None:
            return Failure(failures.BAD_HTTP, "a response without a head")
        if head.status != 200:
            moved = f"moved to {head.headers['location']}" if 300 <= head.status < 400 and "location" in head.headers else ""
            return Failure(str(head.status), moved or error_message(self._error_body), _retry_after(head))
        if self._error_body or "event-stream" not in head.headers.get("content-type", "event-stream"):
            return Failure(failures.NOT_A_STREAM, f"{head.headers.get('content-type')}: {error_message(self._error_body)}")
        for payload in self._parser.finish():
            self._event(payload, now)
        if self._ended:
            return self.failure
        if not self.chunks and not self._finished:
            return Failure(failures.NO_CONTENT, "the stream ended without a token")
        return Failure(failures.CLOSED, "the stream ended without [DONE]")

    def _event(self, payload: bytes, now: float) -> None:
        if self._ended:
            return
        if payload == b"[DONE]":
            self.finish(None if self.chunks else Failure(failures.NO_CONTENT, "the stream has no token in it"), now)
            return
        try:
            event = json.loads(payload)
            if event.get("error") or event.get("object") == "error":
                raise Failure(failures.ERROR_EVENT, error_message(payload))
            self._chunk(event, now)
        except (ValueError, AttributeError, TypeError, KeyError, IndexError):
            raise Failure(failures.BAD_EVENT, payload[:80].decode("utf-8", "replace")) from None

    def _chunk(self, event: dict[str, Any], now: float) -> None:
        usage = event.get("usage")
        if usage:
            self.usage = usage
        choices = event.get("choices")
        if not choices:
            return
        choice = choices[0]
        if choice.get("finish_reason"):
            self._finished = True
        delta = choice.get("delta")
        answer = choice.get("text") if delta is None else delta.get("content")
        text = answer
        if not text and delta:
            text = delta.get("reasoning_content") or delta.get("reasoning")
            if not text and delta.get("tool_calls"):
                answer = text = json.dumps(delta["tool_calls"])
        if text:
            self._token(text, now, answer=bool(answer))

    def _token(self, text: str, now: float, *, answer: bool) -> None:
        if self.chunks:
            self.gaps_s.append(now - self.last_s)
        else:
            self.first_s = now
        if now == self.first_s:
            self._first_chunks += 1
            self._first_chars += len(text)
        if answer and self.answer_s != self.answer_s:
            self.answer_s = now
        self.last_s = now
        self.chunks += 1
        self._chars += len(text)
        if self.pieces is not None:
            self.pieces.append(text)
        if self.chunks > self._most_chunks:
            raise Failure(failures.ENDLESS, f"{self.chunks} chunks and no end")

    def fill(self, record: RequestRecord, origin_s: float) -> None:
        """Writes what came into `record`. origin_s: the clock's reading at the start of the run."""
        record.first_token_s = self.first_s - origin_s
        record.first_answer_s = self.answer_s - origin_s
        record.last_token_s = self.last_s - origin_s
        record.end_s = self.end_s - origin_s
        record.chunks, record.gaps_s = self.chunks, self.gaps_s
        record.input_tokens = int(self.usage.get("prompt_tokens") or 0)
        counted = int(self.usage.get("completion_tokens") or 0)
        record.output_tokens, record.tokens_source = (counted, "usage") if counted else (self.chunks, "chunks")
        record.first_chunk_tokens = self._first_tokens(record.output_tokens)
        if self.failure is not None:
            record.error, record.detail = self.failure.kind, self.failure.detail

    def _first_tokens(self, tokens: int) -> int:
        """Tokens of the first packet with any: its chunks if each chunk is one token, else its share of the text."""
        if not self.chunks or tokens == self.chunks:
            return self._first_chunks
        return max(1, min(tokens, round(tokens * self._first_chars / max(self._chars, 1))))


def error_message(body: bytes) -> str:
    """The server's own words in an error body (OpenAI, vLLM, FastAPI or plain), on one line of at most 300 characters."""
    text = body.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and key in value:
            value = value[key]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return " ".join(text.split())[:300]


def _retry_after(head: Head) -> float:
    """Seconds of a Retry-After header; 0 without one or with a date."""
    try:
        return max(0.0, float(head.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
