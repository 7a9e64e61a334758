"""The highest request rate that a server carries under its service levels, by simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from roofline.errors import InputError
from roofline.serving.statistics import Result

_TRIES = 40


@dataclass(frozen=True)
class MaxRate:
    """request_rate: the highest found at which at least `attainment` of the requests met every level, and the run at that rate.

    above: the lowest rate found at which fewer did, and the level that most of them missed there (None: none failed).
    """

    request_rate: float
    result: Result
    above: float | None
    missed: str | None


def find_max_rate(
    serve: Callable[[float], Result], levels: Mapping[str, float], *, attainment: float = 0.9, guess: float = 1.0, precision: float = 0.03
) -> MaxRate | None:
    """Brackets and halves the rate until it is known to `precision`; None if even a lone request misses a level.

    serve(rate): the run at that many requests per second; levels: upper limits in seconds by ttft, tpot, e2el.
    """
    if not levels:
        raise InputError("a maximum rate needs a service level: --goodput ttft:500 tpot:50")
    if not 0 < attainment <= 1:
        raise InputError(f"attainment {attainment}: the share of requests that must meet the levels, above 0 and at most 1")
    good: tuple[float, Result] | None = None
    bad: tuple[float, Result] | None = None
    rate = guess
    for _ in range(_TRIES):
        result = serve(rate)
        if _share(result, levels) >= attainment:
            good = rate, result
        else:
            bad = rate, result
        if good is None:
            if rate < guess * 1e-4:
                return None
            rate /= 4 if rate < guess / 4 else 2
        elif bad is None:
            rate *= 2
        elif bad[0] <= good[0] * (1 + precision):
            break
        else:
            rate = (good[0] * bad[0]) ** 0.5
    if good is None:
        return None
    return MaxRate(good[0], good[1], bad[0] if bad else None, _most_missed(bad[1], levels) if bad else None)


def _most_missed(result: Result, levels: Mapping[str, float]) -> str:
    return min(levels, key=lambda name: _share(result, {name: levels[name]}))


def _share(result: Result, levels: Mapping[str, float]) -> float:
    """Of requests that met all levels: of all of them or of the later half, whichever is less, since a queue may only begin to grow."""
    good = result.good(levels)
    return float(min(good.mean(), good[len(good) // 2 :].mean()))
