"""The reference engine under the clock: single steps of chosen shape, and a trace of requests."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from microbench.device import Device
from roofline.engine.build import Options, Setup, build_engine, check
from roofline.engine.driver import Driver, Run
from roofline.engine.engine import Engine
from roofline.engine.runner import Row
from roofline.profiles.model import Model
from roofline.records import JsonlWriter, Measurement
from roofline.scheduling import VllmConfig
from roofline.scheduling.vllm import VllmScheduler
from roofline.serving.arrivals import stream
from roofline.serving.workloads import Workload
from roofline.validation import passes
from roofline.validation.plan import SCALES
from roofline.validation.predictions import Step

METHOD = "engine step 1"
BLOCK = 16
LEAST_ROUNDS = 3  # calm ones, for which disturbed ones stand back
Round = tuple[float | None, dict[Step, float]]  # cores that others kept busy, seconds of each step


def setup(model: Model, kind: str, dtype: str, steps: Sequence[Step], seed: int) -> Setup:
    """The engine for these steps, not built yet. Raises InputError when it does not run the model or memory does not suffice."""
    blocks = max([sum(_widths(step)) for step in steps] + [SCALES[kind].sequences * 24])
    mode = "graphs" if kind == "cuda" else "eager"
    return check(model, Options(kind, dtype, num_blocks=blocks + 1, block_size=BLOCK, seed=seed, mode=mode))


class Bench:
    """An engine with random weights whose steps are timed.

    cpu_time: count the CPU seconds of the process (one thread) in place of the wall clock. `slowdown`: wall seconds / counted
    seconds so far.
    """

    def __init__(self, model: Model, kind: str, dtype: str, steps: Sequence[Step], *, cpu_time: bool, seed: int = 0) -> None:
        self.model, self.kind, self.dtype, self.cpu_time = model, kind, dtype, cpu_time
        self.clock: Callable[[], float] = time.process_time if cpu_time else time.perf_counter
        self._setup = setup(model, kind, dtype, steps, seed)
        self._engine: Engine = build_engine(self._setup, self.scheduler())
        self._wall = self._counted = 0.0
        self._warm: set[Step] = set()

    @property
    def slowdown(self) -> float:
        """Wall seconds for each counted second."""
        return self._wall / self._counted if self._counted else 1.0

    def scheduler(self) -> VllmScheduler:
        """A fresh scheduler for the engine's cache: the simulator gets one like it."""
        scale = SCALES[self.kind]
        return self._setup.scheduler(VllmConfig(max_num_batched_tokens=scale.tokens, max_num_seqs=scale.sequences), prefix_caching=False)

    def once(self, step: Step) -> float:
        """Seconds of one pass and its greedy choice."""
        tokens = [(7 * at + 3) % self.model.vocab_size for at in range(max(step.new, *step.prompts, 0))]
        shapes = [(step.new, step.past)] * step.batch + [(new, 0) for new in step.prompts]
        ends = list(accumulate(_widths(step), initial=1))
        rows = [Row(tokens[:new], past, range(*span), 1) for (new, past), span in zip(shapes, pairwise(ends), strict=True)]
        wall, began = time.perf_counter(), self.clock()
        for logits in self._engine.runner.run(rows):
            int(logits.argmax())  # waits for the device
        seconds = self.clock() - began
        self._wall, self._counted = self._wall + time.perf_counter() - wall, self._counted + seconds
        return seconds

    def steps(
        self, steps: Sequence[Step], rounds: int, writer: JsonlWriter, device: Device, *, number: int, phase: str, until: float = 0.0,
        hard: float = math.inf,
    ) -> dict[Step, float]:  # fmt: skip
        """Medians of each step in seconds, over `rounds` in random order, more until `until`, fewer but one from `hard` on (both on
        time.perf_counter); a record each.

        A step that never ran runs once before, uncounted. Rounds that others disturbed stand apart in the record if there are calm
        ones. number, phase: of the pass.
        """
        order = list(steps)
        for step in order:
            if step not in self._warm:
                self.once(step)
        self._warm |= set(order)
        found: list[Round] = []
        shuffled = random.Random(number)  # noqa: S311  an order, not a secret
        while not found or time.perf_counter() < (hard if len(found) < rounds else until):
            shuffled.shuffle(order)
            before, began = passes.busy(), time.perf_counter()
            times = {step: self.once(step) for step in order}
            found.append((passes.others(before, passes.busy(), time.perf_counter() - began), times))
        records = {step: self._record(step, found, device, number, phase) for step in steps}
        for m in records.values():
            writer.write(m.to_json())
        writer.flush()
        return {step: m.median_s for step, m in records.items()}

    def _record(self, step: Step, rounds: Sequence[Round], device: Device, number: int, phase: str) -> Measurement:
        shape: dict[str, Any] = {"phase": step.phase, "batch": step.batch, "new_tokens": step.new, "context": step.past}
        shape |= {"prompts": "+".join(map(str, step.prompts))} if step.prompts else {}
        method = f"{METHOD}, {'process CPU time' if self.cpu_time else 'perf_counter'}"
        calm = [each for each in rounds if not passes.disturbed(each[0])]
        kept = calm if len(calm) >= min(LEAST_ROUNDS, len(rounds)) else rounds
        shares = [share for share, _ in kept if share is not None]
        notes: dict[str, Any] = {"case": step.id, "pass": number, "phase": phase}
        notes |= {"others": round(sum(shares) / len(shares), 3)} if shares else {}
        notes |= {"disturbed_s": [times[step] for share, times in rounds if passes.disturbed(share)]} if kept is not rounds else {}
        samples = tuple(times[step] for _, times in kept)
        return Measurement("engine_step", shape, device.id, self.dtype, samples, method, device.environment().id, cold=True, notes=notes)

    def serve(self, workload: Workload, scheduler: VllmScheduler) -> Run:
        """The workload on the engine, in counted seconds."""
        engine = Engine(scheduler, self._engine.runner, self.model.vocab_size)
        wait: Callable[[float], None] = (lambda _: None) if self.cpu_time else _stay_awake
        return Driver(engine, workload, stream(workload), clock=self.clock, wait=wait).run()


def _widths(step: Step) -> list[int]:
    """Blocks of each sequence."""
    return [-(-(step.past + step.new) // BLOCK)] * step.batch + [-(-new // BLOCK) for new in step.prompts]


def _stay_awake(seconds: float) -> None:
    """Waits without sleeping: single steps are timed back to back, and a core that slept starts the next step late and cold."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
