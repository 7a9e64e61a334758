"""What is asked of a server, and what one replica can deliver: closed forms, before any simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from roofline import units
from roofline.batch import Batch
from roofline.errors import InputError
from roofline.phases import Setup


@dataclass(frozen=True)
class Load:
    """A load of equal requests: input_len prompt tokens, output_len generated ones.

    At most one of: concurrency (requests in flight), request_rate (per second), users with think_time_s between the end of an
    answer and the next question. ttft_s, tpot_s: service levels, None when nothing is promised.
    """

    input_len: int = 1024
    output_len: int = 256
    concurrency: int | None = None
    request_rate: float | None = None
    users: int | None = None
    think_time_s: float = 0.0
    ttft_s: float | None = None
    tpot_s: float | None = None

    def __post_init__(self) -> None:
        if self.input_len < 1 or self.output_len < 1:
            raise InputError(f"input and output length must be at least 1, got {self.input_len} and {self.output_len}")
        given = [name for name in ("concurrency", "request_rate", "users") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(f"give one of concurrency, request rate and users, not {' and '.join(given)}")
        for name in (*given, "ttft_s", "tpot_s"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise InputError(f"{name.removesuffix('_s')} must be a positive number, got {value}")
            if value is not None and not 1 / units.FAR <= value <= units.FAR:
                raise InputError(f"{name.removesuffix('_s')} must be between {1 / units.FAR:g} and {units.FAR:g}, got {value:g}")
        if not 0 <= self.think_time_s <= units.FAR:
            raise InputError(f"think time must be between 0 and {units.FAR:g} seconds, got {self.think_time_s}")

    @property
    def longest(self) -> int:
        """Tokens of a finished request."""
        return self.input_len + self.output_len

    @property
    def mean_context(self) -> int:
        """Cached tokens in the middle of the output: input + output/2."""
        return self.input_len + self.output_len // 2


@dataclass(frozen=True)
class Operating:
    """A replica that keeps `batch` requests in flight, each decode step giving way to the prefills of the newcomers.

    step_s: a decode step alone. tpot_s: time between tokens with the newcomers' prefills in between. ttft_s: prefill of one
    request behind the step under way; queueing is not in it. request_rate: requests per second of the replica.
    """

    batch: int
    step_s: float
    prefill_s: float
    tpot_s: float
    ttft_s: float
    request_rate: float


def operate(setup: Setup, load: Load, batch: int) -> Operating:
    """Steady state at `batch` requests in flight, expected times.

    In the time of one request every other one is prefilled once, so TPOT = D(b) + P·(b − 1)/output_len, and by Little's law
    b = rate · (P + output_len · TPOT). Source: the mixed-step form of measured serving points (docs/concepts/batching.md).
    """
    decode = setup.price(Batch.decode(setup.per_pass(batch), load.mean_context)).estimate.expected_s
    prefill = setup.price(Batch.prefill(1, load.input_len)).estimate.expected_s
    step_s, prefill_s = float(np.asarray(decode)), float(np.asarray(prefill))
    shared = prefill_s / (setup.parallel.dp * setup.parallel.pp)
    tpot_s = step_s + shared * (batch - 1) / load.output_len
    ttft_s = prefill_s + (step_s if batch > 1 else 0.0)
    rate = batch / (prefill_s + load.output_len * tpot_s)
    return Operating(batch, step_s, prefill_s, tpot_s, ttft_s, rate)


def largest_batch_within(setup: Setup, load: Load, limit: int) -> int:
    """The largest batch up to `limit` that keeps the service levels of the load; 0 if a single request breaks them."""

    def holds(batch: int) -> bool:
        point = operate(setup, load, batch)
        in_time = load.ttft_s is None or point.ttft_s <= load.ttft_s
        return in_time and (load.tpot_s is None or point.tpot_s <= load.tpot_s)

    if limit < 1 or not holds(1):
        return 0
    low, high = 1, limit + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class Need:
    """What a load takes: replicas, their GPUs, and the operating point of each.

    concurrency: requests in flight over all replicas (Little's law). binding: what keeps a replica from taking more.
    """

    replicas: int
    gpus: int
    concurrency: float
    request_rate: float
    point: Operating
    binding: str


def replicas_needed(setup: Setup, load: Load, *, kv_limit: int, slot_limit: int) -> Need | None:
    """Replicas for a load when one holds at most kv_limit sequences in memory and slot_limit by its engine.

    None when not even one request fits or meets the service levels, or when no load is stated.
    """
    if load.concurrency is None and load.request_rate is None and load.users is None:
        return None
    limit = min(kv_limit, slot_limit)
    best = largest_batch_within(setup, load, limit)
    if best < 1:
        return None
    full = operate(setup, load, best)
    binding = "service level" if best < limit else "KV memory" if kv_limit <= slot_limit else "sequence limit of the engine"
    if load.concurrency is not None:
        replicas = math.ceil(load.concurrency / best)
        point = operate(setup, load, math.ceil(load.concurrency / replicas))
        return Need(replicas, replicas * setup.parallel.gpus, load.concurrency, point.request_rate * replicas, point, binding)
    if load.request_rate is not None:
        return _for_rate(setup, load, load.request_rate, full, binding)
    if load.users is not None:
        return _for_users(setup, load, load.users, full, binding)
    return None


def _for_rate(setup: Setup, load: Load, rate: float, full: Operating, binding: str) -> Need:
    replicas = math.ceil(rate / full.request_rate)
    point = _smallest(setup, load, full, lambda point: point.request_rate >= rate / replicas)
    return Need(replicas, replicas * setup.parallel.gpus, rate * _latency_s(load, point), rate, point, binding)


def _for_users(setup: Setup, load: Load, users: int, full: Operating, binding: str) -> Need:
    """A user's cycle is think time + latency: of a replica's users `batch` wait for an answer and rate · think time read one."""

    def held(point: Operating) -> float:
        return point.batch + point.request_rate * load.think_time_s

    replicas = math.ceil(users / held(full))
    point = _smallest(setup, load, full, lambda point: held(point) >= users / replicas)
    rate = users / (load.think_time_s + _latency_s(load, point))
    return Need(replicas, replicas * setup.parallel.gpus, rate * _latency_s(load, point), rate, point, binding)


def _smallest(setup: Setup, load: Load, full: Operating, carries: Callable[[Operating], bool]) -> Operating:
    """The smallest batch up to the full one that carries a share; what a batch carries rises with it."""
    low, high = 0, full.batch
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if carries(operate(setup, load, middle)) else (middle, high)
    return operate(setup, load, high)


def _latency_s(load: Load, point: Operating) -> float:
    """From the start of the prefill to the last token."""
    return point.prefill_s + load.output_len * point.tpot_s


def missed_alone(setup: Setup, load: Load, e2el_s: float | None = None) -> str:
    """By how much a request that is alone misses its service levels, and whether the hard bound already does.

    e2el_s: a level for the whole request, TTFT + (output − 1) · TPOT.
    """
    prefill = setup.price(Batch.prefill(1, load.input_len)).estimate
    decode = setup.price(Batch.decode(1, load.mean_context)).estimate
    first, token = ((float(np.asarray(time.expected_s)), float(np.asarray(time.bound_s))) for time in (prefill, decode))
    whole = (first[0] + (load.output_len - 1) * token[0], first[1] + (load.output_len - 1) * token[1])
    parts = []
    for name, level, (expected, bound) in (
        ("TTFT", load.ttft_s, first), ("TPOT", load.tpot_s, token), ("end-to-end latency", e2el_s, whole)
    ):  # fmt: skip
        if level is not None and expected > level:
            even = "even " if bound > level else ""
            parts.append(
                f"{name} of a lone request is {units.format(expected, 'time')}, {units.significant(expected / level, 2)} × its level of "
                f"{units.plain(1e3 * level)} ms; {even}the hard bound is {units.format(bound, 'time')}"
            )
    return "; ".join(parts) or "in closed form a lone request of these lengths meets them, but in the simulation too few do"
