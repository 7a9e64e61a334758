"""Runs a workload through an engine in real time, with a record of every step and of every request.

The clock of a run is the sum of what its steps took, so that a simulation that is given these steps passes through the very same
moments: scheduling decisions can be compared one by one.
"""

from __future__ import annotations

import hashlib
import math
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from roofline.engine.engine import Engine, Step
from roofline.engine.parallel import Ranks
from roofline.engine.sampler import Sampling
from roofline.errors import InputError
from roofline.records.requests import RequestRecord
from roofline.scheduling import Request


class Arrivals(Protocol):
    """Who is sent when; see roofline.serving.arrivals."""

    @property
    def next_time(self) -> float:
        """When the next request is sent; inf if none is known."""

    def pop(self) -> tuple[float, int]:
        """The next (time, index)."""

    def ended(self, index: int, time: float) -> None:
        """A request left at `time`."""


class Prompts(Protocol):
    """The lengths and shared parts of a workload; see roofline.serving.workloads.Workload."""

    @property
    def input_tokens(self) -> Any:
        """Prompt lengths by request."""

    @property
    def output_tokens(self) -> Any:
        """Output lengths by request."""

    @property
    def segments(self) -> Sequence[Sequence[tuple[int, int]]] | None:
        """(end, id) of what each prompt shares: id 2·j + 1 is all that request j said and was told, an even id is common text."""


@dataclass(frozen=True)
class StepRecord:
    """One step. start_s, seconds: on the clock of the run; chunks: (new, past, drafts) of rows that are not plain decodes;
    context: past tokens of the decodes in all; finished: requests that ended in it; running, waiting, kv_usage: after it."""

    index: int
    start_s: float
    seconds: float
    decodes: int
    context: int
    padding: int
    chunks: tuple[tuple[int, int, int], ...]
    emitted: int
    preempted: int
    finished: int
    running: int
    waiting: int
    kv_usage: float

    def to_json(self) -> dict[str, Any]:
        """The record as one JSON object."""
        return {"kind": "step"} | {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass
class Run:
    """What a run left behind. outputs: generated tokens by index; rejected: reason by index."""

    steps: list[StepRecord] = field(default_factory=list)
    requests: dict[int, RequestRecord] = field(default_factory=dict)
    outputs: dict[int, list[int]] = field(default_factory=dict)
    rejected: dict[int, str] = field(default_factory=dict)
    preemptions: int = 0
    cached_tokens: int = 0
    drafted: int = 0
    accepted: int = 0


def text(identity: int, length: int, vocab: int) -> list[int]:
    """The first `length` tokens of the text called `identity`: random, the same whenever asked."""
    seed = int.from_bytes(hashlib.blake2b(str(identity).encode(), digest_size=8).digest(), "big")
    tokens: list[int] = np.random.default_rng(seed).integers(0, vocab, length).tolist()
    return tokens


class Driver:
    """Sends a workload's requests to an engine and steps it until all are done.

    sampling: of request i. clock: seconds, only differences count. wait: called with seconds in which nothing can run. Requests
    that can never run are rejected and reported.
    """

    def __init__(
        self,
        engine: Engine,
        workload: Prompts,
        arrivals: Arrivals,
        *,
        sampling: Callable[[int], Sampling] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        wait: Callable[[float], None] = time.sleep,
        ranks: Ranks | None = None,
    ) -> None:
        self.engine, self.workload, self.arrivals = engine, workload, arrivals
        self.sampling = sampling or (lambda index: Sampling())
        self._read, self._wait, self._ranks = clock, wait, ranks or Ranks()
        self.run_s = 0.0
        self.result = Run()
        self._open: dict[str, Request] = {}

    def run(self) -> Run:
        """Everything, to the end."""
        while True:
            self._send()
            began = self._read()
            step = self.engine.step()
            if step is None:
                if self.arrivals.next_time == math.inf:
                    return self.result
                self._wait(max(0.0, self.arrivals.next_time - self.run_s))
                self.run_s = max(self.run_s, self.arrivals.next_time)
                continue
            start = self.run_s
            self.run_s = start + self._ranks.agree(self._read() - began)
            self._record(step, start)

    def _send(self) -> None:
        while self.arrivals.next_time <= self.run_s:
            due, index = self.arrivals.pop()
            prompt = self.prompt(index)
            try:
                request = self.engine.add_request(
                    str(index), prompt, int(self.workload.output_tokens[index]), self.sampling(index), index=index
                )
            except InputError as error:
                self.result.rejected[index] = str(error)
                self.arrivals.ended(index, due)
                continue
            self._open[request.request_id] = request
            self.result.outputs[index] = []
            self.result.requests[index] = RequestRecord(
                0,
                index,
                due_s=due,
                start_s=due,
                requested_input_tokens=len(prompt),
                input_tokens=len(prompt),
                requested_output_tokens=request.max_tokens,
                tokens_source="tokenizer",
            )

    def prompt(self, index: int) -> list[int]:
        """The tokens of a prompt: what it shares with others as they have it, the rest its own."""
        length, vocab = int(self.workload.input_tokens[index]), self.engine.vocab
        tokens: list[int] = []
        for end, identity in self.workload.segments[index] if self.workload.segments is not None else ():
            tokens += self._told(identity, min(end, length), vocab)[len(tokens) : end]
        return (tokens + text(2 * index + 1, length, vocab)[len(tokens) :])[:length]

    def _told(self, identity: int, length: int, vocab: int) -> list[int]:
        if identity % 2:
            earlier = identity // 2
            return (self.prompt(earlier) + self.result.outputs.get(earlier, []))[:length]
        return text(identity, length, vocab)

    def _record(self, step: Step, start: float) -> None:
        run, now, batch = self.result, self.run_s, step.batch
        running, waiting, kv_usage = self.engine.scheduler.gauges
        for request_id, tokens in step.emitted.items():
            index = self._open[request_id].index
            record = run.requests[index]
            run.outputs[index] += tokens
            if record.output_tokens:
                record.gaps_s.append(now - record.last_token_s)
            else:
                record.first_token_s, record.first_chunk_tokens = now, len(tokens)
            record.last_token_s, record.chunks = now, record.chunks + 1
            record.output_tokens += len(tokens)
        for request in step.finished:
            del self._open[request.request_id]
            run.requests[request.index].end_s = now
            run.preemptions += request.num_preemptions
            run.cached_tokens += max(request.num_cached_tokens, 0)
            self.arrivals.ended(request.index, now)
        verified = [row for row in step.rows if row.drafts]
        run.drafted += sum(row.drafts for row in verified)
        run.accepted += sum(len(step.emitted[row.request.request_id]) - 1 for row in verified)
        run.steps.append(
            StepRecord(
                index=len(run.steps),
                start_s=start,
                seconds=now - start,
                decodes=len(batch.decodes),
                context=batch.decode_context,
                padding=batch.num_padding,
                chunks=tuple((chunk.new, chunk.past, chunk.drafts) for chunk in batch.chunks),
                emitted=sum(map(len, step.emitted.values())),
                preempted=len(batch.preempted),
                finished=len(step.finished),
                running=running,
                waiting=waiting,
                kv_usage=kv_usage,
            )
        )


def summary(run: Run) -> dict[str, Any]:
    """The run in a few numbers, SI units. Latencies as in RequestRecord, over the requests that were served; rates over the makespan."""
    records = list(run.requests.values())
    makespan = max((record.end_s for record in records), default=0.0) - min((record.due_s for record in records), default=0.0)
    prompts, generated = (sum(getattr(record, name) for record in records) for name in ("input_tokens", "output_tokens"))
    busy = sum(step.seconds for step in run.steps)
    return {
        "requests": len(records) + len(run.rejected),
        "rejected": len(run.rejected),
        "makespan_s": makespan,
        "ttft_s": percentiles([record.ttft_s for record in records]),
        "tpot_s": percentiles([record.tpot_s for record in records]),
        "itl_s": percentiles([gap for record in records for gap in record.gaps_s]),
        "e2el_s": percentiles([record.e2el_s for record in records]),
        "output_tokens": generated,
        "output_tokens_per_s": generated / makespan if makespan else 0.0,
        "total_tokens_per_s": (prompts + generated) / makespan if makespan else 0.0,
        "steps": len(run.steps),
        "step_s": percentiles([step.seconds for step in run.steps]),
        "busy_s": busy,
        "mean_running": sum(step.running * step.seconds for step in run.steps) / busy if busy else 0.0,
        "kv_usage_peak": max((step.kv_usage for step in run.steps), default=0.0),
        "preemptions": run.preemptions,
        "prefix_cache_hit_rate": run.cached_tokens / prompts if prompts else 0.0,
        "drafted_tokens": run.drafted,
        "accepted_tokens": run.accepted,
    }


def percentiles(values: Sequence[float] | array[float]) -> dict[str, float]:
    """mean, p50, p90, p99 by linear interpolation; NaN for none."""
    kept = [value for value in values if value == value]
    if not kept:
        return dict.fromkeys(("mean", "p50", "p90", "p99"), math.nan)
    p50, p90, p99 = np.percentile(kept, [50, 90, 99])
    return {"mean": float(np.mean(kept)), "p50": float(p50), "p90": float(p90), "p99": float(p99)}
