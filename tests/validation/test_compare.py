"""A run read back from its records: verdict, trust, exit code and report of synthetic machines, sound and faulty."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from roofline.errors import RecordError, UntrustworthyError
from roofline.records import Environment, JsonlWriter, Measurement
from roofline.report import write
from roofline.report.validation import tell
from roofline.validation import statements
from roofline.validation.compare import RUN, assemble
from roofline.validation.predictions import SHIPPED, THIS_RUN, UNCALIBRATED, Prediction

PROFILE = {
    "id": "this-machine",
    "vendor": "measured",
    "name": "a CPU",
    "memory_bytes": 8e9,
    "memory_bandwidth": 12e9,
    "peaks": {"fp32": 200e9},
}
GEMM = [f"gemm/fp32/m={m},n=768,k=768/cold" for m in (1, 4, 8)]
STEP = "decode/batch=4,new=1,past=256"


def measurement(op: str, case: str, seconds: float, flops: float, moved: float, load: float, **shape: Any) -> Measurement:
    notes = {"case": case, "flops": flops, "bytes": moved, "compute": "fp32", "before": {"load": load}}
    samples = tuple(seconds * f for f in (0.97, 0.99, 1.0, 1.01, 1.03))
    return Measurement(op, shape, "a CPU", "fp32", samples, "test", "e", cold=True, notes=notes)


def folder(
    path: Path, *, slower: float = 1.0, bandwidth: float = 11.5e9, load: float = 1.2, cores: int = 2, profile: dict[str, Any] | None = None,
    basis: str = THIS_RUN, wrong: tuple[str, ...] = (),
) -> Path:  # fmt: skip
    """Records of a run in which everything took `slower` × as long as was stated."""
    ticks = count(1.0)
    path.mkdir(exist_ok=True)
    stated = [Prediction(case, "gemm", basis, 1e-4, 1e-3, 0.9e-3, 1.1e-3) for case in GEMM]
    stated += [Prediction(case, "gemm", UNCALIBRATED, 1e-4, 0.5e-3, 0.4e-3, 0.6e-3) for case in GEMM]
    stated.append(Prediction(STEP, "decode", basis, 0.02, 0.05, 0.045, 0.055, {"qkv": 0.02, "attention": 0.01, "engine": 0.02}))
    digest = statements.state(path, "kernels", stated, lambda: next(ticks))
    environment = Environment("Linux", "CPU", cores, 8 * 10**9, "3.12", {}, {}, {"kind": "cpu", "threads": 2}, load)
    with JsonlWriter(path / statements.MEASUREMENTS) as writer:
        writer.write(environment.to_json())
        for phase in ("constants", "judged"):
            steady = measurement("gemm", "sentinel", 1e-3, 1.0, 1.0, load)
            writer.write(replace(steady, notes={**steady.notes, "pass": 1, "phase": phase, "sentinel": "start"}).to_json())
        writer.write(measurement("stream", "stream/copy", 1e9 / bandwidth, 0, 1e9, load, level="memory").to_json())
        statements.begin(writer, "kernels", digest, lambda: next(ticks))
        for case in GEMM:
            writer.write(measurement("gemm", case, slower * 1e-3, 1.9e8, 1e6, load, m=1, n=768, k=768).to_json())
        writer.write(measurement("engine_step", STEP, slower * 0.05, 0, 0, load, phase="decode", batch=4).to_json())
    about = {
        "model": "tiny", "device": "a CPU", "dtype": "fp32", "budget_s": 60.0, "seconds": 50.0, "threads": 2, "cpu_time": False,
        "cores_present": 2, "hardware": profile, "bases": [{"name": basis, "source": "test", "device": "x", "step": {}}], "left_out": [],
        "untrustworthy": list(wrong), "alone": {STEP: {"qkv": [GEMM[0], 12]}}, "fitted": ["a"], "judged": ["b"],
    }  # fmt: skip
    (path / RUN).write_text(json.dumps(about))
    return path


def test_a_sound_machine_passes(tmp_path: Path) -> None:
    found = assemble(folder(tmp_path))
    assert (found.verdict, found.trustworthy, found.exit_code) == ("PASS", True, 0)
    assert [row.verdict.word for row in found.rows] == ["PASS"] * 4
    assert found.rows[0].error(UNCALIBRATED) == pytest.approx(-0.5)
    assert list(found.stages) == ["kernels"]


def test_a_slow_machine_fails_with_the_reason(tmp_path: Path) -> None:
    found = assemble(folder(tmp_path, slower=2.0))
    assert (found.verdict, found.exit_code) == ("FAIL", 1)
    step = found.rows[-1]
    # 0.1 s measured, 0.05 stated; 12 × 2 ms of qkv alone against 20 ms: 4 ms; the other 46 ms are no kernel's that was measured
    assert step.differences == pytest.approx({"qkv": 0.004, "engine": 0.046})
    assert step.attribution.startswith("launches, element-wise work and host: 46% more")


@pytest.mark.parametrize(
    ("planted", "code", "words"),
    [
        ({"load": 9.0}, 4, "a busy neighbour"),
        ({"cores": 1}, 1, "1 of 2 cores"),
        ({"profile": {**PROFILE, "memory_bandwidth": 24e9}}, 1, "which may be doubled"),
        ({"profile": {**PROFILE, "peaks": {"fp32": 400e9}}}, 1, "sparse peak"),
        ({"wrong": ("gemm: 2.00 of the fp32 peak: the count or the clock is wrong",)}, 4, "the count or the clock"),
        ({"profile": PROFILE}, 0, ""),
    ],
)
def test_a_planted_fault_is_found_and_named(tmp_path: Path, planted: dict[str, Any], code: int, words: str) -> None:
    found = assemble(folder(tmp_path, **planted))
    assert found.exit_code == code
    assert words in " | ".join(f.what for f in found.findings)


def test_rows_are_judged_on_what_was_claimed_before_the_machine_was_seen(tmp_path: Path) -> None:
    found = assemble(folder(tmp_path, basis=SHIPPED))
    assert {row.judged for row in found.rows} == {SHIPPED}


def test_steps_are_judged_on_constants_of_this_run_since_no_profile_has_the_engine(tmp_path: Path) -> None:
    path = folder(tmp_path, basis=SHIPPED)
    claim = Prediction(STEP, "decode", THIS_RUN, 0.02, 0.05, 0.045, 0.055, {"engine": 0.05})
    statements.state(path, "late", [claim])
    assert {row.group: row.judged for row in assemble(path).rows} == {"gemm": SHIPPED, "decode": THIS_RUN}


PASSES = {1: 1.0, 2: 1.6, 3: 0.9, 4: 2.0, 5: 1.3}  # seconds of the machine, by pass


def passed(path: Path, *, error: float = 1.0, jump: float = 1.0, jumps: int = 0) -> Path:
    """Records of kernels and steps in passes on a machine whose pace wanders; all takes `error` × what was stated, and in the first
    `jumps` passes `jump` × that, since the pace changed after the constants."""
    folder(path)
    for name in (statements.PREDICTIONS, statements.MEASUREMENTS):
        (path / name).unlink()
    ticks = count(1.0)
    environment = Environment("Linux", "CPU", 2, 8 * 10**9, "3.12", {}, {}, {"kind": "cpu", "threads": 2}, 1.0)
    with JsonlWriter(path / statements.MEASUREMENTS) as writer:
        writer.write(environment.to_json())

        def write(op: str, case: str, seconds: float, number: int, phase: str, **notes: Any) -> None:
            m = measurement(op, case, seconds, 1.0, 1.0, 1.0)
            writer.write(replace(m, notes={**m.notes, "pass": number, "phase": phase, **notes}).to_json())

        for number, pace in PASSES.items():
            later = pace * (jump if number <= jumps else 1.0)
            width = {"low_s": 0.9, "high_s": 1.1}
            for stage, targets, group in (("kernels", GEMM, "gemm"), ("steps", [STEP], "decode")):
                parts = {"engine": 1.0} if group == "decode" else {}
                limits = {key: pace * factor for key, factor in width.items()}
                stated = [Prediction(t, group, THIS_RUN, 1e-4, pace, **limits, parts=parts) for t in targets]
                op = "gemm" if group == "gemm" else "engine_step"
                write(op, "fitted", pace, number, "constants", **({"sentinel": "start"} if group == "gemm" else {}))
                digest = statements.state(path, f"{stage} {number}", stated, lambda: next(ticks))
                statements.begin(writer, f"{stage} {number}", digest, lambda: next(ticks))
                for target in targets:
                    write(op, target, error * later, number, "judged")
                write("gemm", "fitted", later, number, "judged", sentinel="start")
        write("engine_step", "fitted", PASSES[5], 6, "constants")
    return path


def test_a_machine_that_wanders_between_passes_is_judged_within_them(tmp_path: Path) -> None:
    found = assemble(passed(tmp_path, error=1.08))
    assert [row.error(THIS_RUN) for row in found.rows] == pytest.approx([1 / 1.08 - 1] * 4)
    assert [(row.measured.passes, row.verdict.word) for row in found.rows] == [(5, "PASS")] * 4
    assert found.facts.drift == pytest.approx(2.0 / 0.9 - 1)
    assert found.facts.moved["kernels"] == 0.0
    assert found.facts.spread == pytest.approx(0.0)


def test_a_change_under_two_of_five_passes_is_outvoted_and_one_under_most_is_not_believed(tmp_path: Path) -> None:
    found = assemble(passed(tmp_path / "two", jump=1.5, jumps=2))
    assert [row.error(THIS_RUN) for row in found.rows] == pytest.approx([0.0] * 4)
    assert found.facts.moved["kernels"] == pytest.approx(0.0)
    found = assemble(passed(tmp_path / "three", jump=1.5, jumps=3))
    assert found.facts.moved["kernels"] == pytest.approx(0.5)
    assert not found.trustworthy
    assert found.exit_code == 4


def test_an_error_of_every_pass_fails_however_the_machine_wanders(tmp_path: Path) -> None:
    found = assemble(passed(tmp_path, error=1.5))
    assert [(g.group, g.word) for g in found.groups] == [("gemm", "FAIL"), ("decode", "FAIL")]


def test_the_engine_is_watched_by_the_steps_that_set_its_pace(tmp_path: Path) -> None:
    moved = assemble(passed(tmp_path)).facts.moved
    changes = [1.6 / 1.0, 1.6 / 0.9, 2.0 / 0.9, 2.0 / 1.3, 1.3 / 1.3]
    assert moved["steps"] == pytest.approx(sorted(changes)[2] - 1)


def test_the_report_comes_again_with_the_same_bytes(tmp_path: Path) -> None:
    for form in ("md", "html"):
        once, again = (write(tell(assemble(folder(tmp_path / name))), tmp_path / f"{name}.{form}")[-1] for name in (f"a{form}", f"b{form}"))
        assert once.read_bytes().replace(once.stem.encode(), b"") == again.read_bytes().replace(again.stem.encode(), b"")
    text = (tmp_path / "amd.md").read_text()
    assert "GPU | not measured" in text
    assert "qkv" in text or "PASS" in text


def test_an_interrupted_run_and_a_cut_line_are_judged_by_what_there_is(tmp_path: Path) -> None:
    path = folder(tmp_path)
    text = (path / statements.MEASUREMENTS).read_text()
    (path / statements.MEASUREMENTS).write_text(text[:-40])  # the last line is that of the step
    (path / RUN).write_text(json.dumps(json.loads((path / RUN).read_text()) | {"interrupted": True}))
    found = assemble(path)
    assert (found.verdict, found.exit_code, len(found.rows)) == ("PASS", 130, 3)


def test_records_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot read what"):
        assemble(tmp_path)
    path = folder(tmp_path / "run")
    text = (path / statements.PREDICTIONS).read_text()
    (path / statements.PREDICTIONS).write_text(text.replace('"stated_s":1.0', '"stated_s":9.0'))
    with pytest.raises(UntrustworthyError, match="before its predictions"):
        assemble(path)
