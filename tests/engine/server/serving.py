"""A server on the tiny model inside the test, with whatever bounds it needs, and clients that read its answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from roofline.engine.server.run import Model, Place, build, listening
from roofline.engine.server.service import Bounds, Service
from roofline.engine.server.text import Text, WordText
from roofline.scheduling import VllmConfig
from tests.engine import tiny

CONFIG = VllmConfig(max_num_batched_tokens=32, max_num_seqs=8)


def model(
    text: Text | None = None, *, config: VllmConfig = CONFIG, speculation: Any = None, prefix_caching: bool = True, **options: Any
) -> Model:
    """The tiny model, its blocks checked after every step."""
    setup = tiny.setup(**options)
    return build(setup, text or WordText(tiny.VOCAB), config, prefix_caching=prefix_caching, debug=True)


@dataclass(frozen=True)
class Stream:
    """A streamed answer. texts, tokens: of each choice; done: whether it said so."""

    status: int
    events: list[dict[str, Any]]
    done: bool

    def choice(self, index: int = 0) -> list[dict[str, Any]]:
        return [each for event in self.events for each in event["choices"] if each["index"] == index]

    def text(self, index: int = 0) -> str:
        return "".join(each.get("text") or each.get("delta", {}).get("content", "") for each in self.choice(index))

    def tokens(self, index: int = 0) -> list[int]:
        return [token for each in self.choice(index) for token in each["token_ids"]]


@dataclass(frozen=True)
class Client:
    """Talks to a server. paths: completions, chat."""

    url: str
    service: Service
    session: aiohttp.ClientSession

    async def post(self, body: Any, path: str = "completions", **settings: Any) -> tuple[int, dict[str, Any]]:
        """Status and JSON of an answer that is not streamed."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | settings.pop("headers", {})
        async with self.session.post(f"{self.url}/v1/{path}", data=raw, headers=headers, **settings) as answer:
            return answer.status, await answer.json()

    async def stream(self, body: dict[str, Any], path: str = "completions") -> Stream:
        """A streamed answer, read to its end, with token ids and usage."""
        asked = {"stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}} | body
        async with self.session.post(f"{self.url}/v1/{path}", json=asked) as answer:
            lines = (await answer.text()).split("\n\n")
        said = [line.removeprefix("data: ") for line in lines if line]
        return Stream(answer.status, [json.loads(each) for each in said if each != "[DONE]"], said[-1] == "[DONE]")

    async def page(self, path: str) -> tuple[int, str]:
        """Status and text of a page."""
        async with self.session.get(self.url + path) as answer:
            return answer.status, await answer.text()

    async def idle(self) -> None:
        """Returns when no request is left in the engine; fails if there still is one after some seconds, or a block that is held."""
        engine = self.service.worker.engine
        for _ in range(500):
            if not self.service.active and not engine.busy:
                break
            await asyncio.sleep(0.01)
        pool = engine.scheduler.pool  # type: ignore[attr-defined]
        assert (self.service.active, engine.busy, pool.num_free) == (0, False, pool.num_usable)


@contextlib.asynccontextmanager
async def serving(served: Model | None = None, *, key: str = "", **bounds: Any) -> AsyncIterator[Client]:
    """A server and a client of it."""
    place = Place(port=0, name="tiny", key=key)
    async with listening(served or model(), place, Bounds(**bounds)) as server, aiohttp.ClientSession() as session:
        yield Client(server.url, server.service, session)


async def raw(url: str, sent: bytes, *, pause_s: float = 0.0) -> bytes:
    """What a server says to bytes on a connection until it closes it; byte by byte if there is a pause."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answer = asyncio.create_task(reader.read())
    for piece in [sent] if not pause_s else [sent[at : at + 1] for at in range(len(sent))]:
        if answer.done():
            break
        with contextlib.suppress(ConnectionError):
            writer.write(piece)
            await writer.drain()
        await asyncio.sleep(pause_s)
    said = await asyncio.wait_for(answer, 20)
    writer.close()
    return said
