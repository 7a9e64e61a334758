"""What is measured: fitted and judged shapes apart, the steps' kernels known, on a CPU and on a GPU that need not be here."""

from __future__ import annotations

import statistics

import pytest

from microbench.cases.model import in_one_type
from microbench.device import Device
from microbench.measure import Case
from roofline.errors import InputError
from roofline.ledger import AS_SHIPPED, build_ledger
from roofline.profiles.catalog import load_hardware, load_model
from roofline.records import Measurement
from roofline.validation.fitting import fit_device
from roofline.validation.plan import Plan, make_plan
from roofline.validation.predictions import SHIPPED, THIS_RUN, UNCALIBRATED, Basis, Step, kernel_prediction, step_prediction

CPU = Device("cpu", "a CPU", 2**25, {"L3": 2**25}, ("fp32",))
H100 = load_hardware("h100-sxm")
GPU = Device("cuda", H100.id, 50 * 2**20, {"L2": 50 * 2**20}, ("fp32", "fp16", "bf16", "fp8"), H100)
PLANS = [("tiny-llama-110m", "fp32", CPU), ("llama-3.1-8b", "bf16", GPU)]


def sites(cases: list[Case]) -> set[tuple[int, int]]:
    return {(int(case.shape["n"]), int(case.shape["k"])) for case in cases if case.kind == "gemm"}


@pytest.mark.parametrize(("name", "dtype", "device"), PLANS)
def test_no_weights_of_a_judged_product_are_fitted(name: str, dtype: str, device: Device) -> None:
    plan = make_plan(in_one_type(load_model(name), dtype), device, dtype)
    judged, fitted = sites(list(plan.judged_cases)), sites(list(plan.fit_cases))
    assert judged
    assert fitted
    assert not judged & fitted
    assert not {case.id for case in plan.judged_cases} & {case.id for case in plan.fit_cases}
    assert not {step.id for step in plan.judged_steps} & {step.id for step in plan.fit_steps}


@pytest.mark.parametrize(("name", "dtype", "device"), PLANS)
def test_the_kernels_of_a_step_are_its_ledger_layer_by_layer(name: str, dtype: str, device: Device) -> None:
    model = in_one_type(load_model(name), dtype)
    plan: Plan = make_plan(model, device, dtype)
    by_id = {case.id: case for case in plan.judged_cases}
    step = next(Step(*shape) for shape in ((1, 1, 256), (1, 1, 512)) if Step(*shape).id in plan.alone)
    alone = plan.alone[step.id]
    flops = sum(count * float(by_id[case].op.flops_each) for case, count in alone.values())
    whole = build_ledger(model, step.as_batch).total("flops")
    assert flops == pytest.approx(float(whole), rel=1e-6)
    assert {count for _, count in alone.values()} == {1, model.num_layers}


def test_a_gpu_is_judged_on_two_claims_before_anything_runs() -> None:
    model = in_one_type(load_model("llama-3.1-8b"), "bf16")
    plan = make_plan(model, GPU, "bf16")
    for case in plan.judged_cases:
        plain, shipped = (kernel_prediction(case.id, case.op, Basis(name, H100, "")) for name in (UNCALIBRATED, SHIPPED))
        assert 0 < shipped.bound_s <= shipped.low_s <= shipped.expected_s <= shipped.high_s
        assert plain.bound_s == shipped.bound_s
    step = step_prediction(Step(1, 1, 512), model, AS_SHIPPED, Basis(SHIPPED, H100, ""))
    weights = 2 * (128256 * 4096 + 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336))
    assert step.bound_s == pytest.approx(weights / H100.memory_bandwidth, rel=0.01)
    assert step.bound_s < step.expected_s < 2 * step.bound_s


def test_a_model_of_few_positions_is_refused() -> None:
    short = load_model("tiny-llama-15m").model_copy(update={"max_position_embeddings": 32})
    with pytest.raises(InputError, match="32 positions"):
        make_plan(in_one_type(short, "fp32"), CPU, "fp32")


def test_constants_of_a_gpu_come_from_its_own_run() -> None:
    """A device whose kernels all take 1.3 × what is shipped: constants of other shapes bring the judged ones near."""
    plan = make_plan(in_one_type(load_model("llama-3.1-8b"), "bf16"), GPU, "bf16")
    shipped = Basis(SHIPPED, H100, "")
    measured = [measurement(case, 1.3 * kernel_prediction(case.id, case.op, shipped).expected_s) for case in plan.fit_cases]
    mine = Basis(THIS_RUN, fit_device(measured, H100), "")
    gemm = [case for case in plan.judged_cases if case.kind == "gemm"]
    ratios = [kernel_prediction(c.id, c.op, mine).expected_s / kernel_prediction(c.id, c.op, shipped).expected_s for c in gemm]
    assert statistics.median(ratios) == pytest.approx(1.3, rel=0.1)


def measurement(case: Case, seconds: float) -> Measurement:
    notes = {"case": case.id, "flops": float(case.op.flops_each), "bytes": case.set_bytes, "compute": case.op.compute}
    return Measurement(case.kind, dict(case.shape), H100.id, case.dtype, (seconds,) * 5, "test", "e", cold=case.cold, notes=notes)


def test_lengths_are_halved_for_a_model_of_fewer_positions() -> None:
    plan = make_plan(in_one_type(load_model("tiny-llama-15m"), "fp32"), CPU, "fp32")
    steps = [*plan.fit_steps, *plan.judged_steps]
    assert max(step.past + step.new for step in steps) == 256
    assert len({step.id for step in steps}) == len(steps)
