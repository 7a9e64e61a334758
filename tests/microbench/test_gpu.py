"""The CUDA paths on a real device. Each has a twin: the same cases on the CPU (test_oracle), the same timers on a fake (test_timers)."""

from __future__ import annotations

import pytest
import torch

from microbench.cases.attention import decode, naive, prefill
from microbench.cases.gemm import gemm
from microbench.cases.moving import elementwise, launch, stream, transfer
from microbench.device import Device, open_device
from microbench.measure import measure
from microbench.ops import Heads
from microbench.stopping import Rule

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
QUICK = Rule(budget_s=0.1, least_s=0.05, warm_s=0.02)
OF = Heads(8, 2, 64)


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("cuda")


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "w8a16", "int4"])
@pytest.mark.parametrize("cold", [False, True])
def test_gemm(device: Device, dtype: str, cold: bool) -> None:
    if dtype not in device.dtypes:
        pytest.skip(f"{device.id} does not multiply {dtype}")
    found = measure(gemm(64, 1024, 512, dtype, cold=cold), device, QUICK, "env")
    assert found.notes["error"] is not None
    assert found.method.endswith("cuda graph")


@pytest.mark.parametrize(
    "case",
    [
        prefill(1, 256, OF, "bf16"),
        prefill(1, 256, OF, "bf16", kernel="math"),
        prefill(1, 256, OF, "bf16", causal=False),
        decode(4, 511, OF, "bf16"),
        decode(4, 511, OF, "bf16", paged=True),
        naive(1, 256, Heads(4, 4, 64), "bf16"),
        stream("copy", "memory", 2**24, cold=True),
        stream("read", "memory", 2**24, cold=True),
        stream("triad", "L2", 2**20, cold=False),
        elementwise("norm", 64, 1024, "bf16"),
        elementwise("mlp_act", 64, 1024, "bf16"),
        launch(graph=False),
        launch(graph=True),
        transfer("h2d", 2**20, pinned=True),
        transfer("d2h", 2**20, pinned=False),
    ],
    ids=lambda case: case.id,
)
def test_other_cases(device: Device, case) -> None:
    found = measure(case, device, QUICK, "env")
    assert len(found.samples_s) >= 3
    assert found.notes["before"] is not None


def test_operands_too_small_to_rotate_are_flushed(device: Device) -> None:
    found = measure(elementwise("residual_add", 1, 64, "bf16"), device, QUICK, "env")
    assert "not_cold" not in found.notes
    assert found.method.endswith("cuda events")


def test_state_and_environment_name_the_device(device: Device) -> None:
    assert device.environment().device["name"] == device.id
    assert device.environment().id == device.environment().id
