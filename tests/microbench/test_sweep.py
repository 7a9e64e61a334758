"""Sweeps on a fake device: order, budget, resuming, running out of memory, drift."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from microbench import METHOD
from microbench.sweep import Sweep, drift, finished, order
from microbench.visits import interval, merged
from roofline.errors import InputError
from roofline.records import JsonlWriter
from tests.microbench.fakes import FakeDevice, fake_case

CASES = [fake_case(f"case {i}", hot_s=1e-3 * (i + 1)) for i in range(8)]
SENTINEL = fake_case("sentinel")


def sweep(device: FakeDevice, path: Path, cases=CASES, done=(), budget_s: float = 20.0, measure_case=None, rounds: int = 1):
    from functools import partial

    from microbench.measure import measure

    timed = measure_case or partial(measure, clock=device.clock)
    with JsonlWriter(path) as writer:
        run = Sweep(device, writer, budget_s=budget_s, clock=device.clock, measure_case=timed).run
        return run(cases, SENTINEL, rounds=rounds, finished=done)


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_order_is_shuffled_by_the_seed_with_sentinels_around() -> None:
    first, again, other = (order(CASES, SENTINEL, seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert [place for _, place in first if place] == ["start", "middle of round 1", "end of round 1"]
    assert first[0][1] == "start"
    assert first[-1][1] == "end of round 1"
    assert {case.id for case, place in first if not place} == {case.id for case in CASES}


def test_roofs_come_first() -> None:
    cold = [replace(case, kind="gemm", cold=True, shape={"cold": i}) for i, case in enumerate(CASES)]
    queue = [case.cold for case, place in order([*cold, *CASES], SENTINEL, seed=3) if not place]
    assert queue == sorted(queue)


def test_all_cases_are_written_as_they_end(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    outcome = sweep(FakeDevice(), path)
    assert len(outcome.measurements) == len(CASES) + 3
    assert not outcome.skipped
    assert [row["kind"] for row in rows(path)] == ["environment"] + ["measurement"] * (len(CASES) + 3)
    assert rows(path)[0]["seed"] == 0


def test_budget_is_kept_and_what_does_not_fit_is_named(tmp_path: Path) -> None:
    device = FakeDevice()
    slow = [fake_case(f"slow {i}", hot_s=1.0, cold_s=1.0, flops=1e9) for i in range(50)]
    outcome = sweep(device, tmp_path / "r.jsonl", slow, budget_s=30.0)
    assert device.clock.now < 45.0  # a case that was begun is ended
    assert any(reason.startswith("budget") for reason in outcome.skipped.values())
    assert len(outcome.measurements) + len(outcome.skipped) == 53


def test_killed_and_resumed_keeps_what_was_finished(tmp_path: Path) -> None:
    path, device = tmp_path / "r.jsonl", FakeDevice()
    calls = 0

    def killed(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        from microbench.measure import measure

        return measure(*args, clock=device.clock, **kwargs)

    with pytest.raises(KeyboardInterrupt):
        sweep(device, path, measure_case=killed)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"kind":"measurement","op":"str')  # the line that the kill cut short
    done = finished(path, "env")
    assert len(done) == 4
    outcome = sweep(device, path, done=done)
    assert len(outcome.measurements) == len(CASES) - 4 + 3
    assert {m.notes["case"] for m in finished(path, "env")} == {case.id for case in CASES}


def test_sentinels_are_not_taken_for_finished_cases(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    sweep(FakeDevice(), path, cases=[])
    assert finished(path, "env") == []


def test_records_of_another_machine_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    sweep(FakeDevice(), path)
    with pytest.raises(InputError, match=r"r.jsonl:2: a record of another machine"):
        finished(path, "other")
    assert finished(tmp_path / "absent.jsonl", "env") == []


def test_records_of_another_method_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    sweep(FakeDevice(), path)
    path.write_text(path.read_text(encoding="utf-8").replace(f'"{METHOD}', '"microbench 1'), encoding="utf-8")
    with pytest.raises(InputError, match=r"microbench 1, perf_counter; here env, microbench"):
        finished(path, "env")


def test_rounds_visit_every_case_with_as_many_samples_each_time(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    outcome = sweep(FakeDevice(), path, rounds=3)
    queue = [m.notes["case"] for m in outcome.measurements if not m.notes.get("sentinel")]
    assert [sorted(queue[i * 8 : i * 8 + 8]) for i in range(3)] == [sorted(case.id for case in CASES)] * 3
    assert queue[:8] != queue[8:16]
    assert sum(bool(m.notes.get("sentinel")) for m in outcome.measurements) == 7
    for m in merged(outcome.measurements):
        assert m.notes.get("sentinel") or len(set(m.notes["visits"])) == 1
    assert {row["notes"]["visit"] for row in rows(path) if row["kind"] == "measurement"} >= {1, 2, 3}


def test_slow_drift_is_inside_the_interval_of_the_visits(tmp_path: Path) -> None:
    device = FakeDevice()
    device.slowdown = lambda now: 1.0 if now < 8.0 else 1.5
    found = {m.notes["case"]: m for m in merged(sweep(device, tmp_path / "a.jsonl", budget_s=60.0, rounds=3).measurements)}
    for number, case in enumerate(CASES):
        low, high = interval(found[case.id])
        assert low == pytest.approx(1e-3 * (number + 1))
        assert high == pytest.approx(1.5e-3 * (number + 1))


def test_a_budget_that_ends_in_a_later_round_loses_visits_and_no_case(tmp_path: Path) -> None:
    slow = [fake_case(f"slow {i}", hot_s=0.1, cold_s=0.1) for i in range(10)]
    device = FakeDevice()
    outcome = sweep(device, tmp_path / "r.jsonl", slow, budget_s=12.0, rounds=3)
    visits = [len(m.notes["visits"]) for m in merged(outcome.measurements) if not m.notes.get("sentinel")]
    assert len(visits) == 10
    assert not outcome.skipped
    assert min(visits) < 3
    assert device.clock.now < 13.5


def test_a_resumed_sweep_makes_up_for_missing_visits_only(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    sweep(FakeDevice(), path, CASES[:5], rounds=2)
    outcome = sweep(FakeDevice(), path, done=finished(path, "env"), rounds=3)
    assert [m.notes["case"] for m in outcome.measurements if not m.notes.get("sentinel")].count(CASES[0].id) == 1
    assert {len(m.notes["visits"]) for m in merged(finished(path, "env"))} == {3}


def test_what_failed_once_is_not_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    outcome = sweep(FakeDevice(), path, [*CASES, fake_case("no", fails=RuntimeError("No available kernel."))], rounds=3)
    assert len(outcome.skipped) == 1
    assert [row["kind"] for row in rows(path)].count("skipped") == 1


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_out_of_memory_is_recorded_with_its_size_and_the_sweep_goes_on(tmp_path: Path, error: Exception) -> None:
    path, device = tmp_path / "r.jsonl", FakeDevice()
    outcome = sweep(device, path, [*CASES, fake_case("big", size=7e9, fails=error)], budget_s=300.0)
    (reason,) = outcome.skipped.values()
    assert reason == "out of memory: 7e+09 B of operands"
    assert device.released == 1
    assert len(outcome.measurements) == len(CASES) + 3
    (row,) = [row for row in rows(path) if row["kind"] == "skipped"]
    assert row["bytes"] == 7e9


def test_what_cannot_fit_is_not_tried(tmp_path: Path) -> None:
    device = FakeDevice(memory=1e6)
    outcome = sweep(device, tmp_path / "r.jsonl", [fake_case("big", size=7e9)])
    (reason,) = outcome.skipped.values()
    assert reason.startswith("out of memory: 7e+09 B of operands, 1e+06 B free")


def test_unsupported_kernels_are_named(tmp_path: Path) -> None:
    outcome = sweep(FakeDevice(), tmp_path / "r.jsonl", [fake_case("no", fails=RuntimeError("No available kernel.\nAborting"))])
    assert list(outcome.skipped.values()) == ["not supported here: No available kernel."]


def test_wrong_results_are_reported_as_untrustworthy(tmp_path: Path) -> None:
    outcome = sweep(FakeDevice(), tmp_path / "r.jsonl", [*CASES, fake_case("wrong", error=0.5)])
    assert len(outcome.untrustworthy) == 1
    assert len(outcome.measurements) == len(CASES) + 3


def test_planted_drift_is_reported_by_the_sentinel(tmp_path: Path) -> None:
    steady, warming = FakeDevice(), FakeDevice()
    assert drift(sweep(steady, tmp_path / "a.jsonl").measurements) == pytest.approx(0.0, abs=1e-6)
    warming.slowdown = lambda now: 1.0 if now < 2.5 else 1.2
    assert drift(sweep(warming, tmp_path / "b.jsonl").measurements) == pytest.approx(0.2, rel=0.05)
    assert drift([]) == 0.0


def test_unused_time_goes_to_later_cases(tmp_path: Path) -> None:
    device = FakeDevice()
    step = iter(range(10**9))
    device.slowdown = lambda now: 1.0 + 0.5 * (next(step) % 3)
    outcome = sweep(device, tmp_path / "r.jsonl", budget_s=200.0)
    assert {m.notes["stop"] for m in outcome.measurements} <= {"converged", "precise"}
    assert device.clock.now < 30.0
