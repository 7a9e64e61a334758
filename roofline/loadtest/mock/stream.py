"""One request to the mock server, written on an absolute schedule that is fixed when its body is complete.

arrival                      request body fully read
+ queue                      a slot is free (only with --slots)
+ role_ms                    role chunk (chat)
+ ttft_ms                    first token
+ itl_ms · k                 token k (from the first: no drift)
last token                   finish_reason, usage, [DONE] in the same write
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import zlib
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from roofline.loadtest.mock.options import MockOptions

if TYPE_CHECKING:
    from roofline.loadtest.mock.server import Connection


class Stream:
    """Answers one request; `truth` is what it will say about it."""

    def __init__(
        self, connection: Connection, options: MockOptions, request: dict[str, Any], headers: dict[str, str], arrival: float, *, chat: bool
    ) -> None:
        self._connection, self._state, self._options = connection, connection.state, options
        self._request, self._chat, self._arrival = request, chat, arrival
        self._loop = asyncio.get_running_loop()
        self._asked = request.get("stream_options") or {}
        self.prompt_tokens = _words(request, chat=chat)
        self.tokens = _output_tokens(request, options)
        self._index = 0
        self._sent = 0
        self._pending: list[bytes] = []
        self._rest = b""
        self._zip = zlib.compressobj(wbits=31) if options.gzip else None
        self.truth: dict[str, Any] = {
            "t0": arrival,
            "n_in": self.prompt_tokens,
            "n_out": self.tokens,
            "hdr_id": headers.get("x-request-id"),
        }

    @property
    def too_long(self) -> bool:
        """Whether the model cannot take it."""
        return self.prompt_tokens + self.tokens > self._options.max_model_len

    def arrive(self) -> None:
        """Counts the request in and starts it, queues it or refuses it."""
        state, options = self._state, self._options
        state.arrived += 1
        self._index = state.arrived
        self.truth["i"] = self._index
        state.truth.append(self.truth)
        if options.hits(options.err_every, self._index):
            self.truth["err"] = options.err_status
            more = f"retry-after: {options.retry_after:g}\r\n" if options.retry_after else ""
            error = {"message": "mock overload", "type": "ServiceUnavailable", "code": options.err_status}
            self._connection.server.request_ended()
            self._connection.answer({"error": error}, options.err_status, more=more)
        elif options.slots and state.active >= options.slots:
            state.waiting.append(self)
        else:
            self.start()

    def start(self) -> None:
        """A slot is free: fixes the schedule and begins."""
        state, options, now = self._state, self._options, monotonic()
        state.active += 1
        state.max_active = max(state.max_active, state.active)
        state.prompt_tokens += self.prompt_tokens
        self._rng = random.Random(hash((options.seed, self._index)))  # noqa: S311 - a schedule, not a secret
        ttft = options.ttft_ms / 1e3 + self.prompt_tokens * options.ttft_per_input_token_us / 1e6
        if self._index <= options.slow_first:
            ttft *= options.slow_factor
        self._gap = options.itl_ms / 1e3 + state.active * options.itl_per_active_us / 1e6
        base = now if options.slots else self._arrival
        self._due = base + ttft * self._jitter()
        self.truth |= {
            "queue_ms": 1e3 * (now - self._arrival),
            "ttft_ms": 1e3 * (self._due - self._arrival),
            "itl_ms": 1e3 * self._gap,
        }
        state.queue.observe(now - self._arrival)
        if not self._request.get("stream"):
            self._at(self._due + (self.tokens - 1) * self._gap, self._whole)
            return
        self._begin(base)
        self._at(self._due, self._token)

    def _begin(self, base: float) -> None:
        """Head, role chunk and keep-alive comments."""
        options = self._options
        name = "chat.completion.chunk" if self._chat else "text_completion"
        model = json.dumps(self._request.get("model", "mock"))
        self._head = f'"id":"mock-{self._index:06d}","object":"{name}","created":{int(time.time())},"model":{model},'
        coding = "content-encoding: gzip\r\n" if self._zip else ""
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n{coding}\r\n"
        self._connection.write(head.encode())
        if self._chat and options.role_chunk:
            content = '""' if options.role_chunk == 1 else "null"
            role = f'"choices":[{{"index":0,"delta":{{"role":"assistant","content":{content}}},"finish_reason":null}}]'
            self._at(base + options.role_ms / 1e3, self._write, self._event(role))
        if options.keepalive_ms:
            due = base + options.keepalive_ms / 1e3
            while due < self._due:
                self._at(due, self._write, b": ping" + self._blank)
                due += options.keepalive_ms / 1e3

    def _token(self) -> None:
        """Writes the token that is due and fixes when the next one is."""
        options, state, now = self._options, self._state, monotonic()
        late = now - self._due
        state.wrote(late)
        if self._sent == 0:
            self.truth |= {"first_late_ms": 1e3 * late, "t_first_write": now}
            state.ttft.observe(now - self._arrival)
        if self._connection.closed:
            self._end("client_closed")
            return
        count = min(options.tokens_per_chunk, self.tokens - self._sent)
        endless = options.hits(options.endless_every, self._index)
        last = self._sent + count >= self.tokens and not endless
        if not options.hits(options.silent_every, self._index):
            self._pending.append(self._chunk(count, last=last))
        self._sent += count or options.tokens_per_chunk
        state.generation_tokens += count
        if self._breaks(last=last):
            return
        if last:
            self._finish(late)
            return
        if len(self._pending) >= options.coalesce:
            self._flush()
        stall = 2.0 if options.hits(options.stall_every, self._index) and self._sent == 3 else 0.0
        self._due += self._gap * max(count, 1) * self._jitter() + stall
        self._at(self._due, self._token)

    def _breaks(self, *, last: bool) -> bool:
        """Ends the stream in the way that an option asks for; whether it did."""
        options = self._options
        if self._sent < 3 or last:
            return False
        if options.hits(options.cut_every, self._index):
            self._flush()
            self._connection.close()
            self._end("cut")
            return True
        if options.hits(options.sse_error_every, self._index):
            error = b'data: {"error":{"message":"mock engine died","type":"InternalServerError","code":500}}' + self._blank
            self._pending += [error, b"data: [DONE]" + self._blank]
            self._flush()
            self._close_body_after(0.0, "sse_error")
            return True
        return False

    def _finish(self, late: float) -> None:
        """What follows the last token, in the same write."""
        options = self._options
        if options.finish == "own":
            text = '"delta":{}' if self._chat else '"text":""'
            self._pending.append(self._event(f'"choices":[{{"index":0,{text},"finish_reason":"length"}}]'))
        if options.usage == "always" or (options.usage == "asked" and self._asked.get("include_usage")):
            self._pending.append(self._event(f'"choices":[],{self._usage()}'))
        if not options.hits(options.no_done_every, self._index):
            self._pending.append(b"data: [DONE]" + self._blank)
        self.truth |= {
            "last_late_ms": 1e3 * late,
            "t_last_write": monotonic(),
            "e2e_ms": 1e3 * (self._due - self._arrival),
        }
        self._state.e2e.observe(self._due - self._arrival)
        self._flush()
        self._close_body_after(options.linger_ms / 1e3, "ok")

    def _close_body_after(self, wait_s: float, how: str) -> None:
        """Ends the body: at once unless something is still to come before."""
        wait_s += 0.002 if self._options.split else 0.0
        if wait_s:
            self._at(monotonic() + wait_s, self._close_body, how)
        else:
            self._close_body(how)

    def _close_body(self, how: str) -> None:
        self._send_rest()
        tail = self._zip.flush() if self._zip else b""
        self._connection.write((_http_chunk(tail) if tail else b"") + b"0\r\n\r\n")
        self._end(how)

    def _end(self, how: str) -> None:
        state = self._state
        self.truth |= {"end": how, "sent": self._sent, "t_end": monotonic()}
        state.active -= 1
        self._connection.server.request_ended()
        if state.waiting:
            state.waiting.popleft().start()
        self._connection.answered()

    def _whole(self) -> None:
        """The answer to a request that does not stream."""
        self._sent = self.tokens
        self._state.generation_tokens += self.tokens
        self.truth["e2e_ms"] = 1e3 * (monotonic() - self._arrival)
        text = self._options.word * self.tokens
        said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice = {"index": 0, "finish_reason": "length", **said}
        name = "chat.completion" if self._chat else "text_completion"
        body = {"id": f"mock-{self._index:06d}", "object": name, "model": self._request.get("model"), "choices": [choice]}
        self._connection.answer(body | json.loads(f"{{{self._usage()}}}"))
        self._end("ok")

    def _chunk(self, count: int, *, last: bool) -> bytes:
        """The event with the next `count` tokens, and an empty one before it where asked for."""
        options = self._options
        finish = '"length"' if last and options.finish == "same" else "null"
        text = options.word * max(count, 1)
        if options.big_chunk_bytes and self._sent <= 2 < self._sent + max(count, 1):
            text = "x" * options.big_chunk_bytes
        quoted = json.dumps(text, ensure_ascii=False)
        if not self._chat:
            return self._event(f'"choices":[{{"index":0,"text":{quoted},"logprobs":null,"finish_reason":{finish}}}]')
        empty = b""
        if options.empty_every and self._sent and self._sent % options.empty_every == 0:
            empty = self._event('"choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":null}]')
        key = options.reasoning_key if self._sent < options.reasoning else "content"
        return empty + self._event(f'"choices":[{{"index":0,"delta":{{"{key}":{quoted}}},"logprobs":null,"finish_reason":{finish}}}]')

    def _event(self, inner: str) -> bytes:
        usage = f",{self._usage()}" if self._asked.get("continuous_usage_stats") and "usage" not in inner else ""
        return f"data: {{{self._head}{inner}{usage}}}".encode() + self._blank

    def _usage(self) -> str:
        prompt = self.prompt_tokens + self._options.prompt_overhead
        return f'"usage":{{"prompt_tokens":{prompt},"total_tokens":{prompt + self._sent},"completion_tokens":{self._sent}}}'

    @property
    def _blank(self) -> bytes:
        return b"\r\n\r\n" if self._options.crlf else b"\n\n"

    def _flush(self) -> None:
        data, self._pending = b"".join(self._pending), []
        if data:
            self._write(data)

    def _write(self, data: bytes) -> None:
        """One HTTP chunk, in one TCP segment or two."""
        options = self._options
        if self._zip:
            data = self._zip.compress(data) + self._zip.flush(zlib.Z_SYNC_FLUSH)
        data = _http_chunk(data)
        if options.split:
            self._send_rest()
            cut = min(options.split_after or len(data) // 2, len(data))
            data, self._rest = data[:cut], data[cut:]
            self._loop.call_later(0.001, self._send_rest)
        self._connection.write(data)

    def _send_rest(self) -> None:
        """The second segment of a split write, unless it has gone already."""
        data, self._rest = self._rest, b""
        if data:
            self._connection.write(data)

    def _at(self, due: float, call: Callable[..., None], *args: Any) -> None:
        self._loop.call_at(due, call, *args)

    def _jitter(self) -> float:
        return self._rng.lognormvariate(0, self._options.jitter) if self._options.jitter else 1.0


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _words(request: dict[str, Any], *, chat: bool) -> int:
    """Prompt tokens: words of a text, or ids."""
    if not chat:
        prompt = request.get("prompt", "")
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
            return len(prompt)
        return sum(len(str(text).split()) for text in (prompt if isinstance(prompt, list) else [prompt]))
    total = 0
    for message in request.get("messages", []):
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content or ""}]
        total += sum(len(part.get("text", "").split()) for part in parts)
    return total


def _output_tokens(request: dict[str, Any], options: MockOptions) -> int:
    tokens = int(request.get("max_completion_tokens") or request.get("max_tokens") or 16)
    if options.eos_after and not request.get("ignore_eos"):
        tokens = min(tokens, max(options.eos_after, int(request.get("min_tokens") or 0)))
    return tokens
