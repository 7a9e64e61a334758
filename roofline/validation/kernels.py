"""Kernels in passes: shapes for constants, predictions on record, then the model's own shapes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from roofline.errors import InputError
from roofline.profiles.hardware import Hardware
from roofline.records import JsonlWriter, Measurement
from roofline.timing.host import PREFIX
from roofline.validation import passes, statements
from roofline.validation.fitting import fit_device
from roofline.validation.plan import Plan
from roofline.validation.predictions import THIS_RUN, UNCALIBRATED, Basis, kernel_prediction
from roofline.validation.session import SHARES, Session

if TYPE_CHECKING:
    from microbench.measure import Case

AGAIN = 0.25  # of a sweep's time, kept for shapes that others disturbed


def judge_kernels(session: Session, plan: Plan, writer: JsonlWriter) -> None:
    """All passes; afterwards the constants of the run are those of all of them together."""
    seconds = session.until("fit", "kernels")
    count = passes.count(seconds, len(plan.fit_cases) + len(plan.judged_cases))
    words = "once" if count == 1 else f"{count} times, in turns"
    session.say(f"roofs and {len(plan.fit_cases)} shapes for constants, {len(plan.judged_cases)} to judge, {words}, {seconds:.0f} s")
    share = seconds / count
    fitting = share * SHARES["fit"] / (SHARES["fit"] + SHARES["kernels"])
    fitted: list[Measurement] = []
    for number in range(1, count + 1):
        end = time.perf_counter() + share
        statements.begin(writer, f"kernel constants {number}", "")
        found = _sweep(session, plan, plan.fit_cases, writer, fitting, number, passes.CONSTANTS)
        if not found and not fitted:
            raise InputError(f"nothing could be measured in {fitting:.0f} s: give a larger --budget")
        fitted += found
        _renew(session, plan, passes.middle(found), f"constants of {len(plan.fit_cases)} other shapes of the same pass")
        stated = [kernel_prediction(case.id, case.op, basis) for basis in session.renewed for case in plan.judged_cases]
        stage = f"kernels {number}"
        statements.begin(writer, stage, statements.state(session.folder, stage, stated))
        _sweep(session, plan, plan.judged_cases, writer, end - time.perf_counter(), number, passes.JUDGED)
    kept = passes.middle(fitted)
    _renew(session, plan, kept, f"constants of {len(kept)} cases of this run, other shapes than the judged ones")
    session.device.release()


def _renew(session: Session, plan: Plan, fitted: Sequence[Measurement], source: str) -> None:
    """The basis of this run from these measurements; on a device without a profile, its roofs as well."""
    hardware = _fitted_device(session, fitted)
    session.leave_out(*_without_constants(hardware, plan))
    new = [Basis(THIS_RUN, hardware, source)]
    if session.hardware is None:
        roofs = hardware.model_copy(update={"calibration": ()})
        new.insert(0, Basis(UNCALIBRATED, roofs, "roofs of this run (no datasheet), efficiencies common to all devices"))
    session.renew(new)


def _fitted_device(session: Session, fitted: Sequence[Measurement]) -> Hardware:
    """The device with constants of this pass; where there are too few for any, as it was."""
    try:
        return fit_device(fitted, session.hardware)
    except InputError as error:
        before = next((basis.hardware for basis in session.bases if basis.name == THIS_RUN), session.hardware)
        if before is None:
            raise
        session.leave_out(f"constants of one pass: {error}; those of {before.id} stand in for them")
        return before


def _without_constants(hardware: Hardware, plan: Plan) -> list[str]:
    """Kinds of kernel for which a CPU got no constants in a pass: their predictions there are the uncalibrated ones."""
    if hardware.vendor != "measured":
        return []
    have = {block.family.removeprefix(PREFIX) for block in hardware.calibration}
    lack = sorted({case.kind for case in plan.judged_cases} - have)
    return [f"constants of {kind}: a pass measured too few shapes; its predictions there are the uncalibrated ones" for kind in lack]


def _sweep(
    session: Session, plan: Plan, cases: Sequence[Case], writer: JsonlWriter, budget_s: float, number: int, phase: str
) -> list[Measurement]:
    """All cases in an order of this pass, then those once more that others disturbed; without sentinels."""
    from microbench.measure import measure
    from microbench.sweep import Sweep

    end = time.perf_counter() + budget_s
    found: list[Measurement] = []
    skipped: dict[str, str] = {}
    wanted: Sequence[Any] = cases
    for share in (1 - AGAIN, 1.0):
        left = end - time.perf_counter()
        watched = passes.watched(measure, number, phase)
        sweep = Sweep(session.device, writer, budget_s=share * left, seed=session.seed + number, measure_case=watched)
        outcome = sweep.run(wanted, plan.sentinel)
        found += outcome.measurements
        skipped |= outcome.skipped
        session.untrustworthy += [text for text in outcome.untrustworthy if text not in session.untrustworthy]
        wanted = passes.without_calm(cases, found)
        if not wanted:
            break
    kept = [m for m in found if not m.notes.get("sentinel")]
    measured = {str(m.notes["case"]) for m in kept}
    session.skipped = {case: why for case, why in (session.skipped | skipped).items() if case not in measured}
    return kept
