"""A stage run by several processes, each with its share of the streams; they begin together and are merged by their time stamps."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection as Pipe
from time import monotonic
from typing import Any

from roofline.errors import RooflineError
from roofline.loadtest.lane import Shop
from roofline.loadtest.selfcheck import Load
from roofline.loadtest.stage import Plan, Sink, run_stage
from roofline.records import RequestRecord

_LEAD_S = 1.5
_BATCH = 16


async def run_in_processes(plan: Plan, shop: Shop, sink: Sink, processes: int) -> Load:
    """As stage.run_stage, by so many processes. The monotonic clock is the machine's, so their times compare."""
    context = multiprocessing.get_context("spawn")
    start_s = monotonic() + _LEAD_S
    pipes, members = [], []
    for at in range(processes):
        here, there = context.Pipe(duplex=False)
        member = context.Process(target=_member, args=(replace(plan, share=(at, processes)), shop, start_s, there), daemon=True)
        member.start()
        there.close()
        pipes.append(here)
        members.append(member)
    loop = asyncio.get_running_loop()
    errors: list[OSError] = []

    def guarded(record: RequestRecord, text: str) -> None:
        try:
            sink(record, text)
        except OSError as error:  # a full disk; raised when all have reported
            errors.append(error)

    reading = [loop.run_in_executor(None, _read, pipe, guarded, loop) for pipe in pipes]
    try:
        loads = await asyncio.shield(asyncio.gather(*reading))
    except asyncio.CancelledError:
        for member in members:
            if member.pid and member.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGINT)
        await asyncio.wait_for(asyncio.gather(*reading, return_exceptions=True), 10)
        raise
    finally:
        for member in members:
            member.join(5)
    if errors:
        raise errors[0]
    return replace(Load.together(loads), processes=processes)


def _read(pipe: Pipe, sink: Sink, loop: asyncio.AbstractEventLoop) -> Load:
    """Takes a member's records until its own view of itself comes; in a thread of its own."""
    while True:
        try:
            message = pipe.recv()
        except EOFError:
            raise RooflineError("a client process ended early; its messages are above") from None
        if isinstance(message, Load):
            return message
        for record, text in message:
            loop.call_soon_threadsafe(sink, record, text)


def _member(plan: Plan, shop: Shop, start_s: float, pipe: Pipe) -> None:
    """What a process of the team does."""
    batch: list[tuple[RequestRecord, str]] = []

    def sink(record: RequestRecord, text: str) -> None:
        batch.append((record, text))
        if len(batch) >= _BATCH:
            pipe.send(batch)
            batch.clear()

    async def main() -> Load:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - inside of a coroutine there is one
        on_interrupt(task.cancel)
        return await run_stage(plan, shop, sink, start_s)

    load = Load((), 0.0, 0.0, 0.0)
    with contextlib.suppress(asyncio.CancelledError):
        load = asyncio.run(main())
    pipe.send(batch)
    pipe.send(load)
    pipe.close()


def on_interrupt(call: Callable[[], Any]) -> None:
    """Ctrl-C calls `call` once instead of raising; a second one ends the process as usual."""
    loop = asyncio.get_running_loop()

    def once() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        call()

    with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):  # Windows, or not the main thread
        loop.add_signal_handler(signal.SIGINT, once)
