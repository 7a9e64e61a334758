"""The engine executes the batches that the simulator predicts, when the simulator is given the engine's step times."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from roofline.engine.build import Options, Setup, build_engine, check
from roofline.engine.driver import Driver, Run
from roofline.scheduling import VllmConfig
from roofline.serving.arrivals import Arrivals
from roofline.serving.simulator import simulate
from roofline.serving.workloads import Workload, closed_loop, conversations, open_loop, uniform_length
from tests.engine import tiny

CONFIG = VllmConfig(max_num_batched_tokens=24, max_num_seqs=6)
WIDE = tiny.model(vocab_size=20011)
"""So many words that random texts do not begin alike by chance, which only the engine would notice."""
Seen = tuple[int, int, tuple[tuple[int, int], ...]]


class Replay:
    """A StepTimer that gives recorded times one after another and notes what it was asked about."""

    def __init__(self, seconds: list[float]) -> None:
        self._seconds = iter(seconds)
        self.seen: list[Seen] = []

    def step_time(self, decodes: int, context: int, chunks: Sequence[tuple[int, int]]) -> float:
        self.seen.append((decodes, context, tuple(chunks)))
        return next(self._seconds)

    def decode_line(self, decodes: int, context: int) -> tuple[float, float, int]:
        raise AssertionError("only asked when steps are jumped over")

    def host_time(self, rows: int) -> float:
        return 0.0


class FakeClock:
    """Seconds that pass at random whenever somebody looks: every step takes another time."""

    def __init__(self, seed: int) -> None:
        self._random, self._now = random.Random(seed), 0.0

    def __call__(self) -> float:
        self._now += self._random.uniform(0.001, 0.02)
        return self._now


def execute(setup: Setup, workload: Workload, *, prefix: bool) -> Run:
    engine = build_engine(setup, setup.scheduler(CONFIG, prefix_caching=prefix), debug=True)
    return Driver(engine, workload, Arrivals(workload), clock=FakeClock(1), wait=lambda seconds: None).run()


WORKLOADS = {
    "open": open_loop(40, 30.0, uniform_length(1, 40), uniform_length(1, 20), seed=1),
    "burst": open_loop(30, float("inf"), uniform_length(5, 60), uniform_length(5, 30), seed=2),
    "closed": closed_loop(30, 5, uniform_length(1, 40), uniform_length(1, 20), seed=3),
    "conversations": conversations(8, 4, 8.0, uniform_length(3, 12), uniform_length(2, 10), think_s=0.3, system_tokens=18, seed=4),
}


@pytest.mark.parametrize("blocks", [256, 36], ids=["ample", "short of blocks"])
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("name", WORKLOADS)
def test_executed_batches_are_the_simulated_ones(name: str, prefix: bool, blocks: int) -> None:
    workload, setup = WORKLOADS[name], check(WIDE, Options(dtype="fp64", block_size=4, num_blocks=blocks))
    run = execute(setup, workload, prefix=prefix)
    timer = Replay([step.seconds for step in run.steps])
    result = simulate(workload, setup.scheduler(CONFIG, prefix_caching=prefix), timer, fast_forward=False)

    executed = [(step.decodes, step.context, tuple((new, past) for new, past, _ in step.chunks)) for step in run.steps]
    assert timer.seen == executed
    recorder = result.recorder
    ends = np.array([run.requests[index].end_s for index in range(len(workload))])
    firsts = np.array([run.requests[index].first_token_s for index in range(len(workload))])
    np.testing.assert_allclose(np.array(recorder.end_s), ends, rtol=0, atol=1e-9)
    np.testing.assert_allclose(np.array(recorder.first_token_s), firsts, rtol=0, atol=1e-9)
    assert sum(recorder.preemptions) == run.preemptions
    assert sum(recorder.cached_tokens) == run.cached_tokens
    if blocks == 36 and name == "burst":
        assert run.preemptions > 0
    if prefix and name == "conversations":
        assert run.cached_tokens > 0
