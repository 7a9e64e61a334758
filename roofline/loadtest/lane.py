"""A lane sends one request at a time over one connection that it keeps open."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from roofline.loadtest import failures
from roofline.loadtest.exchange import Exchange
from roofline.loadtest.failures import Failure
from roofline.loadtest.http import Connection
from roofline.loadtest.prompts import Prompts
from roofline.loadtest.wire import Wire
from roofline.records import RequestRecord
from roofline.serving.workloads import Segment

_LONGEST_PAUSE_S = 30.0
_CONNECT_TIMEOUT_S = 10.0
GIVE_UP_S = 60.0
"""Without any connection for so long the server is gone: what is left of the run is not sent."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request to send. number: unique in the run, names its prompt. due_s: on the monotonic clock."""

    stage: int
    index: int
    number: int
    phase: str
    input_tokens: int
    output_tokens: int
    segments: Sequence[Segment]
    due_s: float


@dataclass
class Shop:
    """What the lanes of a process share. origin_s: the monotonic clock's reading at the start of the run.

    timeout_s: longest a request may take; keep_text: keep the answers for a tokenizer; in_flight: requests open now.
    """

    wire: Wire
    prompts: Prompts
    origin_s: float
    run_id: str
    timeout_s: float = 600.0
    keep_text: bool = False
    in_flight: int = 0
    unreachable_since_s: float | None = None

    def saw(self, error: str) -> None:
        """Notes how a request ended: whether the server could be reached at all."""
        if error not in failures.NO_CONNECTION:
            self.unreachable_since_s = None
        elif self.unreachable_since_s is None:
            self.unreachable_since_s = monotonic()

    @property
    def gone(self) -> bool:
        """Whether there has been no connection for GIVE_UP_S."""
        return self.unreachable_since_s is not None and monotonic() - self.unreachable_since_s > GIVE_UP_S


class Lane:
    """Runs jobs one after the other. pause_s: what a lane should wait before its next job, after a failure."""

    def __init__(self, shop: Shop) -> None:
        self.pause_s = 0.0
        self.text = ""
        self._shop = shop
        self._connection: Connection | None = None
        self._refusals = 0

    async def open(self) -> None:
        """Opens the connection ahead of time; a failure shows at the first job."""
        try:
            await self._ready()
        except Failure:
            self.close()

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def run(self, job: Job) -> RequestRecord:
        """Sends one request and waits for the end of its answer. Failures are in the record."""
        shop = self._shop
        record = RequestRecord(
            job.stage,
            job.index,
            job.phase,
            due_s=job.due_s - shop.origin_s,
            requested_input_tokens=job.input_tokens,
            requested_output_tokens=job.output_tokens,
        )
        began = monotonic()
        shop.in_flight += 1
        record.in_flight = shop.in_flight
        try:
            connection = await self._ready()
            record.connect_s = monotonic() - began if self._fresh else 0.0
            exchange = await self._exchange(connection, job, record)
            if exchange.failure is not None and exchange.failure.kind == failures.RESET and not self._fresh:
                connection = await self._ready()  # the server gave up an idle connection just then: as any client, try a new one
                exchange = await self._exchange(connection, job, record)
            exchange.fill(record, shop.origin_s)
            self.text = "".join(exchange.pieces or ())
            self._after(connection, exchange)
        except Failure as failure:
            record.error, record.detail = failure.kind, failure.detail
            record.end_s = monotonic() - shop.origin_s
            self.close()
            self._pause_after(failure)
        finally:
            shop.in_flight -= 1
        shop.saw(record.error)
        return record

    async def _exchange(self, connection: Connection, job: Job, record: RequestRecord) -> Exchange:
        shop = self._shop
        content = shop.prompts.content(job.number, job.input_tokens, job.segments)
        request = shop.wire.post(content, job.output_tokens, f"{shop.run_id}-{job.stage}-{job.phase[0]}{job.index}")
        exchange = Exchange(job.output_tokens, keep_text=shop.keep_text)
        timer = asyncio.get_running_loop().call_later(shop.timeout_s, _expire, exchange)
        record.start_s = monotonic() - shop.origin_s
        connection.send(request, exchange)
        try:
            await exchange.done
        finally:
            timer.cancel()
        return exchange

    def _after(self, connection: Connection, exchange: Exchange) -> None:
        failure = exchange.failure
        self.pause_s = 0.0
        if failure is not None:
            self._pause_after(failure)
        else:
            self._refusals = 0
        if not connection.usable:
            connection.release() if failure is None else self.close()

    def _pause_after(self, failure: Failure) -> None:
        """What the server asked for (Retry-After), or longer and longer while there is no connection."""
        self.pause_s = min(failure.retry_after_s, _LONGEST_PAUSE_S)
        if failure.kind in failures.NO_CONNECTION:
            self.pause_s = min(0.1 * 2**self._refusals, 2.0)
            self._refusals += 1

    async def _ready(self) -> Connection:
        """The open connection, or a new one. Raises Failure."""
        connection = self._connection
        if connection is not None and connection.draining:
            await _drained(connection)
        self._fresh = connection is None or not connection.usable
        if connection is None or self._fresh:
            self.close()
            connection = self._connection = await Connection.open(self._shop.wire.target, min(self._shop.timeout_s, _CONNECT_TIMEOUT_S))
        return connection


async def _drained(connection: Connection) -> None:
    """Waits up to a second for the end of a body whose [DONE] has come."""
    until = monotonic() + 1.0
    while connection.draining and monotonic() < until:
        await asyncio.sleep(0.001)


def _expire(exchange: Exchange) -> None:
    exchange.finish(Failure(failures.TIMEOUT, "no end of the answer in time"), monotonic())
