"""From a checked set-up to a server that listens, and to its end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from roofline.engine.build import Setup, build_engine
from roofline.engine.engine import Engine
from roofline.engine.server.asked import Limits
from roofline.engine.server.metrics import CacheConfig, Metrics
from roofline.engine.server.service import Bounds, Service
from roofline.engine.server.text import Text
from roofline.engine.server.worker import Worker
from roofline.errors import RooflineError
from roofline.scheduling import VllmConfig

_SWITCH_S = 5e-4
_COLLECT = (2000, 5, 2)
_CLOSE_S = 2.0
_LOG = logging.getLogger(__name__)
# Who sends no HTTP is told so with status 400: what strangers send is no fault of this program and fills no log.
_LOG.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))


@dataclass(frozen=True)
class Place:
    """Where and as what the server is found. port 0: a free one. key: see Service; in no repr. drain_s: from a signal to the end of
    the answers that are then in the making."""

    host: str = "127.0.0.1"
    port: int = 8000
    name: str = ""
    key: str = field(default="", repr=False)
    drain_s: float = 30.0

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return self.host == "localhost"


@dataclass(frozen=True)
class Model:
    """What is served. max_model_len: tokens of the longest sequence."""

    engine: Engine
    cache: CacheConfig
    text: Text
    max_model_len: int


def build(setup: Setup, text: Text, config: VllmConfig, *, prefix_caching: bool = True, debug: bool = False) -> Model:
    """The engine, warm: a prompt has passed through it, and nothing of it is left. debug: see Engine."""
    engine = build_engine(setup, setup.scheduler(config, prefix_caching=prefix_caching), debug=debug)
    engine.add_request("warm-up", [0] * min(8, setup.positions - 1), 1)
    while engine.step() is not None:
        pass
    how = setup.options
    return Model(engine, CacheConfig(how.block_size, how.num_blocks, how.kv or how.dtype, prefix_caching), text, setup.positions)


@dataclass(frozen=True)
class Listening:
    """A server that answers. ended: set when the engine has failed."""

    service: Service
    site: web.TCPSite
    url: str
    ended: asyncio.Event


@contextlib.asynccontextmanager
async def listening(model: Model, place: Place, bounds: Bounds) -> AsyncIterator[Listening]:
    """A server inside the context; what is in the making when it is left is cut off. Raises RooflineError where it cannot listen."""
    ended = asyncio.Event()
    metrics = Metrics(place.name, model.cache, model.max_model_len)
    worker = Worker(model.engine, metrics, asyncio.get_running_loop(), ended.set)
    service = Service(worker, model.text, Limits(place.name, model.max_model_len, model.engine.why_never), bounds, place.key)
    runner = web.AppRunner(
        service.app(),
        handler_cancellation=True,
        access_log=None,
        logger=_LOG,
        keepalive_timeout=bounds.idle_s,
        lingering_time=bounds.linger_s,
        shutdown_timeout=_CLOSE_S,
    )
    await runner.setup()
    site = web.TCPSite(runner, place.host, place.port, backlog=1024)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise RooflineError(f"cannot listen on {place.host}:{place.port}: {error.strerror or error}") from None
    worker.start()
    try:
        host = f"[{place.host}]" if ":" in place.host else place.host
        yield Listening(service, site, f"http://{host}:{runner.addresses[0][1]}", ended)
    finally:
        await worker.stop()
        await runner.cleanup()


async def serve(model: Model, place: Place, bounds: Bounds, ready: Callable[[str], None]) -> None:
    """Listens until SIGTERM or SIGINT, lets the answers in the making end (a second signal does not wait), and returns.

    ready: called with the server's address once it listens. Raises RooflineError where it cannot listen or the engine fails.
    """
    loop, hurry = asyncio.get_running_loop(), asyncio.Event()
    sys.setswitchinterval(_SWITCH_S)  # the event loop gets its turn soon beside the engine's thread
    gc.freeze()  # model and libraries are here to stay: no collection need look at them
    gc.set_threshold(*_COLLECT)  # while what requests leave behind is to go soon
    async with listening(model, place, bounds) as server:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: (hurry if server.ended.is_set() else server.ended).set())
        ready(server.url)
        await server.ended.wait()
        server.service.draining = True
        await server.site.stop()
        until = loop.time() + place.drain_s
        while server.service.active and not hurry.is_set() and loop.time() < until:
            await asyncio.sleep(0.02)
    if failure := server.service.worker.failure:
        raise RooflineError(f"the engine has failed: {failure}")
