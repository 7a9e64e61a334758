"""The engine in passes: its pace of the moment, predictions on record, then steps or a section of the trace.

What the engine adds to its kernels is fitted once, to steps that are not judged. Before each pass these run again, each once: the
middle of their times, over what they were expected to take, is the pace by which the constants are scaled.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from roofline.ledger import AS_SHIPPED
from roofline.records import JsonlWriter
from roofline.serving.workloads import Workload
from roofline.validation import passes, serve, statements
from roofline.validation.fitting import fit_steps
from roofline.validation.plan import REQUESTS, SCALES, SECTIONS, Plan, trace
from roofline.validation.predictions import Basis, Prediction, Step, step_prediction
from roofline.validation.session import Session

if TYPE_CHECKING:
    from roofline.validation.engine_steps import Bench

FIT_SHARE = 0.2  # of the engine's time, for its constants
FIT_ROUNDS, PACE_ROUNDS, JUDGED_ROUNDS = 3, 1, 2
MOST_PASSES = 11
SAFETY = 1.2  # of a predicted run time, when it is decided whether it still fits into the budget


def judge_engine(session: Session, plan: Plan, writer: JsonlWriter) -> None:
    """Steps, then the trace."""
    from roofline.validation.engine_steps import Bench

    device, seconds = session.device, session.until("engine")
    session.say(f"engine: {len(plan.fit_steps)} steps for its constants, {len(plan.judged_steps)} to judge, in turns, {seconds:.0f} s")
    end = time.perf_counter() + seconds
    steps = [*plan.fit_steps, *plan.judged_steps]
    bench = Bench(session.model, device.kind, session.dtype, steps, cpu_time=device.cpu_time, seed=session.seed)
    fitted = _fit(session, plan, bench, writer, until=time.perf_counter() + FIT_SHARE * seconds, hard=end)
    took, number = 0.0, 0
    while number == 0 or (number < MOST_PASSES and time.perf_counter() + took < end):
        began, number = time.perf_counter(), number + 1
        _pace(session, plan, bench, writer, fitted, number)
        stated = [step_prediction(step, session.model, AS_SHIPPED, basis) for basis in session.renewed for step in plan.judged_steps]
        stage = f"steps {number}"
        statements.begin(writer, stage, statements.state(session.folder, stage, stated))
        bench.steps(plan.judged_steps, JUDGED_ROUNDS, writer, device, number=number, phase=passes.JUDGED)
        took = time.perf_counter() - began
    _serve(session, plan, bench, writer, fitted, number)


def _fit(session: Session, plan: Plan, bench: Bench, writer: JsonlWriter, *, until: float, hard: float) -> Basis:
    """The basis of this run with constants of the engine."""
    statements.begin(writer, "engine constants", "")
    mine, device = session.mine, session.device
    measured = bench.steps(plan.fit_steps, FIT_ROUNDS, writer, device, number=0, phase=passes.CONSTANTS, until=until, hard=hard)
    kernels = {step: _kernels_s(step_prediction(step, session.model, AS_SHIPPED, mine)) for step in measured}
    return replace(mine, step=fit_steps(measured, kernels))


def _kernels_s(prediction: Prediction) -> float:
    return sum(seconds for name, seconds in prediction.parts.items() if name != "engine")


def _pace(session: Session, plan: Plan, bench: Bench, writer: JsonlWriter, fitted: Basis, number: int) -> None:
    """The basis of this run as fast as the engine is now."""
    statements.begin(writer, f"pace {number}", "")
    measured = bench.steps(plan.fit_steps, PACE_ROUNDS, writer, session.device, number=number, phase=passes.CONSTANTS)
    factor = paced(measured, {step: step_prediction(step, session.model, AS_SHIPPED, fitted).expected_s for step in measured})
    session.renew([replace(fitted, step=serve.scaled(fitted.step, factor))])


def paced(measured: dict[Step, float], expected: dict[Step, float]) -> float:
    """Measured over expected seconds, the middle of all steps."""
    return statistics.median(measured[step] / expected[step] for step in measured)


def _serve(session: Session, plan: Plan, bench: Bench, writer: JsonlWriter, fitted: Basis, number: int) -> None:
    """The trace in sections, each simulated with every basis and then served, and once more in the end if others disturbed it; number: of
    the last pass. Then the pace again.
    """
    sections, seconds = _sections(session, bench)
    paces = sum(step_prediction(step, session.model, AS_SHIPPED, session.mine).expected_s for step in plan.fit_steps)
    each = SAFETY * bench.slowdown * (seconds / SECTIONS + paces)
    what = f"trace of {sum(map(len, sections))} requests in {SECTIONS} sections"
    session.say(f"{what}, about {SECTIONS * each:.0f} s")
    waiting, slowest = list(sections), 0.0
    while waiting and each < session.left_s:
        began, number, workload = time.perf_counter(), number + 1, waiting.pop(0)
        _pace(session, plan, bench, writer, fitted, number)
        if passes.disturbed(_section(session, bench, writer, workload, number)):
            waiting.append(workload)
        slowest = max(slowest, time.perf_counter() - began)
        each = SAFETY * slowest
    if waiting:
        left = max(session.left_s, 0)
        session.leave_out(f"{what}: {len(waiting)} left out, about {each:.1f} s needed for each, {left:.0f} s left of the budget")
    if each < session.left_s:
        _pace(session, plan, bench, writer, fitted, number + 1)


def _sections(session: Session, bench: Bench) -> tuple[list[Workload], float]:
    """The sections and the seconds that they will be served for."""
    kind = session.device.kind
    timer = serve.timer(session.model, AS_SHIPPED, session.mine, SCALES[kind].tokens)
    at_once = trace(kind, float("inf"), session.seed, SECTIONS * REQUESTS)
    rate = serve.LOAD * len(at_once) / serve.makespan(at_once, bench.scheduler(), timer)
    sections = [trace(kind, rate, session.seed + section) for section in range(SECTIONS)]
    seconds = sum(serve.makespan(workload, bench.scheduler(), timer) for workload in sections)
    return sections, seconds * (serve.LOAD if session.device.cpu_time else 1.0)


def _section(session: Session, bench: Bench, writer: JsonlWriter, workload: Workload, number: int) -> float | None:
    """One section; how many cores others kept busy meanwhile, if that is known."""
    stage = f"trace {number}"
    told = [row for basis in session.bases for row in _simulated(session, bench, workload, basis)]
    statements.begin(writer, stage, statements.state(session.folder, stage, [], simulated=told))
    before, began = passes.busy(), time.perf_counter()
    run = bench.serve(workload, bench.scheduler())
    share = passes.others(before, passes.busy(), time.perf_counter() - began)
    for record in run.requests.values():
        writer.write(record.to_json() | {"pass": number})
    writer.write({"kind": "served", "pass": number, "rejected": run.rejected, "preemptions": run.preemptions, "others": share})
    writer.flush()
    return share


def _simulated(session: Session, bench: Bench, workload: Workload, basis: Basis) -> list[dict[str, object]]:
    """The section by one basis; low and high from an engine that is faster or slower by the spread of its steps."""
    width = 1.2816 * float(np.hypot(basis.step.spread, 0.05))
    rows: list[dict[str, object]] = []
    for edge, factor in (("expected", 1.0), ("low", 1 - width), ("high", 1 + width)):
        constants = replace(basis, step=serve.scaled(basis.step, factor))
        timer = serve.timer(session.model, AS_SHIPPED, constants, SCALES[session.device.kind].tokens)
        rows += [{"basis": basis.name, "edge": edge, **row} for row in serve.timeline(workload, bench.scheduler(), timer)]
    return rows
