"""Several passes over the same shapes: which one stands for a shape, what the machine's own change is, and who else was there."""

from __future__ import annotations

import math
import multiprocessing
import time

import pytest

from roofline.records import Measurement
from roofline.validation import passes


def measurement(case: str, seconds: float, **notes: object) -> Measurement:
    return Measurement("gemm", {}, "cpu", "fp32", (seconds,) * 3, "test", "e", cold=True, notes={"case": case, **notes})


def test_the_pass_in_the_middle_stands_for_a_case() -> None:
    rows = [
        measurement("a", 3.0),
        measurement("b", 1.0),
        measurement("a", 9.0),
        measurement("a", 3.1),
        measurement("s", 1.0, sentinel="end"),
    ]
    assert [(m.notes["case"], m.median_s) for m in passes.middle(rows)] == [("a", 3.1), ("b", 1.0)]


def test_passes_that_others_disturbed_stand_back() -> None:
    rows = [measurement("a", 9.0, others=1.0), measurement("a", 8.0, others=0.9), measurement("a", 3.0, others=0.1)]
    rows += [measurement("b", 9.0, others=1.0), measurement("b", 8.0, others=0.9)]
    assert [(m.notes["case"], m.median_s) for m in passes.middle(rows)] == [("a", 3.0), ("b", 8.0)]
    assert passes.apart(rows[:3]) == 0.0
    sentinels = [measurement("s", t, sentinel="x", others=o, **{"pass": n}) for n, t, o in ((1, 1.0, 0.0), (2, 9.0, 1.0), (3, 1.1, 0.1))]
    assert passes.drift(sentinels) == pytest.approx(0.1)


def test_cases_that_were_disturbed_each_time_are_measured_once_more() -> None:
    class Case:
        def __init__(self, name: str) -> None:
            self.id = name

    cases = [Case(name) for name in "abc"]
    rows = [measurement("a", 1.0, others=0.9), measurement("a", 1.0, others=0.0), measurement("b", 1.0, others=0.9)]
    assert [case.id for case in passes.without_calm(cases, rows)] == ["b"]


def test_passes_lie_apart_by_their_logarithms() -> None:
    rows = [measurement("a", t) for t in (1.0, 2.0, 4.0)] + [measurement("b", 5.0)]
    assert passes.apart(rows, 1.0) == pytest.approx(math.log(2))
    assert passes.apart(rows, 0.0) == 0.0
    assert passes.apart(rows[-1:]) == 0.0


@pytest.mark.parametrize(("budget", "cases", "passes_"), [(67.0, 56, 3), (40.0, 56, 2), (5.0, 56, 1), (36.0, 23, 3), (1.0, 0, 2)])
def test_a_small_budget_makes_fewer_passes(budget: float, cases: int, passes_: int) -> None:
    assert passes.count(budget, cases) == passes_


def test_drift_is_between_passes_and_one_disturbed_sentinel_of_three_is_outvoted() -> None:
    rows = [
        measurement("s", t, sentinel=p, **{"pass": n})
        for n, times in ((1, (1.0, 2.0, 1.0)), (2, (1.2, 1.1, 1.1)))
        for t, p in zip(times, "sme", strict=True)
    ]
    assert passes.drift(rows) == pytest.approx(0.1)
    assert passes.drift([measurement("s", 1.0, sentinel="start"), measurement("s", 1.5, sentinel="end")]) == pytest.approx(0.5)
    assert passes.drift([measurement("a", 1.0)]) == 0.0


def test_the_median_of_another_run_lies_between_those_of_the_passes() -> None:
    rows = [measurement("a", t, others=o) for t, o in ((2.0, 0.0), (3.0, 0.1), (9.0, 1.0))]
    one = Measurement("gemm", {}, "cpu", "fp32", tuple(float(i) for i in range(1, 12)), "test", "e", notes={"case": "b"})
    assert passes.intervals([*rows, one]) == {"a": (2.0, 3.0), "b": (2.0, 10.0)}


def test_drift_within_passes_leaves_out_what_changed_between_them() -> None:
    rows = [
        measurement("s", t, sentinel="steps", **{"pass": n})
        for n, t in ((1, 1.0), (1, 1.1), (2, 2.0), (2, 2.2), (3, 9.0), (3, 9.0), (4, 1.0))
    ]
    assert passes.drift_within(rows) == pytest.approx(0.1)
    assert passes.drift_within([]) == 0.0


def test_cores_of_others_by_hand() -> None:
    assert passes.others(passes.Busy(10.0, 4.0), passes.Busy(16.0, 8.0), 2.0) == 1.0
    assert passes.others(passes.Busy(10.0, 4.0), passes.Busy(10.0, 4.5), 2.0) == 0.0
    assert passes.others(None, passes.Busy(1.0, 1.0), 1.0) is None


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.mark.skipif(passes.busy() is None, reason="only Linux tells who used the cores")
def test_a_busy_neighbour_is_seen() -> None:
    neighbour = multiprocessing.get_context("spawn").Process(target=spin, args=(30.0,))
    neighbour.start()
    time.sleep(1.0)

    def measure() -> Measurement:
        spin(1.0)
        return measurement("a", 1.0)

    try:
        found = passes.watched(measure, 2)()
    finally:
        neighbour.terminate()
        neighbour.join()
    assert found.notes["pass"] == 2
    assert found.notes["others"] > 0.2
