"""HTTP framing, byte by byte, without a network."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.errors import InputError
from roofline.loadtest import failures
from roofline.loadtest.failures import Failure, of_connecting
from roofline.loadtest.http import Connection, Head, Target


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent, self.aborted = b"", False

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.sent += data

    def abort(self) -> None:
        self.aborted = True


class Taker:
    """A receiver that keeps what it gets."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.body, self.ends = b"", []

    def on_head(self, head: Head, now: float) -> None:
        self.head = head

    def on_body(self, data: bytes, now: float) -> None:
        self.body += data

    def on_end(self, failure: Failure | None, now: float) -> None:
        self.ends.append(failure)


def connected() -> tuple[Connection, Wire, Taker]:
    connection, wire, taker = Connection(), Wire(), Taker()
    connection.connection_made(wire)
    connection.send(b"GET / HTTP/1.1\r\n\r\n", taker)
    return connection, wire, taker


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[low:high] for low, high in pairwise(edges) if low < high]


CUTS = st.lists(st.integers(0, 10_000), max_size=20)
BODY = b"data: one\n\ndata: \xe2\x82\xac two\n\n" + bytes(range(256))


def chunked(body: bytes, sizes: list[int]) -> bytes:
    data, at = b"", 0
    for size in [*sizes, len(body)]:
        part = body[at : at + size]
        if part:
            data += b"%X;ext=1\r\n%b\r\n" % (len(part), part)
        at += len(part)
    return data + b"0\r\n"


@given(CUTS, st.lists(st.integers(1, 60), max_size=8), st.sampled_from([b"\r\n", b"X-Trailer: 1\r\n\r\n"]))
def test_chunked_bodies(cuts: list[int], sizes: list[int], trailer: bytes) -> None:
    connection, _, taker = connected()
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(BODY, sizes) + trailer
    for piece in pieces(answer, cuts):
        assert taker.ends == []
        connection.data_received(piece)
    assert (taker.body, taker.ends) == (BODY, [None])
    assert connection.usable


@given(CUTS)
def test_two_answers_on_one_connection(cuts: list[int]) -> None:
    connection, _, first = connected()
    answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nContent-Type: text/plain\r\n\r\nhello"
    for piece in pieces(answer, cuts):
        connection.data_received(piece)
    second = Taker()
    connection.send(b"", second)
    connection.data_received(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n")
    assert (first.head.status, first.body, first.ends) == (404, b"hello", [None])
    assert (second.head.status, second.body, second.ends) == (204, b"", [None])


@given(CUTS, st.booleans())
def test_compressed_bodies(cuts: list[int], as_gzip: bool) -> None:
    connection, _, taker = connected()
    coding, data = (b"gzip", gzip.compress(BODY)) if as_gzip else (b"deflate", zlib.compress(BODY))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (coding, len(data))
    for piece in pieces(head + data, cuts):
        connection.data_received(piece)
    assert (taker.body, taker.ends) == (BODY, [None])


def test_a_body_until_the_connection_closes() -> None:
    connection, _, taker = connected()
    connection.data_received(b"HTTP/1.0 200 OK\r\n\r\nhello")
    assert taker.ends == []
    connection.connection_lost(None)
    assert (taker.body, taker.ends) == (b"hello", [None])
    assert not connection.usable


def test_interim_answers_are_passed_over() -> None:
    connection, _, taker = connected()
    connection.data_received(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert (taker.head.status, taker.body) == (200, b"ok")


def test_connection_close_is_honoured() -> None:
    connection, wire, taker = connected()
    connection.data_received(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
    assert taker.ends == [None]
    assert wire.aborted
    assert not connection.usable


@pytest.mark.parametrize(
    ("data", "error", "kind"),
    [
        (b"", None, failures.RESET),
        (b"", OSError("broken"), failures.RESET),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", None, failures.CLOSED),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", None, failures.CLOSED),
        (b"HTTP/1.1 200 OK\r\nContent-Le", None, failures.CLOSED),
    ],
)
def test_connections_that_break(data: bytes, error: Exception | None, kind: str) -> None:
    connection, _, taker = connected()
    if data:
        connection.data_received(data)
    connection.connection_lost(error)
    assert [failure.kind for failure in taker.ends] == [kind]


@pytest.mark.parametrize(
    "data",
    [
        b"\x15\x03\x01\x00\x02",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 two OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx" + b"",
    ],
)
def test_what_is_not_http_is_one_failure(data: bytes) -> None:
    connection, wire, taker = connected()
    connection.data_received(data)
    if not taker.ends:
        connection.connection_lost(None)
    assert len(taker.ends) == 1
    if taker.ends[0] is not None:
        assert taker.ends[0].kind in (failures.BAD_HTTP, failures.CLOSED)
        assert wire.aborted


def test_a_released_answer_is_read_to_its_end() -> None:
    connection, _, taker = connected()
    connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
    connection.release()
    assert connection.draining
    connection.data_received(b"4\r\nmore\r\n0\r\n\r\n")
    assert connection.usable
    assert (taker.body, taker.ends) == (b"ok", [])


@pytest.mark.parametrize(
    ("url", "authority", "api", "root"),
    [
        ("http://localhost:8000", "localhost:8000", "/v1", ""),
        ("localhost:8000", "localhost:8000", "/v1", ""),
        ("http://localhost:8000/v1/", "localhost:8000", "/v1", ""),
        ("http://localhost:8000/v1/chat/completions", "localhost:8000", "/v1", ""),
        ("http://[::1]:81/", "[::1]:81", "/v1", ""),
        ("https://example.org/openai/v1", "example.org", "/openai/v1", "/openai"),
        ("http://example.org", "example.org", "/v1", ""),
    ],
)
def test_targets(url: str, authority: str, api: str, root: str) -> None:
    target = Target.parse(url)
    assert (target.authority, target.api, target.root) == (authority, api, root)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:port", "http://me:secret@x", "http://x/?a=1"])
def test_targets_that_are_none(url: str) -> None:
    with pytest.raises(InputError) as error:
        Target.parse(url)
    assert "secret" not in str(error.value)


def test_errors_of_connecting_have_names() -> None:
    assert of_connecting(ConnectionRefusedError()).kind == failures.REFUSED
    assert of_connecting(OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 111] …")).kind == failures.REFUSED
    assert of_connecting(TimeoutError()).kind == failures.UNREACHED
    assert of_connecting(ConnectionResetError()).kind == failures.RESET
    assert of_connecting(OSError("no route")).kind == failures.NETWORK
