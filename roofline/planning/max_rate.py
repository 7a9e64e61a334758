"""The highest request rate that a server carries under its service levels, by simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from roofline.errors import InputError
from roofline.serving.statistics import Result

_LEAST = 1e-4  # of the guess: below it a request is alone


@dataclass(frozen=True)
class MaxRate:
    """request_rate: the highest found at which at least `attainment` of the requests met every level, and the run at that rate.

    above: the lowest rate found at which fewer did, and the level that most of them missed there. shares: of the requests that met
    every level at request_rate, in this run and in those with other arrivals.
    """

    request_rate: float
    result: Result
    above: float
    missed: str
    shares: tuple[float, ...]


def find_max_rate(
    serve: Callable[[float], Result],
    levels: Mapping[str, float],
    *,
    attainment: float = 0.9,
    guess: float = 1.0,
    precision: float = 0.03,
    others: Sequence[Callable[[float], Result]] = (),
) -> MaxRate | None:
    """Brackets and halves the rate until it is known to `precision`; None if even a lone request misses a level.

    serve(rate): the run at that many requests per second; levels: upper limits in seconds by ttft, tpot, e2el. others: the same with
    other arrivals; the rate is lowered until the levels are met in the mean over all of them. Raises InputError where all requests
    may come at once, so that no rate fails.
    """
    if not levels:
        raise InputError("a maximum rate needs a service level: --goodput ttft:500 tpot:50")
    if not 0 < attainment <= 1:
        raise InputError(f"attainment {attainment}: the share of requests that must meet the levels, above 0 and at most 1")
    good: tuple[float, Result] | None = None
    bad: tuple[float, Result] | None = None
    rate = guess
    while good is None or bad is None or bad[0] > good[0] * (1 + precision):
        result = serve(rate)
        if _share(result, levels) >= attainment:
            good = rate, result
        else:
            bad = rate, result
        if good is None:
            if rate < guess * _LEAST:
                return None
            rate /= 4 if rate < guess / 4 else 2
        elif bad is None:
            _check_long_enough(result)
            rate *= 2
        else:
            rate = (good[0] * bad[0]) ** 0.5
    return _confirmed(serve, others, levels, attainment, good, bad, precision, guess * _LEAST)


_Run = tuple[float, Result]


def _confirmed(
    serve: Callable[[float], Result],
    others: Sequence[Callable[[float], Result]],
    levels: Mapping[str, float],
    attainment: float,
    good: _Run,
    bad: _Run,
    precision: float,
    least: float,
) -> MaxRate | None:
    """The rate at which the levels are met in the mean over all arrivals: chance favoured the one that was searched with.

    None below `least`, where requests are alone.
    """
    while True:
        shares = (_share(good[1], levels), *(_share(other(good[0]), levels) for other in others))
        if sum(shares) / len(shares) >= attainment:
            return MaxRate(good[0], good[1], bad[0], _most_missed(bad[1], levels), shares)
        lower = good[0] * (1 - precision)
        if lower < least:
            return None
        bad, good = good, (lower, serve(lower))


def _check_long_enough(result: Result) -> None:
    """Raises InputError if all requests were there before any had ended, which no higher rate would change."""
    if result.completed.any() and np.nanmax(result.sent_s) <= np.nanmin(result.ended_s):
        raise InputError(
            f"the service levels are met even if all requests ({len(result.workload):,}) come at once, which shows no highest rate: "
            "take a longer run (--num-requests) or trace, or tighter levels"
        )


def _most_missed(result: Result, levels: Mapping[str, float]) -> str:
    return min(levels, key=lambda name: _share(result, {name: levels[name]}))


def _share(result: Result, levels: Mapping[str, float]) -> float:
    """Of requests that met all levels: of all of them or of the later half, whichever is less, since a queue may only begin to grow."""
    good = result.good(levels)
    return float(min(good.mean(), good[len(good) // 2 :].mean()))
