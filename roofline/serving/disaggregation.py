"""Prefill and decode in separate pools: KV moves over a link, and the decode side emits the first token (vLLM's NIXL pull)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from time import thread_time

from roofline.errors import InputError
from roofline.scheduling.request import Request
from roofline.scheduling.vllm import VllmScheduler
from roofline.serving.arrivals import stream
from roofline.serving.instance import Instance, StepTimer
from roofline.serving.recorder import Recorder
from roofline.serving.routers import LeastLoaded, Router
from roofline.serving.simulator import rare_collections, run_until
from roofline.serving.statistics import Result
from roofline.serving.workloads import Workload


@dataclass(frozen=True)
class KvLink:
    """The way of KV from a prefill to a decode engine; each engine has one end of `bandwidth` B/s, used by one transfer at a time.

    kv_bytes_per_token: over all ranks of an engine. latency_s: of a transfer. chunk_tokens: KV is sent chunk by chunk as prefill
    goes on, so only the last chunk is waited for (None: all of it moves after the whole prefill).
    """

    bandwidth: float
    kv_bytes_per_token: float
    latency_s: float = 0.0
    chunk_tokens: int | None = None

    def __post_init__(self) -> None:
        chunk = 1 if self.chunk_tokens is None else self.chunk_tokens
        if not self.bandwidth > 0 or self.kv_bytes_per_token < 0 or self.latency_s < 0 or chunk < 1:
            raise InputError(f"a KV link of {self.bandwidth} B/s, latency {self.latency_s} s, chunks of {self.chunk_tokens} tokens")

    def seconds(self, tokens: int, block_size: int) -> float:
        """Time to move the KV of `tokens`, rounded up to whole blocks, as far as somebody waits for it."""
        if self.chunk_tokens is not None and tokens:
            tokens = (tokens - 1) % self.chunk_tokens + 1
        return self.latency_s + -(-tokens // block_size) * block_size * self.kv_bytes_per_token / self.bandwidth


def simulate_disaggregated(
    workload: Workload,
    prefill: Sequence[VllmScheduler],
    decode: Sequence[VllmScheduler],
    timers: tuple[StepTimer, StepTimer],
    link: KvLink,
    *,
    routers: tuple[Router, Router] | None = None,
    asynchronous: bool = False,
    fast_forward: bool = True,
) -> Result:
    """Runs a workload on P prefill and D decode engines; timers and routers: of the two pools (least loaded by default).

    A prefill engine computes the prompt and keeps its blocks until a decode engine has read them. That one allocates first, reads,
    and recomputes the last prompt token, which gives the first token that the client sees.
    """
    began = thread_time()
    pools = _Pools(workload, prefill, decode, timers, link, routers or (LeastLoaded(), LeastLoaded()), asynchronous, fast_forward)
    with rare_collections():
        pools.run()
    return Result(workload, pools.recorder, thread_time() - began)


class _Pools:
    """The event loop: what happens when somebody arrives, a prompt is done, blocks are there, KV has arrived."""

    def __init__(
        self,
        workload: Workload,
        prefill: Sequence[VllmScheduler],
        decode: Sequence[VllmScheduler],
        timers: tuple[StepTimer, StepTimer],
        link: KvLink,
        routers: tuple[Router, Router],
        asynchronous: bool,
        fast_forward: bool,
    ) -> None:
        if not prefill or not decode:
            raise InputError(f"{len(prefill)} prefill and {len(decode)} decode engines: at least one of each is needed")
        self._workload, self._link, self._routers = workload, link, routers
        self._arrivals = stream(workload)
        self.recorder, self._prompts = Recorder(len(workload)), Recorder(len(workload))
        self._schedulers = [*prefill, *decode]
        self._instances = [
            Instance(
                scheduler,
                timers[number >= len(prefill)],
                self.recorder if number >= len(prefill) else self._prompts,
                number=number,
                asynchronous=asynchronous,
                fast_forward=fast_forward,
                halts=True,
            )
            for number, scheduler in enumerate(self._schedulers)
        ]
        self._prefill, self._decode = self._instances[: len(prefill)], self._instances[len(prefill) :]
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self._free_at = [0.0] * len(self._instances)
        self._held: dict[int, Request] = {}

    def run(self) -> None:
        """Until nothing is left to happen."""
        while True:
            until = min(self._arrivals.next_time, self._events[0][0] if self._events else math.inf)
            run_until(self._instances, until)
            if self._collect():
                continue
            if until == math.inf:
                break
            if self._events and self._events[0][0] <= until:
                time, _, action = heapq.heappop(self._events)
                action(time)
            else:
                self._arrive(*self._arrivals.pop())
        for index, cached in enumerate(self._prompts.cached_tokens):
            self.recorder.cached_tokens[index] = cached
            self.recorder.scheduled_s[index] = self._prompts.scheduled_s[index]
            self.recorder.preemptions[index] += self._prompts.preemptions[index]
        self.recorder.close()

    def _later(self, time: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), action))

    def _submit(self, pool: int, request: Request, time: float) -> bool:
        instances = (self._prefill, self._decode)[pool]
        try:
            instances[self._routers[pool].choose(request, instances)].submit(request, time)
        except InputError as error:
            self.recorder.rejected[request.index] = str(error)
            self._arrivals.ended(request.index, time)
            return False
        return True

    def _arrive(self, time: float, index: int) -> None:
        self.recorder.sent_s[index] = time
        request = self._workload.request(index)
        request.end_tokens = request.num_prompt_tokens + 1
        request.hold_blocks = True
        self._submit(0, request, time)

    def _collect(self) -> bool:
        """Takes over what the engines have finished or begun to load; False if nothing."""
        found = False
        for instance in self._instances:
            for request in instance.finished:
                end = instance.recorder.end_s[request.index]
                if instance in self._prefill:
                    self._held[request.index] = request
                    self._later(end, partial(self._hand_over, request.index))
                else:
                    self._arrivals.ended(request.index, end)
                found = True
            for request, time in instance.loading:
                self._transfer(request, time, instance)
                found = True
            instance.finished.clear()
            instance.loading.clear()
        return found

    def _hand_over(self, index: int, time: float) -> None:
        request = self._workload.request(index)
        request.remote_kv = True
        if not self._submit(1, request, time):
            self._give_back(index, time)

    def _transfer(self, request: Request, time: float, target: Instance) -> None:
        source = self._prompts.instance[request.index]
        begin = max(time, self._free_at[source], self._free_at[target.number])
        missing = request.num_prompt_tokens - request.num_hashed_blocks * self._block_size(target)
        end = begin + self._link.seconds(missing, self._block_size(target))
        self._free_at[source] = self._free_at[target.number] = end

        def arrived(now: float) -> None:
            self._schedulers[target.number].kv_arrived(request)
            target.wake(now)
            self._give_back(request.index, now)

        self._later(end, arrived)

    def _block_size(self, instance: Instance) -> int:
        return self._schedulers[instance.number].pool.block_size

    def _give_back(self, index: int, time: float) -> None:
        """The prefill engine may forget the prompt."""
        source = self._prompts.instance[index]
        self._schedulers[source].release(self._held.pop(index))
        self._instances[source].wake(time)
