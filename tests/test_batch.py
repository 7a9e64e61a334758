"""Pairs and reads of a batch against loops over every query and key."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.batch import Batch
from roofline.errors import InputError

LENGTHS = st.lists(st.tuples(st.integers(0, 23), st.integers(0, 40)), min_size=1, max_size=5)
LIMIT = st.one_of(st.none(), st.integers(1, 30))


def _visible(position: int, window: int | None, chunk: int | None) -> list[int]:
    """Positions that the token at `position` looks at, by the definition of each mask."""
    seen = range(position + 1)
    if window is not None:
        return [key for key in seen if key > position - window]
    if chunk is not None:
        return [key for key in seen if key // chunk == position // chunk]
    return list(seen)


@given(LENGTHS, LIMIT, st.booleans())
def test_pairs_and_reads_are_those_of_a_loop(lengths: list[tuple[int, int]], limit: int | None, chunked: bool) -> None:
    window, chunk = (None, limit) if chunked else (limit, None)
    batch = Batch.of([n for n, _ in lengths], [p for _, p in lengths])
    pairs = reads = 0
    for new, past in lengths:
        looked_at: set[int] = set()
        for position in range(past, past + new):
            visible = _visible(position, window, chunk)
            pairs += len(visible)
            looked_at.update(key for key in visible if key < past)
        reads += len(looked_at)
    assert float(batch.pairs(window=window, chunk=chunk)) == pairs
    assert float(batch.past_read(window=window, chunk=chunk)) == reads


@given(LENGTHS)
def test_the_full_rectangle_counts_every_key_for_every_query(lengths: list[tuple[int, int]]) -> None:
    batch = Batch.of([n for n, _ in lengths], [p for _, p in lengths])
    assert float(batch.pairs(causal=False)) == sum(n * (p + n) for n, p in lengths)


@given(st.integers(1, 60), st.integers(0, 60), st.integers(1, 59))
def test_chunks_add_up_to_the_whole_prefill(new: int, past: int, cut: int) -> None:
    cut = min(cut, new)
    whole = Batch.prefill(1, new, past).pairs()
    assert Batch.prefill(1, cut, past).pairs() + Batch.prefill(1, new - cut, past + cut).pairs() == whole


def test_a_window_as_long_as_the_context_is_no_window() -> None:
    batch = Batch.of([5, 1], [10, 30])
    assert batch.pairs(window=31) == batch.pairs()
    assert batch.past_read(window=31) == batch.past_read()
    assert batch.pairs(top_k=31) == batch.pairs()


def test_a_grid_is_the_same_as_its_points() -> None:
    sequences, context = np.array([1, 7, 64]), np.array([0, 100, 5000, 131072])
    grid = Batch.decode(sequences[:, None], context[None, :])
    assert grid.pairs(window=4096).shape == (3, 4)
    for i, b in enumerate(sequences):
        for j, c in enumerate(context):
            point = Batch.decode(int(b), int(c))
            assert grid.pairs(window=4096)[i, j] == point.pairs(window=4096)
            assert np.broadcast_to(grid.tokens, (3, 4))[i, j] == point.tokens


def test_decode_and_prefill_parts_are_the_whole() -> None:
    batch = Batch.of([1, 512, 1, 3], [9, 0, 100, 7])
    assert batch.decoding.sequences == 2
    assert batch.prefilling.tokens == 515
    assert batch.decoding.pairs() + batch.prefilling.pairs() == batch.pairs()


@pytest.mark.parametrize(("new", "past"), [([-1], [0]), ([1], [-5]), ([float("nan")], [0]), ([1, 2], [0]), ([float("inf")], [0])])
def test_bad_lengths_are_refused(new: list[int], past: list[int]) -> None:
    with pytest.raises(InputError):
        Batch.of(new, past)
