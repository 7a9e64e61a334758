"""The mock server's HTTP: raw asyncio, a few µs per written token, so that the server is not what distorts the latencies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from roofline.errors import RooflineError
from roofline.loadtest.mock.options import MockOptions
from roofline.loadtest.mock.state import State
from roofline.loadtest.mock.stream import Stream

GRACE_S = 1.0
"""From the last of --max-requests to the end: time to ask for the truth."""
_API = ("/v1/chat/completions", "/v1/completions", "/chat/completions", "/completions")
_HEALTH = ("/health", "/version", "/ping", "/v1/health", "/v1/health/ready", "/info", "/get_server_info")


class MockServer:
    """Use as an async context: listens inside it; `port` is the one it got; `done` is set after the last request that it takes."""

    def __init__(self, options: MockOptions) -> None:
        self.state = State(options)
        self.done = asyncio.Event()
        self.port = options.port
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> MockServer:
        options = self.state.options
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: Connection(self), options.host, options.port, backlog=4096)
        except OSError as error:
            raise RooflineError(f"cannot listen on {options.host}:{options.port}: {error.strerror}") from None
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None  # noqa: S101 - entered before it is left
        self._server.close()
        for connection in list(self._connections):
            connection.abort()
        if self.state.options.truth_file:
            _write_whole(Path(self.state.options.truth_file), json.dumps(self.state.report()))

    def connected(self, connection: Connection) -> None:
        """A client came."""
        self._connections.add(connection)

    def disconnected(self, connection: Connection) -> None:
        """A client went."""
        self._connections.discard(connection)

    def request_ended(self) -> None:
        """Called once for every API request."""
        self.state.ended += 1
        if self.state.ended == self.state.options.max_requests:
            asyncio.get_running_loop().call_later(GRACE_S, self.done.set)


class Connection(asyncio.Protocol):
    """One client: requests one after the other, answers in the same order."""

    def __init__(self, server: MockServer) -> None:
        self.server, self.state = server, server.state
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - a stream connection has no other
        self._transport = transport
        transport.set_write_buffer_limits(high=1 << 22)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self.closed = True
        self.server.disconnected(self)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._buffer += data
        self._take()

    def write(self, data: bytes) -> None:
        """Sends bytes unless the client has gone."""
        if not self.closed and self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Closes after what was written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes at once."""
        if self._transport is not None:
            self._transport.abort()

    def answered(self) -> None:
        """The answer is complete: the next request may be read."""
        self._busy = False
        if self._buffer and not self.closed:
            self._take()

    def answer(self, body: Any, status: int = 200, kind: str = "application/json", more: str = "") -> None:
        """A whole answer at once. more: further header lines."""
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n{more}\r\n"
        self.write(head.encode() + data)
        self.answered()

    def _take(self) -> None:
        """Handles the request in the buffer if it is complete."""
        if self._busy:
            return
        if self._buffer and not 65 <= self._buffer[0] <= 90:  # no method begins so: TLS, most likely
            self.abort()
            return
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        body = self._body(end + 4, headers)
        if body is None:
            return
        method, path, _ = lines[0].split(" ", 2)
        self._busy = True
        self._handle(method, path.split("?")[0], headers, body)

    def _body(self, start: int, headers: dict[str, str]) -> bytes | None:
        """Takes a complete request out of the buffer and returns its body; None while it is not complete."""
        if "chunked" not in headers.get("transfer-encoding", ""):
            stop = start + int(headers.get("content-length", 0))
            if len(self._buffer) < stop:
                return None
            body = bytes(self._buffer[start:stop])
            del self._buffer[:stop]
            return body
        body, at = b"", start
        while True:
            line = self._buffer.find(b"\r\n", at)
            size = int(self._buffer[at:line], 16) if line >= 0 else 0
            if line < 0 or len(self._buffer) < line + 2 + size + 2:
                return None
            body += self._buffer[line + 2 : line + 2 + size]
            at = line + 2 + size + 2
            if size == 0:
                del self._buffer[:at]
                return body

    def _handle(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        if path in _API and method == "POST":
            self._generate(path, headers, body)
        elif path == "/mock/truth":
            self.answer(self.state.report())
        elif path == "/mock/reset":
            self.state.reset()
            self.answer({})
        elif path == "/metrics":
            self.answer(self.state.metrics(), kind="text/plain; version=0.0.4")
        elif path in ("/v1/models", "/models"):
            options = self.state.options
            model = {"id": options.model, "object": "model", "created": 0, "owned_by": "mock", "max_model_len": options.max_model_len}
            self.answer({"object": "list", "data": [model]})
        elif path == "/tokenize":
            self.answer({"count": len(body.split())})
        elif path in _HEALTH or path == "/reset_prefix_cache":
            self.answer({"version": "mock", "status": "ok"})
        else:
            self.answer(_error("not found", 404), 404)

    def _generate(self, path: str, headers: dict[str, str], body: bytes) -> None:
        arrival = monotonic()
        options = self.state.options
        try:
            request = json.loads(body)
            options = options.overridden(headers.get("x-mock") or str(request.get("model", "")).partition("?")[2])
        except (ValueError, AttributeError) as error:
            return self.answer(_error(f"bad request: {error}", 400), 400)
        if options.api_key and headers.get("authorization") != f"Bearer {options.api_key}":
            return self.answer(_error("invalid API key", 401), 401)
        name = str(request.get("model", "")).partition("?")[0]
        if options.strict_model and name != options.model:
            return self.answer(_error(f"The model `{name}` does not exist.", 404), 404)
        try:
            stream = Stream(self, options, request, headers, arrival, chat="chat" in path)
        except (AttributeError, TypeError, ValueError) as error:
            return self.answer(_error(f"bad request: {error}", 400), 400)
        if stream.too_long:
            total = f"{stream.prompt_tokens} in the messages, {stream.tokens} in the completion"
            return self.answer(_error(f"maximum context length is {options.max_model_len} tokens, requested {total}", 400), 400)
        return stream.arrive()


def _error(message: str, code: int) -> dict[str, Any]:
    kinds = {400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError"}
    return {"error": {"message": message, "type": kinds.get(code, "ServiceUnavailable"), "code": code}}


def _write_whole(path: Path, text: str) -> None:
    """Writes beside `path` and renames, so that a reader never sees half of it."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.resolve().parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(text)
    os.replace(file.name, path)


async def serve(options: MockOptions, say: Callable[[str], None] = lambda text: print(text, file=sys.stdout, flush=True)) -> None:
    """Runs a server until a signal, --max-requests or --max-seconds; the truth file is written in each case."""
    loop = asyncio.get_running_loop()
    async with MockServer(options) as server:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.done.set)
        host = f"[{options.host}]" if ":" in options.host else options.host
        say(f"mock on http://{host}:{server.port} (pid {os.getpid()})")
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(server.done.wait(), options.max_seconds)
