"""When to stop, and what is flagged."""

from __future__ import annotations

import random

import pytest

from microbench.stopping import Rule, flags, relative_deviation


def test_precise_only_after_the_least_time() -> None:
    rule = Rule(budget_s=10.0, least_s=0.5)
    steady = [1.0, 1.001] * 5
    assert rule.verdict(steady, 0.4) == ""
    assert rule.verdict(steady, 0.6) == "precise"


def test_budget_ends_a_noisy_case_but_not_before_the_least_samples() -> None:
    rule = Rule(budget_s=1.0, least_samples=3)
    assert rule.verdict([1.0, 2.0], 5.0) == ""
    assert rule.verdict([1.0, 2.0, 3.0], 5.0) == "budget"
    assert rule.verdict([1.0, 2.0, 3.0], 0.9) == ""


def test_noise_that_no_longer_changes_has_converged() -> None:
    rng = random.Random(1)
    noisy = [1.0 + rng.gauss(0, 0.1) for _ in range(4000)]
    assert Rule(budget_s=60.0).verdict(noisy, 1.0) == "converged"
    growing = [1.0 + rng.gauss(0, 0.02 if i < 200 else 0.2) for i in range(400)]
    assert Rule(budget_s=60.0).verdict(growing, 1.0) == ""


def test_many_samples_are_enough() -> None:
    uneven = [1.0 if i % 3 else 1.0 + i / 100 for i in range(1000)]
    assert Rule(budget_s=60.0).verdict(uneven, 0.1) == "samples"
    assert Rule(budget_s=60.0).verdict(uneven[:999], 0.1) == ""


def test_equal_samples_are_precise() -> None:
    assert Rule(budget_s=1.0).verdict([1e-6] * 30, 0.6) == "precise"
    assert relative_deviation([2.0, 2.0]) == 0.0


def test_outliers_are_flagged_with_their_place_and_kept() -> None:
    samples = [1.0, 1.01, 0.99, 1.0, 9.0, 1.02, 0.98, 1.0]
    assert flags(samples) == {"outliers": [4]}
    assert samples[4] == 9.0


def test_wide_samples_are_noisy_and_few_are_said_to_be_few() -> None:
    assert flags([1.0, 1.2, 1.4, 1.6, 1.8])["noisy"] == pytest.approx(0.286, abs=1e-3)
    assert flags([1.0, 2.0]) == {"few_samples": 2}
