"""The kinds of failure that a request can end in, in the words that results use."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl

CLOSED = "connection closed mid-stream"
ERROR_EVENT = "error event in stream"
NO_CONTENT = "no content"
NOT_A_STREAM = "not a stream"
BAD_EVENT = "malformed event"
BAD_HTTP = "malformed HTTP"
TIMEOUT = "timeout"
UNREACHED = "no connection in time"
ENDLESS = "endless stream"
REFUSED = "connection refused"
RESET = "connection reset"
NO_NAME = "name not found"
TLS = "TLS error"
NETWORK = "network error"

NO_CONNECTION = frozenset({REFUSED, RESET, UNREACHED, NO_NAME, TLS, NETWORK})


class Failure(Exception):  # noqa: N818 - kept in results as often as it is raised
    """A request that failed. kind: one of the above, or an HTTP status as text; detail: what was said about it."""

    def __init__(self, kind: str, detail: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind, self.detail, self.retry_after_s = kind, detail, retry_after_s


def of_connecting(error: BaseException) -> Failure:
    """The failure that an error while connecting stands for."""
    if isinstance(error, socket.gaierror):
        return Failure(NO_NAME, error.strerror or str(error))
    if isinstance(error, ssl.SSLError):
        return Failure(TLS, getattr(error, "verify_message", "") or error.reason or str(error))
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return Failure(UNREACHED)
    if isinstance(error, ConnectionRefusedError):
        return Failure(REFUSED)
    if isinstance(error, ConnectionError):
        return Failure(RESET, str(error))
    text = str(error)
    if f"[Errno {errno.ECONNREFUSED}]" in text:  # several addresses were tried: the errors come as one text
        return Failure(REFUSED)
    return Failure(NETWORK, text)
