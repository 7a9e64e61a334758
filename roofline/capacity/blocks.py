"""KV memory in blocks: pools, what a sequence takes from them, and contiguous reservation for contrast."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from roofline.errors import InputError
from roofline.ledger import Parallel, Precision, mixers
from roofline.profiles.model import Model

_FAR = 2.0**40


@dataclass(frozen=True)
class LayerKind:
    """Layers of one rank that cache alike.

    kv_bytes: per token and layer. window: positions that must stay cached (None: all). state_bytes: recurrent state per
    sequence and layer.
    """

    layers: int
    kv_bytes: float
    window: int | None = None
    state_bytes: float = 0.0


def layer_kinds(model: Model, *, parallel: Parallel, precision: Precision, stage: int = 0, spec_tokens: int = 0) -> tuple[LayerKind, ...]:
    """The caching layers of one rank of a stage, alike ones together; layers that cache nothing are left out.

    spec_tokens: speculative tokens of a step, which widen the convolution part of recurrent states.
    """
    kv = precision.kv_cache_dtype(model)
    found: Counter[tuple[float, int | None, float]] = Counter()
    for name, count in Counter(parallel.stages(model)[stage]).items():
        mixer = model.layers[name].mixer
        if mixer is None:
            continue
        size = mixers.kv_bytes_per_token(mixer, kv, parallel.tp, parallel.dcp)
        state = mixers.state_bytes(mixer, parallel.tp, spec_tokens)
        seen = float(mixers.kv_tokens_stored(mixer, np.asarray(_FAR)))
        if size or state:
            found[size, int(seen) if seen < _FAR else None, state] += count
    return tuple(LayerKind(count, *key) for key, count in found.items())


@dataclass(frozen=True)
class Share:
    """Blocks of one size that a sequence takes for some of its layers.

    block_bytes: of all layers that one block serves. block_tokens: tokens it holds. copies: groups of layers that each take
    blocks of their own. window: only that many positions stay. fixed: blocks per copy whatever the length (state), or None.
    """

    block_bytes: float
    block_tokens: int
    copies: int = 1
    window: int | None = None
    fixed: int | None = None

    def blocks(self, tokens: int, new_tokens: int = 1) -> int:
        """Blocks of a sequence of `tokens` tokens; a step that adds new_tokens holds them beside its window."""
        if self.fixed is not None:
            return self.copies * self.fixed
        whole = math.ceil(tokens / self.block_tokens)
        if self.window is not None:
            whole = min(whole, math.ceil((self.window - 1 + new_tokens) / self.block_tokens) + 1)
        return self.copies * whole


@dataclass(frozen=True)
class Pool:
    """KV memory of one rank and how sequences share it.

    available_bytes: may be negative when weights alone are too much. shares: what one sequence takes. null_blocks: blocks
    that never hold tokens.
    """

    available_bytes: float
    shares: tuple[Share, ...]
    null_blocks: int = 0

    @property
    def blocks(self) -> int:
        """Blocks of the first share's size that fit the memory, null blocks included."""
        return max(0, math.floor(self.available_bytes / self.shares[0].block_bytes)) if self.shares else 0

    def request_bytes(self, tokens: int, new_tokens: int = 1) -> float:
        """Bytes that one sequence of `tokens` tokens takes, partly filled blocks included. Raises InputError below 1 token."""
        if tokens < 1:
            raise InputError(f"a sequence needs at least 1 token, got {tokens}")
        return sum(share.blocks(tokens, new_tokens) * share.block_bytes for share in self.shares)

    def concurrency(self, tokens: int, new_tokens: int = 1) -> float:
        """Sequences of `tokens` tokens that the whole blocks hold, as a fraction: the figure that engines print."""
        usable = self.available_bytes
        if len({share.block_bytes for share in self.shares}) == 1:
            usable = self.blocks * self.shares[0].block_bytes
        return max(0.0, usable) / self.request_bytes(tokens, new_tokens) if self.shares else math.inf

    def sequences(self, tokens: int) -> int:
        """Whole sequences of `tokens` tokens that fit at once."""
        if not self.shares:
            raise InputError("this model caches nothing: memory does not limit its sequences")
        usable = self.available_bytes - self.null_blocks * self.shares[0].block_bytes
        return max(0, math.floor(usable / self.request_bytes(tokens)))

    def tokens(self) -> int:
        """Tokens of the pool with every layer charged in full: whole blocks, divided among the groups that need their own."""
        growing = [share for share in self.shares if share.fixed is None]
        if not growing:
            return 0
        if len({share.block_bytes for share in self.shares}) == 1:
            return self.blocks // sum(share.copies for share in self.shares) * growing[0].block_tokens
        per_token = sum(share.copies * share.block_bytes / share.block_tokens for share in growing)
        return max(0, math.floor(self.available_bytes / per_token))

    def tokens_at(self, length: int, new_tokens: int = 1) -> int:
        """Concurrency at `length` times length, rounded down: tokens in use when sequences of that length fill the pool."""
        return math.floor(self.concurrency(length, new_tokens) * length + 1e-6)

    @property
    def bytes_per_token(self) -> float:
        """Bytes per additional token of a long sequence: only layers that keep everything grow."""
        return sum(s.copies * s.block_bytes / s.block_tokens for s in self.shares if s.fixed is None and s.window is None)

    @property
    def fixed_bytes(self) -> float:
        """Bytes that a long sequence takes whatever its length: state and full windows."""
        return sum(s.blocks(2**40) * s.block_bytes for s in self.shares if s.fixed is not None or s.window is not None)


def full_shares(kinds: tuple[LayerKind, ...], block_tokens: int) -> tuple[Share, ...]:
    """Every caching layer charged for every token, in blocks that serve all layers; states apart."""
    size = sum(kind.layers * kind.kv_bytes for kind in kinds) * block_tokens
    return ((Share(size, block_tokens),) if size else ()) + _state_shares(kinds)


def exact_shares(kinds: tuple[LayerKind, ...], block_tokens: int) -> tuple[Share, ...]:
    """Each kind of layer in blocks of its own; a window keeps only its positions."""
    growing = (Share(k.layers * k.kv_bytes * block_tokens, block_tokens, window=k.window) for k in kinds if k.kv_bytes)
    return (*growing, *_state_shares(kinds))


def _state_shares(kinds: tuple[LayerKind, ...]) -> tuple[Share, ...]:
    return tuple(Share(kind.layers * kind.state_bytes, 1, fixed=1) for kind in kinds if kind.state_bytes)


def token_budget(kv_bytes: float, kv_bytes_per_token: float) -> int:
    """Whole tokens that fit: floor(kv_bytes / kv_bytes_per_token). Raises InputError for a size that is not positive."""
    if not kv_bytes_per_token > 0:
        raise InputError(f"KV bytes per token must be positive, got {kv_bytes_per_token}")
    if not (math.isfinite(kv_bytes) and kv_bytes >= 0):
        raise InputError(f"KV memory must be finite and not negative, got {kv_bytes}")
    return math.floor(kv_bytes / kv_bytes_per_token)


@dataclass(frozen=True)
class Reservation:
    """Token slots set aside for one sequence and the part of them in use."""

    reserved: int
    used: int

    @property
    def wasted(self) -> int:
        """Slots that hold nothing."""
        return self.reserved - self.used

    @property
    def utilization(self) -> float:
        """Share of the slots that holds a token."""
        return self.used / self.reserved


def contiguous(max_tokens: int, used: int) -> Reservation:
    """A slot for every token that the sequence may ever have, set aside at its start. Raises InputError unless 0 < used ≤ max."""
    if not 0 < used <= max_tokens:
        raise InputError(f"a sequence uses between 1 and its {max_tokens} reserved tokens, got {used}")
    return Reservation(max_tokens, used)


def paged(used: int, block_tokens: int = 16) -> Reservation:
    """Blocks as they fill: only the last may be partly empty. Raises InputError below 1."""
    if used < 1 or block_tokens < 1:
        raise InputError(f"tokens and block size must be at least 1, got {used} and {block_tokens}")
    return Reservation(math.ceil(used / block_tokens) * block_tokens, used)
