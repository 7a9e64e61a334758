"""Hundreds of requests on a model of the catalogue, whose cache holds a quarter of what they need."""

from __future__ import annotations

from roofline.engine.build import Options, build_engine, check
from roofline.engine.driver import Driver, Run
from roofline.profiles.catalog import load_model
from roofline.scheduling import VllmConfig
from roofline.serving.arrivals import Arrivals
from roofline.serving.workloads import Workload, open_loop, uniform_length

SEQUENCES = 64


def run(workload: Workload, blocks: int) -> Run:
    setup = check(load_model("tiny-llama-15m"), Options(dtype="fp64", num_blocks=blocks))
    config = VllmConfig(max_num_batched_tokens=512, max_num_seqs=SEQUENCES)
    engine = build_engine(setup, setup.scheduler(config), debug=True)
    result = Driver(engine, workload, Arrivals(workload)).run()
    assert not engine.busy
    assert engine.scheduler.gauges[2] == 0
    return result


def test_500_requests_in_a_quarter_of_the_cache() -> None:
    workload = open_loop(500, float("inf"), uniform_length(4, 16), uniform_length(4, 16), seed=3)
    lengths = sorted((workload.input_tokens + workload.output_tokens).tolist(), reverse=True)
    need = sum(-(-length // 16) for length in lengths[:SEQUENCES])
    free, short = run(workload, need + 1), run(workload, need // 4 + 1)
    assert free.preemptions == 0
    assert short.preemptions > 0
    assert len(short.requests) == 500
    assert not short.rejected
    assert {index: len(tokens) for index, tokens in short.outputs.items()} == dict(enumerate(workload.output_tokens.tolist()))
    assert short.outputs == free.outputs
