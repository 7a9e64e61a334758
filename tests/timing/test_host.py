"""Kernels on a CPU: the form by hand, and the pairs of a blocked kernel against loops."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from roofline.batch import Batch
from roofline.ledger import Op, Precision, build_ledger
from roofline.profiles.calibration import CalibrationBlock, Provenance
from roofline.profiles.catalog import load_model
from roofline.profiles.hardware import Hardware
from roofline.timing.generic import expected_op_s
from roofline.timing.host import calibrated_s, executed_pairs, host_op_s

CPU = Hardware(id="cpu", vendor="x", name="x", memory_bytes=1e9, memory_bandwidth=1e10, peaks={"fp32": 1e11, "bf16": 1e11})
CONSTANTS = {"t0_us": 5.0, "ec": 0.5, "em": 0.8, "p": 1.0, "extra": 0.5, "few": 0.25}


def gemm(m: int, n: int, k: int) -> Op:
    return Op(
        "g", "gemm", "", 1, "fp32", "", m, n, k, 2.0 * m * n * k, 4.0 * n * k, activation_bytes_each=4.0 * m * (n + k)
    )  # fmt: skip


@pytest.mark.parametrize("m", [1, 3, 4, 15, 16, 64])
def test_gemm_by_hand(m: int) -> None:
    n, k = 300, 500
    rate = 0.25 * 0.5e11 if 4 <= m < 16 else 0.5e11
    seconds = 5e-6 + 2 * m * n * k / rate + 4 * (n * k + m * n + m * k) / 0.8e10
    if m >= 16:
        seconds += 0.5 * 4 * n * k / 0.8e10
    assert float(host_op_s(gemm(m, n, k), CPU, CONSTANTS)) == pytest.approx(seconds)


def test_a_profile_with_constants_is_used_before_those_of_all_devices() -> None:
    block = CalibrationBlock(family="host_gemm", software="torch", dtype="fp32", constants=CONSTANTS, provenance=Provenance(source="test"))
    measured = CPU.model_copy(update={"calibration": (block,)})
    op = gemm(64, 300, 500)
    assert float(expected_op_s(op, measured)) == float(host_op_s(op, CPU, CONSTANTS))
    assert float(expected_op_s(op, CPU)) != float(expected_op_s(op, measured))
    assert calibrated_s(replace(op, compute="bf16"), measured) is None


@pytest.mark.parametrize(
    ("new", "past"), [(1, 0), (1, 700), (256, 0), (512, 0), (513, 0), (768, 0), (1536, 0), (300, 400), (1000, 1), (64, 512)]
)
def test_executed_pairs_against_loops(new: int, past: int) -> None:
    total = new + past
    counted = sum(min(total, 512 * math.ceil((row + 1) / 512)) for row in range(past, total))
    assert float(executed_pairs(np.array(float(new)), np.array(float(past)))) == counted


def test_short_prompts_compute_the_whole_square_and_decode_nothing_extra() -> None:
    model = load_model("llama-2-7b")

    def attention(batch: Batch) -> Op:
        (op,) = [op for op in build_ledger(model, batch, precision=Precision(activations="fp32", kv="fp32")) if op.name == "attention"]
        return op

    compute_only = CONSTANTS | {"t0_us": 1e-9, "em": 1e9, "extra": 1e-12}
    short = attention(Batch.prefill(1, 256))
    assert float(host_op_s(short, CPU, compute_only)) == pytest.approx(2 * 256 / 257 * float(short.flops_each) / 0.5e11, rel=1e-6)
    step = attention(Batch.decode(4, 1000))
    assert float(host_op_s(step, CPU, compute_only)) == pytest.approx(float(step.flops_each) / 0.5e11, rel=1e-6)
