"""vLLM's policy, rule by rule, on cases worked out by hand."""

from __future__ import annotations

import pytest

from roofline.errors import InputError
from roofline.scheduling import BlockPool, CountingPool, Request, RunPool, Segments, Status, TokenContent, VllmConfig, VllmScheduler


def scheduler(blocks=101, *, pool=CountingPool, **options):
    options.setdefault("max_num_batched_tokens", 64)
    options.setdefault("max_num_seqs", 8)
    return VllmScheduler(VllmConfig(**options), pool(blocks))


def add(target, *lengths, priorities=None):
    requests = []
    for number, (prompt, output) in enumerate(lengths):
        request = Request(f"r{number}", prompt, output, index=number, priority=priorities[number] if priorities else 0)
        target.add(request)
        requests.append(request)
    return requests


def rows(batch):
    return [(row.request.request_id, row.new, row.past) for row in batch.rows()]


def step(target):
    batch = target.schedule()
    finished = target.update(batch)
    target.check_integrity()
    return rows_before(batch), [request.request_id for request in finished]


def rows_before(batch):
    return sorted((row.request.request_id, row.new) for row in batch.rows())


def test_decodes_and_a_piece_of_the_next_prompt_share_the_budget():
    target = scheduler()
    add(target, (40, 5), (100, 5))
    batch = target.schedule()
    assert rows(batch) == [("r0", 40, 0), ("r1", 24, 0)]
    target.update(batch)
    batch = target.schedule()
    assert rows(batch) == [("r0", 1, 40), ("r1", 63, 24)]
    target.update(batch)
    batch = target.schedule()
    assert rows(batch) == [("r0", 1, 41), ("r1", 13, 87)]
    assert [chunk.samples for chunk in batch.chunks] == [True]


def test_the_step_that_computes_the_last_prompt_token_gives_the_first_output():
    target = scheduler()
    (request,) = add(target, (64, 2))
    step(target)
    assert request.num_output_tokens == 1
    assert step(target) == ([("r0", 1)], ["r0"])
    assert target.pool.num_free == 100


def test_the_last_token_is_never_computed():
    target = scheduler()
    (request,) = add(target, (10, 3))
    while target.running or target.waiting:
        step(target)
    assert request.num_computed_tokens == 12


def test_a_head_that_does_not_fit_lets_nobody_pass():
    target = scheduler(blocks=8)
    add(target, (64, 5), (60, 5), (10, 5))
    assert step(target)[0] == [("r0", 64)]
    assert step(target)[0] == [("r0", 1)]
    assert target.num_waiting == 2


def test_the_whole_sequence_must_fit_although_only_a_chunk_is_allocated():
    for reserve, admitted in ((True, False), (False, True)):
        target = scheduler(blocks=9, reserve_full_isl=reserve, max_num_batched_tokens=32)
        add(target, (30, 30), (110, 5))
        step(target)
        step(target)
        assert (len(target.running) == 2) is admitted


def test_preemption_takes_the_last_admitted_and_sends_it_to_the_front():
    target = scheduler(blocks=5)
    first, second, third = add(target, (32, 30), (30, 30), (16, 4))
    step(target)
    assert target.running == [first, second]
    batch = target.schedule()
    assert rows(batch) == [("r0", 1, 32)]
    assert batch.preempted == [second]
    assert second.status is Status.PREEMPTED
    assert (second.num_computed_tokens, second.num_tokens, second.num_preemptions) == (0, 31, 1)
    assert list(target.waiting) == [second, third]


def test_a_step_that_preempts_admits_nobody():
    target = scheduler(blocks=5)
    add(target, (32, 30), (30, 30), (1, 4))
    step(target)
    assert step(target)[0] == [("r0", 1)]
    assert step(target)[0][0] == ("r0", 1)


def test_a_resumed_request_computes_its_generated_tokens_again():
    target = scheduler(blocks=5)
    first, second = add(target, (32, 4), (30, 30))
    for _ in range(5):
        step(target)
    assert first.status is Status.FINISHED
    assert second.num_cached_tokens == 0
    assert second.num_preemptions == 1
    assert second.num_computed_tokens == second.num_tokens - 1


def test_with_a_prefix_cache_a_preempted_request_gets_its_blocks_back():
    target = scheduler(blocks=6, pool=BlockPool)
    first, second = add(target, (32, 2), (33, 30))
    step(target)
    batch = target.schedule()
    assert batch.preempted == [second]
    target.update(batch)
    assert first.status is Status.FINISHED
    assert rows(target.schedule()) == [("r1", 1, 32)]


def test_priority_admits_the_smallest_and_preempts_the_largest():
    target = scheduler(blocks=5, policy="priority")
    low, high = add(target, (32, 30), (30, 30), priorities=(5, 1))
    step(target)
    assert target.running == [high, low]
    batch = target.schedule()
    assert batch.preempted == [low]


def test_priority_takes_back_what_a_victim_was_given_in_the_same_step():
    target = scheduler(blocks=5, policy="priority")
    low, high = add(target, (20, 30), (32, 30), priorities=(5, 1))
    target.waiting.clear()
    low.status = high.status = Status.WAITING
    target.waiting.append(low)
    step(target)
    target.waiting.append(high)
    step(target)
    batch = target.schedule()
    assert batch.preempted == [low]
    assert rows(batch) == [("r1", 1, 32)]
    target.update(batch)
    target.check_integrity()
    assert low.num_output_placeholders == 0


def test_watermark_holds_admission_back_only_while_something_runs():
    target = scheduler(blocks=11, watermark=0.5)
    add(target, (64, 5), (32, 5))
    assert step(target)[0] == [("r0", 64)]
    assert step(target)[0] == [("r0", 1)]
    assert len(target.waiting) == 1


def test_threshold_cuts_long_prompts_only_in_company():
    alone = scheduler(long_prefill_token_threshold=10)
    add(alone, (60, 1))
    assert step(alone)[0] == [("r0", 60)]
    company = scheduler(long_prefill_token_threshold=10)
    add(company, (60, 1), (60, 1))
    assert step(company)[0] == [("r0", 10), ("r1", 10)]


def test_long_prompts_take_turns_and_short_ones_pass():
    target = scheduler(long_prompt_tokens=50, max_num_batched_tokens=64)
    add(target, (100, 2), (100, 2), (5, 2))
    assert step(target)[0] == [("r0", 64)]
    assert step(target)[0] == [("r0", 36), ("r1", 28)]
    target = scheduler(long_prompt_tokens=50, max_num_batched_tokens=64, long_prefill_token_threshold=20)
    add(target, (100, 2), (100, 2), (5, 2))
    assert step(target)[0] == [("r0", 20), ("r2", 5)]
    assert [request.request_id for request in target.waiting] == ["r1"]


def test_without_chunking_a_prompt_waits_for_a_whole_budget():
    target = scheduler(enable_chunked_prefill=False)
    add(target, (40, 3), (40, 3))
    assert step(target)[0] == [("r0", 40)]
    assert step(target)[0] == [("r0", 1), ("r1", 40)]


def test_max_model_len_ends_a_request():
    target = scheduler(max_model_len=50)
    (request,) = add(target, (45, 100))
    while target.running or target.waiting:
        step(target)
    assert request.num_tokens == 50


def test_drafts_are_verified_and_the_wrong_ones_taken_back():
    target = scheduler(num_speculative_tokens=3)
    (request,) = add(target, (20, 12))
    target.update(target.schedule())
    assert request.num_spec_tokens == 3
    batch = target.schedule()
    assert rows(batch) == [("r0", 4, 20)]
    assert batch.chunks[0].drafts == 3
    target.update(batch, [2])
    assert (request.num_tokens, request.num_computed_tokens) == (23, 22)
    target.check_integrity()
    batch = target.schedule()
    target.update(batch, [4])
    assert (request.num_tokens, request.num_computed_tokens) == (27, 26)


def test_more_accepted_drafts_than_were_asked_for_are_trimmed():
    target = scheduler(num_speculative_tokens=3)
    (request,) = add(target, (20, 3))
    target.update(target.schedule())
    assert request.num_spec_tokens == 1
    assert target.update(target.schedule(), [2]) == [request]
    assert request.num_output_tokens == 3


def test_a_request_that_stops_early_is_let_go_once():
    target = scheduler()
    request, other = add(target, (20, 50), (20, 50))
    target.update(target.schedule())
    current = target.schedule()
    following = target.schedule()
    assert [len(current.decodes), len(following.decodes)] == [2, 2]
    assert target.update(current, stopped=(request,)) == [request]
    assert target.update(following) == []
    assert (request.num_output_tokens, other.num_output_tokens) == (2, 3)
    target.check_integrity()


def test_two_batches_in_flight_never_go_beyond_the_end():
    target = scheduler()
    add(target, (20, 2))
    first, second = target.schedule(), target.schedule()
    assert first
    assert second
    assert target.update(first) == []
    assert not target.schedule()
    assert [request.request_id for request in target.update(second)] == ["r0"]


def test_remote_kv_leaves_the_last_prompt_token_to_compute():
    target = scheduler()
    request = Request("r0", 40, 2)
    request.remote_kv = True
    target.add(request)
    batch = target.schedule()
    assert not batch
    assert batch.loading == [request]
    assert target.pool.num_free == 97
    assert not target.schedule()
    target.kv_arrived(request)
    batch = target.schedule()
    assert rows(batch) == [("r0", 1, 39)]


def test_held_blocks_outlive_the_request():
    target = scheduler()
    request = Request("r0", 40, 1)
    request.hold_blocks = True
    target.add(request)
    target.update(target.schedule())
    assert target.pool.num_free == 97
    target.check_integrity()
    target.release(request)
    assert target.pool.num_free == 100


@pytest.mark.parametrize(
    ("options", "lengths", "message"),
    [
        ({}, (2000, 10), "126 KV blocks of 16 tokens and the pool has 100"),
        ({"max_model_len": 100}, (100, 10), "max_model_len 100"),
        ({"enable_chunked_prefill": False}, (60, 10), "chunked prefill is off"),
    ],
)
def test_what_can_never_run_is_refused_at_once(options, lengths, message):
    target = scheduler(**options)
    with pytest.raises(InputError, match=message):
        add(target, lengths)


def test_a_request_that_just_fits_runs_alone_to_its_end():
    target = scheduler(blocks=11)
    add(target, (100, 61))
    while target.running or target.waiting:
        step(target)
    assert target.num_preemptions == 0


@pytest.mark.parametrize("options", [{"max_num_seqs": 0}, {"max_num_seqs": 65}, {"policy": "lifo"}, {"watermark": 1.0}])
def test_bad_options_are_refused(options):
    with pytest.raises(InputError):
        scheduler(**options)


def test_an_engine_gets_tables_and_slots():
    target = scheduler(pool=BlockPool)
    tokens = list(range(40))
    for number in range(2):
        target.add(Request(f"r{number}", 40, 5, index=number, content=TokenContent(tokens)))
    batch = target.schedule()
    assert rows(batch) == [("r0", 40, 0), ("r1", 8, 32)]
    assert batch.block_tables() == [[1, 2, 3], [1, 2, 4]]
    assert batch.slot_mapping(16) == [*range(16, 56), *range(64, 72)]
    target.update(batch)
    assert rows(target.schedule()) == [("r0", 1, 40), ("r1", 1, 40)]


def test_runs_need_content_by_ids():
    target = scheduler(pool=RunPool)
    target.add(Request("r", 40, 5, content=TokenContent(range(40))))
    with pytest.raises(InputError, match="BlockPool"):
        target.schedule()
    assert Segments(1).keys(0, 2, 16) == [1 << 32, (1 << 32) + 1]
