"""From a checked set-up to a server that listens, and to its end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

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


def build(setup: Setup, config: VllmConfig, *, prefix_caching: bool) -> tuple[Engine, CacheConfig]:
    """The engine, warm: one prompt has passed through it, and nothing of it is left."""
    scheduler = setup.scheduler(config, prefix_caching=prefix_caching)
    engine = build_engine(setup, scheduler)
    engine.add_request("warm-up", [0] * min(8, setup.positions - 2), 2)
    while engine.step() is not None:
        pass
    how = setup.options
    return engine, CacheConfig(how.block_size, how.num_blocks, how.kv or how.dtype, prefix_caching)


async def serve(
    engine: Engine, cache: CacheConfig, text: Text, max_model_len: int, place: Place, bounds: Bounds, ready: Callable[[str], None]
) -> None:
    """Listens until SIGTERM or SIGINT, lets the answers in the making end (a second signal does not wait), and returns.

    ready: called with the server's address once it listens. Raises RooflineError where it cannot listen or the engine fails.
    """
    loop, ended, hurry = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    worker = Worker(engine, Metrics(place.name, cache, max_model_len), loop, ended.set)
    service = Service(worker, text, Limits(place.name, max_model_len, engine.why_never), bounds, place.key)
    runner = web.AppRunner(service.app(), handler_cancellation=True, access_log=None, keepalive_timeout=bounds.idle_s, shutdown_timeout=2.0)
    await runner.setup()
    site = web.TCPSite(runner, place.host, place.port, backlog=1024)
    sys.setswitchinterval(_SWITCH_S)  # the event loop gets its turn soon beside the engine's thread
    gc.freeze()  # model and libraries are here to stay: no collection need look at them
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise RooflineError(f"cannot listen on {place.host}:{place.port}: {error.strerror or error}") from None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (hurry if ended.is_set() else ended).set())
    worker.start()
    ready(address(place.host, runner.addresses[0][1]))
    try:
        await ended.wait()
        service.draining = True
        await site.stop()
        await _drain(service, hurry, place.drain_s)
    finally:
        await worker.stop()
        await runner.cleanup()
    if worker.failure:
        raise RooflineError(f"the engine has failed: {worker.failure}")


async def _drain(service: Service, hurry: asyncio.Event, drain_s: float) -> None:
    """Waits until no answer is in the making, or for so long, or until a second signal."""
    until = asyncio.get_running_loop().time() + drain_s
    while service.active and not service.worker.failure and not hurry.is_set() and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.02)


def address(host: str, port: int) -> str:
    """http://HOST:PORT of a listening socket."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
