"""However a text is cut into passes, wherever its KV lies and whatever happens to it on the way: the same tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roofline.engine.kvcache import KvFormat, build_cache
from roofline.engine.runner import Row, Runner
from roofline.engine.sampler import Sampling
from roofline.scheduling import VllmConfig
from tests.engine import tiny

KINDS = ("llama", "window", "moe", "mla")
SAMPLED = Sampling(temperature=0.8, top_p=0.9, seed=5)


def fresh(kind: str, mode: str = "eager") -> Runner:
    cache = build_cache(tiny.model(kind), 65, 4, KvFormat(torch.float64), 1, tiny.CPU)
    return Runner(tiny.decoder(kind), cache, 4, tiny.CPU, mode)


@pytest.mark.parametrize("mode", ["eager", "padded"])
@pytest.mark.parametrize("kind", KINDS)
def test_paged_contiguous_and_no_cache_agree(kind: str, mode: str) -> None:
    tokens = tiny.prompt(0, 30)
    whole = fresh(kind).run([Row(tokens, 0, range(1, 65), 30)])[0]
    for table in (list(range(1, 9)), [40, 3, 17, 64, 9, 25, 1, 2]):
        runner = fresh(kind, mode)
        runner.run([Row(tokens[:9], 0, table, 0)])
        rest = [runner.run([Row([tokens[at]], at, table, 1)])[0] for at in range(9, 30)]
        torch.testing.assert_close(torch.cat(rest), whole[9:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 3, 4, 7, 16])
def test_chunked_equals_whole(kind: str, size: int) -> None:
    tokens = tiny.prompt(1, 29)
    whole = fresh(kind).run([Row(tokens, 0, range(1, 65), 29)])[0]
    runner = fresh(kind)
    parts = [Row(tokens[at : at + size], at, range(5, 65), len(tokens[at : at + size])) for at in range(0, 29, size)]
    torch.testing.assert_close(torch.cat([runner.run([part])[0] for part in parts]), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_all_kinds_in_one_pass_do_not_see_each_other(kind: str) -> None:
    texts = [tiny.prompt(seed, length) for seed, length in ((2, 13), (3, 22), (4, 17), (5, 9), (6, 14))]
    tables = [range(1 + 8 * row, 9 + 8 * row) for row in range(5)]
    past = [12, 0, 14, 8, 10]
    runner = fresh(kind)
    for text, table, start in zip(texts, tables, past, strict=True):
        if start:
            runner.run([Row(text[:start], 0, table, 0)])
    mixed = runner.run([Row(text[start:], start, table, 1) for text, table, start in zip(texts, tables, past, strict=True)])
    for text, logits in zip(texts, mixed, strict=True):
        expected = fresh(kind).run([Row(text, 0, range(1, 65), 1)])[0]
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
def test_a_prefix_hit_equals_a_cold_start(kind: str, sampling: Sampling) -> None:
    engine = tiny.engine(kind)
    common = tiny.prompt(7, 18)
    for name, tail in (("cold", [1, 2, 3]), ("other", [4, 5]), ("warm", [1, 2, 3])):
        request = engine.add_request(name, common + tail, 8, sampling)
        assert tiny.finish(engine)[name] == tiny.alone(kind, (*common, *tail), 8, sampling)
        assert request.num_cached_tokens == {"cold": 0, "other": 16, "warm": 20}[name]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix", [True, False])
def test_preempted_requests_say_the_same(kind: str, prefix: bool) -> None:
    engine = tiny.engine(kind, VllmConfig(max_num_batched_tokens=16, max_num_seqs=8), num_blocks=20, prefix=prefix)
    prompts = {str(seed): tiny.prompt(seed, 6 + seed) for seed in range(8)}
    requests = [engine.add_request(name, tokens, 16, SAMPLED) for name, tokens in prompts.items()]
    outputs = tiny.finish(engine)
    assert sum(request.num_preemptions for request in requests) > 0
    assert outputs == {name: tiny.alone(kind, tuple(tokens), 16, SAMPLED) for name, tokens in prompts.items()}


def test_generation_ends_at_a_stop_token_and_at_the_models_length() -> None:
    text = tiny.prompt(1, 10)
    free = tiny.alone("llama", tuple(text), 12)
    stop = free[5]
    engine = tiny.engine()
    engine.add_request("stop", text, 12, Sampling(stop=(stop,)))
    assert tiny.finish(engine)["stop"] == free[: free.index(stop) + 1]
    request = engine.add_request("long", tiny.prompt(2, 250), 100)
    assert len(tiny.finish(engine)["long"]) == 256 - 250
    assert request.num_tokens == 256


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    kind=st.sampled_from(KINDS),
    requests=st.lists(
        st.tuples(st.integers(0, 6), st.integers(1, 30), st.integers(1, 10), st.integers(0, 12), st.integers(0, 9)), min_size=1, max_size=9
    ),
    budget=st.integers(3, 40),
    seqs=st.integers(1, 6),
    blocks=st.integers(13, 40),
    policy=st.sampled_from(["fcfs", "priority"]),
)
def test_random_schedules(kind: str, requests: list[tuple[int, ...]], budget: int, seqs: int, blocks: int, policy: str) -> None:
    """requests: (seed of the text, so that prefixes are shared; prompt and output lengths; step of arrival; abort at, if above 6)."""
    config = VllmConfig(max_num_batched_tokens=max(budget, seqs), max_num_seqs=seqs, policy=policy)
    engine = tiny.engine(kind, config, num_blocks=blocks)
    outputs: dict[str, list[int]] = {}
    at, alive = 0, True
    while alive or at <= 13:
        for number, (seed, length, count, arrival, abort) in enumerate(requests):
            name = str(number)
            if at == arrival:
                engine.add_request(name, tiny.prompt(seed % 3, length), count, priority=seed)
            if abort > 6 and at == arrival + abort - 6 and name in engine.sequences:
                engine.abort(name)
                engine.scheduler.check_integrity()
                outputs.pop(name, None)
        step = engine.step()
        alive = step is not None
        for name, tokens in step.emitted.items() if step else ():
            outputs.setdefault(name, []).extend(tokens)
        at += 1
    assert not engine.busy
    assert engine.scheduler.gauges[2] == 0
    for name, tokens in outputs.items():
        seed, length, count, *_ = requests[int(name)]
        assert tokens == tiny.alone(kind, tuple(tiny.prompt(seed % 3, length)), 10)[:count]
