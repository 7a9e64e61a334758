"""Kernels, steps and sections in turns on a planted machine whose pace wanders: the order of the records, and what comes of it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import microbench.measure
from microbench.cases.model import in_one_type
from microbench.device import Device, open_device
from microbench.measure import Case
from roofline.engine.driver import Run
from roofline.ledger import AS_SHIPPED
from roofline.profiles.catalog import load_model
from roofline.profiles.hardware import Hardware
from roofline.records import JsonlWriter, Measurement, read_jsonl
from roofline.scheduling.vllm import VllmScheduler
from roofline.serving.workloads import Workload
from roofline.validation import engine_steps, passes, serve, statements
from roofline.validation.compare import Validation
from roofline.validation.engine_passes import paced
from roofline.validation.engine_steps import Bench, setup
from roofline.validation.plan import SCALES, make_plan
from roofline.validation.predictions import THIS_RUN, UNCALIBRATED, Basis, Step, StepConstants, kernel_prediction, step_prediction
from roofline.validation.run import validate
from roofline.validation.session import Session

MODEL = in_one_type(load_model("tiny-llama-15m"), "fp32")
CPU = Hardware(id="this-machine", vendor="measured", name="a CPU", memory_bytes=8e9, memory_bandwidth=12e9, peaks={"fp32": 190e9})
TRUE = StepConstants(2e-3, 3e-5, 1.2, 1e-6, 5e-4)
PACES = (1.0, 1.7, 0.8, 1.3, 2.0, 0.9, 1.1)  # of the machine; each pass has the next one


def moment(number: int) -> float:
    return PACES[number % len(PACES)]


class Planted(Bench):
    """An engine that takes what the constants say, times the pace of the pass. A neighbour disturbs its first section."""

    neighbours: ClassVar[list[float]] = []

    def __init__(self, model: Any, kind: str, dtype: str, steps: Any, *, cpu_time: bool, seed: int = 0) -> None:
        self.model, self.kind, self.dtype, self.cpu_time = model, kind, dtype, cpu_time
        self._setup = setup(model, kind, dtype, steps, seed)
        self._wall = self._counted = 0.0
        self._warm = set()
        self.pace = 1.0

    def basis(self) -> Basis:
        return Basis(UNCALIBRATED, CPU, "", serve.scaled(TRUE, self.pace))

    def once(self, step: Step) -> float:
        return step_prediction(step, self.model, AS_SHIPPED, self.basis()).expected_s

    def steps(self, *args: Any, number: int, until: float = 0.0, **options: Any) -> dict[Step, float]:
        self.pace = moment(number)
        return super().steps(*args, number=number, **options)

    def serve(self, workload: Workload, scheduler: VllmScheduler) -> Run:
        first = not self.neighbours
        self.neighbours.append(0.9 if first else 0.0)
        self.pace *= 3.0 if first else 1.0
        timer = serve.timer(self.model, AS_SHIPPED, self.basis(), SCALES["cpu"].tokens)
        rows = [{"kind": "request", **row} for row in serve.timeline(workload, scheduler, timer)]
        requests = {row["index"]: SimpleNamespace(to_json=lambda row=row: row) for row in rows}
        return SimpleNamespace(requests=requests, rejected={}, preemptions=0)  # type: ignore[return-value]


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Validation:
    """A whole validation in which nothing is measured."""
    marks, numbers, watched = iter(range(10**6)), [0], passes.watched

    def numbered(measure: Any, number: int, phase: str) -> Any:
        numbers.append(number)
        return watched(measure, number, phase)

    def measure(case: Case, device: Device, rule: Any, environment: str) -> Measurement:
        seconds = moment(numbers[-1]) * kernel_prediction(case.id, case.op, Basis(UNCALIBRATED, CPU, "")).expected_s
        notes = {"case": case.id, "flops": float(case.op.flops_each), "bytes": case.set_bytes, "compute": case.op.compute}
        samples = tuple(seconds * (1 + 0.001 * (next(marks) % 3)) for _ in range(5))
        notes |= {"seconds": 0.0, "sampling_s": 0.0}
        return Measurement(case.kind, dict(case.shape), device.id, case.dtype, samples, "test", environment, cold=case.cold, notes=notes)

    monkeypatch.setattr(microbench.measure, "measure", measure)
    monkeypatch.setattr(engine_steps, "Bench", Planted)
    monkeypatch.setattr(passes, "PASSES", 3)
    monkeypatch.setattr(passes, "watched", numbered)
    monkeypatch.setattr(Planted, "neighbours", neighbours := list[float]())
    monkeypatch.setattr(passes, "others", lambda *_: neighbours[-1] if neighbours else 0.0)
    device = open_device("cpu", 1, None, cpu_time=False)
    return validate(Session(MODEL, device, None, tmp_path, time.perf_counter() + 1e4, 1e4, 0, lambda text: None))


def test_a_wandering_machine_is_judged_within_its_passes(found: Validation, tmp_path: Path) -> None:
    errors = {group.group: group.median_error[THIS_RUN] for group in found.groups}
    assert set(errors) == {"gemm", "attention", "decode", "prefill", "ttft", "tpot"}
    assert max(errors.values()) < 0.10
    assert found.facts.drift == pytest.approx(1.5, abs=0.2)
    assert found.facts.moved["kernels"] < 0.01
    assert {row.measured.passes for row in found.rows if row.group in ("gemm", "attention")} == {3}
    assert {row.measured.passes for row in found.rows if row.group in ("decode", "prefill")} == {11}
    assert {row.measured.samples for row in found.rows if row.group == "ttft"} == {100}
    _predictions_come_first(tmp_path)
    _nothing_is_fitted_and_judged(tmp_path)


def _predictions_come_first(folder: Path) -> None:
    """Each judged sample follows the mark of its stage, which names predictions of this target on record."""
    told: dict[str, set[str]] = {}
    for _, row in read_jsonl(folder / statements.PREDICTIONS):
        if row["kind"] == "prediction":
            told.setdefault(row["stage"], set()).add(row["target"])
    stage = ""
    for _, row in read_jsonl(folder / statements.MEASUREMENTS):
        if row["kind"] == "stage":
            stage = row["stage"]
        elif row["kind"] == "measurement" and row["notes"]["phase"] == "judged" and "sentinel" not in row["notes"]:
            assert stage.endswith(f" {row['notes']['pass']}")
            assert row["notes"]["case"] in told[stage]
        elif row["kind"] == "request":
            assert stage == f"trace {row['pass']}"
    stages = statements.check(folder)
    assert stages == [f"{name} {n}" for name, numbers in STAGES.items() for n in numbers]


STAGES: Mapping[str, range] = {"kernels": range(1, 4), "steps": range(1, 12), "trace": range(12, 23)}  # the first section twice


def _nothing_is_fitted_and_judged(folder: Path) -> None:
    run = json.loads((folder / "run.json").read_text())
    phases: dict[str, set[str]] = {}
    for _, row in read_jsonl(folder / statements.MEASUREMENTS):
        if row["kind"] == "measurement" and "sentinel" not in row["notes"]:
            phases.setdefault(row["notes"]["phase"], set()).add(row["notes"]["case"])
    assert not phases["constants"] & phases["judged"]
    assert phases == {"constants": set(run["fitted"]), "judged": set(run["judged"])}


def test_the_pace_is_the_middle_of_all_steps() -> None:
    steps = [Step(batch, 1, 64) for batch in (1, 2, 3)]
    assert paced(dict(zip(steps, (2.0, 2.2, 9.0), strict=True)), dict.fromkeys(steps, 2.0)) == pytest.approx(1.1)


def test_the_sentinel_of_a_cpu_waits_for_memory() -> None:
    plan = make_plan(MODEL, Device("cpu", "a CPU", 2**25, {"L3": 2**25}, ("fp32",)), "fp32")
    assert plan.sentinel.cold
    assert plan.sentinel.op.flops_each / plan.sentinel.set_bytes < 4.0


def test_rounds_end_early_on_a_machine_that_is_too_slow(tmp_path: Path) -> None:
    bench = Planted(MODEL, "cpu", "fp32", steps := SCALES["cpu"].fit[:2], cpu_time=False)
    device = open_device("cpu", 1, None, cpu_time=False)
    with JsonlWriter(tmp_path / "x.jsonl") as writer:
        for hard, samples in ((0.0, 1), (float("inf"), 3)):
            bench.steps(steps, 3, writer, device, number=1, phase="constants", hard=hard)
            rows = [row for _, row in read_jsonl(tmp_path / "x.jsonl")][-2:]
            assert [len(row["samples_s"]) for row in rows] == [samples, samples]
