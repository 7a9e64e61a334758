"""The mock server says what it did, also at its end."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from roofline.errors import InputError
from roofline.loadtest.mock import MockOptions
from tests.loadtest.conftest import start_mock


def post(url: str, body: dict[str, Any], **headers: str) -> Any:
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)  # noqa: S310 - our own server
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        return answer.read()


@pytest.mark.parametrize("ends", ["requests", "signal", "time"])
def test_the_truth_is_written_however_it_ends(tmp_path: Path, ends: str) -> None:
    path = tmp_path / "truth.json"
    options = {"requests": ("--max-requests", "2"), "signal": (), "time": ("--max-seconds", "3")}[ends]
    process, server = start_mock("--ttft-ms", "5", "--itl-ms", "1", "--truth-file", str(path), *options)
    for _ in range(2):
        post(server.url, {"model": "mock", "messages": [{"role": "user", "content": "a b c"}], "max_tokens": 4, "stream": True})
    if ends == "signal":
        process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0
    truth = json.loads(path.read_text())
    assert (truth["n"], truth["done"]) == (2, 2)
    for request in truth["requests"]:
        assert (request["end"], request["n_in"], request["n_out"], request["sent"]) == ("ok", 3, 4, 4)
        assert request["t_first_write"] - request["t0"] >= 0.005
        assert request["t_last_write"] - request["t0"] >= 0.008


def test_options_by_request_and_whole_answers() -> None:
    process, server = start_mock("--ttft-ms", "5", "--itl-ms", "1")
    try:
        whole = json.loads(post(server.url, {"model": "x", "messages": [{"content": "a b"}], "max_tokens": 3}))
        assert whole["choices"][0]["message"]["content"] == " the the the"
        assert whole["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
        body = {"model": "x", "messages": [{"content": "a"}], "max_tokens": 2, "stream": True}
        assert b"data: [DONE]\r\n\r\n" in post(server.url, body, **{"x-mock": "crlf=1"})
        with pytest.raises(urllib.error.HTTPError, match="418"):
            post(server.url, body | {"model": "x?err_every=1&err_status=418"})
        with pytest.raises(urllib.error.HTTPError, match="400"):
            post(server.url, body | {"model": "x?ttft_ms=soon"})
        for messages in (3, ["a"], [{"content": 7}]):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                post(server.url, body | {"messages": messages})
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.mark.parametrize("options", [{"host": "0.0.0.0"}, {"finish": "never"}, {"usage": "maybe"}, {"coalesce": 0}])  # noqa: S104 - refused
def test_options_that_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="--"):
        MockOptions(**options)
