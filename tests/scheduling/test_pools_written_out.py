"""Counts and orders of the block pools, step by step on paper."""

from __future__ import annotations

import pytest

from roofline.errors import InputError
from roofline.scheduling import BlockPool, CountingPool, Request, TokenContent


def _request(tokens: list[int], name: str = "r") -> Request:
    return Request(name, len(tokens), 100, content=TokenContent(tokens))


def test_the_smallest_pools() -> None:
    for kind in (CountingPool, BlockPool):
        assert kind(2, 1).num_free == 1
        with pytest.raises(InputError):
            kind(1, 1)
        with pytest.raises(InputError):
            kind(2, 0)


def test_counting_takes_what_is_new() -> None:
    pool, request = CountingPool(11, 4), Request("a", 10, 20)
    assert pool.allocate(request, 9, 0)
    assert (request.num_blocks, pool.num_free, request.pool_mark) == (3, 7, 12)
    assert pool.allocate(request, 12, 0)
    assert (request.num_blocks, pool.num_free) == (3, 7)
    assert pool.shortfall(request, (), 17) == 2
    pool.take(2)
    pool.settle(request, 17)
    assert (request.num_blocks, pool.num_free, request.pool_mark) == (5, 5, 20)
    pool.settle(request, 20)
    assert request.num_blocks == 5
    pool.take(1)
    assert (request.num_blocks, pool.num_free) == (5, 4)
    pool.settle(request, 21)
    assert (request.num_blocks, pool.num_free) == (6, 4)
    assert not pool.allocate(request, 41, 0)
    assert pool.allocate(request, 40, 0)
    assert (request.num_blocks, pool.num_free) == (10, 0)
    pool.check_integrity([request])
    pool.release(request)
    assert (request.num_blocks, request.pool_mark, pool.num_free) == (0, 0, 10)


def test_a_reservation_is_the_least() -> None:
    pool, short, long = CountingPool(101, 4, reserve_tokens=40), Request("a", 4, 4), Request("b", 100, 4)
    assert pool.blocks_for(4) == 10
    assert pool.allocate(short, 4, 0)
    assert pool.allocate(long, 100, 0)
    assert (short.num_blocks, long.num_blocks, pool.num_free) == (10, 25, 65)


def test_what_is_missing_counts_hits_and_what_is_held() -> None:
    pool, first, second = BlockPool(20, 4), _request(list(range(12)), "a"), _request(list(range(12)), "b")
    assert pool.allocate(first, 12, 12)
    hits = pool.match(second)
    assert list(hits) == first.block_ids[:2]  # the last token stays to be computed
    assert pool.shortfall(second, hits, 12) == 1  # somebody holds both hits
    pool.release(first)
    assert pool.shortfall(second, hits, 12) == 3  # now each takes a free block
    pool.share(second, hits)
    assert (second.num_blocks, second.num_hashed_blocks, pool.num_free) == (2, 2, 17)
    assert pool.shortfall(second, (), 20) == 3
    assert pool.allocate(second, 20, 12)
    assert (second.num_blocks, second.pool_mark, pool.num_free) == (5, 20, 14)
    pool.check_integrity([second])


def test_blocks_without_content_are_the_next_to_go_in_their_order() -> None:
    pool, request, other = BlockPool(11, 4, prefix_caching=False), _request(list(range(12)), "a"), _request([9] * 12, "b")
    assert pool.allocate(request, 12, 0)
    assert request.block_ids == [1, 2, 3]
    pool.release(request)
    assert pool.allocate(other, 8, 0)
    assert other.block_ids == [1, 2]


def test_blocks_with_content_are_the_last_to_go_the_tail_first() -> None:
    pool, request = BlockPool(6, 4), _request(list(range(12)), "a")
    assert pool.allocate(request, 12, 12)
    pool.release(request)
    order = []
    for number in range(5):
        one = _request([100 + number] * 4, str(number))
        assert pool.allocate(one, 4, 0)
        order += one.block_ids
    assert order == [4, 5, 3, 2, 1]


@pytest.mark.parametrize(("remote", "hits"), [(False, 3), (True, 0)])
def test_what_was_computed_elsewhere_is_not_kept(remote: bool, hits: int) -> None:
    pool, request = BlockPool(20, 4), _request(list(range(13)), "a")
    request.remote_kv = remote
    assert pool.allocate(request, 13, 0)
    request.num_computed_tokens = 13
    pool.release(request)
    assert len(pool.match(_request(list(range(13)), "b"))) == hits


def test_a_sharer_more_and_a_sharer_less() -> None:
    pool = BlockPool(20, 4)
    requests = [_request(list(range(9)), str(i)) for i in range(3)]
    assert pool.allocate(requests[0], 9, 9)
    for request in requests[1:]:
        pool.share(request, pool.match(request))
    assert pool.num_free == 16
    for held, request in enumerate(requests, 1):
        pool.check_integrity(requests[held - 1 :])
        pool.release(request)
        assert pool.num_free == (17 if held < 3 else 19)
    assert len(pool.match(_request(list(range(9)), "z"))) == 2
