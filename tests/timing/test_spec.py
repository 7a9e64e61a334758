"""What carries over to a device that no kernel was measured on: shares of what devices sustain, by public benchmarks of both."""

from __future__ import annotations

import pytest

from roofline.profiles.catalog import load_hardware
from roofline.timing.forms import Key
from roofline.timing.kernels import kernel_times
from roofline.timing.spec import device_spec, sustained, transfer


@pytest.mark.parametrize(
    ("device", "compute"),
    [
        ("rtx-4090", 178.8 / 165.2 / (252 / 362.05)),
        ("l40", 170.3 / 181 / (252 / 362.05)),
        ("rtx-3090", 78 / 71 / (267.9 / 312)),
        ("h100-pcie", 499.5 / 756 / (821.2 / 989.4)),
        ("rtx-5090", 254 / 209.5 / (458 / 467.8)),
    ],
)
def test_a_device_keeps_its_share_of_what_others_sustain_in_the_same_benchmark(device, compute):
    assert transfer(load_hardware(device))[0] == pytest.approx(compute, rel=0.003)


@pytest.mark.parametrize("device", ["l40s", "h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm-80gb", "rtx-pro-6000-server", "mi300x"])
def test_nothing_is_scaled_where_kernels_were_measured_or_nothing_was(device):
    assert transfer(load_hardware(device)) == (1.0, 1.0)


def test_benchmarks_of_different_kinds_or_sources_are_not_compared():
    assert sustained(load_hardware("rtx-5090"), [load_hardware("l40s")]) == 1.0
    assert sustained(load_hardware("b200-sxm"), [load_hardware("l40s")]) == 1.0


def test_a_card_without_ecc_reads_faster_than_one_with_it():
    assert transfer(load_hardware("rtx-4090"))[1] > 1.1
    assert transfer(load_hardware("l40"))[1] == transfer(load_hardware("l4"))[1] == 1.0


@pytest.mark.parametrize(("device", "best"), [("rtx-4090", 178.8e12), ("l40", 170.3e12), ("rtx-6000-ada", 278.5e12), ("l4", 91.4e12)])
def test_large_products_come_close_to_the_best_that_was_measured_and_not_above(device, best):
    spec = device_spec(load_hardware(device))
    m, n, k = 8192.0, 16384.0, 8192.0
    for engine in ("vllm", "sglang", "trtllm"):
        estimate, _ = kernel_times("gemm", {"m": m, "n": n, "k": k}, Key(engine, "bf16"), spec, hot=False)
        assert 0.75 * best < 2 * m * n * k / estimate.expected_s[0] < best
