"""Engines as they are started: KV from the memory plan, drafters out of the pool, and what the parts of a deployment promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.capacity import memory_plan
from roofline.errors import DoesNotFitError, InputError
from roofline.ledger import Parallel
from roofline.profiles.catalog import load_hardware, load_model
from roofline.serving.asked import Disaggregated, Lengths, Traffic, serve
from roofline.serving.deployment import Policy, deploy
from roofline.serving.drafting import one_layer, speculate
from roofline.serving.pattern import pattern
from roofline.serving.waiting import load_of
from roofline.serving.workloads import Workload, closed_loop, fixed_length, open_loop

MODEL, H100 = load_model("llama-3.1-8b"), load_hardware("h100-sxm")
SERVER = deploy(MODEL, H100)


def test_the_pool_is_that_of_the_memory_plan():
    plan = memory_plan(MODEL, H100, engine="vllm")
    assert SERVER.kv_blocks(1000) == plan.kv_tokens // 16
    assert deploy(MODEL, H100, policy=Policy(kv_blocks=77)).kv_blocks(1000) == 77


def test_a_drafter_takes_its_weights_and_kv_out_of_the_pool():
    own = load_model("llama-3.2-1b")
    spec = speculate(MODEL, H100, 3, 0.7, draft=own)
    drafting = deploy(MODEL, H100, speculating=spec)
    lost = (SERVER.memory.kv.expected - drafting.memory.kv.expected) / 1e9
    assert lost > 2.4  # 1.24e9 parameters in two bytes
    assert drafting.memory.kv_bytes_per_token == SERVER.memory.kv_bytes_per_token + 2 * 16 * 8 * 64 * 2
    head = speculate(MODEL, H100, 3, 0.7)
    assert head.addition is not None
    assert head.addition.weight_bytes == pytest.approx(2 * (4096 * (4096 * 2 + 1024 * 2) + 3 * 4096 * 14336), rel=1e-3)
    assert one_layer(MODEL).num_layers == 1
    assert speculate(MODEL, H100, 3, 0.7, draft="ngram").drafter.draft_time(10) == 0


def test_verifying_drafts_costs_little_more_than_a_decode_step():
    timer = SERVER.timer()
    plain = timer.step_time(8, 8 * 1000, ())
    check = timer.step_time(0, 0, [(4, 1000)] * 8)
    assert plain <= check < 1.2 * plain


def test_what_does_not_fit_says_by_how_much():
    with pytest.raises(DoesNotFitError, match=r"more per GPU"):
        deploy(load_model("llama-3.1-70b"), H100)


@given(st.integers(1, 300), st.integers(1, 5000))
@settings(deadline=None, max_examples=60)
def test_a_decode_step_is_its_line(decodes, context):
    timer = SERVER.timer()
    for total in (decodes, decodes * context, decodes * context + decodes // 2):
        base, slope, last = timer.decode_line(decodes, total)
        assert timer.step_time(decodes, total, ()) == base + slope * total
        assert last >= total
        if last < 1 << 59:
            again = timer.decode_line(decodes, last)
            assert again == (base, slope, last)
            following = timer.decode_line(decodes, last + 1)
            assert following[0] + following[1] * (last + 1) == pytest.approx(base + slope * (last + 1), rel=1e-6)


def test_a_lone_request_takes_its_steps():
    """TTFT is one prefill behind the host, TPOT the mean of the steps of the line."""
    result = SERVER.run(Workload(np.zeros(1), np.array([1000]), np.array([11])))
    timer = SERVER.timer()
    steps = [timer.step_time(1, 1000 + i, ()) for i in range(10)]
    assert result.ttft_s[0] == pytest.approx(timer.host_time(1) + timer.step_time(0, 0, [(1000, 0)]))
    assert result.tpot_s[0] == pytest.approx(sum(steps) / 10)


def test_a_small_model_on_a_fast_device_is_bound_by_the_host():
    server = deploy(load_model("tiny-llama-110m"), H100)
    result = server.run(Workload(np.zeros(1), np.array([100]), np.array([50])))
    gaps = np.array(result.recorder.gaps).reshape(-1, 4)
    assert gaps[gaps[:, 2] > 2][:, :2] == pytest.approx(server.timer().host_time(1), rel=1e-3)


def test_the_band_orders_latencies():
    workload = open_loop(60, 5.0, fixed_length(500), fixed_length(100), seed=3)
    low, expected, high = (SERVER.run(workload, band=band).tpot_s.mean() for band in ("low", "expected", "high"))
    assert low < expected < high


def test_data_parallel_ranks_and_replicas_share_the_requests():
    workload = open_loop(200, 40.0, fixed_length(500), fixed_length(100), seed=3)
    two = SERVER.run(workload, replicas=2)
    ranks = deploy(MODEL, H100, Parallel(dp=2)).run(workload)
    assert set(two.recorder.instance) == set(ranks.recorder.instance) == {0, 1}
    assert two.ttft_s.mean() < SERVER.run(workload).ttft_s.mean()


def test_disaggregated_servers_keep_decoding_smooth():
    workload = open_loop(200, 12.0, fixed_length(2000), fixed_length(100), seed=3)
    mixed = serve(SERVER, workload, replicas=2)
    split = serve(SERVER, workload, pools=Disaggregated(1, 1, 50e9))
    assert split.completed.all()
    assert split.itl.p99 < mixed.itl.p99
    with pytest.raises(InputError, match="vLLM's policy"):
        serve(deploy(MODEL, H100, engine="sglang"), workload, pools=Disaggregated(1, 1, 50e9))


def test_what_binds_is_named():
    seats = deploy(MODEL, H100, max_num_seqs=4).run(closed_loop(60, 16, fixed_length(100), fixed_length(100)))
    assert load_of(seats, 4).binding == "max_num_seqs"
    pool = deploy(MODEL, H100, policy=Policy(kv_blocks=200)).run(closed_loop(60, 16, fixed_length(1000), fixed_length(50)))
    assert load_of(pool, 1024).binding == "KV memory"
    alone = SERVER.run(closed_loop(5, 1, fixed_length(100), fixed_length(20)))
    assert load_of(alone, 1024).binding == "nothing"


def test_patterns_have_names():
    overload = deploy(MODEL, H100, max_num_seqs=8).run(open_loop(300, 30.0, fixed_length(500), fixed_length(200), seed=1))
    assert pattern(overload)[0] == "overload"
    steady = SERVER.run(open_loop(300, 1.0, fixed_length(500), fixed_length(200), seed=1))
    assert pattern(steady)[0] == "steady"
    pressure = deploy(MODEL, H100, policy=Policy(kv_blocks=300)).run(closed_loop(60, 16, fixed_length(200), fixed_length(300)))
    assert pattern(pressure)[0] == "kv-pressure"


def test_the_ends_of_a_ramp_are_those_of_the_time_in_which_requests_arrive():
    """By an explicit loop over the requests that ended in each of 60 equal parts of the run; the drain after the last is left out."""
    ramp = SERVER.run(open_loop(300, 20.0, fixed_length(1000), fixed_length(200), seed=2))
    width = float(ramp.stretches[:, 1].max()) / 60
    means = []
    for part in range(int(max(ramp.sent_s) // width)):
        ended = [tpot for tpot, end in zip(ramp.tpot_s, ramp.ended_s, strict=True) if part * width <= end < (part + 1) * width]
        means += [sum(ended) / len(ended)] if ended else []
    drained = [tpot for tpot, end in zip(ramp.tpot_s, ramp.ended_s, strict=True) if end > ramp.ended_s.max() - width]
    assert min(drained) < min(means)
    name, sentence = pattern(ramp)
    assert name == "ramp"
    assert f"from {1e3 * min(means):.3g} ms to {1e3 * max(means):.3g} ms" in sentence


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "what load"),
        ({"request_rate": 1.0, "concurrency": 2}, "request_rate and concurrency"),
        ({"request_rate": 0.0}, "above 0"),
        ({"request_rate": 1.0, "open_ended": True}, "cannot be given"),
        ({"users": 3, "think_time": -1.0}, "think time"),
    ],
)
def test_traffic_that_is_no_traffic(options, said):
    with pytest.raises(InputError, match=said):
        Traffic(**options)


def test_shared_beginnings_are_found_in_the_cache():
    lengths = Lengths(1600, 20, shared_prefix=1500, groups=1)
    traffic = Traffic(request_rate=2.0, num_requests=40, lengths=lengths)
    cached, not_cached = (deploy(MODEL, H100, policy=Policy(prefix_caching=on)).run(traffic.workload()) for on in (True, False))
    whole_blocks = 1500 // 16 * 16
    assert cached.prefix_cache_hit_rate == pytest.approx(39 / 40 * whole_blocks / 1600)
    assert not_cached.prefix_cache_hit_rate == 0
    assert np.median(cached.ttft_s) < 0.5 * np.median(not_cached.ttft_s)
