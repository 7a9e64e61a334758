"""Searches, the highest rate, chunk sweeps, gains by phase: against the simulator itself, loops and what must hold."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from roofline.errors import InputError
from roofline.ledger import Parallel
from roofline.phases import Setup
from roofline.planning.chunks import chunk_sweep, keeping
from roofline.planning.load import Load, missed_alone
from roofline.planning.max_rate import find_max_rate
from roofline.planning.search import _least, search
from roofline.planning.speedups import parallel_gains, quantisation_gains, speculation_curve
from roofline.profiles.catalog import load_hardware, load_model
from roofline.serving.deployment import deploy
from roofline.serving.workloads import fixed_length, open_loop

SETUP = Setup(load_model("llama-3.1-8b"), load_hardware("h100-sxm"))
SERVER = deploy(SETUP.model, SETUP.hardware)


def _at(rate):
    return SERVER.run(open_loop(300, rate, fixed_length(1024), fixed_length(128)))


def test_the_highest_rate_lies_between_what_holds_and_what_fails():
    levels = {"ttft": 0.3, "tpot": 0.02}
    found = find_max_rate(_at, levels, guess=3.0)
    assert found is not None
    assert found.above is not None
    assert found.request_rate < found.above <= found.request_rate * 1.031
    assert _at(found.request_rate).good(levels).mean() >= 0.9
    assert min(_at(found.above).good(levels)[start:].mean() for start in (0, 150)) < 0.9


def test_other_arrivals_confirm_the_highest_rate():
    """The rate is lowered until the levels are met in the mean over runs with other seeds, each looked at by itself here."""

    def serve(seed):
        return lambda rate: SERVER.run(open_loop(300, rate, fixed_length(1024), fixed_length(128), seed=seed))

    levels = {"tpot": 0.02}
    alone = find_max_rate(serve(0), levels, guess=3.0)
    found = find_max_rate(serve(0), levels, guess=3.0, others=[serve(1), serve(2)])
    assert alone is not None
    assert found is not None
    assert found.request_rate <= alone.request_rate
    shares = [min((good := serve(seed)(found.request_rate).good(levels)).mean(), good[150:].mean()) for seed in range(3)]
    assert found.shares == pytest.approx(shares)
    assert sum(shares) / 3 >= 0.9


def test_a_rate_that_other_arrivals_never_confirm_is_none():
    """The rate falls until requests are alone, and is never given with shares that miss the level."""
    bad = _at(200.0)
    assert find_max_rate(_at, {"tpot": 0.02}, guess=3.0, others=[lambda rate: bad] * 20) is None


def test_too_few_requests_show_no_highest_rate():
    with pytest.raises(InputError, match="come at once"):
        find_max_rate(lambda rate: SERVER.run(open_loop(3, rate, fixed_length(64), fixed_length(8))), {"ttft": 1.0})


def test_a_queue_that_grows_is_told_from_one_that_does_not():
    """In the system by an explicit loop over requests; three times the capacity grows, a tenth of it does not."""
    busy = _at(200.0)
    early, late = busy.filling or (0.0, 0.0)
    begin, end = min(busy.sent_s), max(busy.sent_s)
    for count, low in ((early, begin + (end - begin) / 4), (late, end - (end - begin) / 4)):
        high, seconds = low + (end - begin) / 4, 0.0
        for sent, ended in zip(busy.sent_s, busy.ended_s, strict=True):
            seconds += max(0.0, min(ended, high) - max(sent, low))
        assert count == pytest.approx(seconds / (high - low))
    assert late > 1.5 * early
    assert _at(4.0).filling is None
    assert SERVER.run(open_loop(30, 200.0, fixed_length(1024), fixed_length(128))).filling is None


def test_no_rate_at_all_and_no_level():
    assert find_max_rate(_at, {"tpot": 1e-4}) is None
    with pytest.raises(InputError, match="service level"):
        find_max_rate(_at, {})
    with pytest.raises(InputError, match="attainment"):
        find_max_rate(_at, {"tpot": 1.0}, attainment=1.5)


def test_a_search_finds_the_fewest_and_one_fewer_fails():
    load = Load(1024, 128, request_rate=50.0, ttft_s=0.5, tpot_s=0.03)
    found = search(SETUP, load, tp_sizes=(1, 2), candidates=2)
    best = found.best
    assert best is not None
    assert best.meets
    assert all(trial.gpus >= best.gpus for trial in found.trials if trial.meets)
    assert found.gpus_range is not None
    assert found.gpus_range[0] <= best.gpus <= found.gpus_range[1]
    assert "batch" in found.binding
    assert "batch" in found.next_


@pytest.mark.parametrize("guess", [1, 2, 7, 90, 3000])
@pytest.mark.parametrize("needed", [1, 2, 3, 8, 90, 150, 2631, 4096, 5000])
def test_the_least_replicas_are_found_from_any_guess(guess, needed):
    """A layout that holds from `needed` replicas on: exactly found below 200, to 1 % above, in few trials; none beyond the most."""
    tried = []

    def attempt(replicas):
        tried.append(replicas)
        return SimpleNamespace(replicas=replicas, meets=replicas >= needed)

    found = _least(attempt, guess, 4096)
    assert len(tried) == len(set(tried)) <= 24
    if needed > 4096:
        assert found is None
    else:
        assert needed <= found.replicas <= (needed if needed < 200 else 1.01 * needed + 1)


def test_an_impossible_level_is_explained_with_the_bound():
    load = Load(request_rate=1.0, tpot_s=1e-3)
    found = search(SETUP, load, tp_sizes=(1,))
    assert found.best is None
    assert "even the hard bound" in found.why_not[0]
    assert "TPOT of a lone request" in missed_alone(SETUP, load)
    with pytest.raises(InputError, match="needs a load"):
        search(SETUP, Load())


def test_chunks_trade_first_tokens_for_smooth_ones():
    points, fits = chunk_sweep(SETUP, Load(2048, 64), 16, sizes=(256, 1024, 4096))
    assert fits
    assert points[0].itl_p99_s < points[1].itl_p99_s < points[2].itl_p99_s
    assert points[0].ttft_mean_s > points[2].ttft_mean_s
    between = (points[1].itl_p99_s + points[2].itl_p99_s) / 2
    assert [point.chunk for point in keeping(points, gap_s=between)] == [256, 1024]
    assert keeping(points, gap_s=1e-6) == []


def test_the_gap_between_tokens_under_a_prefill_is_the_step_of_a_full_chunk():
    """P99 of the gaps against the step itself: a full chunk with the other requests decoding."""
    (point,), _ = chunk_sweep(SETUP, Load(8192, 32), 8, sizes=(1024,))
    timer = SERVER.timer()
    step = timer.step_time(7, 7 * 8000, [(1017, 7000)])
    assert point.itl_p99_s == pytest.approx(step, rel=0.15)


def test_tensor_parallelism_helps_prefill_more_than_decode():
    """S21, on a model whose prompt is work enough."""
    setup = Setup(load_model("llama-3.1-70b"), load_hardware("h100-sxm"), Parallel(tp=2))
    (gain,) = parallel_gains(setup, Load(4096, 256), sizes=(4,))
    assert gain.prefill > gain.decode_small > 1


def test_weight_only_formats_gain_in_decode_and_not_in_prefill():
    """S17."""
    gains = {gain.change: gain for gain in quantisation_gains(SETUP, Load())}
    four_bits = gains["w4a16 weights"]
    assert four_bits.prefill < 1.1
    assert four_bits.decode_small > 1.4
    assert four_bits.kv_tokens is not None
    assert four_bits.kv_tokens > 1.1
    assert gains["fp8 weights"].prefill > 1.1
    assert gains["fp8 KV"].kv_tokens == pytest.approx(2, rel=0.01)


def test_speculation_gains_less_as_the_batch_grows():
    """S18: and with nothing accepted it only costs."""
    curve = speculation_curve(SETUP, Load(), 4, 0.7, batches=(1, 32, 512))
    speedups = [point.speedup for point in curve.points]
    assert speedups[0] > speedups[1] > speedups[2]
    assert curve.kv_tokens_lost > 0
    assert speculation_curve(SETUP, Load(), 4, 0.0, batches=(1,)).limit is None
    emitted = sum(0.7**i for i in range(5))
    assert curve.points[0].tokens_per_step == pytest.approx(emitted)
    short = speculation_curve(SETUP, Load(128, 128), 8, 0.5, batches=(1,))
    assert short.limit is not None
    assert short.limit < short.most
