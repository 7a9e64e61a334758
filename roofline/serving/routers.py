"""Which replica gets a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from roofline.errors import InputError
from roofline.scheduling.request import Request
from roofline.serving.instance import Instance


class Router(Protocol):
    """Chooses an engine when a request arrives."""

    def choose(self, request: Request, instances: Sequence[Instance]) -> int:
        """Index of the engine that gets the request."""


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._next = -1

    def choose(self, request: Request, instances: Sequence[Instance]) -> int:
        """See Router."""
        del request
        self._next = (self._next + 1) % len(instances)
        return self._next


class LeastLoaded:
    """The one with the fewest requests, waiting ones counted `waiting_weight` times; the first of equals."""

    def __init__(self, waiting_weight: float = 4.0) -> None:
        self._weight = waiting_weight

    def load(self, instance: Instance) -> float:
        """Running + weight · waiting requests."""
        return len(instance.scheduler.running) + self._weight * instance.scheduler.num_waiting

    def choose(self, request: Request, instances: Sequence[Instance]) -> int:
        """See Router."""
        del request
        return min(range(len(instances)), key=lambda number: self.load(instances[number]))


class PrefixAware(LeastLoaded):
    """Where most of the prompt was sent before, unless that engine has more than `slack` load above the least loaded one.

    It remembers where it sent each block of `block_size` tokens; it does not see what the engines have evicted since.
    """

    def __init__(self, block_size: int = 16, slack: float = 16.0, waiting_weight: float = 4.0) -> None:
        super().__init__(waiting_weight)
        self._block_size, self._slack = block_size, slack
        self._seen: dict[int, set[int]] = {}

    def choose(self, request: Request, instances: Sequence[Instance]) -> int:
        """See Router."""
        keys = request.content.keys(0, request.num_prompt_tokens // self._block_size, self._block_size)
        loads = [self.load(instance) for instance in instances]
        least = min(loads)
        fit = [number for number, load in enumerate(loads) if load <= least + self._slack]
        seen = [self._seen.setdefault(instance.number, set()) for instance in instances]
        chosen = max(fit, key=lambda number: (self._leading(keys, seen[number]), -loads[number]))
        seen[chosen].update(keys)
        return chosen

    @staticmethod
    def _leading(keys: list[int], seen: set[int]) -> int:
        return next((at for at, key in enumerate(keys) if key not in seen), len(keys))


class ByClass:
    """Each traffic class has its own engines, among which `within` chooses (S13: interactive and batch pools)."""

    def __init__(self, classes: Sequence[str], pools: Mapping[str, Sequence[int]], within: Router) -> None:
        """classes: of each request by index; pools: engines of each class."""
        missing = set(classes) - set(pools)
        if missing:
            raise InputError(f"traffic classes without a pool: {', '.join(sorted(missing))}; pools: {', '.join(sorted(pools))}")
        self._classes, self._pools, self._within = classes, pools, within

    def choose(self, request: Request, instances: Sequence[Instance]) -> int:
        """See Router."""
        pool = self._pools[self._classes[request.index]]
        return pool[self._within.choose(request, [instances[number] for number in pool])]
