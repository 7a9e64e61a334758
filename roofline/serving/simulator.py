"""The simulation of a workload: requests are sent, engines run them, times are recorded. One engine, or replicas behind a router."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import thread_time

from roofline.errors import InputError
from roofline.scheduling.batch import Scheduler
from roofline.serving.arrivals import Arrivals, Users, stream
from roofline.serving.instance import Instance, StepTimer
from roofline.serving.recorder import Recorder
from roofline.serving.routers import Router
from roofline.serving.speculation import Drafter, Speculation
from roofline.serving.statistics import Result
from roofline.serving.workloads import Workload


def simulate(
    workload: Workload,
    scheduler: Scheduler,
    timer: StepTimer,
    *,
    asynchronous: bool = False,
    fast_forward: bool = True,
    drafter: Drafter | None = None,
    seed: int = 0,
) -> Result:
    """Runs a workload on one engine and returns what became of each request.

    The scheduler must be fresh; seed: of the acceptance of drafts. Requests that can never run are rejected and reported.
    """
    return simulate_replicas(workload, [scheduler], timer, asynchronous=asynchronous, fast_forward=fast_forward, drafter=drafter, seed=seed)


def simulate_replicas(
    workload: Workload,
    schedulers: Sequence[Scheduler],
    timer: StepTimer,
    *,
    router: Router | None = None,
    asynchronous: bool = False,
    fast_forward: bool = True,
    drafter: Drafter | None = None,
    seed: int = 0,
) -> Result:
    """Like `simulate` on several equal engines, each with its own scheduler; the router chooses one for each request."""
    began = thread_time()
    recorder = Recorder(len(workload))
    instances = [
        Instance(
            scheduler,
            timer,
            recorder,
            number=number,
            asynchronous=asynchronous,
            fast_forward=fast_forward,
            halts=workload.reactive,
            speculation=None if drafter is None else Speculation(drafter, seed + number),
        )
        for number, scheduler in enumerate(schedulers)
    ]
    if len(instances) > 1 and router is None:
        raise InputError(f"{len(instances)} replicas need a router")
    with rare_collections():
        _serve(workload, instances, router, recorder)
    recorder.close()
    return Result(workload, recorder, thread_time() - began)


def _serve(workload: Workload, instances: Sequence[Instance], router: Router | None, recorder: Recorder) -> None:
    """The event loop."""
    arrivals = stream(workload)
    while True:
        until = arrivals.next_time
        run_until(instances, until)
        if workload.reactive and _react(instances, arrivals):
            continue
        if until == math.inf:
            break
        time, index = arrivals.pop()
        request = workload.request(index)
        recorder.sent_s[index] = time
        target = instances[0] if router is None else instances[router.choose(request, instances)]
        try:
            target.submit(request, time)
        except InputError as error:
            recorder.rejected[index] = str(error)
            arrivals.ended(index, time)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Looks for garbage in cycles less often: a simulation makes many small objects that live long and few cycles."""
    usual = gc.get_threshold()
    gc.set_threshold(200_000, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _react(instances: Sequence[Instance], arrivals: Arrivals | Users) -> bool:
    """Sends off whoever waited for those that finished; False if nobody had."""
    finished = False
    for instance in instances:
        for request in instance.finished:
            arrivals.ended(request.index, instance.recorder.end_s[request.index])
            finished = True
        instance.finished.clear()
    return finished


def run_until(instances: Sequence[Instance], until: float) -> None:
    """Runs every engine up to `until`, or until one halts.

    Engines whose ends others react to keep in step: the one that is furthest behind goes on, but no further than the next one.
    """
    if len(instances) == 1 or not instances[0].halts:
        for instance in instances:
            instance.run(until)
        return
    while True:
        busy = sorted((instance for instance in instances if instance.busy and instance.clock < until), key=lambda instance: instance.clock)
        if not busy:
            return
        behind = busy[0]
        bound = min(until, busy[1].clock if len(busy) > 1 else math.inf)
        behind.run(max(bound, math.nextafter(behind.clock, math.inf)))
        if behind.finished or behind.loading:
            return
