"""Verdicts by hand-made intervals; attribution of a step whose parts are known; groups."""

from __future__ import annotations

import pytest

from roofline.validation.predictions import SHIPPED, THIS_RUN, Prediction
from roofline.validation.verdicts import AMBIGUOUS, FAIL, PASS, Measured, Row, attribute, judge, judge_groups, label, overall


def prediction(expected: float = 1.0, basis: str = THIS_RUN, bound: float = 0.5, **parts: float) -> Prediction:
    return Prediction("x", "gemm", basis, bound, expected, 0.9 * expected, 1.1 * expected, parts)


@pytest.mark.parametrize(
    ("low", "median", "high", "word"),
    [
        (0.95, 1.0, 1.05, PASS),
        (0.5, 1.05, 0.99, PASS),  # only the median decides once the spread is small enough
        (1.05, 1.15, 1.3, AMBIGUOUS),
        (1.2, 1.3, 1.4, FAIL),
        (0.6, 0.7, 0.8, FAIL),
        (0.6, 1.0, 1.5, AMBIGUOUS),
    ],
)
def test_a_row_is_judged_by_both_intervals(low: float, median: float, high: float, word: str) -> None:
    assert judge(prediction(), Measured(median, low, high)).word == word


def test_faster_than_the_hard_bound_fails_whatever_the_interval_says() -> None:
    verdict = judge(Prediction("x", "gemm", SHIPPED, 1.0, 1.2, 0.4, 1.5), Measured(0.5, 0.45, 0.55))
    assert verdict.word == FAIL
    assert "2.00 × faster than the hard bound" in verdict.why


def row(word_at: float, group: str = "gemm") -> Row:
    seen = Measured(word_at, 0.98 * word_at, 1.02 * word_at)
    return Row("x", group, seen, {THIS_RUN: prediction()}, THIS_RUN, judge(prediction(), seen))


def test_a_group_fails_with_most_of_its_rows_and_passes_within_its_aim() -> None:
    groups = judge_groups([row(1.0), row(1.05), row(1.5), *(row(2.0, "decode"),) * 2, row(1.0, "decode")])
    assert [(g.group, g.word) for g in groups] == [("gemm", PASS), ("decode", FAIL)]
    assert groups[0].median_error[THIS_RUN] == pytest.approx(1 - 1 / 1.05)
    assert overall(groups) == FAIL
    assert overall(groups[:1]) == PASS
    assert overall([]) == AMBIGUOUS


def test_a_slow_step_is_laid_at_the_door_of_the_kernel_that_is_slow() -> None:
    stated = prediction(1.0, qkv=0.3, attention=0.2, down=0.3, engine=0.2)
    cause, parts = attribute(1.4, stated, {"qkv": 0.31, "down": 0.65})
    assert cause.startswith("down: 25% more of the step")
    assert "attention not measured alone" in cause
    assert parts["down"] == pytest.approx(0.35)
    assert parts["engine"] == pytest.approx(0.4 - 0.01 - 0.35)


def test_what_no_kernel_explains_is_the_engine() -> None:
    cause, _ = attribute(1.4, prediction(1.0, qkv=0.5, engine=0.5), {"qkv": 0.51})
    assert cause.startswith("launches, element-wise work and host: 28% more")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("gemm/fp32/m=1,n=768,k=768/cold", "gemm m=1 n=768 k=768"),
        ("decode/batch=4,new=1,past=256", "decode batch=4 new=1 past=256"),
        ("trace/ttft/p90", "trace ttft p90"),
        ("decode_attention/fp32/batch=1,context=8,window=0,kv_dtype=fp32,kernel=flash/cold", "decode attention batch=1 context=8"),
    ],
)
def test_targets_are_told_in_few_words(target: str, words: str) -> None:
    assert label(target) == words
