"""One validation from start to end under a budget: predictions on record, then measurements, stage by stage."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from roofline.errors import InputError
from roofline.ledger import AS_SHIPPED
from roofline.records import JsonlWriter
from roofline.validation import statements
from roofline.validation.compare import RUN, Validation, assemble
from roofline.validation.engine_passes import judge_engine
from roofline.validation.kernels import judge_kernels
from roofline.validation.plan import Plan, make_plan
from roofline.validation.predictions import SHIPPED, UNCALIBRATED, Basis, Prediction, kernel_prediction, step_prediction
from roofline.validation.session import Session

FEW = 3  # shapes that are named one by one when they were left out
LEAST_S = 45.0


def validate(session: Session) -> Validation:
    """Predicts, measures and judges; all records lie in the session's folder. Ctrl-C ends it early, with what there is.

    Raises InputError when the model does not fit into the device, or too little could be measured.
    """
    begun = time.perf_counter()
    plan = make_plan(session.model, session.device, session.dtype)
    _check_engine(session, plan)
    for name in (statements.PREDICTIONS, statements.MEASUREMENTS, RUN):
        (session.folder / name).unlink(missing_ok=True)
    session.left_out += [f"no case: {what}" for what in plan.left_out]
    with JsonlWriter(session.folder / statements.MEASUREMENTS) as writer:
        try:
            _claim(session, plan, writer)
            judge_kernels(session, plan, writer)
            judge_engine(session, plan, writer)
        except KeyboardInterrupt:
            if not session.renewed:
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

    setup(session.model, session.device.kind, session.dtype, [*plan.fit_steps, *plan.judged_steps], session.seed)


def _claim(session: Session, plan: Plan, writer: JsonlWriter) -> None:
    """What the profile claims is stated before anything runs."""
    digest = ""
    if session.hardware is not None:
        printed = f"roofs of {session.hardware.id}, efficiencies common to all devices"
        session.bases = [
            Basis(UNCALIBRATED, session.hardware, printed),
            Basis(SHIPPED, session.hardware, f"constants of {session.hardware.id}"),
        ]
        digest = statements.state(session.folder, "profile", _all(session, plan, session.bases))
    statements.begin(writer, "profile", digest)


def _all(session: Session, plan: Plan, bases: Sequence[Basis]) -> list[Prediction]:
    kernels = [kernel_prediction(case.id, case.op, basis) for basis in bases for case in plan.judged_cases]
    return kernels + [step_prediction(step, session.model, AS_SHIPPED, basis) for basis in bases for step in plan.judged_steps]


def _about(session: Session, plan: Plan, seconds: float) -> Mapping[str, Any]:
    """run.json: what assemble needs beside the records, and what a reader wants to know."""
    hardware = session.hardware.model_dump(mode="json", exclude={"path", "figures"}) if session.hardware else None
    bases = [{"name": b.name, "source": b.source, "device": b.hardware.id, "step": asdict(b.step)} for b in session.bases]
    return {
        "kind": "validation", "model": session.model.name, "device": session.device.id, "dtype": session.dtype,
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
