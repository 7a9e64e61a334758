"""One engine in simulated time: a scheduler, what its steps cost, and where its clock stands."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Protocol

from roofline.scheduling.batch import ScheduledBatch, Scheduler
from roofline.scheduling.request import Request
from roofline.serving import fast_forward
from roofline.serving.recorder import Recorder, gap_row, stretch_row
from roofline.serving.speculation import Speculation


class StepTimer(Protocol):
    """Seconds of one forward pass, from its composition."""

    def step_time(self, decodes: int, context: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Device time, s: `decodes` rows of one new token that have `context` past tokens in all, and chunks of (new, past).

        With no chunks it must be exactly base + slope · context of `decode_line(decodes, context)`.
        """

    def decode_line(self, decodes: int, context: int) -> tuple[float, float, int]:
        """(base s, slope s per token, last) of plain decode steps: exact from `context` to `last` past tokens in all, last ≥ context."""

    def host_time(self, rows: int) -> float:
        """CPU time, s, of scheduling a batch of so many rows and taking in its output."""


class Instance:
    """Runs a scheduler against a StepTimer.

    asynchronous: a batch is scheduled while the one before it runs, so the host hides behind the device (the period is the
    longer of the two), a request that arrives during step k is first computed in step k + 2, and what a request that ends in k
    held is free for k + 2. Otherwise the two take turns. fast_forward: jump over steps in which nothing but time passes; the
    results are the same. halts: `run` returns as soon as somebody finishes or starts to load, for callers who react to that.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        timer: StepTimer,
        recorder: Recorder,
        *,
        number: int = 0,
        asynchronous: bool = False,
        fast_forward: bool = True,
        halts: bool = False,
        speculation: Speculation | None = None,
    ) -> None:
        self.scheduler, self.timer, self.recorder, self.number = scheduler, timer, recorder, number
        self.asynchronous, self.fast_forward, self.halts, self.speculation = asynchronous, fast_forward, halts, speculation
        self.clock = 0.0
        self.finished: list[Request] = []
        self.loading: list[tuple[Request, float]] = []
        self.busy = False
        self._in_flight: tuple[ScheduledBatch, float] | None = None
        self._emitted_s = 0.0
        self._last = ScheduledBatch()

    def submit(self, request: Request, time: float) -> None:
        """A request arrives at `time`, which no step that was scheduled so far may follow. Raises InputError if it can never run."""
        self.scheduler.add(request)
        self.recorder.instance[request.index] = self.number
        self.wake(time)

    def wake(self, time: float) -> None:
        """Something changed at `time` that may give an idle engine work."""
        if not self.busy:
            self.busy = True
            self.clock = max(self.clock, time)

    def run(self, until: float) -> None:
        """Schedules steps as long as the moment of scheduling lies before `until` and there is work."""
        while self.busy and self.clock < until:
            if self.fast_forward:
                steps, rows, context = self.scheduler.steady_decode()
                if steps > 1 and self._stretch(steps, rows, context, until):
                    if self.halts and self.finished:
                        return
                    continue
            self.busy = self._step()
            if self.halts and (self.finished or self.loading):
                return

    def _step(self) -> bool:
        """One scheduling decision; False if there was nothing to do."""
        batch, running = self.scheduler.schedule(), self._in_flight
        if batch.loading:
            self.loading += [(request, self.clock) for request in batch.loading]
        if not batch:
            if running is None:
                return False
            self._in_flight = None
            self.clock = running[1]
            self._complete(*running)
            return True
        shapes = batch.shapes
        ready = self.clock + self.timer.host_time(len(batch.decodes) + len(shapes))
        start = ready if running is None else max(running[1], ready)
        end = start + self._device_time(batch, shapes)
        self._log(batch, shapes, start, end)
        if running is not None:
            self._complete(*running)
        if self.asynchronous:
            self._in_flight = batch, end
            self.clock = start
        else:
            self.clock = end
            self._complete(batch, end)
        return True

    def _device_time(self, batch: ScheduledBatch, shapes: list[tuple[int, int]]) -> float:
        decodes = len(batch.decodes) + batch.num_padding
        time = self.timer.step_time(decodes, batch.decode_context, shapes)
        return time if self.speculation is None else time + self.speculation.draft_time(decodes + len(shapes))

    def _log(self, batch: ScheduledBatch, shapes: list[tuple[int, int]], start: float, end: float) -> None:
        scheduled = self.recorder.scheduled_s
        prefill = 0
        for chunk in batch.chunks:
            index = chunk.request.index
            if isnan(scheduled[index]):
                scheduled[index] = start
            prefill += 0 if chunk.drafts else chunk.new
        self.recorder.stretches.frombytes(stretch_row(start, end, 1, len(batch.decodes), prefill, *self.scheduler.gauges, self.number))

    def _complete(self, batch: ScheduledBatch, end: float) -> None:
        """The outputs of a batch are here."""
        emitted = None
        if self.speculation is not None:
            emitted = [self.speculation.emitted(chunk.drafts) if chunk.samples else 0 for chunk in batch.chunks]
            self.recorder.drafted_tokens += sum(chunk.drafts for chunk in batch.chunks)
            self.recorder.accepted_tokens += sum(max(0, tokens - 1) for tokens in emitted)
        finished = self.scheduler.update(batch, emitted)
        self._emit(batch, end)
        self._retire(finished, end)

    def _emit(self, batch: ScheduledBatch, end: float) -> None:
        """Logs who emitted. Where all running requests did in the batch before, the decodes of this one need no look at each."""
        recorder, last = self.recorder, self._last
        if last.full:
            since = self._emitted_s
            if batch.preempted or not batch.full:
                for request in last.sampling:
                    recorder.last_token_s[request.index] = since
            if batch.decodes:
                recorder.gaps.frombytes(gap_row(end - since, end - since, 1, len(batch.decodes)))
                if not batch.full:
                    for request in batch.decodes:
                        recorder.last_token_s[request.index] = end
            if batch.chunks:
                recorder.emit([chunk.request for chunk in batch.chunks if chunk.samples], end)
        else:
            recorder.emit(batch.sampling, end)
        self._emitted_s, self._last = end, batch

    def _retire(self, finished: list[Request], time: float) -> None:
        if finished:
            for request in finished:
                self.recorder.finish(request, time)
            if self.halts:
                self.finished += finished

    def _stretch(self, steps: int, rows: int, context: int, until: float) -> bool:
        """Jumps over plain decode steps (see Scheduler.steady_decode); False if not all running requests emit together."""
        scheduler, in_flight = self.scheduler, self._in_flight
        if in_flight is not None:
            batch = in_flight[0]
            together = batch.full and len(batch.decodes) + len(batch.chunks) == len(scheduler.running)
            if not together or (self.halts and rows < len(scheduler.running)):
                return False
            self._pipeline(*in_flight, steps, rows, context, until)
            return True
        if self.asynchronous or not self._last.full:
            return False
        start, host = self.clock, self.timer.host_time(rows)
        done = fast_forward.alternating(self.timer, rows, context, host, start, self._emitted_s, steps, until, self.recorder.gaps)
        steps, self.clock, _, self._emitted_s = done
        self._retire(scheduler.advance(steps), self._emitted_s)
        self._log_stretch(start, steps, rows)
        return True

    def _pipeline(self, batch: ScheduledBatch, end: float, steps: int, rows: int, context: int, until: float) -> None:
        """Stretches behind the batch in flight, which ends at `end`, one after the other as long as only ends are between them."""
        scheduler, timer, gaps = self.scheduler, self.timer, self.recorder.gaps
        self._emit(batch, end)
        clock = self.clock
        while True:
            start, ended = clock, end
            steps, clock, end, emitted_s = fast_forward.pipelined(
                timer, rows, context, timer.host_time(rows), clock, end, steps, until, gaps
            )
            self._retire(scheduler.advance(steps), ended)
            self.clock = clock
            self._log_stretch(start, steps, rows)
            if clock >= until or self.halts:
                break
            steps, rows, context = scheduler.steady_decode()
            if steps < 2:
                break
            gaps.frombytes(gap_row(end - emitted_s, end - emitted_s, 1, len(scheduler.running)))
        batch.turn_plain(scheduler.running)
        self._last, self._in_flight, self._emitted_s = batch, (batch, end), emitted_s

    def _log_stretch(self, start: float, steps: int, rows: int) -> None:
        _, waiting, kv_usage = self.scheduler.gauges
        self.recorder.stretches.frombytes(stretch_row(start, self.clock, steps, rows, 0, rows, waiting, kv_usage, self.number))
