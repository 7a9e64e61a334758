"""SGLang's policy and its radix cache, rule by rule."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.errors import InputError
from roofline.scheduling import RadixPool, Request, Segments, SglangConfig, SglangScheduler, Status


def add(target, *lengths, segments=()):
    requests = [
        Request(f"r{n}", prompt, output, index=n, content=Segments(2 * n + 1, segments)) for n, (prompt, output) in enumerate(lengths)
    ]
    for request in requests:
        target.add(request)
    return requests


def rows(batch):
    return [(row.request.request_id, row.new, row.past) for row in batch.rows()]


def step(target):
    batch = target.schedule()
    before = rows(batch)
    target.update(batch)
    target.check_integrity()
    return before


def test_prefill_comes_first_and_decode_waits():
    target = SglangScheduler(SglangConfig(64), RadixPool(1000))
    add(target, (40, 5))
    assert step(target) == [("r0", 40, 0)]
    target.add(Request("late", 30, 5, index=9))
    assert step(target) == [("late", 30, 0)]
    assert step(target) == [("r0", 1, 40), ("late", 1, 30)]


def test_one_prompt_at_a_time_is_cut_and_its_rest_leads_the_next_batch():
    target = SglangScheduler(SglangConfig(64), RadixPool(1000))
    add(target, (40, 5), (60, 5), (10, 5))
    assert step(target) == [("r0", 40, 0), ("r1", 24, 0)]
    assert step(target) == [("r1", 36, 24), ("r2", 10, 0)]
    assert step(target) == [("r0", 1, 40), ("r1", 1, 60), ("r2", 1, 10)]


def test_admission_counts_a_share_of_the_output_to_come():
    running_need = 100 - 1
    enough = 100 + 50 + 10 + 1 + int(0.7 * running_need) + 1
    for tokens, admitted in ((enough, True), (enough - 2, False)):
        target = SglangScheduler(SglangConfig(), RadixPool(max(tokens, 201), caching=False))
        target.pool.num_tokens = target.pool.free = tokens
        add(target, (100, 100))
        step(target)
        target.add(Request("late", 50, 10, index=9))
        assert (step(target) == [("late", 50, 0)]) is admitted


def test_the_ratio_decays_to_its_floor_over_600_decode_steps():
    target = SglangScheduler(SglangConfig(), RadixPool(5000))
    add(target, (10, 1000))
    step(target)
    for _ in range(300):
        step(target)
    assert target._ratio == pytest.approx(0.7 * (1 - 0.86 / 2))
    for _ in range(400):
        step(target)
    assert target._ratio == pytest.approx(0.7 * 0.14)


def test_retraction_takes_the_fewest_outputs_and_of_those_the_longest_prompt():
    target = SglangScheduler(SglangConfig(schedule_conservativeness=0.1), RadixPool(150, caching=False))
    old, short, long = add(target, (20, 60), (30, 40), (40, 40))
    target.waiting.pop()
    target.waiting.pop()
    step(target)
    step(target)
    target.add(short)
    target.add(long)
    batch = target.schedule()
    while not batch.preempted:
        target.update(batch)
        batch = target.schedule()
    assert old.num_output_tokens > short.num_output_tokens == long.num_output_tokens
    assert batch.preempted[0] is long
    assert long.status is Status.PREEMPTED
    assert long.num_computed_tokens == 0
    assert target.running[0] is old
    assert short in target.running or short in batch.preempted


def test_a_finished_sequence_is_found_by_the_next():
    target = SglangScheduler(SglangConfig(), RadixPool(1000))
    first, second = add(target, (50, 3), (50, 3), segments=[(37, 4)])
    target.waiting.pop()
    while target.running or target.waiting:
        step(target)
    target.add(second)
    assert step(target) == [("r1", 13, 37)]
    assert second.num_cached_tokens == 37
    assert first.status is Status.FINISHED


def test_least_recently_used_leaves_go_first():
    pool = RadixPool(100)
    target = SglangScheduler(SglangConfig(), pool)
    requests = [Request(f"r{n}", 30, 1, index=n) for n in range(3)]
    for request in requests:
        target.add(request)
        while target.running or target.waiting:
            step(target)
    again = Request("again", 30, 1, content=requests[0].content)
    target.add(again)
    while target.running or target.waiting:
        step(target)
    assert again.num_cached_tokens == 29
    target.add(Request("new", 35, 1, index=7))
    while target.running or target.waiting:
        step(target)
    assert pool.match(requests[0], 30)[1] == 30
    assert pool.match(requests[1], 30)[1] == 0


def test_what_is_larger_than_the_pool_is_refused():
    with pytest.raises(InputError, match="the pool has 100"):
        add(SglangScheduler(SglangConfig(), RadixPool(100)), (90, 20))
    with pytest.raises(InputError, match="at least 1"):
        SglangConfig(0)
    with pytest.raises(InputError, match="conservativeness"):
        SglangConfig(schedule_conservativeness=0)


ROWS = st.tuples(st.integers(0, 3), st.integers(1, 60), st.integers(1, 80), st.integers(1, 40))


@given(st.lists(ROWS, min_size=1, max_size=25), st.integers(130, 400))
@settings(max_examples=150, deadline=None)
def test_tokens_are_conserved_and_everybody_is_served(script, tokens):
    target = SglangScheduler(SglangConfig(48, 96, 6), RadixPool(tokens))
    for number, (family, common, prompt, output) in enumerate(script):
        common = min(common, prompt)
        request = Request(str(number), prompt, output, index=number, content=Segments(2 * number + 1, [(common, 2 * family)]))
        target.add(request)
        for _ in range(3):
            step(target)
    for _ in range(20_000):
        if not (target.running or target.num_waiting):
            break
        step(target)
    assert not target.running
    assert not target.num_waiting
    assert target.pool.available == tokens
