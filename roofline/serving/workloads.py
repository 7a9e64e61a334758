"""Who asks what and when: requests as columns, and generators of the usual arrival processes and length distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from roofline import units
from roofline.errors import InputError
from roofline.scheduling.content import Segments
from roofline.scheduling.request import Request

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Segment = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Workload:
    """n requests as columns of length n.

    arrival_s: when each is sent, s from the start (for one with a parent: not before this, usually 0).
    input_tokens, output_tokens: lengths, both ≥ 1; outputs are forced to their length.
    parent, think_s: request i is sent think_s[i] after request parent[i] ended (−1: no parent); parents come first.
    concurrency: at most so many in the system; the next one in order of arrival is sent when one ends. With think_s and no parents:
    so many users, who send the requests in their order, the first ones at arrival_s, then each think_s[i] after the i-th end.
    segments: what each prompt shares with others, see scheduling.content.Segments: (end, id) with id = shared_id(k) for common
    text or own_id(j) for what request j said and was told up to there; None = nothing is shared.
    classes: name of the traffic class of each.
    """

    arrival_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    parent: Ints | None = None
    think_s: Floats | None = None
    concurrency: int | None = None
    segments: Sequence[Sequence[Segment]] | None = None
    classes: Sequence[str] | None = None
    name: str = "workload"

    def __post_init__(self) -> None:
        n = len(self.arrival_s)
        for column in ("input_tokens", "output_tokens", "parent", "think_s", "segments", "classes"):
            values = getattr(self, column)
            if values is not None and len(values) != n:
                raise InputError(f"{self.name}: column {column} has {len(values)} rows and arrival_s has {n}")
        _all(self.name, "arrival_s", np.isfinite(self.arrival_s) & (self.arrival_s >= 0), self.arrival_s, "finite and ≥ 0")
        _all(self.name, "input_tokens", self.input_tokens >= 1, self.input_tokens, "≥ 1")
        _all(self.name, "output_tokens", self.output_tokens >= 1, self.output_tokens, "≥ 1")
        if self.think_s is None if self.parent is not None else self.think_s is not None and self.concurrency is None:
            raise InputError(f"{self.name}: think_s belongs to parents or to a concurrency, and parents have one")
        if self.parent is not None:
            _all(self.name, "parent", (self.parent >= -1) & (self.parent < np.arange(n)), self.parent, "−1 or an earlier request")
        if self.think_s is not None:
            _all(self.name, "think_s", np.isfinite(self.think_s) & (self.think_s >= 0), self.think_s, "finite and ≥ 0")
        if self.concurrency is not None and (self.concurrency < 1 or self.parent is not None):
            raise InputError(f"{self.name}: concurrency {self.concurrency} must be at least 1, and goes without parents")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def reactive(self) -> bool:
        """Whether anybody waits for somebody's end before sending."""
        return self.parent is not None or self.concurrency is not None

    def request(self, index: int) -> Request:
        """Request `index` for a scheduler."""
        inputs, outputs = self._lengths
        content = None if self.segments is None else Segments(own_id(index), self.segments[index])
        return Request(str(index), inputs[index], outputs[index], index=index, content=content)

    @cached_property
    def _lengths(self) -> tuple[list[int], list[int]]:
        return self.input_tokens.tolist(), self.output_tokens.tolist()

    def slice(self, start: int, stop: int) -> Workload:
        """Requests start … stop − 1 of an open loop, time running from the first of them."""
        if self.think_s is not None:
            raise InputError(f"{self.name}: only a workload without users and parents can be sliced")
        arrival = self.arrival_s[start:stop]
        return replace(
            self,
            arrival_s=arrival - (arrival.min() if len(arrival) else 0.0),
            input_tokens=self.input_tokens[start:stop],
            output_tokens=self.output_tokens[start:stop],
            segments=None if self.segments is None else self.segments[start:stop],
            classes=None if self.classes is None else self.classes[start:stop],
        )

    def scaled(self, *, rate: float = 1.0, lengths: float = 1.0) -> Workload:
        """The same requests sent `rate` times as fast, `lengths` times as long (rounded, at least 1; then nothing is shared)."""
        if rate <= 0 or lengths <= 0:
            raise InputError(f"{self.name}: rate {rate} and lengths {lengths} must be above 0")
        return replace(
            self,
            arrival_s=self.arrival_s / rate,
            input_tokens=np.maximum(1, np.rint(self.input_tokens * lengths)).astype(np.int64),
            output_tokens=np.maximum(1, np.rint(self.output_tokens * lengths)).astype(np.int64),
            segments=self.segments if lengths == 1 else None,
        )


def _all(name: str, column: str, good: NDArray[np.bool_], values: ArrayLike, rule: str) -> None:
    bad = np.flatnonzero(~good)
    if len(bad):
        raise InputError(f"{name}: {column} of request {bad[0]} is {np.asarray(values)[bad[0]]}; it must be {rule}")


def own_id(index: int) -> int:
    """Content id of what request `index` alone says and is told."""
    return 2 * index + 1


def shared_id(number: int) -> int:
    """Content id of common text."""
    return 2 * number


@dataclass(frozen=True)
class Lengths:
    """Numbers of tokens: `fixed`, `uniform` (low … high inclusive), or `lognormal` (mean, and coefficient of variation).

    low and high clip every kind.
    """

    kind: str
    mean: float
    variation: float = 0.0
    low: int = 1
    high: int = 1 << 20

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        """`count` lengths."""
        if self.kind == "fixed":
            values = np.full(count, self.mean)
        elif self.kind == "uniform":
            values = rng.integers(self.low, self.high, count, endpoint=True).astype(np.float64)
        elif self.kind == "lognormal":
            sigma2 = np.log1p(self.variation**2)
            values = rng.lognormal(np.log(self.mean) - sigma2 / 2, np.sqrt(sigma2), count)
        else:
            raise InputError(f"length distribution {self.kind!r}: fixed, uniform or lognormal")
        lengths: Ints = np.clip(np.rint(values), self.low, self.high).astype(np.int64)
        return lengths


def fixed_length(tokens: int) -> Lengths:
    """Every request alike."""
    if tokens < 1:
        raise InputError(f"a length of {tokens} tokens: at least 1")
    return Lengths("fixed", tokens)


def uniform_length(low: int, high: int) -> Lengths:
    """low … high, both possible."""
    if not 1 <= low <= high:
        raise InputError(f"lengths {low} … {high}: 1 ≤ low ≤ high does not hold")
    return Lengths("uniform", (low + high) / 2, low=low, high=high)


def lognormal_length(mean: float, variation: float, *, high: int = 1 << 20) -> Lengths:
    """Log-normal with this mean and standard deviation / mean."""
    if mean < 1 or variation < 0:
        raise InputError(f"log-normal lengths of mean {mean} and variation {variation}: mean ≥ 1, variation ≥ 0")
    return Lengths("lognormal", mean, variation, high=high)


SHAREGPT_INPUT = lognormal_length(220, 1.6, high=1024)
"""Like ShareGPT's first turns as vLLM's benchmark filters them (means of about 220 in and 190 out, wide)."""
SHAREGPT_OUTPUT = lognormal_length(190, 1.1, high=1024)


def interarrival(count: int, rate: float, burstiness: float, rng: np.random.Generator) -> Floats:
    """Times of `count` arrivals at `rate` 1/s: gaps are gamma of shape `burstiness` (1 = Poisson, < 1 burstier, ∞ = regular)."""
    if not rate > 0 or not burstiness > 0:
        raise InputError(f"request rate {rate} and burstiness {burstiness} must be above 0")
    if np.isinf(rate):
        return np.zeros(count)
    gaps = np.full(count, 1 / rate) if np.isinf(burstiness) else rng.gamma(burstiness, 1 / (rate * burstiness), count)
    arrivals = np.cumsum(gaps)
    return arrivals - arrivals[0] if count else arrivals


def open_loop(count: int, rate: float, inputs: Lengths, outputs: Lengths, *, burstiness: float = 1.0, seed: int = 0) -> Workload:
    """`count` requests at `rate` 1/s whatever the server does (rate = inf: all at once)."""
    rng = np.random.default_rng(seed)
    arrival = interarrival(count, rate, burstiness, rng)
    return Workload(arrival, inputs.draw(count, rng), outputs.draw(count, rng), name=f"open loop at {units.plain(rate, 4)} requests/s")


def closed_loop(count: int, concurrency: int, inputs: Lengths, outputs: Lengths, *, seed: int = 0) -> Workload:
    """`count` requests, always `concurrency` of them in the system, all sent at the start as far as that goes."""
    rng = np.random.default_rng(seed)
    name = f"{concurrency} requests in flight"
    return Workload(np.zeros(count), inputs.draw(count, rng), outputs.draw(count, rng), concurrency=concurrency, name=name)


def users(count: int, number: int, think_s: float, inputs: Lengths, outputs: Lengths, *, seed: int = 0) -> Workload:
    """`count` requests of `number` users, who each pause before every request, exponentially with mean `think_s` s.

    Whoever is next to ask sends the next request, so nobody runs out of questions before the others and the last request is sent
    at the pace of the first.
    """
    rng = np.random.default_rng(seed)
    first, pause = (rng.exponential(think_s, size) if think_s > 0 else np.zeros(size) for size in (number, count))
    arrival = np.zeros(count)
    arrival[:number] = np.sort(first)[:count]
    lengths = inputs.draw(count, rng), outputs.draw(count, rng)
    return Workload(arrival, *lengths, think_s=pause, concurrency=number, name=f"{number} users")


def conversations(
    number: int,
    turns: int,
    rate: float,
    inputs: Lengths,
    outputs: Lengths,
    *,
    think_s: float = 10.0,
    system_tokens: int = 0,
    system_prompts: int = 1,
    seed: int = 0,
) -> Workload:
    """Conversations that begin at `rate` 1/s: each turn's prompt is all that was said before + a new input.

    system_tokens: length of the system prompt in front; each conversation takes one of `system_prompts` at random.
    """
    rng = np.random.default_rng(seed)
    count = number * turns
    new, output = inputs.draw(count, rng), outputs.draw(count, rng)
    system = rng.integers(0, system_prompts, number)
    prompt = np.zeros(count, dtype=np.int64)
    segments: list[tuple[Segment, ...]] = []
    for index in range(count):
        if index < number:
            told: tuple[Segment, ...] = ((system_tokens, shared_id(int(system[index]))),) if system_tokens else ()
            before = system_tokens
        else:
            earlier = index - number
            before = int(prompt[earlier] + output[earlier])
            told = (*segments[earlier], (before, own_id(earlier)))
        segments.append(told)
        prompt[index] = before + new[index]
    first = np.arange(count) < number
    arrival = np.where(first, np.resize(interarrival(number, rate, 1.0, rng), count), 0.0)
    think = np.where(first, 0.0, rng.exponential(think_s, count) if think_s > 0 else 0.0)
    parent = np.where(first, -1, np.arange(count) - number)
    return Workload(arrival, prompt, output, parent, think, segments=segments, name="conversations")


def merged(parts: dict[str, Workload]) -> Workload:
    """Open-loop workloads side by side, each a traffic class by its name; nothing is shared between classes."""
    if any(part.reactive for part in parts.values()):
        raise InputError("only open-loop workloads can be merged")
    arrival = np.concatenate([part.arrival_s for part in parts.values()])
    order = np.argsort(arrival, kind="stable")
    names = [name for name, part in parts.items() for _ in range(len(part))]
    return Workload(
        arrival[order],
        np.concatenate([part.input_tokens for part in parts.values()])[order],
        np.concatenate([part.output_tokens for part in parts.values()])[order],
        classes=[names[i] for i in order],
        name=" + ".join(parts),
    )
