"""Servers that are not there, break, or send strange things; nothing is lost and each failure has its name."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from roofline.errors import InputError, RooflineError
from roofline.loadtest import failures, http, lane
from roofline.loadtest.run import LoadTest
from roofline.loadtest.settings import Settings
from tests.loadtest.conftest import Mock, start_mock


def run(url: str, **settings: Any) -> dict[str, Any]:
    values = {"ladder": (2,), "requests_per_stage": 4, "input_tokens": 4, "output_tokens": 4, "warmup": 0, "model": "m"} | settings
    return LoadTest(Settings(url, **values)).run().to_json()


@contextmanager
def raw_server(answer: Callable[[socket.socket], None], host: str = "127.0.0.1") -> Iterator[str]:
    """A server of one connection at a time that answers with bytes of its own; listens on loopback."""
    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=_quietly, args=(answer, connection), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _quietly(answer: Callable[[socket.socket], None], connection: socket.socket) -> None:
    """Pages that the client looks for besides are 404; a client that goes away is no error."""
    try:
        with connection:
            if connection.recv(4, socket.MSG_PEEK) == b"GET ":
                request_of(connection)
                connection.sendall(page(b"", status=404, more=b"Connection: close\r\n"))
            else:
                answer(connection)
    except OSError:
        pass


def request_of(connection: socket.socket) -> bytes:
    """A whole request: head and body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0)
    while len(body) < length:
        body += connection.recv(65536)
    return head


def page(body: bytes, *, status: int = 200, kind: bytes = b"text/event-stream", more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Type: %b\r\n%bContent-Length: %d\r\n\r\n" % (status, kind, more, len(body)) + body


def token(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False).encode() + b"\n\n"


ANSWER = token("a") + token("b") + b"data: [DONE]\n\n"


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_gzip_unicode_and_a_megabyte(mock: Mock, endpoint: str) -> None:
    for options in ({"gzip": 1}, {"word": "日本 é", "split": 1, "split_after": 190}, {"big_chunk_bytes": 1 << 20}, {"linger_ms": 30}):
        found = mock.run(options, endpoint=endpoint).to_json()["stages"][0]
        assert (found["requests_ok"], found["errors"], found["output_tokens"]["mean"]) == (8, {}, 8)


def test_ipv6() -> None:
    try:
        process, server = start_mock("--host", "::1", "--ttft-ms", "5", "--itl-ms", "1")
    except IndexError:
        pytest.skip("no IPv6 here")
    try:
        assert run(server.url)["stages"][0]["requests_ok"] == 4
    finally:
        process.terminate()
        process.communicate(timeout=20)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_no_server_is_one_line() -> None:
    with pytest.raises(RooflineError, match=r"no server at .*connection refused"):
        run(f"http://127.0.0.1:{free_port()}", warmup=1)


def test_no_such_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_name(*args: object, **settings: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "create_connection", no_name)
    with pytest.raises(InputError, match=r"nowhere\.invalid: no such host"):
        run("http://nowhere.invalid", warmup=1)


def test_https_to_a_plain_server(mock: Mock) -> None:
    with pytest.raises(RooflineError, match="TLS does not work"):
        run(mock.url.replace("http://", "https://"), warmup=1)


def test_a_certificate_that_nobody_signed(tmp_path: Any) -> None:
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-keyout", "key.pem", "-out", "cert.pem"], cwd=tmp_path, capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("no openssl here")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            request_of(secure)
            secure.sendall(page(ANSWER))

    with raw_server(answer) as url, pytest.raises(RooflineError, match=r"TLS does not work.*self.signed"):
        run(url.replace("http://127.0.0.1", "https://localhost"), warmup=1)


@pytest.mark.parametrize(
    ("options", "settings", "error", "message"),
    [
        (("--api-key", "right"), {}, InputError, "wants another API key"),
        (("--strict-model", "1"), {}, InputError, "`--model m` is not there"),
        (("--max-model-len", "5"), {}, InputError, "shorten --input-len or --output-len"),
        (("--silent-every", "1"), {}, RooflineError, "no usable answer: no content"),
    ],
)
def test_bad_input_is_one_line(options: tuple[str, ...], settings: dict[str, Any], error: type[Exception], message: str) -> None:
    process, server = start_mock("--ttft-ms", "5", *options)
    try:
        with pytest.raises(error, match=message) as found:
            run(server.url, warmup=1, **settings)
        assert "\n" not in str(found.value)
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_a_wrong_path(mock: Mock) -> None:
    with pytest.raises(InputError, match="there is no /other/v1/chat/completions"):
        run(f"{mock.url}/other", warmup=1)


def test_the_only_model_is_found(mock: Mock) -> None:
    assert run(mock.url, model=None, warmup=1)["model"] == "mock"


def test_a_body_that_never_ends(mock: Mock) -> None:
    def answer(connection: socket.socket) -> None:
        request_of(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + token("a"))
        while True:
            connection.sendall(b": still here\n\n")
            time.sleep(0.01)

    with raw_server(answer) as url:
        found = run(url, timeout_s=0.3)
    assert found["stages"][0]["errors"] == {failures.TIMEOUT: 4}


def test_a_body_that_goes_on_after_done() -> None:
    """The answer is complete at [DONE]; the connection is given up when its body does not end."""

    def answer(connection: socket.socket) -> None:
        request_of(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"%x\r\n%b\r\n" % (len(ANSWER), ANSWER))
        time.sleep(5)

    with raw_server(answer) as url:
        found = run(url, ladder=(2,), requests_per_stage=4, ignore_eos=False)
    assert found["stages"][0]["requests_ok"] == 4


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (page(b"<html>gateway</html>", kind=b"text/html"), failures.NOT_A_STREAM),
        (page(b'{"choices": []}', kind=b"application/json"), failures.NOT_A_STREAM),
        (page(b"data: {oops\n\n"), failures.BAD_EVENT),
        (page(b""), failures.NO_CONTENT),
        (b"SSH-2.0-OpenSSH\r\n\r\n", failures.BAD_HTTP),
        (b"", failures.RESET),
    ],
)
def test_strange_answers(answer: bytes, kind: str) -> None:
    def reply(connection: socket.socket) -> None:
        request_of(connection)
        connection.sendall(answer)

    with raw_server(reply) as url:
        found = run(url)
    assert found["stages"][0]["errors"] == {kind: 4}


def test_a_redirect_is_named() -> None:
    def answer(connection: socket.socket) -> None:
        request_of(connection)
        connection.sendall(page(b"", status=308, more=b"Location: https://elsewhere/v1\r\n"))

    with raw_server(answer) as url, pytest.raises(InputError, match=r"redirects \(308: moved to https://elsewhere/v1\)"):
        run(url, warmup=1)


def test_retry_after_is_respected() -> None:
    """After a 429 that asks for 0.4 s, a stream sends nothing for that long."""
    times: list[float] = []

    def answer(connection: socket.socket) -> None:
        while True:
            request_of(connection)
            times.append(time.monotonic())
            connection.sendall(page(b"{}", status=429, kind=b"application/json", more=b"Retry-After: 0.4\r\n"))

    with raw_server(answer) as url:
        found = run(url, ladder=(1,), requests_per_stage=3)
    assert found["stages"][0]["errors"] == {"429": 3}
    assert min(later - earlier for earlier, later in pairwise(times)) >= 0.39


def test_a_slow_reader() -> None:
    """A server that takes a large request slowly: the client waits without blocking its other streams."""

    def answer(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        data = b""
        while b"\r\n\r\n" not in data:
            data += connection.recv(512)
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        got = len(body)
        while got < length:
            got += len(connection.recv(65536))
            time.sleep(0.002)
        connection.sendall(page(ANSWER))

    with raw_server(answer) as url:
        found = run(url, input_tokens=30_000, ignore_eos=False)
    assert found["stages"][0]["requests_ok"] == 4
    assert found["stages"][0]["client"]["event_loop_lag_s"]["p50"] < 0.05


def test_a_server_that_restarts() -> None:
    """It goes away in the middle of the run and comes back on the same port: the requests meanwhile fail by name, the rest are good."""
    first, server = start_mock("--ttft-ms", "20", "--itl-ms", "2", "--max-requests", "8")
    port = server.url.rsplit(":", 1)[1]

    def restart() -> None:
        first.wait(timeout=30)
        replacement.append(start_mock("--ttft-ms", "20", "--itl-ms", "2", "--port", port)[0])

    replacement: list[subprocess.Popen[str]] = []
    restarting = threading.Thread(target=restart)
    restarting.start()
    found = run(server.url, ladder=(2,), requests_per_stage=100)["stages"][0]
    restarting.join(30)
    replacement[0].terminate()
    replacement[0].communicate(timeout=20)
    first.communicate(timeout=20)
    assert found["requests_ok"] + found["requests_failed"] == 100
    assert found["requests_failed"] >= 1
    assert set(found["errors"]) <= {failures.REFUSED, failures.RESET, failures.CLOSED}
    assert found["requests_ok"] > 50


def test_a_server_that_is_gone_ends_the_run_and_what_was_measured_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "GIVE_UP_S", 0.5)
    server, mock = start_mock("--ttft-ms", "20", "--itl-ms", "2", "--max-requests", "8")
    settings = Settings(mock.url, "mock", ladder=(2, 4), requests_per_stage=1000, input_tokens=8, output_tokens=4, warmup=0, processes=1)
    outcome = LoadTest(settings).run()
    server.communicate(timeout=20)
    assert outcome.interrupted
    assert re.fullmatch(r"2 streams: no connection to the server for \d+ s; \d+ requests were not sent", outcome.broken)
    (stage,) = outcome.stages
    assert stage.data.ok >= 8
    assert not stage.complete


def test_the_client_asks_for_no_compression_and_hides_its_key() -> None:
    heads: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        heads.append(request_of(connection))
        connection.sendall(page(ANSWER))

    with raw_server(answer) as url:
        test = LoadTest(Settings(url, "m", ladder=(1,), requests_per_stage=1, warmup=0, ignore_eos=False), key="secret-key")
        found = test.run()
    assert b"Authorization: Bearer secret-key" in heads[0]
    assert b"Accept-Encoding: identity" in heads[0]
    assert "secret-key" not in json.dumps(found.to_json()) + repr(test._wire)


def test_targets_have_certificates_only_where_needed() -> None:
    assert http.Target.parse("http://x").tls is None
    assert http.Target.parse("https://x").tls is not None
