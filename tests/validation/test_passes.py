"""Several passes over the same shapes: which one stands for a shape, what the machine's own change is, and who else was there."""

from __future__ import annotations

import multiprocessing
import random
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
    numbered = [measurement("a", t, others=o, **{"pass": n}) for n, t, o in ((1, 1.0, 0.0), (2, 9.0, 1.0), (3, 1.1, 0.1))]
    assert {number: m.median_s for number, m in passes.by_pass(numbered)["a"].items()} == {1: 1.0, 3: 1.1}
    assert passes.drift(passes.paces(numbered)) == pytest.approx(0.1)


def test_cases_that_were_disturbed_each_time_are_measured_once_more() -> None:
    class Case:
        def __init__(self, name: str) -> None:
            self.id = name

    cases = [Case(name) for name in "abc"]
    rows = [measurement("a", 1.0, others=0.9), measurement("a", 1.0, others=0.0), measurement("b", 1.0, others=0.9)]
    assert [case.id for case in passes.without_calm(cases, rows)] == ["b"]


@pytest.mark.parametrize(("budget", "cases", "passes_"), [(103.0, 79, 5), (60.0, 79, 3), (40.0, 79, 1), (5.0, 79, 1), (1.0, 0, 3)])
def test_a_small_budget_makes_fewer_passes_and_one_is_in_the_middle(budget: float, cases: int, passes_: int) -> None:
    assert passes.count(budget, cases) == passes_


def test_drift_is_between_passes_and_one_sentinel_of_three_is_outvoted() -> None:
    rows = [measurement("s", t, **{"pass": n}) for n, times in ((1, (1.0, 2.0, 1.0)), (2, (1.2, 1.1, 1.1))) for t in times]
    assert passes.paces(rows) == {1: {"s": 1.0}, 2: {"s": 1.1}}
    assert passes.drift(passes.paces(rows)) == pytest.approx(0.1)
    assert passes.drift({}) == 0.0


def test_what_changed_under_a_prediction_leaves_out_what_changed_between_passes() -> None:
    before = {1: {"a": 1.0, "b": 2.0, "c": 1.0}, 2: {"a": 5.0}, 3: {"a": 1.0}, 4: {"z": 1.0}}
    after = {1: {"a": 1.1, "b": 2.2, "c": 9.0}, 2: {"a": 4.0}, 4: {"a": 7.0}}
    assert passes.moved(before, after) == {1: pytest.approx(0.1), 2: pytest.approx(0.25), 4: 0.0}


def test_the_interval_of_a_median_holds_the_median_of_other_draws_four_times_in_five() -> None:
    assert passes.of_median([3.0]) == (3.0, 3.0)
    chance = random.Random(0)
    for size, least, most in ((5, 0.70, 0.90), (11, 0.72, 0.88), (31, 0.75, 0.85)):
        inside = 0
        for _ in range(2000):
            low, high = passes.of_median([chance.gauss(0.0, 1.0) for _ in range(size)])
            inside += low <= 0.0 <= high
        assert least < inside / 2000 < most


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
        found = passes.watched(measure, 2, passes.JUDGED)()
    finally:
        neighbour.terminate()
        neighbour.join()
    assert (found.notes["pass"], found.notes["phase"]) == (2, "judged")
    assert found.notes["others"] > 0.2
