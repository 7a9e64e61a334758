"""One case on a fake device: what is recorded and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from microbench.measure import ROOF, Trial, check_roof, measure
from microbench.stopping import Rule
from roofline.errors import UntrustworthyError
from roofline.profiles import hardware
from roofline.profiles.hardware import Hardware
from tests.microbench.fakes import FakeDevice, fake_case

RULE = Rule(budget_s=1.0, warm_s=0.05)
PROFILE = Hardware(id="fake", vendor="x", name="Fake", memory_bytes=1e9, memory_bandwidth=1e6, peaks={"fp32": 1e9})


def run(device: FakeDevice, case, rule: Rule = RULE):
    return measure(case, device, rule, "env", clock=device.clock)


def test_hot_case_uses_one_set_and_reads_the_hot_time() -> None:
    device = FakeDevice()
    found = run(device, fake_case("hot"))
    assert device.built == 1
    assert found.median_s == pytest.approx(1e-3)
    assert found.cold is False
    assert found.notes["stop"] == "precise"


def test_cold_case_rotates_enough_and_never_hits() -> None:
    device = FakeDevice(cache_bytes=1000.0)
    found = run(device, fake_case("cold", cold=True))
    assert found.notes["sets"] == 15  # ⌈4 · 1000 / 300⌉ + 1
    assert not any(device.hits)
    assert found.median_s == found.minimum_s == pytest.approx(5e-3)
    assert "not_cold" not in found.notes


def test_first_call_is_kept_apart() -> None:
    device = FakeDevice()
    found = run(device, fake_case("compiles", hot_s=1e-3, cold_s=2.0))
    assert found.notes["first_call_s"] == pytest.approx(2.0)
    assert max(found.samples_s) == pytest.approx(1e-3)


def test_short_calls_are_timed_in_bursts() -> None:
    device = FakeDevice()
    calls = len(run(device, fake_case("short", hot_s=1e-7)).samples_s)
    assert len(device.hits) > 150 * calls  # 20 µs at least per sample


def test_budget_is_kept_and_said() -> None:
    device = FakeDevice()
    step = iter(range(10**6))
    device.slowdown = lambda now: 1.0 + 0.3 * (next(step) % 2) + 0.001 * now
    found = run(device, fake_case("noisy", hot_s=0.1), Rule(budget_s=1.0, warm_s=0.05))
    assert found.notes["stop"] == "budget"
    assert sum(found.samples_s) < 1.7
    assert found.notes["noisy"] > 0.1


def test_state_before_and_after_and_every_sample_are_in_the_record() -> None:
    device = FakeDevice()
    found = run(device, fake_case("state"))
    assert found.notes["before"]["now"] < found.notes["after"]["now"]
    assert found.environment == "env"
    assert found.method.startswith("microbench")
    assert len(found.samples_s) >= 5


@pytest.mark.parametrize("error", [0.01, float("nan"), float("inf")])
def test_a_wrong_result_is_never_timed(error: float) -> None:
    device = FakeDevice()
    with pytest.raises(UntrustworthyError, match="wrong result"):
        run(device, fake_case("wrong", error=error))
    assert len(device.hits) == 1


def test_above_the_peak_is_an_error_of_the_measurement() -> None:
    flops = 1e-3 * 1e9  # exactly the peak in 1 ms
    run(FakeDevice(profile=PROFILE), fake_case("at peak", flops=flops, compute="fp32"))
    run(FakeDevice(profile=PROFILE), fake_case("in the noise", flops=1.01 * flops, compute="fp32"))
    with pytest.raises(UntrustworthyError, match=r"1.05 of the fp32 peak of fake"):
        run(FakeDevice(profile=PROFILE), fake_case("beyond", flops=1.05 * flops, compute="fp32"))


def test_cold_bytes_above_the_bandwidth_mean_a_cache() -> None:
    fast = fake_case("cached", size=1e6 * 5e-3 * 1.05, cold=True)
    with pytest.raises(UntrustworthyError, match="in a cache"):
        run(FakeDevice(profile=PROFILE), fast)
    hot = fake_case("hot may be", size=1e6 * 1e-3 * 1.5)
    run(FakeDevice(cache_bytes=1e4, profile=PROFILE), hot)
    assert ROOF == 1.02


def test_without_a_datasheet_there_is_no_roof_to_break() -> None:
    found = run(FakeDevice(), fake_case("unknown", flops=1e30, compute="fp32"))
    check_roof(found, FakeDevice())


def test_a_measured_profile_is_no_roof(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    figure = '{value: "%s", source: bench, kind: measured}'
    path.write_text(
        f"id: m\nvendor: x\nname: x\nsparsity: dense\nmemory_bytes: {figure % '1 GB'}\nmemory_bandwidth: {figure % '1 MB/s'}\n"
        f"peaks:\n  fp32: {figure % '1 GFLOP/s'}\n",
        encoding="utf-8",
    )
    profile = hardware.load(path)
    found = run(FakeDevice(profile=profile), fake_case("faster than last time", flops=2e6, compute="fp32"))
    assert found.notes["flops"] / found.median_s > profile.peak("fp32")


def test_a_ring_that_is_too_short_is_said_to_be() -> None:
    device = FakeDevice(cache_bytes=1e9)
    found = run(device, fake_case("tiny", size=8.0, cold=True), Rule(budget_s=0.2, warm_s=0.01))
    assert "do not pass the cache" in found.notes["not_cold"]


def test_a_rival_takes_turns_and_every_set_gets_both_calls() -> None:
    device, case = FakeDevice(cache_bytes=950.0), fake_case("ours", cold=True)
    calls: list[tuple[str, int]] = []

    def build(d: FakeDevice) -> Trial:
        number = d.built
        d.built += 1

        def call(name: str, seconds: float) -> None:
            calls.append((name, number))
            d.clock.advance(seconds)

        return Trial(lambda: call("ours", 2e-3), rival=("theirs", lambda: call("theirs", 1e-3)))

    found = run(device, replace(case, build=build))
    assert found.notes["sets"] == 15  # 14 would be enough, but an even number gives each set to one of the two
    assert found.samples_s == pytest.approx([2e-3] * len(found.samples_s))
    assert found.notes["rival"]["name"] == "theirs"
    theirs = found.notes["rival"]["samples_s"]
    assert theirs == pytest.approx([1e-3] * len(theirs))
    assert abs(len(found.samples_s) - len(theirs)) <= 1
    assert len(set(calls[1:])) == 30
    assert all(a[0] != b[0] and (b[1] - a[1]) % 15 == 1 for a, b in pairwise(calls[2:]))


def test_as_many_samples_as_asked_for() -> None:
    found = run(FakeDevice(), fake_case("again"), Rule(budget_s=0.1, warm_s=0.01, least_samples=37, most_samples=37))
    assert len(found.samples_s) == 37


def test_operands_that_come_back_too_soon_are_said_to() -> None:
    device = FakeDevice()
    device.long_enough = False
    assert "too little memory" in run(device, fake_case("cold", cold=True)).notes["not_cold"]
    assert "not_cold" not in run(device, fake_case("hot")).notes
