"""Token budgets: what counts as a percentile of a load that keeps the server full, and which budgets keep levels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from roofline.phases import Setup
from roofline.planning.chunks import ChunkPoint, chunk_sweep, keeping
from roofline.planning.load import Load
from roofline.planning.rehearsal import in_flight
from roofline.profiles.catalog import load_hardware, load_model
from roofline.serving.deployment import deploy

SETUP = Setup(load_model("llama-3.1-8b"), load_hardware("h100-sxm"))
SERVER = deploy(SETUP.model, SETUP.hardware)


def test_the_first_requests_that_all_come_at_once_are_not_in_the_latencies():
    """The first 16 wait for each other's prompts as no later one does; P99 over 300 requests would be theirs alone."""
    load = Load(2048, 64)
    (point,), _ = chunk_sweep(SETUP, load, 16, sizes=(8192,))
    result = deploy(SETUP.model, SETUP.hardware, max_num_batched_tokens=8192).run(in_flight(load, 16))
    later = sorted(zip(result.sent_s, result.ttft_s, result.tpot_s, strict=True))[16:]
    assert later[0][0] > 0
    assert point.ttft_mean_s == pytest.approx(sum(ttft for _, ttft, _ in later) / len(later))
    assert point.ttft_p99_s == pytest.approx(float(np.percentile([ttft for _, ttft, _ in later], 99)))
    assert point.tpot_mean_s == pytest.approx(sum(tpot for *_, tpot in later) / len(later))
    assert point.ttft_p99_s < max(result.ttft_s) / 2


def test_what_keeps_levels_is_held_against_both_percentiles():
    point = ChunkPoint(512, 0.1, 0.4, 0.02, 0.03, 0.05, 1000.0)
    points = [point, replace(point, chunk=1024, ttft_p99_s=0.2, itl_p99_s=0.08)]
    for gap, ttft, kept in ((None, None, [512, 1024]), (0.05, None, [512]), (None, 0.3, [1024]), (0.05, 0.3, []), (0.08, 0.4, [512, 1024])):
        assert [each.chunk for each in keeping(points, gap_s=gap, ttft_s=ttft)] == kept
