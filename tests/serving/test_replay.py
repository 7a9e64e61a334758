"""A real vLLM 0.19.0 run replayed: 300 ShareGPT requests on an RTX 4090 whose KV pool was full most of the time.

The step timer here is a plain roofline: bytes of weights and KV over 90 % of the memory's bandwidth, FLOPs over 75 % of the dense
peak, 2.5 ms of host time per step behind which asynchronous scheduling hides. Nothing in it was fitted to the run.

Below it both runs from model, device and engine arguments alone, with the step times that plans use.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass

import numpy as np
import pytest

from roofline.profiles.catalog import load_hardware, load_model
from roofline.scheduling import BlockPool, RunPool, VllmConfig, VllmScheduler
from roofline.serving.deployment import Policy, deploy
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


def _errors(name, device, kv_blocks=None, **arguments):
    """Relative errors of the prediction of a run: makespan, mean TTFT and TPOT, and their 90th percentiles."""
    run = _measured(name)
    workload = Workload(run["arrival_s"], run["input_tokens"].astype(int), run["output_tokens"].astype(int))
    server = deploy(
        load_model("llama-3.1-8b"), load_hardware(device), engine_version="0.19", policy=Policy(kv_blocks=kv_blocks), **arguments
    )
    result = server.run(workload)
    ttft, tpot = run["first_token_s"] - run["arrival_s"], (run["last_token_s"] - run["first_token_s"]) / (run["output_tokens"] - 1)
    pairs = {
        "makespan": (result.makespan_s, run["last_token_s"].max() - run["arrival_s"].min()),
        "ttft": (result.ttft_s.mean(), ttft.mean()),
        "tpot": (result.tpot_s.mean(), tpot.mean()),
        "ttft p90": (np.percentile(result.ttft_s, 90), np.percentile(ttft, 90)),
        "tpot p90": (np.percentile(result.tpot_s, 90), np.percentile(tpot, 90)),
    }
    return {key: predicted / measured - 1 for key, (predicted, measured) in pairs.items()}


PRO_6000 = {"max_num_seqs": 128, "max_num_batched_tokens": 2048}
RTX_4090 = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "max_model_len": 32768}


@needs_shared
def test_the_rtx_pro_6000_run_is_one_of_the_server_edition():
    server, workstation = (
        _errors("RTXPRO6000_Llama-3.1-8B", f"rtx-pro-6000-{edition}", **PRO_6000) for edition in ("server", "workstation")
    )
    assert abs(server["ttft"]) < 0.15
    assert abs(server["tpot"]) < 0.08
    assert all(abs(server[key]) < abs(workstation[key]) for key in server)


@needs_shared
def test_the_blocks_of_the_rtx_4090_run_are_predicted():
    server = deploy(load_model("llama-3.1-8b"), load_hardware("rtx-4090"), engine_version="0.19", **RTX_4090)
    assert server.kv_blocks(1000) == pytest.approx(2588, rel=0.05)


@needs_shared
@pytest.mark.parametrize("kv_blocks", [2588, None])
def test_the_rtx_4090_run_is_predicted(kv_blocks):
    errors = _errors("RTX4090_Llama-3.1-8B", "rtx-4090", kv_blocks, **RTX_4090)
    limits = {"makespan": 0.05, "ttft": 0.10, "tpot": 0.05, "ttft p90": 0.12, "tpot p90": 0.12}
    assert all(abs(errors[key]) <= limit for key, limit in limits.items()), errors
