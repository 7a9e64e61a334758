"""Many cases under one budget: in shuffled rounds with a sentinel between, written as they end, resumable."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from microbench import METHOD
from microbench.device import Device
from microbench.measure import Case, measure
from microbench.stopping import Rule
from roofline.errors import InputError, UntrustworthyError
from roofline.records import JsonlWriter, Measurement, read_jsonl

ROUNDS = 3  # visits of each case in a sweep of bench: the fewest that show whether one of them was odd
DRIFT = 0.05  # between sentinels, from which a warning is given
_SLOWEST = {"cpu": (5e9, 1e9), "cuda": (2e12, 1e11)}  # FLOP/s and B/s that any large case reaches
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "cannot allocate memory")


@dataclass
class Outcome:
    """What a sweep found: each visit of a case is a measurement.

    skipped: case id → reason. untrustworthy: messages of cases above a roof or with a wrong result.
    """

    measurements: list[Measurement] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    untrustworthy: list[str] = field(default_factory=list)


def order(cases: Sequence[Case], sentinel: Case, seed: int, rounds: int = 1) -> list[tuple[Case, str]]:
    """All cases in each round, shuffled anew, with the sentinel before, halfway and after: (case, place of the sentinel or "").

    Those that make the roofs (streams, hot operands) come first in a round: a budget that ends early still has them.
    """
    chance = random.Random(seed)  # noqa: S311  an order, not a secret
    distinct = list({case.id: case for case in cases}.values())
    queue: list[tuple[Case, str]] = [(sentinel, "start")]
    for number in range(1, rounds + 1):
        chance.shuffle(distinct)
        distinct.sort(key=lambda case: case.cold and case.kind != "stream")
        middle = len(distinct) // 2
        queue += [*((case, "") for case in distinct[:middle]), (sentinel, f"middle of round {number}")]
        queue += [*((case, "") for case in distinct[middle:]), (sentinel, f"end of round {number}")]
    return queue


class Sweep:
    """One run over cases. The records file gets a line for the environment and one for each case, the moment it ends."""

    def __init__(
        self, device: Device, writer: JsonlWriter, *, budget_s: float, seed: int = 0, clock: Callable[[], float] = time.perf_counter,
        measure_case: Callable[..., Measurement] = measure, say: Callable[[str], None] = lambda text: None,
    ) -> None:  # fmt: skip
        """budget_s: for the whole sweep, from now. say: is told each case as it ends."""
        self.device, self.writer, self.seed, self.clock, self.measure_case, self.say = device, writer, seed, clock, measure_case, say
        self.deadline = clock() + budget_s
        self.setup_s = 0.0  # what a case costs beside its samples, averaged as they come
        self.environment = device.environment()
        self.outcome = Outcome()
        self.visits: dict[str, list[Measurement]] = {}

    def run(self, cases: Sequence[Case], sentinel: Case, *, rounds: int = 1, finished: Sequence[Measurement] = ()) -> Outcome:
        """Measures every case once a round, less the visits in `finished`; time that one does not need goes to the later ones."""
        for m in finished:
            self.visits.setdefault(str(m.notes["case"]), []).append(m)
        there = Counter({case: len(visits) for case, visits in self.visits.items()})
        queue = []
        for case, place in order(cases, sentinel, self.seed, rounds):
            there[case.id] -= not place
            if place or there[case.id] < 0:
                queue.append((case, place))
        self._write(self.environment.to_json() | {"seed": self.seed})
        for number, (case, place) in enumerate(queue):
            share = (self.deadline - self.clock()) / (len(queue) - number)
            self._one(case, place, share)
        return self.outcome

    def _one(self, case: Case, place: str, share_s: float) -> None:
        earlier = self.visits.setdefault(f"sentinel {case.id}" if place else case.id, [])
        if not place and (case.id in self.outcome.skipped or self._short_of(case, earlier)):
            return
        budget = max(share_s - self.setup_s, share_s / 2, 0.0)  # a dear set-up is paid by all cases, not by this one's samples
        rule = Rule(budget_s=budget, least_s=min(0.5, budget), warm_s=min(0.1, budget / 5))
        if earlier:  # as many samples as the first time, so that no visit outweighs another
            count = len(earlier[0].samples_s)
            rule = replace(rule, least_samples=count, most_samples=count)
        started = self.clock()
        try:
            found = self.measure_case(case, self.device, rule, self.environment.id)
        except UntrustworthyError as error:
            self.outcome.untrustworthy.append(str(error))
            self._skip(case, f"untrustworthy: {error}")
        except (RuntimeError, MemoryError, NotImplementedError) as error:
            self._skip(case, self._why(case, error))
            self.device.release()
        else:
            notes = dict(found.notes) | {"visit": len(earlier) + 1} | ({"sentinel": place} if place else {})
            found = Measurement(**{**vars(found), "notes": notes})
            earlier.append(found)
            self.outcome.measurements.append(found)
            self._write(found.to_json())
            extra = max(self.clock() - started - float(notes["sampling_s"]), 0.0)
            self.setup_s = 0.8 * self.setup_s + 0.2 * extra if self.setup_s else extra
            self.say(f"{case.id}  {found.median_s:.3g} s")

    def _short_of(self, case: Case, earlier: Sequence[Measurement]) -> bool:
        """Whether memory or the rest of the budget is too little for the case; a case that was never measured is then skipped."""
        if case.set_bytes > self.device.free_bytes():
            self._skip(case, f"out of memory: {case.set_bytes:.3g} B of operands, {self.device.free_bytes():.3g} B free")
            return True
        if earlier:
            seconds = float(earlier[-1].notes["seconds"])
        else:
            flops, bandwidth = _SLOWEST[self.device.kind]
            seconds = 5 * (float(case.op.flops_each) / flops + case.set_bytes / bandwidth) + self.setup_s
            seconds += self.device.filling_s() if case.cold else 0.0
        left = self.deadline - self.clock()
        if seconds > left and not earlier:
            self._skip(case, f"budget: {max(left, 0):.2g} s left, about {seconds:.2g} s needed")
        return seconds > left

    def _why(self, case: Case, error: Exception) -> str:
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if isinstance(error, MemoryError) or any(words in str(error).lower() for words in _OUT_OF_MEMORY):
            return f"out of memory: {case.set_bytes:.3g} B of operands"
        return f"not supported here: {text[:200]}"

    def _skip(self, case: Case, reason: str) -> None:
        self.outcome.skipped[case.id] = reason
        row = {"kind": "skipped", "case": case.id, "op": case.kind, "shape": dict(case.shape), "dtype": case.dtype}
        self._write(row | {"bytes": case.set_bytes, "reason": reason, "environment": self.environment.id})
        self.say(f"{case.id}  skipped, {reason}")

    def _write(self, row: dict[str, Any]) -> None:
        self.writer.write(row)
        self.writer.flush()


def drift(measurements: Sequence[Measurement]) -> float:
    """Largest / smallest sentinel median − 1: how much the machine itself changed during the sweep; 0 without sentinels."""
    medians = [m.median_s for m in measurements if m.notes.get("sentinel")]
    return max(medians) / min(medians) - 1 if medians else 0.0


def finished(path: Path, environment_id: str) -> list[Measurement]:
    """The visits of cases that a records file already has.

    Raises InputError when its records are of another machine, software, setting or method: they must not be mixed.
    """
    if not path.exists():
        return []
    found = []
    for line, row in read_jsonl(path, skip_cut_lines=True):
        if row.get("kind") != "measurement" or row.get("op") == "collective":  # ranks are processes with settings of their own
            continue
        m = Measurement.from_json(row, f"{path}:{line}")
        if m.environment != environment_id or not m.method.startswith(METHOD):
            raise InputError(
                f"{path}:{line}: a record of another machine, software, number of threads or method ({m.environment}, {m.method}; here "
                f"{environment_id}, {METHOD}): give another --records file"
            )
        if not m.notes.get("sentinel"):
            found.append(m)
    return found
