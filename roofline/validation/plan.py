"""What a validation measures: shapes that constants are fitted to, shapes that are judged, steps of the engine, a trace."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roofline.errors import InputError
from roofline.ledger import Conventions, Op, build_ledger
from roofline.profiles.model import Model
from roofline.serving.workloads import Workload, open_loop, uniform_length
from roofline.timing.calibrated import as_run
from roofline.validation.fitting import disjoint
from roofline.validation.predictions import Step

if TYPE_CHECKING:
    from microbench.device import Device
    from microbench.measure import Case

SECTIONS, REQUESTS = 10, 10  # of the trace, and in each of them
LEAST_POSITIONS = 128


@dataclass(frozen=True)
class Scale:
    """Sizes that suit a kind of device.

    fit, judged: steps as Step has them; kernels: those whose kernels are measured alone.
    inputs, outputs: lengths of the trace's requests, drawn uniformly; sequences, tokens: most in a step. sites: (n, k) of further
    products for constants, site_rows: their rows; rows: of the standard products (all when empty); groups: of standard cases for
    roofs and constants.
    """

    fit: Sequence[Step]
    judged: Sequence[Step]
    kernels: Sequence[Step]
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    sequences: int
    tokens: int
    sites: Sequence[tuple[int, int]] = ()
    site_rows: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    groups: tuple[str, ...] = ("stream", "gemm", "gemv", "attention", "launch", "elementwise", "transfer")


SCALES = {
    "cpu": Scale(
        fit=(
            Step(1, 1, 64), Step(2, 1, 448), Step(3, 1, 96), Step(4, 1, 32), Step(5, 1, 160), Step(6, 1, 64), Step(7, 1, 320),
            Step(8, 1, 32), Step(1, 8, 0), Step(1, 14, 0), Step(1, 24, 0), Step(1, 48, 0), Step(1, 192, 0), Step(1, 384, 0),
            Step(1, 1, 24, (10,)), Step(3, 1, 32, (24,)), Step(2, 1, 48, (20, 36)), Step(6, 1, 40, (12, 30)),
        ),
        judged=(
            Step(1, 1, 256), Step(2, 1, 128), Step(4, 1, 256), Step(8, 1, 256), Step(1, 96, 0), Step(1, 256, 0), Step(1, 512, 0),
        ),
        kernels=(Step(1, 1, 256), Step(4, 1, 256), Step(8, 1, 256), Step(1, 256, 0)),
        inputs=(8, 40), outputs=(2, 6), sequences=8, tokens=256, sites=((3072, 1024), (16384, 1024)), site_rows=(1, 8),
        rows=(1, 4, 8, 16, 64, 256), groups=("stream", "gemm", "gemv", "attention", "launch"),
    ),
    "cuda": Scale(
        fit=(
            Step(1, 1, 1024), Step(4, 1, 512), Step(12, 1, 2048), Step(32, 1, 512), Step(48, 1, 1024), Step(1, 512, 0), Step(1, 1536, 0),
            Step(1, 4096, 0), Step(8, 1, 512, (256,)), Step(24, 1, 768, (384, 640)),
        ),
        judged=(
            Step(1, 1, 512), Step(8, 1, 1024), Step(16, 1, 1024), Step(64, 1, 512), Step(64, 1, 1024), Step(1, 256, 0), Step(1, 1024, 0),
            Step(1, 2048, 0),
        ),
        kernels=(Step(1, 1, 512), Step(16, 1, 1024), Step(64, 1, 1024), Step(1, 2048, 0)),
        inputs=(64, 1024), outputs=(16, 128), sequences=64, tokens=2048, sites=((5120, 5120), (8192, 2048), (2048, 8192), (24576, 3072)),
        site_rows=(1, 4, 16, 64, 128, 512, 2048),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """fit_cases, judged_cases: of microbench; sentinel: a case that tells how the device changes; alone: step id → op name →
    (case id, runs in the step), for attribution.
    """

    fit_cases: Sequence[Case]
    judged_cases: Sequence[Case]
    sentinel: Case
    fit_steps: Sequence[Step]
    judged_steps: Sequence[Step]
    alone: Mapping[str, Mapping[str, tuple[str, int]]]
    left_out: Sequence[str]


def make_plan(model: Model, device: Device, dtype: str) -> Plan:
    """The cases and steps of `model` on `device`, in one `dtype`; fitted and judged shapes have nothing in common (checked).

    Raises InputError for a model that has too few positions.
    """
    from microbench.cases.gemm import gemm
    from microbench.cases.model import model_cases
    from microbench.cases.standard import cases

    scale = SCALES[device.kind]
    shift = _halvings(scale, model)
    fit, judged, kernels = (
        [Step(s.batch, max(s.new >> shift, 1), s.past >> shift, tuple(max(n >> shift, 2) for n in s.prompts)) for s in steps]
        for steps in (scale.fit, scale.judged, scale.kernels)
    )
    wanted: dict[str, Case] = {}
    missing: dict[str, None] = {}
    for step in kernels:
        batches, context = ([step.batch], step.past) if step.phase == "decode" else ([], 1)
        found, left_out = model_cases(model, batches=batches, context=context, prompt=step.new if step.phase == "prefill" else 1)
        if step.phase == "decode":
            found = [case for case in found if _in_step(case.op, model, step)]
        wanted |= {case.id: case for case in found}
        missing |= dict.fromkeys(left_out)
    sites = {(float(case.op.n), float(case.op.k)) for case in wanted.values() if case.kind == "gemm"}
    standard = [
        case
        for group in scale.groups
        for case in cases(group, device)
        if case.dtype == dtype or case.kind in ("stream", "launch", "transfer")
        if _for_constants(case, scale)
    ]
    standard += [gemm(m, n, k, dtype, cold=True) for n, k in scale.sites for m in scale.site_rows]
    fitted = [c for c in standard if c.id not in wanted and (c.kind != "gemm" or (float(c.op.n), float(c.op.k)) not in sites)]
    disjoint([case.id for case in fitted], list(wanted))
    disjoint([step.id for step in fit], [step.id for step in judged])
    alone = {step.id: runs for step in judged if (runs := _alone(model, step, list(wanted.values())))}
    return Plan(fitted, list(wanted.values()), _sentinel(device), fit, judged, alone, list(missing))


def _sentinel(device: Device) -> Case:
    """What changes on a device: the clock of a GPU, and of a CPU the memory, which it may share with other machines."""
    from microbench.cases.gemm import gemm
    from microbench.cases.standard import sentinel

    return gemm(4, 1024, 1024, "fp32", cold=True) if device.kind == "cpu" else sentinel(device)


def _halvings(scale: Scale, model: Model) -> int:
    """How often lengths are halved so that the longest step fits the model's positions. Raises InputError for very few of them."""
    longest = model.max_position_embeddings or 1 << 20
    if longest < LEAST_POSITIONS:
        raise InputError(f"{model.name} has {longest} positions: the steps of a validation need at least {LEAST_POSITIONS}")
    most = max(step.new + step.past for step in (*scale.fit, *scale.judged))
    return max(0, math.ceil(math.log2(most / longest)))


def _for_constants(case: Case, scale: Scale) -> bool:
    """Streams out of memory, the main kernels of attention, hot products for the peak and cold ones of scale.rows."""
    if case.kind == "stream":
        return case.shape["level"] == "memory"
    if case.kind == "gemm" and case.cold and scale.rows:
        return case.shape["m"] in scale.rows
    return case.shape.get("kernel", "flash") == "flash" and case.shape.get("causal", 1) == 1 and case.kind != "naive_attention"


def _signature(op: Op) -> tuple[object, ...]:
    return (op.kind, float(op.m), float(op.n), float(op.k), float(op.flops_each))


def _ops(model: Model, step: Step) -> list[Op]:
    return list(as_run(build_ledger(model, step.as_batch, conventions=Conventions(elementwise=True))))


def _in_step(op: Op, model: Model, step: Step) -> bool:
    return _signature(op) in {_signature(each) for each in _ops(model, step)}


def _alone(model: Model, step: Step, cases: Sequence[Case]) -> dict[str, tuple[str, int]]:
    known = {_signature(case.op): case.id for case in cases}
    return {op.name: (known[_signature(op)], op.count) for op in _ops(model, step) if _signature(op) in known}


def trace(kind: str, rate: float, seed: int, requests: int = REQUESTS) -> Workload:
    """Requests of the serving comparison, Poisson at `rate` 1/s."""
    scale = SCALES[kind]
    return open_loop(requests, rate, uniform_length(*scale.inputs), uniform_length(*scale.outputs), seed=seed)
