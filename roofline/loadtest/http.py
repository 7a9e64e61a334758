"""HTTP/1.1 to one server with a time stamp on every packet: the smallest client that does not disturb what it measures.

The standard library's event loop hands each packet to `Connection.data_received`; nothing stands between that and the time
stamp: no task is woken, no stream buffer is filled. A general client costs several times as much per packet, and at hundreds of
streams that cost is what its percentiles show (docs/how-to/load-test.md has the comparison).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from dataclasses import dataclass
from functools import cached_property
from time import monotonic
from typing import Protocol
from urllib.parse import urlsplit

from roofline.errors import InputError
from roofline.loadtest.failures import BAD_HTTP, CLOSED, RESET, TLS, Failure, of_connecting

_MOST_HEAD_BYTES = 1 << 18
_EMPTY = b"\r\n\r\n"


@dataclass(frozen=True)
class Target:
    """Where requests go. prefix: path before the API's own paths, "" or like "/v1"."""

    secure: bool
    host: str
    port: int
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Target:
        """A server's root or its /v1, as people type it. Raises InputError that says what is wrong."""
        text = url if "//" in url else f"http://{url}"
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise InputError(f"{url}: {error}; write http://HOST:PORT") from None
        if parts.scheme not in ("http", "https"):
            raise InputError(f"{url}: {parts.scheme}:// is not served here; write http://HOST:PORT or https://HOST")
        if not parts.hostname:
            raise InputError(f"{url}: no host in it; write http://HOST:PORT")
        if parts.username or parts.password:
            raise InputError(f"{parts.hostname}: no user or password in the URL; keys come from the environment (--api-key-env)")
        if parts.query or parts.fragment:
            raise InputError(f"{url}: leave out what follows the path")
        secure = parts.scheme == "https"
        path = parts.path.rstrip("/")
        for ending in ("/chat/completions", "/completions"):
            path = path.removesuffix(ending)
        return cls(secure, parts.hostname, port or (443 if secure else 80), path)

    @property
    def root(self) -> str:
        """Path before /metrics and /health: the prefix without its /v1."""
        return self.prefix.removesuffix("/v1")

    @property
    def api(self) -> str:
        """Path before /chat/completions: the prefix with /v1."""
        return f"{self.root}/v1"

    @property
    def authority(self) -> str:
        """host:port as the Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The address for messages."""
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.prefix}"

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        """The system's certificates (SSL_CERT_FILE adds others), or None for plain HTTP."""
        return ssl.create_default_context() if self.secure else None


class Receiver(Protocol):
    """Whoever wants a response."""

    def on_head(self, head: Head, now: float) -> None:
        """Status line and headers are complete."""

    def on_body(self, data: bytes, now: float) -> None:
        """More of the body, decoded. May raise Failure, which ends the response."""

    def on_end(self, failure: Failure | None, now: float) -> None:
        """The response is complete, or will never be."""


@dataclass(frozen=True)
class Head:
    """Status and headers (lower-case names) of a response."""

    status: int
    headers: dict[str, str]


class Connection(asyncio.Protocol):
    """One connection: a request, its response, then perhaps the next."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._buffer = b""
        self._read = self._read_head
        self._left = 0
        self._keep = True
        self._inflate: zlib._Decompress | None = None  # the only name of the type

    @classmethod
    async def open(cls, target: Target, timeout_s: float) -> Connection:
        """A connection to the server. Raises Failure."""
        loop = asyncio.get_running_loop()
        try:
            connecting = loop.create_connection(cls, target.host, target.port, ssl=target.tls)
            _, connection = await asyncio.wait_for(connecting, timeout_s)
        except (TimeoutError, OSError, UnicodeError) as error:
            failure = of_connecting(error)
            if target.secure and failure.kind == RESET:
                failure = Failure(TLS, "the server ended the handshake")
            raise failure from None
        return connection

    @property
    def usable(self) -> bool:
        """Whether the next request may go out: open, and nothing outstanding."""
        return self._transport is not None and self._receiver is None and self._read == self._read_head

    @property
    def draining(self) -> bool:
        """The receiver has all it wanted, but the body has not ended."""
        return self._transport is not None and self._receiver is None and self._read != self._read_head

    def send(self, request: bytes, receiver: Receiver) -> None:
        """Sends a request whose response goes to `receiver`."""
        assert self._transport is not None  # noqa: S101 - callers ask `usable`
        self._receiver = receiver
        self._transport.write(request)

    def release(self) -> None:
        """The receiver has all it wanted: the rest of the body is read and dropped."""
        self._receiver = None

    def close(self) -> None:
        """Cuts the connection; a response under way ends without a word."""
        self._receiver = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - a stream connection has no other
        self._transport = transport
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop: the peer closed, or something broke."""
        self._transport = None
        if self._receiver is None:
            return
        if self._read == self._read_until_close and exc is None:
            self._end(None, monotonic())
        elif self._read == self._read_head and not self._buffer:
            self._end(Failure(RESET, "closed before any answer" if exc is None else str(exc)), monotonic())
        else:
            self._end(Failure(CLOSED, "" if exc is None else str(exc)), monotonic())

    def data_received(self, data: bytes) -> None:
        """Called by the event loop with each packet."""
        now = monotonic()
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        try:
            while data:
                data = self._read(data, now)
        except Failure as failure:
            self._fail(failure, now)
        except (ValueError, zlib.error) as error:
            self._fail(Failure(BAD_HTTP, str(error)), now)

    def _fail(self, failure: Failure, now: float) -> None:
        receiver, self._receiver = self._receiver, None
        self.close()
        if receiver is not None:
            receiver.on_end(failure, now)

    def _read_head(self, data: bytes, now: float) -> bytes:
        end = data.find(_EMPTY)
        if end < 0:
            if len(data) > _MOST_HEAD_BYTES or not data.startswith(b"HTTP/"[: len(data)]):
                raise Failure(BAD_HTTP, f"the answer begins with {data[:20]!r}")
            self._buffer = data
            return b""
        if self._receiver is None:
            raise Failure(BAD_HTTP, "an answer that nobody asked for")
        head, version = _parse_head(data[:end])
        if 100 <= head.status < 200:
            return data[end + 4 :]
        self._keep = head.headers.get("connection", "keep-alive" if version == "HTTP/1.1" else "close").lower() != "close"
        coding = head.headers.get("content-encoding", "identity")
        if coding not in ("identity", "gzip", "deflate"):
            raise Failure(BAD_HTTP, f"content-encoding {coding} was not asked for")
        self._inflate = None if coding == "identity" else zlib.decompressobj(47)
        self._receiver.on_head(head, now)
        if "chunked" in head.headers.get("transfer-encoding", ""):
            self._read, self._left = self._read_chunks, 0
        elif "content-length" in head.headers:
            self._read, self._left = self._read_length, int(head.headers["content-length"])
            if self._left == 0:
                self._end(None, now)
        else:
            self._read, self._keep = self._read_until_close, False
        return data[end + 4 :]

    def _read_chunks(self, data: bytes, now: float) -> bytes:
        """Chunked coding; _left: bytes still to come of the current chunk and its line end."""
        parts: list[bytes] = []
        at, length = 0, len(data)
        while at < length:
            if self._left:
                stop = min(at + self._left, length)
                body = min(stop, at + self._left - 2)
                self._left -= stop - at
                if body > at:
                    parts.append(data[at:body])
                at = stop
                continue
            line = data.find(b"\r\n", at)
            if line < 0:
                if length - at > 1024:
                    raise Failure(BAD_HTTP, "a chunk without a size")
                break
            size = int(data[at:line].split(b";", 1)[0], 16)
            if size == 0:
                self._give(b"".join(parts), now)
                self._read = self._read_trailer
                return data[line:]
            at, self._left = line + 2, size + 2
        self._buffer = data[at:]
        self._give(parts[0] if len(parts) == 1 else b"".join(parts), now)
        return b""

    def _read_trailer(self, data: bytes, now: float) -> bytes:
        """What follows the last chunk's size: its line end, then trailer fields, then an empty line."""
        end = data.find(_EMPTY)
        if end < 0:
            self._buffer = data
            return b""
        self._end(None, now)
        return data[end + 4 :]

    def _read_length(self, data: bytes, now: float) -> bytes:
        body, rest = data[: self._left], data[self._left :]
        self._left -= len(body)
        self._give(body, now)
        if self._left == 0:
            self._end(None, now)
        return rest

    def _read_until_close(self, data: bytes, now: float) -> bytes:
        self._give(data, now)
        return b""

    def _give(self, data: bytes, now: float) -> None:
        if self._inflate is not None:
            data = self._inflate.decompress(data)
        if data and self._receiver is not None:
            self._receiver.on_body(data, now)

    def _end(self, failure: Failure | None, now: float) -> None:
        receiver, self._receiver = self._receiver, None
        self._read, self._inflate = self._read_head, None
        if failure is not None or not self._keep:
            self.close()
        if receiver is not None:
            receiver.on_end(failure, now)


def _parse_head(data: bytes) -> tuple[Head, str]:
    lines = data.decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    if not version.startswith("HTTP/1."):
        raise Failure(BAD_HTTP, f"the answer begins with {lines[0][:40]!r}")
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Head(int(rest[:3]), headers), version
