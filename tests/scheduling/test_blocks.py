"""Block pools against a list-and-dict model of vLLM's rules, and what paging saves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.errors import InputError
from roofline.scheduling import BlockPool, CountingPool, Request, RunPool, Segments, TokenContent


class Plain:
    """Every block an object in a list, every rule a loop."""

    def __init__(self, blocks, size):
        self.size = size
        self.queue = list(range(1, blocks))
        self.users = {}
        self.content = {}
        self.born = {}
        self.time = 0

    def match(self, keys):
        hits = []
        for key in keys:
            same = [block for block, other in self.content.items() if other == key]
            if not same:
                break
            hits.append(min(same, key=self.born.get))
        return hits

    def share(self, hits):
        for block in hits:
            if self.users.get(block, 0) == 0:
                self.queue.remove(block)
            self.users[block] = self.users.get(block, 0) + 1

    def new(self, count):
        blocks = []
        for _ in range(count):
            block = self.queue.pop(0)
            self.content.pop(block, None)
            self.users[block] = 1
            blocks.append(block)
        return blocks

    def name(self, block, key):
        self.time += 1
        self.content[block] = key
        self.born[block] = self.time

    def release(self, table):
        for block in reversed(table):
            self.users[block] -= 1
            if self.users[block] == 0:
                if block in self.content:
                    self.queue.append(block)
                else:
                    self.queue.insert(0, block)


@st.composite
def scripts(draw):
    """Sequences of: start a request of some shared beginning and length, or end the n-th running one."""
    actions = []
    for _ in range(draw(st.integers(1, 40))):
        if draw(st.booleans()):
            numbers = (st.integers(0, 3), st.integers(0, 90), st.integers(1, 120), st.integers(0, 20))
            actions.append(("start", *map(draw, numbers)))
        else:
            actions.append(("end", draw(st.integers(0, 5))))
    return actions


@given(scripts(), st.integers(10, 40))
@settings(max_examples=300, deadline=None)
def test_pools_follow_the_plain_rules(script, blocks):
    size = 16
    plain, pools = Plain(blocks, size), [BlockPool(blocks), RunPool(blocks)]
    running = []
    for number, action in enumerate(script):
        if action[0] == "end" and running:
            requests, table = running.pop(action[1] % len(running))
            keys = requests[0].content.keys(0, requests[0].num_computed_tokens // size, size)
            for block, key in list(zip(table, keys, strict=False))[requests[0].num_prompt_tokens // size :]:
                plain.name(block, key)
            plain.release(table)
            for pool, request in zip(pools, requests, strict=True):
                pool.release(request)
        elif action[0] == "start":
            _, family, common, prompt, generated = action
            segments = [(min(common, prompt), 2 * family)] if min(common, prompt) else []
            requests = [Request("r", prompt, 50, index=number, content=Segments(2 * number + 1, segments)) for _ in pools]
            keys = requests[0].content.keys(0, (prompt - 1) // size, size)
            hits = plain.match(keys)
            total = -(-(prompt + generated) // size)
            idle = sum(plain.users.get(block, 0) == 0 for block in hits)
            fits = total - len(hits) + idle <= len(plain.queue)
            for pool, request in zip(pools, requests, strict=True):
                found = pool.match(request)
                assert pool.hit_blocks(found) == len(hits)
                assert (pool.shortfall(request, found, prompt + generated) <= pool.num_free) is fits
                if fits:
                    pool.share(request, found)
                    assert pool.allocate(request, prompt, prompt)
                    request.num_computed_tokens = request.num_tokens = prompt + generated
                    pool.take(total - request.num_blocks)
                    pool.settle(request, prompt + generated)
            if fits:
                plain.share(hits)
                table = hits + plain.new(total - len(hits))
                every = requests[0].content.keys(0, prompt // size, size)
                for block, key in list(zip(table, every, strict=False))[len(hits) :]:
                    plain.name(block, key)
                running.append((requests, table))
        for position, pool in enumerate(pools):
            assert pool.num_free == len(plain.queue)
            pool.check_integrity([requests[position] for requests, _ in running])


def test_a_prompt_that_is_cached_whole_recomputes_its_last_block():
    for pool in (BlockPool(20), RunPool(20)):
        first, second = (Request("r", 64, 5, content=Segments(1)) for _ in range(2))
        pool.allocate(first, 64, 64)
        assert pool.hit_blocks(pool.match(second)) == 3


def test_two_contents_that_differ_in_one_early_token_share_nothing():
    left, right = TokenContent(range(64)), TokenContent([99, *range(1, 64)])
    assert not set(left.keys(0, 4, 16)) & set(right.keys(0, 4, 16))
    assert TokenContent(range(64), "lora-a").keys(0, 1, 16) != TokenContent(range(64), "lora-b").keys(0, 1, 16)
    assert TokenContent(range(64)).keys(2, 4, 16) == left.keys(0, 4, 16)[2:]


def test_a_block_that_straddles_two_segments_belongs_to_the_later():
    content = Segments(7, [(24, 2)])
    other = Segments(9, [(24, 2)])
    assert content.keys(0, 3, 16)[:1] == other.keys(0, 3, 16)[:1]
    assert not set(content.keys(1, 3, 16)) & set(other.keys(1, 3, 16))


def test_paging_wastes_less_than_a_block_and_reservation_nearly_all():
    """The article's case: 8192 slots reserved for a request of 200 tokens waste 7992."""
    paged, reserved = CountingPool(1000), CountingPool(1000, reserve_tokens=8192)
    request, other = Request("r", 200, 1), Request("r", 200, 1)
    paged.allocate(request, 200, 200)
    reserved.allocate(other, 200, 200)
    assert request.num_blocks * 16 - 200 == 8
    assert other.num_blocks * 16 - 200 == 7992


def test_pages_are_over_ninety_percent_full_on_average():
    lengths = np.random.default_rng(0).integers(50, 2000, 500)
    pool = CountingPool(100_000)
    held = 0
    for number, length in enumerate(lengths):
        request = Request(str(number), int(length), 1)
        pool.allocate(request, int(length), int(length))
        held += request.num_blocks * 16
    assert lengths.sum() / held > 0.9


def test_a_pool_of_one_block_is_refused():
    with pytest.raises(InputError, match="null block"):
        CountingPool(1)
