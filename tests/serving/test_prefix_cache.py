"""Prefix-cache hits of a simulation against an LRU cache counted apart, block by block."""

from __future__ import annotations

import json
from collections import OrderedDict

import numpy as np
import pytest

from roofline.scheduling import BlockPool, RunPool, VllmConfig, VllmScheduler
from roofline.serving.simulator import simulate
from roofline.serving.traces import load_trace
from roofline.serving.workloads import Workload, conversations, shared_id, uniform_length
from tests.serving.affine import AffineTimer
from tests.serving.shared import DATA, needs_shared


def count_hits(rows, blocks):
    """Tokens hit if requests (prompt tokens, output tokens, ids of 512 tokens) are served one after the other from an LRU of `blocks`."""
    cache = OrderedDict()
    hits = 0
    for number, (prompt, output, ids) in enumerate(rows):
        computed = prompt + output - 1
        names = [(ids[i // 32], i % 32) if i < prompt // 16 else ("own", number, i) for i in range(computed // 16)]
        held = []
        for name in names[: (prompt - 1) // 16]:
            if name not in cache:
                break
            cache.pop(name)
            held.append(name)
        hits += 16 * len(held)
        room = blocks - len(cache) - len(held)
        for _ in range(-(-computed // 16) - len(held) - room):
            cache.popitem(last=False)
        for name in reversed(names):
            cache[name] = None
            cache.move_to_end(name)
    return hits


def serve_in_turn(workload, blocks, pool):
    workload = Workload(np.zeros(len(workload)), workload.input_tokens, workload.output_tokens, segments=workload.segments)
    scheduler = VllmScheduler(VllmConfig(8192, 1), pool(blocks + 1))
    result = simulate(workload, scheduler, AffineTimer())
    scheduler.check_integrity()
    return result


@pytest.mark.parametrize("pool", [BlockPool, RunPool])
@pytest.mark.parametrize("blocks", [150, 400, 5000])
def test_hits_are_those_of_an_lru(tmp_path, pool, blocks):
    rng = np.random.default_rng(1)
    rows, known, fresh = [], [], 0
    for number in range(200):
        start = known[rng.integers(len(known))] if known and rng.random() < 0.7 else []
        start = start[: rng.integers(0, len(start) + 1)]
        prompt = int(rng.integers(1, 1500))
        count = -(-prompt // 512)
        ids = (start + list(range(fresh, fresh + count)))[:count]
        fresh += count
        known.append(ids)
        rows.append({"timestamp": number, "input_length": prompt, "output_length": int(rng.integers(1, 60)), "hash_ids": ids})
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    result = serve_in_turn(load_trace(path), blocks, pool)
    told = [(row["input_length"], row["output_length"], row["hash_ids"]) for row in rows]
    assert sum(result.recorder.cached_tokens) == count_hits(told, blocks)


@needs_shared
@pytest.mark.parametrize("blocks", [20_000, 10_000_000])
def test_mooncake_hit_rate_is_that_of_an_lru(blocks):
    path = DATA / "traces" / "mooncake_synthetic_trace.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    result = serve_in_turn(load_trace(path), blocks, RunPool)
    hits = count_hits([(row["input_length"], row["output_length"], row["hash_ids"]) for row in rows], blocks)
    assert sum(result.recorder.cached_tokens) == hits


def test_each_turn_of_a_conversation_finds_the_turns_before():
    workload = conversations(10, 3, 0.5, uniform_length(20, 100), uniform_length(20, 100), system_tokens=160)
    result = simulate(workload, VllmScheduler(VllmConfig(), RunPool(10_000)), AffineTimer())
    cached = np.array(result.recorder.cached_tokens)
    for index in range(10, 30):
        before = workload.input_tokens[index - 10] + workload.output_tokens[index - 10] - 1
        assert cached[index] == before // 16 * 16
    assert (cached[1:10] == 160).all()


def test_a_shared_prompt_saves_its_share_of_the_first_token():
    """The article's case: 1500 of 1600 tokens shared."""
    rng = np.random.default_rng(0)
    arrival = np.arange(20) * 2.0
    workload = Workload(arrival, 1600 + rng.integers(0, 50, 20), np.full(20, 10), segments=[((1500, shared_id(1)),)] * 20)
    timer = AffineTimer(new_s=3.5e-4)
    with_cache = simulate(workload, VllmScheduler(VllmConfig(), RunPool(2000)), timer)
    without = simulate(workload, VllmScheduler(VllmConfig(), BlockPool(2000, prefix_caching=False)), timer)
    assert without.ttft_s[1:].mean() > 3 * with_cache.ttft_s[1:].mean()
    assert with_cache.prefix_cache_hit_rate == pytest.approx(1488 * 19 / workload.input_tokens.sum())
