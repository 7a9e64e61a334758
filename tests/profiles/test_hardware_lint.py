"""All shipped hardware profiles against first principles: SM × rate × clock, sources that exist, names that mean one device.

The rates are those of tests/data/tensor_rates.csv (FMA per clock and SM); the code under test does not know them.
"""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

import pytest
import yaml

from roofline.profiles import catalog
from roofline.profiles.hardware import Hardware

ALL = {hardware.id: hardware for hardware in catalog.list_hardware()}
FOLDER = Path(__file__).parents[2] / "hwprofiles"
with (Path(__file__).parents[1] / "data" / "tensor_rates.csv").open(newline="") as file:
    RATES = {row["rate_key"]: row for row in csv.DictReader(file)}

RATE_COLUMNS = {
    "fp16": "fp16_fp32acc", "bf16": "bf16", "tf32": "tf32", "fp8": "fp8_fp32acc", "int8": "int8", "fp4": "fp4", "int4": "int4",
}  # fmt: skip
TOLERANCE = 0.02

# (device, peak) → (expected deviation, reason). A deviation that moves is as wrong as a new one.
EXCEPTIONS = {
    ("b100", "fp8"): (-0.025, "announced figure, rounded down: 3500 where 148 SMs at 1480 MHz give 3589"),
    ("b100", "int8"): (-0.025, "as fp8"),
    ("b100", "fp4"): (-0.025, "as fp8"),
    ("b100", "fp32"): (-0.194, "announced at a sustained clock far below the boost clock"),
    ("b300-sxm", "fp32"): (-0.026, "NVIDIA prints 75 as for B200, the boost clock is higher"),
    ("rtx-pro-6000-server", "fp32"): (0.026, "NVIDIA prints 120 at a clock above the largest that the driver allows"),
    ("l40s", "int4"): (-0.5, "the datasheet prints INT4 equal to INT8"),
}
# Half the rate is printed with FP32 accumulation, but cuBLASLt runs FP32 accumulation at the FP16 rate (774 of 838 on a 5090):
# a peak that machines beat is no bound.
FP8_AT_FP16_RATE = {"rtx-5060-ti-16gb", "rtx-5070", "rtx-5070-ti", "rtx-5080", "rtx-5090"}


def rate_key(hardware: Hardware) -> str | None:
    """The row of the rates table of a device; None where the table says nothing of it."""
    special = {"a10g": "86a10g", "l40": "89l40", "h20": None}  # H20: fused down, stated in the table as not covered
    if hardware.id in special:
        return special[hardware.id]
    key = hardware.compute_capability.replace(".", "")
    if hardware.name.startswith("GeForce"):
        key += "g"
    return key if key in RATES else None


COVERED = sorted(id_ for id_, hardware in ALL.items() if rate_key(hardware))


def deviations(hardware: Hardware) -> dict[str, float]:
    """Peak → printed / (SM × rate × 2 × clock) - 1."""
    rates = RATES[str(rate_key(hardware))]
    assert hardware.sm_count
    assert hardware.peak_clock_hz
    assert hardware.boost_hz
    found = {}
    for peak, column in RATE_COLUMNS.items():
        if peak == "fp8" and hardware.id in FP8_AT_FP16_RATE:
            column = "fp8_fp16acc"
        if peak in hardware.peaks and rates[column]:
            found[peak] = hardware.peaks[peak] / (hardware.sm_count * float(rates[column]) * 2 * hardware.peak_clock_hz) - 1
    cores = hardware.sm_count * float(rates["fp32_cuda_cores"])
    return found | {"fp32": hardware.peaks["fp32"] / (cores * 2 * hardware.boost_hz) - 1}


@pytest.mark.parametrize("id_", COVERED)
def test_peaks_are_units_times_rate_times_clock(id_: str) -> None:
    wrong = {}
    for peak, deviation in deviations(ALL[id_]).items():
        expected, _ = EXCEPTIONS.get((id_, peak), (0.0, ""))
        tolerance = 0.002 if expected else TOLERANCE
        if abs(deviation - expected) > tolerance:
            wrong[peak] = deviation
    assert not wrong


def test_the_table_covers_the_tensor_core_devices() -> None:
    assert len(COVERED) >= 55
    assert {"h100-sxm", "a100-sxm-80gb", "b200-sxm", "l4", "t4", "rtx-4090", "dgx-spark-gb10"} <= set(COVERED)
    assert {id_ for id_, _ in EXCEPTIONS} <= set(COVERED)


def test_at_least_ninety_devices_with_memory_and_compute() -> None:
    assert len(ALL) >= 90
    assert all(h.memory_bytes and h.memory_bandwidth and h.peaks for h in ALL.values())


@pytest.mark.parametrize("id_", sorted(ALL))
class TestEachProfile:
    def test_file_name_is_the_id(self, id_: str) -> None:
        assert ALL[id_].path == FOLDER / f"{id_}.yaml"

    def test_every_source_is_a_key_or_a_document(self, id_: str) -> None:
        hardware, keys = ALL[id_], set(catalog.sources())
        entries = [*hardware.figures.values(), *hardware.detect, *hardware.achieved, *hardware.prices]
        for entry in entries:
            for source in entry.source.split("; "):
                assert source in keys or re.search(r"[ /]", source), f"{source!r} is no key of _sources.yaml and names no document"

    def test_every_number_has_its_figure(self, id_: str) -> None:
        hardware = ALL[id_]
        named = {f"peaks.{compute}" for compute in hardware.peaks}
        named |= {
            key
            for key in ("memory_bytes", "memory_reported_bytes", "memory_bandwidth", "l2_bytes", "l2_bandwidth", "sm_count",
                        "boost_hz", "peak_clock_hz", "tdp_w", "link_bandwidth", "pcie_bandwidth")
            if getattr(hardware, key) is not None
        }  # fmt: skip
        assert set(hardware.figures) == named

    def test_recalled_numbers_are_unverified(self, id_: str) -> None:
        assert {f.kind for f in ALL[id_].figures.values() if f.source == "mem"} <= {"unverified"}
        assert {f.kind for f in ALL[id_].figures.values() if f.source == "comp"} <= {"computed", "unverified"}

    def test_no_peak_has_the_ratio_of_a_sparse_figure(self, id_: str) -> None:
        """bf16 above fp16, or a narrower type above twice the next wider one, is the mark of a 2:4-sparse figure."""
        peaks = ALL[id_].peaks
        for narrow, wide in (("tf32", "bf16"), ("bf16", "fp16")):
            if narrow in peaks and wide in peaks and id_ != "gaudi3":  # its FP16 runs at a quarter of BF16
                assert peaks[narrow] <= peaks[wide] * 1.001
        for narrow, wide in (("fp8", "bf16"), ("int4", "int8")):
            if narrow in peaks and wide in peaks:
                limit = 4 if id_ in FP8_AT_FP16_RATE or id_ == "trainium3" else 2  # trainium3: AWS documents 671 and 2517 dense
                assert peaks[narrow] <= peaks[wide] * limit * 1.03

    def test_memory_and_bandwidth_are_of_one_device(self, id_: str) -> None:
        """Reading all memory once takes between 1 ms (SRAM aside) and 0.7 s (a CPU 2 s) on every device there is."""
        hardware = ALL[id_]
        most = 2.0 if hardware.form_factor == "AM5" else 0.7
        assert 0.01 < hardware.memory_bytes / hardware.memory_bandwidth < most or hardware.memory_type == "SRAM"


# Bytes that the L2 reads a clock, from the vendors' whitepapers; the clock is that of the profile.
L2_BYTES_PER_CLOCK = {"GA100": 5120, "GV100": 2048, "CDNA 3, 8 XCDs": 8 * 16 * 128, "CDNA 3, 6 XCDs": 6 * 16 * 128}
L2_CHIP = {
    "a100-sxm-40gb": "GA100", "a100-sxm-80gb": "GA100", "a100-pcie-40gb": "GA100", "a100-pcie-80gb": "GA100",
    "v100-sxm-16gb": "GV100", "v100-sxm-32gb": "GV100", "v100-pcie-16gb": "GV100", "v100-pcie-32gb": "GV100",
    "mi300x": "CDNA 3, 8 XCDs", "mi325x": "CDNA 3, 8 XCDs", "mi300a": "CDNA 3, 6 XCDs",
}  # fmt: skip


@pytest.mark.parametrize("id_", sorted(L2_CHIP))
def test_l2_of_whitepapers_is_bytes_per_clock_times_clock(id_: str) -> None:
    clock = ALL[id_].boost_hz
    assert clock
    assert ALL[id_].l2_bandwidth == pytest.approx(L2_BYTES_PER_CLOCK[L2_CHIP[id_]] * clock, rel=1e-3)


def test_the_l2_is_faster_than_the_memory_and_slower_than_all_l1_together() -> None:
    """No L1 of these devices takes more than 128 B a clock; what was measured stays below that, and above the memory."""
    known = [hardware for hardware in ALL.values() if hardware.l2_bandwidth]
    assert len(known) >= 18
    for hardware in known:
        assert hardware.sm_count
        assert hardware.boost_hz
        assert 1.8 * hardware.memory_bandwidth < hardware.l2_bandwidth <= 128 * hardware.sm_count * hardware.boost_hz, hardware.id


def test_sources_are_all_used() -> None:
    text = "".join(path.read_text() for path in FOLDER.glob("[a-z]*.yaml"))
    used = {source for quoted in re.findall(r'source: ("[^"]*"|[^,}\n]*)', text) for source in quoted.strip('"').split("; ")}
    assert set(catalog.sources()) <= used


def test_no_name_means_two_devices() -> None:
    owners: dict[str, set[str]] = {}
    for hardware in ALL.values():
        for name in (hardware.id, hardware.name, *hardware.aliases):
            owners.setdefault(catalog.normal(name), set()).add(hardware.id)
    assert not {name: ids for name, ids in owners.items() if len(ids) > 1}


def test_driver_names_are_told_apart() -> None:
    """Two profiles may share a driver's name only if both say which fact decides."""
    owners: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for hardware in ALL.values():
        for entry in hardware.detect:
            for name in entry.names:
                owners.setdefault(name, []).append((hardware.id, entry.must_agree))
    for entries in owners.values():
        assert len(entries) == 1 or all(facts for _, facts in entries)


def shared_table() -> Path | None:
    roots = [Path(os.environ["ROOFLINE_SHARED"])] if "ROOFLINE_SHARED" in os.environ else [Path(__file__).parents[3] / "shared"]
    found = [path for root in roots if (path := root / "data" / "hardware" / "hardware.csv").is_file()]
    return found[0] if found else None


BEYOND_THE_TABLE = {"mi250x-gcd", "rx-6700-xt", "rx-6800-xt", "ryzen-9-7950x", "tesla-p40"}  # devices of batch-1 measurements


@pytest.mark.skipif(shared_table() is None, reason="the table of facts is not here")
def test_the_profiles_agree_with_the_table_of_facts() -> None:
    """Every number as in hardware.csv, and every device of it; FP8 of the RTX 50 cards is set apart above."""
    table = shared_table()
    assert table
    columns = {
        "memory_bytes": ("memory_marketed_GB", 1e9), "memory_bandwidth": ("memory_bandwidth_GBps", 1e9), "boost_hz": ("boost_MHz", 1e6),
        "peak_clock_hz": ("peak_clock_MHz", 1e6), "sm_count": ("sm_or_cu", 1), "tdp_w": ("tdp_W", 1),
        "link_bandwidth": ("link_per_direction_GBps", 1e9), "pcie_bandwidth": ("pcie_per_direction_GBps", 1e9),
    }  # fmt: skip
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["id"] for row in rows} == set(ALL) - BEYOND_THE_TABLE
    for row in rows:
        hardware = ALL[row["id"]]
        for key, (column, factor) in columns.items():
            if row[column]:
                assert getattr(hardware, key) == pytest.approx(float(row[column]) * factor, rel=1e-9), (hardware.id, key)
        if row["memory_nvsmi_MiB"]:
            assert hardware.memory_reported_bytes == float(row["memory_nvsmi_MiB"]) * 2**20
        for peak in ("fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4", "int4"):
            text = row[f"{peak}_{'TOPS' if peak.startswith('int') else 'TFLOPS'}"]
            assert bool(text) == (peak in hardware.peaks), (hardware.id, peak)
            if text and not (peak == "fp8" and hardware.id in FP8_AT_FP16_RATE):
                assert hardware.peaks[peak] == pytest.approx(float(text) * 1e12, rel=1e-9), (hardware.id, peak)


def test_sources_file_is_plain_text_by_key() -> None:
    data = yaml.safe_load((FOLDER / "_sources.yaml").read_text())
    assert all(isinstance(value, str) and value for value in data.values())
