"""`roofline serve` as a process: where it listens, how it ends, what it says when it cannot start, and clients that others wrote."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import CHECKOUT, PROGRAM, Cli, cli, process
from tests.engine import tiny

__all__ = ["cli"]

PROFILE = """
name: tiny
model_type: llama
source: "this test"
hidden_size: 32
vocab_size: 61
max_position_embeddings: 256
layers:
  a:
    mixer: {kind: attention, heads: 4, kv_heads: 2, head_dim: 8}
    ffn: {kind: mlp, intermediate: 40}
order: 2*a
"""
OPTIONS = ("--port", "0", "--dtype", "fp64", "--threads", "1", "--block-size", "4", "--kv-blocks", "256")
PROMPT = tiny.prompt(1, 9)


@contextlib.contextmanager
def started(folder: Path, *options: str, **env: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command and its address; killed at the end if it still runs."""
    (folder / "tiny.yaml").write_text(PROFILE)
    command = [*PROGRAM, "serve", str(folder / "tiny.yaml"), *OPTIONS, *options]
    env = os.environ | {"PYTHONPATH": str(CHECKOUT)} | env
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line.startswith("serving tiny on http://"), server.communicate(timeout=20)
            yield server, line.split()[3]
        finally:
            server.kill()


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310
    return urllib.request.urlopen(request, timeout=60)  # noqa: S310 - our own server


def own_address() -> str | None:
    """An address of this machine that is not loopback, if it has one. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        address: str = probe.getsockname()[0]
        return None if address.startswith("127.") else address
    return None


def reaches(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=2):
        return True
    return False


def test_loopback_and_a_signal_that_drains(tmp_path: Path) -> None:
    with started(tmp_path) as (server, url):
        port = int(url.rsplit(":", 1)[1])
        assert reaches("127.0.0.1", port)
        if address := own_address():
            assert not reaches(address, port)
        body = {"prompt": PROMPT, "max_tokens": 240, "temperature": 0, "stream": True, "return_token_ids": True}
        with post(url, body) as answer:
            first = answer.readline()
            server.send_signal(signal.SIGTERM)
            while reaches("127.0.0.1", port):
                time.sleep(0.01)
            events = [line[6:].strip() for line in [first, *answer] if line.startswith(b"data: ")]
        assert events[-1] == b"[DONE]"
        tokens = [token for event in events[:-1] for token in json.loads(event)["choices"][0]["token_ids"]]
        assert len(tokens) == 240
        assert server.wait(20) == 0


def test_beyond_loopback_only_when_told_and_with_a_warning(tmp_path: Path) -> None:
    with started(tmp_path, "--host", "0.0.0.0", ROOFLINE_API_KEY="s3cret") as (server, url):  # noqa: S104 - what is tested
        with pytest.raises(urllib.error.HTTPError, match="401"):
            post(url.replace("0.0.0.0", "127.0.0.1"), {"prompt": PROMPT})  # noqa: S104
        server.terminate()
        out, err = server.communicate(timeout=20)
        assert "warning: 0.0.0.0 is reachable from other machines, with an API key" in err
        assert "s3cret" not in out + err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("tiny-llama-15m", "--kv-blocks", "5", "--max-model-len", "100"), "5 KV blocks of 16 tokens hold 64"),
        (("tiny-llama-15m", "--tokenizer", "nowhere.json"), "nowhere.json: there is no such file"),
        (("tiny-llama-15m", "--dtype", "int3"), "int3"),
        (("gpt2",), "the engine does not run 'gpt2' models"),
        (("tiny-llama-15m", "--port", "70000"), "less than or equal to 65535"),
    ],
)
def test_what_cannot_be_served_ends_with_2_and_the_reason(cli: Cli, options: tuple[str, ...], says: str) -> None:
    done = cli("serve", *options)
    assert done.code == 2
    assert says in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(("missing", "extra"), [("torch", "gpu,serve"), ("aiohttp", "serve"), ("prometheus_client", "serve")])
def test_what_is_not_installed_is_named_in_one_line(missing: str, extra: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from roofline.cli.main import run; run(['serve', 'tiny-llama-15m'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=CHECKOUT, timeout=60)
    assert done.returncode == 2
    assert done.stderr == f"error: serve needs {missing}, which is not installed: pip install 'roofline[{extra}]'\n"


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(PROFILE)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = process("serve", str(tmp_path / "tiny.yaml"), *OPTIONS, "--port", port)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr.splitlines()[-1]


def test_the_official_client_and_our_load_test(tmp_path: Path, cli: Cli) -> None:
    with started(tmp_path) as (_, url):
        done = cli("loadtest", url, "--ladder", "1,4", "--requests-per-stage", "8", "--input-len", "20", "--output-len", "6", "--json")
        assert done.code in (0, 4), done.err  # 4: this machine is too busy for the client's taste
        assert [stage["requests_failed"] for stage in done.json["stages"]] == [0, 0]
        openai = pytest.importorskip("openai")
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        assert client.models.list().data[0].id == "tiny"
        expected = " ".join(f"t{token}" for token in tiny.alone("llama", tuple(PROMPT), 5))
        whole = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=5, temperature=0)
        assert (whole.choices[0].text, whole.usage.completion_tokens) == (expected, 5)
        chunks = list(client.completions.create(model="tiny", prompt=PROMPT, max_tokens=5, temperature=0, stream=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == expected
        said = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hello"}], max_completion_tokens=3)
        assert len(said.choices[0].message.content.split()) == 3
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            client.completions.create(model="tiny", prompt="x", max_tokens=10**6)
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.completions.create(model="other", prompt="x")
        client.close()
