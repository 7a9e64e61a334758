"""Many cases under one budget: shuffled, with a sentinel, written as they end, resumable."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from microbench.device import Device
from microbench.measure import Case, measure
from microbench.stopping import Rule
from roofline.errors import InputError, UntrustworthyError
from roofline.records import JsonlWriter, Measurement, read_jsonl

DRIFT = 0.05  # between sentinels, from which a warning is given
_SLOWEST = {"cpu": (5e9, 1e9), "cuda": (2e12, 1e11)}  # FLOP/s and B/s that any large case reaches
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "cannot allocate memory")


@dataclass
class Outcome:
    """What a sweep found. skipped: case id → reason. untrustworthy: messages of cases above a roof or with a wrong result."""

    measurements: list[Measurement] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    untrustworthy: list[str] = field(default_factory=list)


def order(cases: Sequence[Case], sentinel: Case, seed: int) -> list[tuple[Case, str]]:
    """The cases shuffled, with the sentinel at the start, in the middle and at the end: (case, place of the sentinel or "").

    Those that make the roofs (streams, hot operands) come before the others: a budget that ends early still has them.
    """
    shuffled: list[tuple[Case, str]] = [(case, "") for case in {case.id: case for case in cases}.values()]
    random.Random(seed).shuffle(shuffled)  # noqa: S311  an order, not a secret
    shuffled.sort(key=lambda item: item[0].cold and item[0].kind != "stream")
    middle = len(shuffled) // 2
    return [(sentinel, "start"), *shuffled[:middle], (sentinel, "middle"), *shuffled[middle:], (sentinel, "end")]


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

    def run(self, cases: Sequence[Case], sentinel: Case, finished: Collection[str] = ()) -> Outcome:
        """Measures all cases but those in `finished`; time that one does not need goes to the later ones."""
        queue = [(case, place) for case, place in order(cases, sentinel, self.seed) if place or case.id not in finished]
        self._write(self.environment.to_json() | {"seed": self.seed})
        for number, (case, place) in enumerate(queue):
            share = (self.deadline - self.clock()) / (len(queue) - number)
            self._one(case, place, share)
        return self.outcome

    def _one(self, case: Case, place: str, share_s: float) -> None:
        if not place and (reason := self._cannot(case)):
            self._skip(case, reason)
            return
        budget = max(share_s - self.setup_s, share_s / 2, 0.0)  # a dear set-up is paid by all cases, not by this one's samples
        rule = Rule(budget_s=budget, least_s=min(0.5, budget), warm_s=min(0.1, budget / 5))
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
            notes = dict(found.notes) | ({"sentinel": place} if place else {})
            found = Measurement(**{**vars(found), "notes": notes})
            self.outcome.measurements.append(found)
            self._write(found.to_json())
            extra = max(self.clock() - started - float(notes["sampling_s"]), 0.0)
            self.setup_s = 0.8 * self.setup_s + 0.2 * extra if self.setup_s else extra
            self.say(f"{case.id}  {found.median_s:.3g} s")

    def _cannot(self, case: Case) -> str:
        """Why the case is not tried: it does not fit in memory, or in what is left of the budget."""
        if case.set_bytes > self.device.free_bytes():
            return f"out of memory: {case.set_bytes:.3g} B of operands, {self.device.free_bytes():.3g} B free"
        flops, bandwidth = _SLOWEST[self.device.kind]
        seconds = 5 * (float(case.op.flops_each) / flops + case.set_bytes / bandwidth) + self.setup_s
        seconds += self.device.filling_s(case.dtype) if case.cold else 0.0
        left = self.deadline - self.clock()
        return f"budget: {max(left, 0):.2g} s left, about {seconds:.2g} s needed" if seconds > left else ""

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


def finished(path: Path, environment_id: str) -> set[str]:
    """Ids of the cases that a records file already has.

    Raises InputError when its records are of another machine, software or setting: they must not be mixed.
    """
    if not path.exists():
        return set()
    found: set[str] = set()
    for line, row in read_jsonl(path, skip_cut_lines=True):
        if row.get("kind") != "measurement" or row.get("op") == "collective":  # ranks are processes with settings of their own
            continue
        if row.get("environment") != environment_id:
            raise InputError(
                f"{path}:{line}: a record of another machine, software or number of threads ({row.get('environment')}, here "
                f"{environment_id}): give another --records file"
            )
        if not row.get("notes", {}).get("sentinel"):
            found.add(str(row.get("notes", {}).get("case")))
    return found
