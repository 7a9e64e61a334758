"""What the mock server does, option by option. A request may change any of them: model name "mock?ttft_ms=50" or header x-mock."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import parse_qsl

from roofline.errors import InputError


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class MockOptions:
    """Every request's schedule is fixed when its body is complete; times in milliseconds where the name says so.

    "Every N" options act on each N-th request that the server gets; 0 switches them off.
    """

    host: str = _option("127.0.0.1", "Address to listen on (loopback only).")
    port: int = _option(8000, "Port; 0 takes a free one.")
    model: str = _option("mock", "Name in /v1/models.")
    strict_model: int = _option(0, "1: any other model name is answered 404.")
    api_key: str = _option("", "Requests without this bearer token are answered 401.")
    max_model_len: int = _option(131072, "Longer prompt + output is answered 400.")
    ttft_ms: float = _option(200.0, "First token after the request.")
    ttft_per_input_token_us: float = _option(0.0, "Added to it for each prompt token, µs.")
    itl_ms: float = _option(20.0, "From token to token.")
    itl_per_active_us: float = _option(0.0, "Added to it for each stream that runs when the request starts, µs: makes a soft knee.")
    jitter: float = _option(0.0, "Sigma of a log-normal factor on the first token's time and on each gap (seeded).")
    role_chunk: int = _option(1, "0: none, 1: content '', 2: content null.")
    role_ms: float = _option(0.0, "When the role chunk is sent.")
    tokens_per_chunk: int = _option(1, "Tokens in one chunk.")
    finish: str = _option("own", "finish_reason in a chunk of its own (own) or in the last token's (same).")
    reasoning: int = _option(0, "The first N tokens are reasoning_content.")
    reasoning_key: str = _option("reasoning_content", "Key of the reasoning tokens; newer servers say reasoning.")
    empty_every: int = _option(0, "A chunk with content '' before every N-th token.")
    keepalive_ms: float = _option(0.0, "': ping' comments while the first token is awaited.")
    crlf: int = _option(0, "1: event lines end with CRLF.")
    split: int = _option(0, "1: each write goes out as two TCP segments 1 ms apart.")
    split_after: int = _option(0, "Where --split cuts, in bytes (0: in the middle).")
    coalesce: int = _option(1, "N events are written together, as by a buffering proxy.")
    gzip: int = _option(0, "1: the body is compressed, asked for or not.")
    word: str = _option(" the", "Text of a token.")
    big_chunk_bytes: int = _option(0, "The third token's text is this long.")
    eos_after: int = _option(0, "Natural end at N tokens unless ignore_eos or min_tokens.")
    usage: str = _option("asked", "usage chunk: asked, always, never.")
    prompt_overhead: int = _option(0, "Tokens that usage counts on top of the prompt's words, as a chat template's.")
    slots: int = _option(0, "Streams that run at once, others wait in a FIFO queue (0: no limit): makes a hard knee.")
    slow_first: int = _option(0, "The first N requests are slower by --slow-factor.")
    slow_factor: float = _option(5.0, "Factor on the first token's time of the --slow-first requests.")
    err_every: int = _option(0, "Every N-th request is answered --err-status.")
    err_status: int = _option(503, "Status of --err-every.")
    retry_after: float = _option(0.0, "Retry-After header of --err-every, s.")
    cut_every: int = _option(0, "Every N-th stream: connection closed after 3 tokens.")
    sse_error_every: int = _option(0, "Every N-th stream: an error event after 3 tokens, then [DONE].")
    stall_every: int = _option(0, "Every N-th stream: 2 s without a token after 3 tokens.")
    endless_every: int = _option(0, "Every N-th stream: tokens without end.")
    silent_every: int = _option(0, "Every N-th stream: no token at all, then [DONE].")
    no_done_every: int = _option(0, "Every N-th stream: ends without [DONE].")
    linger_ms: float = _option(0.0, "From [DONE] to the end of the body.")
    seed: int = _option(0, "Seed of the jitter.")
    max_requests: int = _option(200_000, "Ends after so many requests have ended.")
    max_seconds: float = _option(900.0, "Ends after so long.")
    truth_file: str = _option("", "Where the truth is written at the end.")

    def __post_init__(self) -> None:
        if self.host not in ("127.0.0.1", "::1", "localhost"):
            raise InputError(f"--host {self.host}: the mock server is for this machine only; use 127.0.0.1 or ::1")
        for name, known in (("finish", ("own", "same")), ("usage", ("asked", "always", "never"))):
            if getattr(self, name) not in known:
                raise InputError(f"--{name} {getattr(self, name)}: one of {', '.join(known)}")
        for name in ("tokens_per_chunk", "coalesce"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name.replace('_', '-')} {getattr(self, name)}: at least 1")

    def overridden(self, query: str) -> MockOptions:
        """These options with those of a query string; unknown names are ignored. Raises ValueError for a bad number."""
        if not query:
            return self
        changes: dict[str, Any] = {}
        for key, value in parse_qsl(query):
            if key in _KINDS:
                changes[key] = value if _KINDS[key] is str else _KINDS[key](float(value))
        return replace(self, **changes)

    def hits(self, every: int, index: int) -> bool:
        """Whether request `index` (from 1) is one of every N."""
        return every > 0 and index % every == 0


_KINDS: dict[str, Any] = {each.name: type(each.default) for each in fields(MockOptions)}
