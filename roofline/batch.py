"""Who is in a forward pass: new and past tokens per sequence.

Prefill, decode, a chunk and a mixed step are all just batches; decode is new_tokens == 1. A batch may be a whole grid of
batches: leading axes are the grid, the last axis lists groups of equal sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from roofline.errors import InputError

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Batch:
    """Groups of equal sequences: `count` sequences with `new` tokens to compute on `past` cached ones.

    Each is an array of shape (..., groups); sums over groups have the shape (...) of the grid.
    """

    count: Array
    new: Array
    past: Array

    @classmethod
    def of(cls, new: Sequence[int], past: Sequence[int] | None = None) -> Batch:
        """One batch, sequence by sequence: new[i] tokens on past[i] cached ones (none cached by default)."""
        new_ = np.asarray(new, dtype=np.float64)
        past_ = np.zeros_like(new_) if past is None else np.asarray(past, dtype=np.float64)
        if new_.shape != past_.shape or new_.ndim != 1:
            raise InputError(f"new and past tokens must be two lists of one length, got {new_.shape} and {past_.shape}")
        return cls(np.ones_like(new_), new_, past_).checked()

    @classmethod
    def uniform(cls, sequences: ArrayLike, new: ArrayLike, past: ArrayLike = 0) -> Batch:
        """Equal sequences; each argument may be an array, and together they broadcast to a grid of batches."""
        parts = (np.asarray(a, dtype=np.float64)[..., None] for a in (sequences, new, past))
        return cls(*parts).checked()

    @classmethod
    def decode(cls, sequences: ArrayLike, context: ArrayLike) -> Batch:
        """One token for each of `sequences` sequences that have `context` tokens cached."""
        return cls.uniform(sequences, 1, context)

    @classmethod
    def prefill(cls, sequences: ArrayLike, tokens: ArrayLike, past: ArrayLike = 0) -> Batch:
        """`tokens` prompt tokens for each of `sequences` sequences, on `past` tokens cached before."""
        return cls.uniform(sequences, tokens, past)

    def checked(self) -> Batch:
        """This batch; raises InputError for a length that is negative or not finite."""
        for name, value in (("sequences", self.count), ("new tokens", self.new), ("past tokens", self.past)):
            if not np.all(np.isfinite(value)) or np.any(value < 0):
                raise InputError(f"{name} must be finite and not negative, got {value.min() if value.size else value}")
        return self

    @property
    def sequences(self) -> Array:
        """Sequences in the pass, shape of the grid."""
        return self._sum(self.count)

    @property
    def tokens(self) -> Array:
        """Tokens computed in the pass (rows of the linear layers)."""
        return self._sum(self.count * self.new)

    @property
    def contexts(self) -> Array:
        """Cached plus new tokens, over all sequences."""
        return self._sum(self.count * (self.new + self.past))

    @property
    def decoding(self) -> Batch:
        """The sequences with exactly one new token (others get count 0)."""
        return Batch(np.where(self.new == 1, self.count, 0.0), self.new, self.past)

    @property
    def prefilling(self) -> Batch:
        """The sequences with more than one new token (others get count 0)."""
        return Batch(np.where(self.new > 1, self.count, 0.0), self.new, self.past)

    def pairs(self, *, window: int | None = None, chunk: int | None = None, top_k: int | None = None, causal: bool = True) -> Array:
        """Query-key pairs that attention computes, summed over sequences.

        Causal: n new tokens on p past ones are n·p + n(n+1)/2 pairs. window: a token sees at most that many positions, itself
        included. chunk: a token sees its own block of that many positions up to itself. top_k: a token sees at most that many
        positions of its past. causal=False: the full rectangle n·(p+n), clipped to n·window.
        """
        n, p = self.new, self.past
        limit = min((x for x in (window, top_k) if x is not None), default=None)
        if chunk is not None:
            each = _staircase(p + n, chunk) - _staircase(p, chunk)
        elif not causal:
            each = n * (p + n) if limit is None else n * np.minimum(p + n, limit)
        elif limit is None:
            each = n * p + n * (n + 1) / 2
        else:
            free = np.clip(limit - p, 0, n)
            each = free * p + free * (free + 1) / 2 + (n - free) * limit
        return self._sum(self.count * each)

    def past_read(self, *, window: int | None = None, chunk: int | None = None, top_k: int | None = None) -> Array:
        """Cached positions that the new tokens look at, each counted once per sequence, summed over sequences.

        top_k: a decode token reads at most that many; n new tokens at most n·top_k, never more than are cached.
        """
        p = self.past
        if window is not None:
            p = np.minimum(p, window - 1)
        if chunk is not None:
            p = np.mod(p, chunk)
        if top_k is not None:
            p = np.minimum(p, self.new * top_k)
        return self._sum(self.count * np.where(self.new > 0, p, 0.0))

    def _sum(self, values: Array) -> Array:
        return np.asarray(values.sum(axis=-1))


def _staircase(n: Array, chunk: int) -> Array:
    """Σ over positions q < n of (q mod chunk + 1)."""
    whole, rest = np.divmod(n, chunk)
    return np.asarray(whole * chunk * (chunk + 1) / 2 + rest * (rest + 1) / 2)
