"""One validation from start to end under a budget: predictions on record, then measurements, stage by stage."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.errors import InputError
from roofline.ledger import AS_SHIPPED
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model
from roofline.records import JsonlWriter, Measurement
from roofline.serving.workloads import Workload
from roofline.timing.host import PREFIX
from roofline.validation import passes, serve, statements
from roofline.validation.compare import RUN, Validation, assemble
from roofline.validation.fitting import fit_device, fit_steps
from roofline.validation.plan import SCALES, Plan, make_plan, trace
from roofline.validation.predictions import SHIPPED, THIS_RUN, UNCALIBRATED, Basis, Prediction, kernel_prediction, step_prediction

if TYPE_CHECKING:
    from microbench.device import Device
    from roofline.validation.engine_steps import Bench

SHARES = {"fit": 0.28, "kernels": 0.15, "engine": 0.26}  # of the budget; the trace has what is left
REPEATS = 3  # of the trace
REFRESH_S = 8.0  # for the engine's constants before each repeat, and its simulation
FEW = 3  # shapes that are named one by one when they were left out
RESERVE_S = 10.0  # to judge, draw and write the report
LEAST_S = 45.0
SAFETY = 1.2  # of a predicted run time, when it is decided whether it still fits into the budget
DTYPE = {"cpu": "fp32", "cuda": "bf16"}


@dataclass
class Session:
    """A validation that is going on. deadline: on time.perf_counter; say: is told each stage; apart: see passes.apart."""

    model: Model
    device: Device
    hardware: Hardware | None
    folder: Path
    deadline: float
    budget_s: float
    seed: int
    say: Callable[[str], None]
    bases: list[Basis] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    untrustworthy: list[str] = field(default_factory=list)
    passes: int = 0
    interrupted: bool = False
    apart: float = 0.0

    @property
    def left_s(self) -> float:
        """Seconds until the reserve for the report begins."""
        return self.deadline - RESERVE_S - time.perf_counter()

    def until(self, stage: str) -> float:
        """Seconds that a stage may take."""
        return max(min(SHARES[stage] * self.budget_s, self.left_s), 1.0)


def validate(session: Session) -> Validation:
    """Predicts, measures and judges; all records lie in the session's folder. Ctrl-C ends it early, with what there is.

    Raises InputError when the model does not fit into the device, or too little could be measured.
    """
    begun = time.perf_counter()
    plan = make_plan(session.model, session.device, DTYPE[session.device.kind])
    _check_engine(session, plan)
    for name in (statements.PREDICTIONS, statements.MEASUREMENTS, RUN):
        (session.folder / name).unlink(missing_ok=True)
    session.left_out += [f"no case: {what}" for what in plan.left_out]
    with JsonlWriter(session.folder / statements.MEASUREMENTS) as writer:
        try:
            fitted = _fit(session, plan, writer)
            _judge_kernels(session, plan, fitted, writer)
            bench = _judge_steps(session, plan, writer)
            _serve(session, plan, bench, writer)
        except KeyboardInterrupt:
            if not session.bases or session.bases[-1].name != THIS_RUN:
                raise
            session.interrupted = True
            session.left_out.insert(0, "what came after the interruption")
    seconds = time.perf_counter() - begun
    (session.folder / RUN).write_text(json.dumps(_about(session, plan, seconds), indent=1) + "\n", encoding="utf-8")
    return assemble(session.folder)


def check_budget(budget_s: float) -> None:
    """Raises InputError for a budget in which nothing can be measured."""
    if budget_s < LEAST_S:
        raise InputError(f"a budget of {budget_s:.0f} s: a validation needs at least {LEAST_S:.0f} s, better 240 s")


def _check_engine(session: Session, plan: Plan) -> None:
    """Whether the engine will run the model, asked before minutes go into measuring its kernels."""
    from roofline.validation.engine_steps import setup

    setup(session.model, session.device.kind, DTYPE[session.device.kind], [*plan.fit_steps, *plan.judged_steps], session.seed)


def _fit(session: Session, plan: Plan, writer: JsonlWriter) -> list[Measurement]:
    """What the profile claims is stated before anything runs; then the roofs and the shapes for constants are measured."""
    digest = ""
    if session.hardware is not None:
        printed = f"roofs of {session.hardware.id}, efficiencies common to all devices"
        session.bases = [
            Basis(UNCALIBRATED, session.hardware, printed),
            Basis(SHIPPED, session.hardware, f"constants of {session.hardware.id}"),
        ]
        digest = statements.state(session.folder, "profile", _all(session, plan, session.bases))
    statements.begin(writer, "profile", digest)
    session.say(f"roofs and {len(plan.fit_cases)} shapes for constants, {session.until('fit'):.0f} s")
    return _sweep(session, plan.fit_cases, writer, session.until("fit"))


def _judge_kernels(session: Session, plan: Plan, fitted: Sequence[Measurement], writer: JsonlWriter) -> None:
    hardware = _fitted_device(session, fitted)
    session.left_out += _without_constants(hardware, plan)
    source = f"constants of {len(fitted)} cases of this run, other shapes than the judged ones"
    new = [Basis(THIS_RUN, hardware, source, apart=session.apart)]
    if session.hardware is None:
        roofs = hardware.model_copy(update={"calibration": ()})
        new.insert(0, Basis(UNCALIBRATED, roofs, "roofs of this run (no datasheet), efficiencies common to all devices"))
    session.bases += new
    stated = [kernel_prediction(case.id, case.op, basis) for basis in new for case in plan.judged_cases]
    statements.begin(writer, "kernels", statements.state(session.folder, "kernels", stated))
    session.say(f"{len(plan.judged_cases)} shapes of {session.model.name}, {session.until('kernels'):.0f} s")
    _sweep(session, plan.judged_cases, writer, session.until("kernels"))
    session.device.release()


def _fitted_device(session: Session, fitted: Sequence[Measurement]) -> Hardware:
    try:
        return fit_device(fitted, session.hardware)
    except InputError as error:
        if session.hardware is None:
            raise
        session.left_out.append(f"constants of this run: {error}; those of {session.hardware.id} stand in for them")
        return session.hardware


def _without_constants(hardware: Hardware, plan: Plan) -> list[str]:
    """Kinds of kernel for which a CPU got no constants: their predictions are the uncalibrated ones."""
    if hardware.vendor != "measured":
        return []
    have = {block.family.removeprefix(PREFIX) for block in hardware.calibration}
    lack = sorted({case.kind for case in plan.judged_cases} - have)
    return [f"constants of {kind}: too few shapes were measured; its predictions are the uncalibrated ones" for kind in lack]


def _judge_steps(session: Session, plan: Plan, writer: JsonlWriter) -> Bench:
    """In several passes, each with constants of its own moment: memory that is shared with other machines changes within a minute."""
    from roofline.validation.engine_steps import Bench

    dtype, device, seconds = DTYPE[session.device.kind], session.device, session.until("engine")
    session.say(f"engine: {len(plan.fit_steps)} steps for its constants, {len(plan.judged_steps)} to judge, {seconds:.0f} s")
    bench = Bench(session.model, device.kind, dtype, [*plan.fit_steps, *plan.judged_steps], cpu_time=device.cpu_time, seed=session.seed)
    count = passes.count(seconds / 2, len(plan.fit_steps))
    share, took = seconds / (2 * count), 0.0
    for number in range(1, count + 1):
        if took > session.left_s:
            break
        began = time.perf_counter()
        _constants(session, plan, bench, writer, number, share)
        new = [basis for basis in session.bases if basis.name == THIS_RUN or session.hardware is None]
        stated = [step_prediction(step, session.model, AS_SHIPPED, basis) for basis in new for step in plan.judged_steps]
        stage = f"steps {number}"
        statements.begin(writer, stage, statements.state(session.folder, stage, stated))
        bench.steps(
            plan.judged_steps, time.perf_counter() + share, writer, device, session.seed + number, sentinel=plan.fit_steps[0], number=number
        )
        took = time.perf_counter() - began
    return bench


def _constants(session: Session, plan: Plan, bench: Bench, writer: JsonlWriter, number: int, seconds: float) -> None:
    """The engine's constants as of now, from steps that are not judged."""
    statements.begin(writer, f"engine constants {number}", "")
    end = time.perf_counter() + seconds
    measured = bench.steps(plan.fit_steps, end, writer, session.device, session.seed - number, sentinel=plan.fit_steps[0], number=number)
    place = next(i for i, basis in enumerate(session.bases) if basis.name == THIS_RUN)
    mine = session.bases[place]
    kernels = {step: _kernels_s(step_prediction(step, session.model, AS_SHIPPED, mine)) for step in measured}
    session.bases[place] = replace(mine, step=fit_steps(measured, kernels))


def _kernels_s(prediction: Prediction) -> float:
    return sum(seconds for name, seconds in prediction.parts.items() if name != "engine")


def _serve(session: Session, plan: Plan, bench: Bench, writer: JsonlWriter) -> None:
    """The trace, simulated with every basis and then run, as often as fits into what is left of the budget."""
    scale = SCALES[session.device.kind]
    mine = serve.timer(session.model, AS_SHIPPED, session.bases[-1], scale.tokens)
    at_once = serve.latencies(trace(session.device.kind, float("inf"), session.seed), bench.scheduler(), mine)
    workload = trace(session.device.kind, serve.LOAD * 100 / at_once["makespan"], session.seed)
    needed = serve.latencies(workload, bench.scheduler(), mine)["makespan"] * bench.slowdown * SAFETY
    needed = needed * (serve.LOAD if session.device.cpu_time else 1.0) + REFRESH_S
    if needed > session.left_s:
        session.left_out.append(
            f"trace of {len(workload)} requests: about {needed:.0f} s needed, {max(session.left_s, 0):.0f} s left of the budget"
        )
        return
    session.say(f"trace of {len(workload)} requests, about {needed:.0f} s, up to {REPEATS} times")
    for number in range(1, REPEATS + 1):
        if needed > session.left_s:
            return
        _constants(session, plan, bench, writer, passes.PASSES + number, 0.0)
        stated = [p for basis in session.bases for p in _simulated(session, bench, workload, basis)]
        told = serve.timeline(workload, bench.scheduler(), serve.timer(session.model, AS_SHIPPED, session.bases[-1], scale.tokens))
        stage = f"trace {number}"
        statements.begin(writer, stage, statements.state(session.folder, stage, stated, simulated=told))
        before, began = passes.busy(), time.perf_counter()
        run = bench.serve(workload, bench.scheduler())
        share = passes.others(before, passes.busy(), time.perf_counter() - began)
        for record in run.requests.values():
            writer.write(record.to_json() | {"repeat": number})
        writer.write({"kind": "served", "repeat": number, "rejected": run.rejected, "preemptions": run.preemptions, "others": share})
        writer.flush()


def _simulated(session: Session, bench: Bench, workload: Workload, basis: Basis) -> list[Prediction]:
    """Latencies of the trace by one basis; low and high from an engine that is faster or slower by the spread of its steps."""
    width = 1.2816 * float(np.hypot(basis.step.spread, 0.05))
    tokens = SCALES[session.device.kind].tokens
    expected, low, high = (
        serve.latencies(workload, bench.scheduler(), serve.timer(session.model, AS_SHIPPED, _scaled(basis, factor), tokens))
        for factor in (1.0, 1 - width, 1 + width)
    )
    return serve.predictions(basis, expected, low, high)


def _scaled(basis: Basis, factor: float) -> Basis:
    return replace(basis, step=serve.scaled(basis.step, factor))


def _all(session: Session, plan: Plan, bases: Sequence[Basis]) -> list[Prediction]:
    kernels = [kernel_prediction(case.id, case.op, basis) for basis in bases for case in plan.judged_cases]
    return kernels + [step_prediction(step, session.model, AS_SHIPPED, basis) for basis in bases for step in plan.judged_steps]


def _sweep(session: Session, cases: Sequence[Any], writer: JsonlWriter, budget_s: float) -> list[Measurement]:
    """All cases in several passes of other order; the middle pass of each case."""
    from microbench.cases.standard import sentinel
    from microbench.measure import measure
    from microbench.sweep import Sweep

    found: list[Measurement] = []
    skipped: dict[str, str] = {}
    end = time.perf_counter() + budget_s
    count = passes.count(budget_s, len(cases))
    for number in range(count + 1):
        share, session.passes = (end - time.perf_counter()) / (count + 1 - number), session.passes + 1
        wanted = cases if number < count else passes.without_calm(cases, found)  # a last pass over what others disturbed each time
        if not wanted:
            break
        watched = passes.watched(measure, session.passes)
        sweep = Sweep(session.device, writer, budget_s=share, seed=session.seed + number, measure_case=watched)
        outcome = sweep.run(wanted, sentinel(session.device))
        found += outcome.measurements
        skipped |= outcome.skipped
        session.untrustworthy += [text for text in outcome.untrustworthy if text not in session.untrustworthy]
    kept, session.apart = passes.middle(found), passes.apart(found)
    if not kept:
        raise InputError(f"nothing could be measured in {budget_s:.0f} s: give a larger --budget")
    measured = {str(m.notes["case"]) for m in kept}
    session.skipped |= {case: reason for case, reason in skipped.items() if case not in measured}
    return kept


def _about(session: Session, plan: Plan, seconds: float) -> Mapping[str, Any]:
    """run.json: what assemble needs beside the records, and what a reader wants to know."""
    hardware = session.hardware.model_dump(mode="json", exclude={"path", "figures"}) if session.hardware else None
    bases = [{"name": b.name, "source": b.source, "device": b.hardware.id, "step": asdict(b.step), "apart": b.apart} for b in session.bases]
    return {
        "kind": "validation", "model": session.model.name, "device": session.device.id, "dtype": DTYPE[session.device.kind],
        "budget_s": session.budget_s, "seconds": seconds, "seed": session.seed, "threads": session.device.threads,
        "cpu_time": session.device.cpu_time, "cores_present": os.cpu_count(), "hardware": hardware, "bases": bases,
        "fitted": [case.id for case in plan.fit_cases] + [step.id for step in plan.fit_steps],
        "judged": [case.id for case in plan.judged_cases] + [step.id for step in plan.judged_steps],
        "alone": plan.alone, "left_out": [*session.left_out, *_skipped(session, plan)], "untrustworthy": session.untrustworthy,
        "interrupted": session.interrupted,
    }  # fmt: skip


def _skipped(session: Session, plan: Plan) -> list[str]:
    """Shapes that were not measured: a few that were to be judged one each, many and those for constants together."""
    found: list[str] = []
    for what, cases in (("of the model", plan.judged_cases), ("for constants", plan.fit_cases)):
        reasons = [f"{case.id}: {session.skipped[case.id]}" for case in cases if case.id in session.skipped]
        if what == "of the model" and len(reasons) <= FEW:
            found += reasons
        elif reasons:
            found.append(f"{len(reasons)} of {len(cases)} shapes {what} were not measured (the first: {reasons[0]})")
    return found
