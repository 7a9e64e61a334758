"""Planted faults, as facts of synthetic records: each is found, with the right reason, and a sound device is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roofline.profiles.catalog import load_hardware
from roofline.profiles.hardware import Hardware
from roofline.records import Environment, Measurement
from roofline.validation.health import FAULT, UNTRUSTED, Change, Facts, Finding, diagnose, facts, trustworthy

H100 = load_hardware("h100-sxm")
SOUND = Facts(
    kind="cuda", bandwidth=3.0e12, gemm={"bf16": 760e12}, launch_s=4e-6, link=52e9, sm_mhz=1980, max_sm_mhz=1980, memory_mhz=2619,
    max_memory_mhz=2619, power_limit_w=700, ecc=1, mig=0, pcie_width=16, threads=8, cores=96, present=96, load=4.0, drift=0.01, spread=0.02,
    moved={"kernels": 0.01},
)  # fmt: skip
CPU = Facts(
    kind="cpu",
    bandwidth=12e9,
    gemm={"fp32": 190e9},
    launch_s=2e-6,
    load=2.1,
    threads=2,
    cores=2,
    present=2,
    drift=0.03,
    spread=0.04,
    moved={"kernels": 0.05},
)


def words(found: list[Finding]) -> str:
    return " | ".join(f.what for f in found)


def this_cpu(bandwidth: float = 12e9, peak: float = 190e9) -> Hardware:
    return Hardware(id="this-machine", vendor="measured", name="a CPU", memory_bytes=8e9, memory_bandwidth=bandwidth, peaks={"fp32": peak})


def test_a_sound_device_has_no_findings() -> None:
    assert diagnose(SOUND, H100) == []
    assert diagnose(CPU, this_cpu()) == []


@pytest.mark.parametrize(
    ("change", "severity", "expected"),
    [
        ({"power_limit_w": 350, "gemm": {"bf16": 520e12}}, FAULT, "power limit 350 W of 700 W"),
        ({"power_limit_w": 350, "gemm": {"bf16": 520e12}}, FAULT, "bf16 products reach 520 TFLOP/s"),
        ({"bandwidth": 2.1e12, "memory_mhz": 1593}, FAULT, "memory clock 1593 of 2619 MHz"),
        ({"gemm": {"bf16": 500e12}, "sm_mhz": 1200}, FAULT, "SM clock 1200 of 1980 MHz"),
        ({"pcie_width": 4, "link": 13e9}, FAULT, "4 lanes of 16"),
        ({"link": 20e9}, FAULT, "transfers with the host run at 20"),
        ({"bandwidth": 5.5e12}, UNTRUSTED, "operands stayed in a cache"),
        ({"gemm": {"bf16": 1500e12}}, UNTRUSTED, "counted twice"),
        ({"throttled": ("hardware thermal slowdown",)}, UNTRUSTED, "hardware thermal slowdown"),
        ({"mig": 1}, FAULT, "MIG is on"),
        ({"launch_s": 80e-6}, FAULT, "a launch takes 80"),
        ({"moved": {"kernels": 0.3}}, UNTRUSTED, "kernels: the machine changed by 30% between constants and"),
        ({"moved": {}}, UNTRUSTED, "how the machine changed is not known"),
        ({"spread": 0.5}, UNTRUSTED, "known only within 50%"),
        ({"load": 90.0}, UNTRUSTED, "a busy neighbour"),
    ],
)
def test_a_planted_fault_of_a_gpu_is_found(change: dict[str, object], severity: str, expected: str) -> None:
    found = diagnose(replace(SOUND, **change), H100)  # type: ignore[arg-type]
    assert [f for f in found if f.severity == severity and expected in f.what], words(found)
    assert trustworthy(found) == all(f.severity != UNTRUSTED for f in found)
    assert all(f.check for f in found)


def test_a_sparse_peak_is_named() -> None:
    sparse = H100.model_copy(update={"peaks": {**H100.peaks, "bf16": 2 * H100.peaks["bf16"]}, "achieved": ()})
    assert "sparse peak" in words(diagnose(SOUND, sparse))


@pytest.mark.parametrize(
    ("change", "profile", "severity", "expected"),
    [
        ({"cores": 1, "threads": 1}, this_cpu(), FAULT, "may use 1 of 2 cores"),
        ({"load": 9.0}, this_cpu(), UNTRUSTED, "a busy neighbour: load 9.0 on 2 cores"),
        ({}, this_cpu(bandwidth=24e9), FAULT, "which may be doubled"),
        (
            {"wrong": ("gemm/fp32/m=64: 2.00 of the fp32 peak: the count or the clock is wrong",)},
            this_cpu(),
            UNTRUSTED,
            "the count or the clock",
        ),
        ({}, this_cpu(peak=380e9), FAULT, "sparse peak in the profile, or FLOPs counted by half"),
    ],
)
def test_a_planted_fault_of_a_cpu_is_found(change: dict[str, object], profile: Hardware, severity: str, expected: str) -> None:
    found = diagnose(replace(CPU, **change), profile)  # type: ignore[arg-type]
    assert [f for f in found if f.severity == severity and expected in f.what], words(found)


def test_a_machine_that_changes_between_passes_but_not_under_its_predictions_is_believed() -> None:
    wandering = replace(CPU, drift=0.8, moved={"kernels": 0.08, "steps": 0.12, "trace": 0.1})
    assert diagnose(wandering, this_cpu()) == []
    assert not trustworthy(diagnose(replace(wandering, moved={"kernels": 0.08, "steps": 0.21}), this_cpu()))


def test_load_does_not_count_where_cpu_seconds_are_timed() -> None:
    found = diagnose(replace(CPU, load=9.0, cpu_time=True, threads=1), this_cpu())
    assert trustworthy(found)
    assert "they leave out what other processes took" in words(found)


def record(op: str, seconds: float, flops: float, moved: float, state: dict[str, object], **shape: object) -> Measurement:
    notes = {"flops": flops, "bytes": moved, "compute": "bf16", "before": state, "after": state}
    return Measurement(op, shape, "h100-sxm", "bf16", (seconds,) * 5, "test", "e", cold=True, notes=notes)  # type: ignore[arg-type]


def test_facts_of_records_by_hand() -> None:
    state: dict[str, object] = {"sm_mhz": 1500, "memory_mhz": 1593, "throttled": ["software power cap"]}
    environment = Environment(
        "Linux", "CPU", 16, 2**37, "3.12", {}, {}, {"kind": "cuda", "max_memory_mhz": 2619, "pcie_width": 4, "ecc": 1}, 1.0
    )
    seen = facts(
        [
            record("stream", 1e-3, 0, 2.1e9, state, level="memory"), record("gemm", 2e-3, 1e12, 1e8, state),
            record("launch", 5e-6, 0, 0, state),
        ],
        environment, 16, Change(0.02, {"kernels": 0.01}), [0.3, 0.1, 0.2],
    )  # fmt: skip
    assert seen.bandwidth == pytest.approx(2.1e12)
    assert seen.gemm == {"bf16": pytest.approx(0.5e15)}
    assert (seen.drift, seen.moved, seen.spread) == (0.02, {"kernels": 0.01}, 0.2)
    assert (seen.launch_s, seen.memory_mhz, seen.max_memory_mhz, seen.pcie_width, seen.throttled) == (
        5e-6,
        1593,
        2619,
        4,
        ("software power cap",),
    )
    assert "memory clock 1593 of 2619 MHz" in words(diagnose(seen, H100))
