"""Prefix caches step by step on paper: keys of contents, SGLang's tree of tokens, runs of blocks, and checks that notice damage."""

from __future__ import annotations

from typing import Any

import pytest

from roofline.errors import InputError
from roofline.scheduling import BlockPool, CountingPool, RadixPool, Request, RunPool, Segments, TokenContent


def _request(prompt: int, own: int, segments: tuple[tuple[int, int], ...] = (), name: str = "r") -> Request:
    return Request(name, prompt, 100, content=Segments(own, segments))


def test_spans_of_a_content_told_by_ids() -> None:
    """Text 2 to position 24, text 3 to 40, then its own: of blocks of 16 the last token decides."""
    content = Segments(7, [(24, 2), (40, 3)])
    assert content.spans(0, 4, 16) == [(2, 0, 1), (3, 1, 2), (7, 2, 4)]
    assert content.spans(1, 2, 16) == [(3, 1, 2)]
    assert content.spans(2, 4, 16) == [(7, 2, 4)]
    assert content.spans(0, 1, 16) == [(2, 0, 1)]
    assert content.spans(2, 2, 16) == []
    assert content.spans(20, 45, 1) == [(2, 20, 24), (3, 24, 40), (7, 40, 45)]
    assert content.keys(0, 3, 16) == [(2 << 32) + 0, (3 << 32) + 1, (7 << 32) + 2]


def test_keys_of_tokens_are_chained() -> None:
    """A token that differs in block 1 changes the keys of blocks 1, 2 and 3; block 0 keeps its own."""
    tokens = list(range(16))
    other = [*range(5), 99, *range(6, 16)]
    mine, theirs = TokenContent(tokens).keys(0, 4, 4), TokenContent(other).keys(0, 4, 4)
    assert [a == b for a, b in zip(mine, theirs, strict=True)] == [True, False, False, False]
    assert len(set(mine)) == 4
    assert all(0 <= key < 2**128 for key in mine)
    content = TokenContent(tokens)
    assert content.keys(2, 3, 4) == mine[2:3]
    assert content.keys(0, 4, 4) == mine
    assert content.keys(0, 2, 8) == TokenContent(tokens).keys(0, 2, 8)
    assert not set(content.keys(0, 2, 8)) & set(mine)
    again = TokenContent([7] * 8).keys(0, 2, 4)
    assert again[0] != again[1]


def test_tokens_that_are_generated_later_complete_their_block() -> None:
    """Six tokens are one block of four; the second gets its key when two more are there."""
    content = TokenContent(range(6))
    assert content.keys(0, 1, 4) == TokenContent(range(8)).keys(0, 1, 4)
    content.tokens += [6, 7]
    assert content.keys(0, 2, 4) == TokenContent(range(8)).keys(0, 2, 4)


def _enter(pool: RadixPool, request: Request, upto: int) -> Any:
    """As a scheduler does it: look up, hold, take what is missing, put in, hold that in place of the prefix."""
    node, had = pool.match(request, upto)
    pool.lock(node, 1)
    assert pool.take(upto - had)
    end, _ = pool.insert(request, upto, had)
    pool.lock(end, 1)
    pool.lock(node, -1)
    return end


def test_a_tree_of_tokens() -> None:
    """Two requests share five of eight tokens in a pool of twenty."""
    pool = RadixPool(20)
    one, two = _request(8, 1, ((5, 2),)), _request(9, 3, ((5, 2),))
    assert (pool.num_tokens, pool.free, pool.evictable, pool.available) == (20, 20, 0, 20)
    first = _enter(pool, one, 8)
    assert (pool.free, pool.evictable, len(first)) == (12, 0, 3)
    pool.check_integrity(0)
    node, had = pool.match(two, 9)
    assert (had, len(node), pool.free) == (5, 5, 12)
    second = _enter(pool, two, 9)
    assert (pool.free, pool.evictable, len(second)) == (8, 0, 4)
    pool.lock(first, -1)
    assert (pool.evictable, pool.available) == (3, 11)
    pool.lock(second, -1)
    assert (pool.evictable, pool.available) == (12, 20)
    pool.lock(second, 1)
    pool.lock(second, 1)
    assert pool.evictable == 3
    pool.lock(second, -1)
    assert pool.evictable == 3
    pool.check_integrity(0)


def test_a_stretch_is_split_where_the_next_request_leaves_it() -> None:
    pool = RadixPool(20)
    _enter(pool, _request(8, 1, ((8, 2),)), 8)
    node, had = pool.match(_request(6, 5, ((3, 2),)), 6)
    assert (had, node.first, node.stop, len(node)) == (3, 0, 3, 3)
    (tail,) = node.children.values()
    assert (tail.first, tail.stop, tail.parent is node, tail.locks, node.locks) == (3, 8, True, 1, 1)
    pool.check_integrity(0)
    assert pool.match(_request(8, 9, ((8, 2),)), 8)[1] == 8
    assert pool.match(_request(8, 9, ((8, 2),)), 2)[1] == 2
    assert pool.match(_request(8, 9), 8)[1] == 0


def test_tokens_that_are_in_the_tree_already_are_given_back() -> None:
    """Both computed the same eight; the second returns the six that it held beyond a prefix of two."""
    pool = RadixPool(30)
    one, two = _request(8, 1, ((8, 2),)), _request(8, 3, ((8, 2),))
    assert pool.take(8)
    assert pool.take(6)
    pool.insert(one, 8, 0)
    assert (pool.free, pool.evictable) == (16, 8)
    end, length = pool.insert(two, 8, 2)
    assert (pool.free, pool.evictable, length, end.stop) == (22, 8, 8, 8)
    pool.check_integrity(0)


def test_the_least_recently_used_leaf_goes_first() -> None:
    pool = RadixPool(16)
    requests = [_request(4, 2 * number + 1) for number in range(4)]
    for request in requests:
        pool.lock(_enter(pool, request, 4), -1)
    assert (pool.free, pool.evictable) == (0, 16)
    pool.match(requests[0], 4)  # looked at again
    assert pool.take(3)
    assert (pool.free, pool.evictable) == (1, 12)
    assert [pool.match(request, 4)[1] for request in requests] == [4, 0, 4, 4]
    pool.check_integrity(3)
    assert pool.take(5)
    assert (pool.free, pool.evictable) == (0, 8)
    assert [pool.match(request, 4)[1] for request in requests] == [0, 0, 4, 4]  # the look above touched them in order


def test_leaves_go_before_what_they_hang_on_and_held_ones_stay() -> None:
    """A beginning of five with two ends of three; one end is held."""
    pool = RadixPool(11)
    one, two = _request(8, 1, ((5, 2),)), _request(8, 3, ((5, 2),))
    pool.lock(_enter(pool, one, 8), -1)
    held = _enter(pool, two, 8)
    assert (pool.free, pool.evictable) == (0, 3)
    assert not pool.take(4)
    assert (pool.free, pool.evictable) == (0, 3)
    assert pool.take(2)
    assert (pool.free, pool.evictable, pool.match(one, 8)[1]) == (1, 0, 5)
    pool.lock(held, -1)
    assert pool.evictable == 8
    assert pool.take(4)
    assert (pool.free, pool.match(two, 8)[1]) == (0, 5)
    assert pool.take(1)
    assert (pool.free, pool.match(two, 8)[1]) == (4, 0)
    pool.check_integrity(7)
    assert pool.take(4)
    assert not pool.take(1)


def test_a_tree_that_keeps_nothing() -> None:
    pool = RadixPool(20, caching=False)
    assert pool.take(8)
    pool.insert(_request(8, 1), 8, 0)
    assert pool.match(_request(8, 1), 8)[1] == 0


@pytest.mark.parametrize("tokens", [0, -1])
def test_a_tree_needs_a_token(tokens: int) -> None:
    with pytest.raises(InputError, match=f"a KV pool of {tokens} tokens: at least 1"):
        RadixPool(tokens)
    assert RadixPool(1).available == 1


def test_only_ids_tell_a_simulation_what_is_said() -> None:
    request = Request("r", 40, 1, content=TokenContent(range(40)))
    with pytest.raises(InputError, match="the radix cache needs content told by ids"):
        RadixPool(100).match(request, 40)
    with pytest.raises(InputError, match="RunPool needs content told by ids"):
        RunPool(20).match(request)


def test_damage_to_a_tree_is_noticed() -> None:
    pool = RadixPool(20)
    end = _enter(pool, _request(8, 1, ((5, 2),)), 8)
    pool.check_integrity(0)
    with pytest.raises(AssertionError, match="held"):
        pool.check_integrity(1)
    end.locks += 1
    with pytest.raises(AssertionError, match="a child is locked more often"):
        pool.check_integrity(0)
    end.locks -= 1
    pool.evictable += 1
    with pytest.raises(AssertionError, match="evictable"):
        pool.check_integrity(0)


def test_runs_of_blocks() -> None:
    """Eleven usable blocks of four; the second request shares the first two blocks of three."""
    pool = RunPool(12, 4)
    one, two = _request(13, 1, ((8, 2),), "a"), _request(13, 3, ((8, 2),), "b")
    assert (pool.num_usable, pool.num_free, pool.block_size) == (11, 11, 4)
    assert list(pool.match(one)) == []
    assert pool.allocate(one, 13, 13)
    assert (one.num_blocks, one.num_hashed_blocks, one.pool_mark, pool.num_free) == (4, 3, 16, 7)
    assert [pool.shortfall(one, (), tokens) for tokens in (16, 17, 25)] == [0, 1, 3]
    hits = pool.match(two)
    assert [(hit.first, hit.stop) for hit in hits] == [(0, 2)]
    assert (pool.hit_blocks(hits), pool.shortfall(two, hits, 13)) == (2, 2)
    pool.share(two, hits)
    assert (two.num_blocks, two.num_hashed_blocks, two.pool_mark, pool.num_free) == (2, 2, 8, 7)
    assert pool.allocate(two, 13, 12)
    assert (two.num_blocks, two.num_hashed_blocks, two.pool_mark, pool.num_free) == (4, 3, 16, 5)
    assert not pool.allocate(two, 37, 13)
    assert pool.allocate(two, 36, 13)
    assert (two.num_blocks, two.pool_mark, pool.num_free) == (9, 36, 0)
    pool.check_integrity([one, two])
    pool.release(two)
    assert (two.num_blocks, two.num_hashed_blocks, two.pool_mark, pool.num_free) == (0, 0, 0, 7)
    one.num_computed_tokens = one.num_tokens = 17
    assert pool.allocate(one, 17, 17)
    assert (one.num_blocks, one.pool_mark, pool.num_free) == (5, 20, 6)
    pool.release(one)
    assert pool.num_free == 11
    pool.check_integrity([])
    assert pool.hit_blocks(pool.match(_request(17, 1, ((8, 2),)))) == 4  # four whole blocks of what was said
    assert pool.shortfall(two, pool.match(_request(13, 3, ((8, 2),))), 13) == 4  # nobody holds them: each takes a free block


def test_runs_that_are_fetched_from_elsewhere_are_not_kept() -> None:
    pool = RunPool(12, 4)
    request = _request(13, 1)
    request.remote_kv = True
    assert pool.allocate(request, 13, 0)
    request.num_computed_tokens = 13
    pool.release(request)
    assert list(pool.match(_request(13, 1))) == []
    assert pool.num_free == 11


def test_runs_go_from_the_front_of_the_queue_the_tail_first() -> None:
    """Five usable blocks: two of an old text, two of a newer one, one blank. The blank one goes first, then the old text's tail."""
    pool = RunPool(6, 4)
    old, new = _request(8, 1, name="a"), _request(8, 3, name="b")
    for request in (old, new):
        assert pool.allocate(request, 8, 8)
    for request in (old, new):
        request.num_computed_tokens = 8
        pool.release(request)

    def kept() -> list[int]:
        return [pool.hit_blocks(pool.match(_request(9, own))) for own in (1, 3)]

    assert kept() == [2, 2]
    left = []
    for number in range(5):
        assert pool.allocate(_request(4, 11 + 2 * number, name=str(number)), 4, 0)
        left.append(kept())
    assert left == [[2, 2], [1, 2], [0, 2], [0, 1], [0, 0]]
    assert pool.num_free == 0


@pytest.mark.parametrize("kind", [CountingPool, BlockPool, RunPool])
def test_blocks_of_a_length(kind: Any) -> None:
    pool = kind(20, 4)
    assert [pool.blocks_for(tokens) for tokens in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    assert kind(20).block_size == 16
    with pytest.raises(InputError, match="1 KV blocks of 16 tokens: a pool needs at least 2 blocks"):
        kind(1)


@pytest.mark.parametrize("kind", [CountingPool, BlockPool, RunPool])
def test_damage_to_a_pool_is_noticed(kind: Any) -> None:
    pool, request = kind(20, 4), _request(13, 1)
    assert pool.allocate(request, 13, 13)
    pool.check_integrity([request])
    with pytest.raises(AssertionError):
        pool.check_integrity([])
    pool.num_free += 1
    with pytest.raises(AssertionError):
        pool.check_integrity([request])


def test_each_kind_of_damage_to_blocks_is_noticed() -> None:
    def broken(change: Any, message: str) -> None:
        pool, one, two = BlockPool(20, 4), _request(13, 1, ((8, 2),), "a"), _request(13, 3, ((8, 2),), "b")
        assert pool.allocate(one, 13, 13)
        pool.share(two, pool.match(two))
        pool.check_integrity([one, two])
        change(pool, one, two)
        with pytest.raises(AssertionError, match=message):
            pool.check_integrity([one, two])

    broken(lambda pool, one, two: pool._sharers.clear(), "counts of sharers")
    broken(lambda pool, one, two: two.block_ids.pop(), "counts of sharers")
    broken(lambda pool, one, two: one.block_ids.__setitem__(3, 19), "a block is free and held")
    broken(lambda pool, one, two: one.block_ids.pop(), "a block is lost")
    broken(lambda pool, one, two: one.block_ids.__setitem__(3, 0), "a block is lost")
    broken(lambda pool, one, two: pool._keys.popitem(), "keys and blocks disagree")
