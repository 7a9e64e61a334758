"""Counting many decodes as one gives what counting each gives."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.scheduling import BlockPool, CountingPool, Request, RunPool, VllmConfig, VllmScheduler
from roofline.scheduling.cohort import Cohort


@dataclass
class Row:
    """One sequence, counted by itself."""

    computed: int
    end: int
    blocks: int


@given(
    rows=st.lists(st.tuples(st.integers(1, 60), st.integers(2, 60), st.integers(0, 40)), min_size=1, max_size=8),
    strides=st.lists(st.integers(1, 50), max_size=20),
    size=st.sampled_from([1, 3, 16]),
)
@settings(max_examples=200, deadline=None)
def test_rounds_are_what_each_row_does(rows, strides, size):
    pool = CountingPool(10_000, size)
    cohort, plain = Cohort(pool), {}
    waiting = [(at, Request(f"r{number}", prompt, output, index=number)) for number, (prompt, output, at) in enumerate(rows)]
    clock = 0
    for stride in strides:
        for at, request in list(waiting):
            if at <= clock:
                waiting.remove((at, request))
                pool.allocate(request, request.num_prompt_tokens, request.num_prompt_tokens)
                request.num_computed_tokens, request.num_tokens = request.num_prompt_tokens, request.num_prompt_tokens + 1
                assert cohort.join(request)
                plain[request] = Row(request.num_computed_tokens, request.end_tokens, request.num_blocks)
        if not plain:
            clock += 1
            continue
        rounds = min(stride, cohort.steps)
        assert cohort.steps == min(row.end - 1 - row.computed for row in plain.values())
        assert cohort.context == sum(row.computed for row in plain.values())
        before, grown = pool.num_free, 0
        for row in plain.values():
            for _ in range(rounds):
                row.computed += 1
                if row.computed > row.blocks * size:
                    row.blocks += 1
                    grown += 1
        assert cohort.growth(rounds) == grown
        assert cohort.advance(rounds)
        assert pool.num_free == before - grown
        clock += rounds
        done = cohort.finished()
        assert done == [request for request, row in plain.items() if row.computed + 1 == row.end]
        for request in done:
            row = plain.pop(request)
            assert (request.num_computed_tokens, request.num_tokens, request.num_blocks) == (row.end - 1, row.end, row.blocks)
    cohort.dissolve()
    for request, row in plain.items():
        assert (request.num_computed_tokens, request.num_tokens, request.num_blocks) == (row.computed, row.computed + 1, row.blocks)
        assert request.num_output_placeholders == 0
    assert not cohort.members


def test_who_is_not_in_step_stays_out():
    pool = CountingPool(100, reserve_tokens=40)
    first, ahead, reserved = Request("a", 8, 20), Request("b", 8, 20), Request("c", 8, 100)
    for request in (first, ahead, reserved):
        pool.allocate(request, 8, 8)
        request.num_computed_tokens, request.num_tokens = 8, 9
    ahead.num_output_placeholders = 1
    cohort = Cohort(pool)
    assert cohort.join(first)  # what it reserved is enough to its end
    assert not cohort.join(ahead)
    assert not cohort.join(reserved)
    assert cohort.growth(19) == 0


def _state(requests):
    names = ("num_tokens", "num_computed_tokens", "num_output_placeholders", "num_blocks", "num_hashed_blocks", "num_preemptions", "status")
    return [tuple(getattr(request, name) for name in names) for request in requests]


def _shape(batch):
    decodes, preempted = [request.index for request in batch.decodes], [request.index for request in batch.preempted]
    return decodes, batch.decode_context, batch.num_ending, batch.full, preempted, [(c.request.index, *c[1:]) for c in batch.chunks]


@given(
    lengths=st.lists(st.tuples(st.integers(1, 150), st.integers(1, 60), st.integers(0, 60), st.integers(0, 2)), min_size=1, max_size=15),
    pool=st.sampled_from([CountingPool, BlockPool, RunPool]),
    blocks=st.integers(16, 80),
    ahead=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority"]),
    threshold=st.sampled_from([0, 20]),
    looks=st.sets(st.integers(0, 300)),
)
@settings(max_examples=200, deadline=None)
def test_a_scheduler_that_was_asked_decides_as_one_that_was_not(lengths, pool, blocks, ahead, policy, threshold, looks):
    config = VllmConfig(64, 8, policy=policy, long_prefill_token_threshold=threshold)
    pair = [VllmScheduler(config, pool(blocks)) for _ in range(2)]
    requests = [
        [Request(f"r{i}", prompt, output, index=i, priority=rank) for i, (prompt, output, _, rank) in enumerate(lengths)] for _ in pair
    ]
    in_flight = None
    for step in range(5000):
        for index, (_, _, at, _) in enumerate(lengths):
            if at == step:
                for scheduler, mine in zip(pair, requests, strict=True):
                    scheduler.add(mine[index])
        pair[0].steady_decode()
        batches = [scheduler.schedule() for scheduler in pair]
        assert _shape(batches[0]) == _shape(batches[1])
        taken = in_flight if ahead else batches
        if taken is not None:
            done = [scheduler.update(batch) for scheduler, batch in zip(pair, taken, strict=True)]
            assert [request.index for request in done[0]] == [request.index for request in done[1]]
        in_flight = batches if batches[0] else None
        assert pair[0].gauges == pair[1].gauges
        if step in looks:
            for scheduler in pair:
                scheduler.check_integrity()
            assert _state(requests[0]) == _state(requests[1])
        if step > 60 and not pair[0].running and not pair[0].waiting and in_flight is None:
            break
    assert _state(requests[0]) == _state(requests[1])
    assert pair[0].pool.num_free == pair[0].pool.num_usable
