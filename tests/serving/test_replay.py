"""A real vLLM 0.19.0 run replayed: 300 ShareGPT requests on an RTX 4090 whose KV pool was full most of the time.

The step timer here is a plain roofline: bytes of weights and KV over 90 % of the memory's bandwidth, FLOPs over 75 % of the dense
peak, 2.5 ms of host time per step behind which asynchronous scheduling hides. Nothing in it was fitted to the run.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass

import numpy as np
import pytest

from roofline.scheduling import BlockPool, RunPool, VllmConfig, VllmScheduler
from roofline.serving.simulator import simulate
from roofline.serving.workloads import Workload
from tests.serving.shared import DATA, needs_shared

LAYERS, HEADS, HEAD_DIM, KV_BYTES = 32, 32, 128, 131072
PARAMETERS = 8.03e9 - 128256 * 4096
BANDWIDTH, PEAK = 1008e9 * 0.9, 165.2e12 * 0.75


@dataclass(frozen=True)
class Roofline:
    def step_time(self, decodes, context, chunks):
        base, slope, _ = self.decode_line(decodes + sum(new for new, _ in chunks), context)
        attention = 0.0
        for new, past in chunks:
            flops = 4 * LAYERS * HEADS * HEAD_DIM * new * (past + new / 2)
            attention += max(flops / PEAK, (past + new) * KV_BYTES / BANDWIDTH)
        return base + slope * context + attention

    def decode_line(self, decodes, context):
        return max(2 * PARAMETERS / BANDWIDTH, 2 * PARAMETERS * decodes / PEAK), KV_BYTES / BANDWIDTH, 1 << 60

    def host_time(self, rows):
        return 2.5e-3


def _measured(name):
    with (DATA / "runs" / name / "requests.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {key: np.array([float(row[key]) for row in rows]) for key in rows[0] if key != "request_id"}


@needs_shared
@pytest.mark.parametrize("pool", [RunPool, BlockPool])
def test_the_saturated_run_is_reproduced(pool):
    run = _measured("RTX4090_Llama-3.1-8B")
    workload = Workload(run["arrival_s"], run["input_tokens"].astype(int), run["output_tokens"].astype(int))
    scheduler = VllmScheduler(VllmConfig(2048, 256), pool(2588))
    result = simulate(workload, scheduler, Roofline(), asynchronous=True)
    ttft, tpot = run["first_token_s"] - run["arrival_s"], (run["last_token_s"] - run["first_token_s"]) / (run["output_tokens"] - 1)
    makespan = run["last_token_s"].max() - run["arrival_s"].min()
    assert 150 < sum(result.recorder.preemptions) < 220
    assert result.stretches[:, 7].max() > 0.99
    assert result.makespan_s == pytest.approx(makespan, rel=0.05)
    assert result.ttft_s.mean() == pytest.approx(ttft.mean(), rel=0.10)
    assert result.tpot_s.mean() == pytest.approx(tpot.mean(), rel=0.05)
    assert np.percentile(result.ttft_s, 90) == pytest.approx(np.percentile(ttft, 90), rel=0.12)
    assert np.percentile(result.tpot_s, 90) == pytest.approx(np.percentile(tpot, 90), rel=0.12)
