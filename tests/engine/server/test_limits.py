"""Clients that send too much, too slowly, too often, or go away: none holds anything, and nothing leaks."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from roofline.engine.engine import Engine, Step
from roofline.engine.server.run import Place
from tests.engine import tiny
from tests.engine.server.serving import model, raw, serving

LONG: dict[str, Any] = {"prompt": tiny.prompt(5, 40), "max_tokens": 200, "temperature": 0}


def test_bodies_that_are_too_long() -> None:
    async def within() -> None:
        async with serving(body_bytes=1 << 20) as client:
            headers = {"Content-Type": "application/json"}
            big = io.BytesIO(json.dumps({"prompt": "a " * (5 << 20)}).encode())
            async with client.session.post(f"{client.url}/v1/completions", data=big, headers=headers) as refused:
                assert (refused.status, (await refused.json())["error"]["type"]) == (413, "invalid_request_error")

            async def pieces() -> Any:
                for _ in range(100):
                    yield b"[" * 100_000

            async with client.session.post(f"{client.url}/v1/completions", data=pieces(), headers=headers) as refused:
                assert refused.status == 413
            assert (await client.post({"prompt": "a", "max_tokens": 1}))[0] == 200

    asyncio.run(within())


def test_headers_and_bodies_that_do_not_come() -> None:
    async def within() -> None:
        async with serving(body_s=0.2, idle_s=0.4, linger_s=0.1) as client:
            assert await raw(client.url, b"") == b""
            assert await raw(client.url, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Slow: " + b"y" * 200, pause_s=0.02) == b""
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{"
            said = await raw(client.url, head)
            assert said.startswith(b"HTTP/1.1 408")
            assert b'"error"' in said

    asyncio.run(within())


@pytest.mark.parametrize(
    "sent",
    [b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n"],
)
def test_what_is_not_http_is_told_so_and_fills_no_log(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def within() -> None:
        async with serving() as client:
            assert (await raw(client.url, sent)).startswith(b"HTTP/1.0 400")
            assert (await client.page("/health"))[0] == 200

    asyncio.run(within())
    assert not caplog.records


def test_what_is_not_json() -> None:
    async def within() -> None:
        async with serving() as client:
            status, answer = await client.post(LONG, headers={"Content-Type": "text/plain"})
            assert (status, answer["error"]["message"]) == (415, "Content-Type is text/plain: send application/json")

    asyncio.run(within())


def test_no_more_answers_than_agreed() -> None:
    async def within() -> None:
        async with serving(most=2) as client:
            running = [asyncio.create_task(client.stream(LONG)) for _ in range(2)]
            while client.service.active < 2:
                await asyncio.sleep(0.001)
            async with client.session.post(f"{client.url}/v1/completions", json=LONG) as refused:
                assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
                assert (await refused.json())["error"]["type"] == "rate_limit_error"
            assert [len((await each).tokens()) for each in running] == [200, 200]
            assert (await client.post({"prompt": "a", "n": 3}))[0] == 429
            assert (
                'admission_rejections_total{engine="0",model_name="tiny",reason="max_concurrent_requests"} 2.0'
                in (await client.page("/metrics"))[1]
            )

    asyncio.run(within())


def test_a_key() -> None:
    async def within() -> None:
        async with serving(key="s3cret") as client:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}, {"Authorization": "Bearer s3cretx"}):
                status, answer = await client.post({"prompt": "a"}, headers=headers)
                assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
            assert (await client.post({"prompt": "a"}, headers={"Authorization": "Bearer s3cret"}))[0] == 200
            assert (await client.page("/v1/models"))[0] == 401
            assert (await client.page("/health"))[0] == (await client.page("/metrics"))[0] == 200

    asyncio.run(within())
    assert "s3cret" not in repr(Place(key="s3cret"))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("after", [0, 1, 20])
def test_a_client_that_goes_away_frees_its_blocks(stream: bool, after: int) -> None:
    """after: steps of the engine before it goes."""

    async def within() -> None:
        async with serving() as client:
            engine, body = client.service.worker.engine, json.dumps(LONG | {"stream": stream, "n": 3, "temperature": 0.5}).encode()
            _, writer = await asyncio.open_connection(*client.url.removeprefix("http://").split(":"))
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            while client.service.active < 3 or (after and min(_generated(engine), default=0) < after):
                await asyncio.sleep(0.001)
            writer.transport.abort()
            await client.idle()
            page = (await client.page("/metrics"))[1]
            assert 'request_success_total{engine="0",finished_reason="abort",model_name="tiny"} 3.0' in page
            assert 'kv_cache_usage_perc{engine="0",model_name="tiny"} 0.0' in page

    asyncio.run(within())


def _generated(engine: Engine) -> list[int]:
    return [len(sequence.tokens) - 40 for sequence in list(engine.sequences.values())]


def test_an_engine_that_fails_tells_everybody(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    served = model()
    healthy = served.engine.step

    def step() -> Step | None:
        if len(served.engine.sequences) > 1:
            raise RuntimeError("out of luck")
        return healthy()

    monkeypatch.setattr(served.engine, "step", step)

    async def within() -> None:
        async with serving(served) as client:
            streamed, (status, answer) = await asyncio.gather(client.stream(LONG), client.post(LONG))
            assert streamed.events[-1]["error"]["type"] == answer["error"]["type"] == "server_error"
            assert (streamed.done, status) == (True, 500)
            assert (await client.page("/health"))[0] == 503
            assert (await client.post(LONG))[0] == 500

    asyncio.run(within())
    assert "RuntimeError: out of luck" in capfd.readouterr().err


def test_the_end_cuts_off_what_is_left() -> None:
    async def within() -> None:
        async with serving() as client:
            cut = asyncio.create_task(client.stream(LONG))
            while client.service.active < 1:
                await asyncio.sleep(0.001)
            await client.service.worker.stop()
            stream = await cut
            assert stream.events[-1]["error"]["type"] == "overloaded_error"
            assert stream.done

    asyncio.run(within())
