"""Visits of a case as one measurement, worked by hand."""

from __future__ import annotations

import pytest

from microbench.summary import Roofs, rows
from microbench.visits import against_rival, apart, interval, merged, split
from roofline.records import Measurement


def visit(case: str, samples: list[float], *, sentinel: str = "", rival: list[float] | None = None) -> Measurement:
    notes = {"case": case, "flops": 0.0, "bytes": 1.0, "compute": "", "stop": "precise"}
    notes |= {"sentinel": sentinel} if sentinel else {}
    notes |= {"rival": {"name": "other", "samples_s": rival}} if rival else {}
    return Measurement("stream", {"level": case}, "cpu", "fp32", tuple(samples), "m", "e", cold=True, notes=notes)


def test_visits_of_a_case_are_joined_and_sentinels_kept_apart() -> None:
    found = merged(
        [
            visit("s", [1.0], sentinel="start"),
            visit("a", [1.0, 2.0]),
            visit("b", [5.0]),
            visit("s", [2.0], sentinel="end"),
            visit("a", [3.0, 4.0]),
        ]
    )
    assert [m.samples_s for m in found] == [(1.0, 2.0, 3.0, 4.0), (5.0,), (1.0,), (2.0,)]
    assert found[0].notes["visits"] == [2, 2]
    assert split(found[0]) == [(1.0, 2.0), (3.0, 4.0)]
    assert split(visit("a", [1.0, 2.0])) == [(1.0, 2.0)]


def test_flags_are_those_of_all_samples() -> None:
    (found,) = merged([visit("a", [1.0, 1.0, 1.0]), visit("a", [2.0, 2.0, 2.0])])
    assert "few_samples" not in found.notes
    assert found.notes["noisy"] == pytest.approx(1.0 / 1.5, abs=1e-3)


def test_interval_goes_from_the_fastest_visit_to_the_slowest() -> None:
    fast, slow = [float(i) for i in range(1, 12)], [float(i) for i in range(11, 22)]
    assert interval(visit("a", fast)) == (2.0, 10.0)
    assert interval(visit("a", fast), 0.25) == (1.6, 12.5)
    (both,) = merged([visit("a", slow), visit("a", fast)])
    assert interval(both) == (2.0, 20.0)


def test_how_far_visits_lie_apart() -> None:
    found = merged([visit("a", [1.0]), visit("a", [1.5]), visit("b", [2.0]), visit("b", [2.0]), visit("c", [1.0])])
    assert apart(found, 1.0) == pytest.approx(0.5)
    assert apart(found, 0.5) == pytest.approx(0.25)
    assert apart([visit("a", [1.0])]) == 0.0


def test_a_case_with_one_visit_gets_what_the_others_saw() -> None:
    found = rows(merged([visit("a", [1.0]), visit("a", [1.5]), visit("b", [2.0])]), Roofs({}, None, "x"))
    assert [(row["visits"], row["low_s"], row["high_s"]) for row in found] == [(2, 1.0, 1.5), (1, pytest.approx(2.0 / 1.5), 3.0)]


def test_a_rival_is_compared_pair_by_pair() -> None:
    (found,) = merged([visit("a", [1.0, 1.0], rival=[0.9, 0.9]), visit("a", [2.0, 2.0], rival=[1.8, 3.6])])
    assert against_rival(found) == pytest.approx(0.9)
    assert against_rival(visit("a", [1.0])) is None
    (row,) = rows([found], Roofs({}, None, "x"))
    assert "0.90 × the rate of other" in row["notes"]
