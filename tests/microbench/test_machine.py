"""A machine's profile from its records: planted constants come back, held-out rows were not seen, the YAML loads."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from roofline.calibration.machine import LEAST_SHAPES, fit_machine, profile_text
from roofline.errors import InputError
from roofline.profiles import hardware
from roofline.records import Measurement

PEAK, BANDWIDTH = 2e11, 1.2e10
SITES = [(1024, 1024), (2048, 2048), (4096, 1024), (1024, 4096), (768, 3072), (512, 2048)]


def measurement(op: str, shape: dict, seconds: float, flops: float, moved: float, *, cold: bool = True, kind: str = "fp32") -> Measurement:
    notes = {"flops": flops, "bytes": moved, "compute": kind, "case": f"{op} {shape}"}
    return Measurement(op, shape, "cpu", kind, (seconds, seconds, seconds), "microbench 1", "env", {"torch": "2"}, cold, notes=notes)


def gemm(m: int, n: int, k: int, noise: float = 0.0) -> Measurement:
    """By hand: 5 µs, 80 % of the peak, 90 % of the bandwidth, nothing overlaps, a quarter of that peak from 4 to 15 rows, packed once
    (60 % of a pass) from 16 rows."""
    flops, weights, moved = 2.0 * m * n * k, 4.0 * n * k, 4.0 * (n * k + m * k + m * n)
    rate = (0.25 if 4 <= m < 16 else 1.0) * 0.8 * PEAK
    seconds = 5e-6 + flops / rate + moved / (0.9 * BANDWIDTH) + (0.6 * weights / (0.9 * BANDWIDTH) if m >= 16 else 0.0)
    return measurement("gemm", {"m": m, "n": n, "k": k}, seconds * (1 + noise), flops, moved)


def roofs() -> list[Measurement]:
    peak = measurement("gemm", {"m": 1, "n": 1, "k": 1}, 1.0, PEAK, 1.0, cold=False)
    return [peak, measurement("stream", {"kernel": "copy", "level": "memory", "bytes": 1}, 1.0, 0.0, BANDWIDTH)]


def records(noise: float = 0.0) -> list[Measurement]:
    rng = random.Random(0)
    return [*roofs(), *(gemm(m, n, k, rng.gauss(0, noise)) for n, k in SITES for m in (1, 4, 16, 64, 256))]


def test_roofs_are_the_best_samples() -> None:
    machine = fit_machine(records())
    assert machine.peaks == {"fp32": PEAK}
    assert machine.bandwidth == BANDWIDTH


def test_planted_constants_come_back() -> None:
    (block,) = fit_machine(records()).blocks
    found = block.constants
    assert found["ec"] == pytest.approx(0.8, rel=0.03)
    assert found["em"] == pytest.approx(0.9, rel=0.03)
    assert found["extra"] == pytest.approx(0.6, rel=0.06)
    assert found["few"] == pytest.approx(0.25, rel=0.06)
    assert found["p"] == pytest.approx(1.0, abs=0.05)
    assert block.provenance.held_out_error is not None
    assert block.provenance.held_out_error < 0.01
    assert block.provenance.rows == 30


def test_held_out_rows_feel_the_noise_and_the_interval_holds_most() -> None:
    machine = fit_machine(records(noise=0.10))
    assert 0.02 < machine.median_error("gemm") < 0.12
    assert len(machine.held_out) == 30
    (block,) = machine.blocks
    low, high = block.interval_log_quantiles["all"]
    assert low < 0 < high


def test_a_site_is_predicted_by_a_fit_that_has_not_seen_it() -> None:
    """One site made 5 times slower: its own predictions must not follow it."""
    rows = records()
    odd = [i for i, m in enumerate(rows) if (m.shape.get("n"), m.shape.get("k")) == (512, 2048)]
    for i in odd:
        rows[i] = gemm(int(rows[i].shape["m"]), 512, 2048, noise=4.0)
    wrong = [h for h in fit_machine(rows).held_out if "n=512 k=2048" in h.label]
    assert len(wrong) == 5
    assert all(h.predicted_s < 0.4 * h.measured_s for h in wrong)


def test_too_few_shapes_get_no_block_and_no_stream_is_an_error() -> None:
    few = [*roofs(), *(gemm(m, 1024, 1024) for m in range(1, LEAST_SHAPES))]
    assert fit_machine(few).blocks == ()
    with pytest.raises(InputError, match="a stream out of memory"):
        fit_machine([gemm(4, 64, 64)])
    with pytest.raises(InputError, match="one device"):
        fit_machine([])


def test_profile_is_one_that_the_catalogue_reads(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(profile_text(fit_machine(records()), 24e9), encoding="utf-8")
    device = hardware.load(path)
    assert device.memory_bandwidth == pytest.approx(BANDWIDTH, rel=1e-3)
    assert device.peak("fp32") == pytest.approx(PEAK, rel=1e-3)
    assert device.provenance("memory_bandwidth").kind == "measured"
    assert device.calibration[0].form == "host"
    assert set(device.calibration[0].constants) == {"t0_us", "ec", "em", "p", "extra", "few"}
