"""The KV cache: one tensor per layer and kind, in slots of one token, read through block tables. int8 and fp8 keep a scale per head.

Block 0 is the null block: padding is written there and nobody reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roofline.errors import InputError
from roofline.profiles.model import MLA, Attention, Model

_CODES = {"int8": (torch.int8, 127.0), "fp8": (torch.float8_e4m3fn, 448.0)}


@dataclass(frozen=True)
class KvFormat:
    """kind: "" (values in dtype), int8 or fp8 (codes and one fp32 scale per token and head)."""

    dtype: torch.dtype
    kind: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("", *_CODES):
            raise InputError(f"KV cache {self.kind!r}: the engine stores it as the activations, as int8 or as fp8")

    def bytes_per_head(self, width: int) -> int:
        """Bytes of one head's vector of `width` elements, its scale included."""
        return width + 4 if self.kind else width * self.dtype.itemsize


class Vectors:
    """`heads` vectors of `width` for each slot."""

    def __init__(self, blocks: int, block_size: int, heads: int, width: int, fmt: KvFormat, device: torch.device) -> None:
        code = _CODES[fmt.kind][0] if fmt.kind else fmt.dtype
        self._block = block_size
        self._dtype, self._kind = fmt.dtype, fmt.kind
        self.values = torch.zeros(blocks * block_size, heads, width, dtype=code, device=device)
        self.scales = torch.zeros(blocks * block_size, heads, 1, device=device) if fmt.kind else None

    def write(self, slots: Tensor, new: Tensor) -> None:
        """new: (tokens, heads, width)."""
        if self.scales is None:
            self.values.index_copy_(0, slots, new)
            return
        code, largest = _CODES[self._kind]
        scale = new.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / largest
        codes = new.float() / scale
        codes = torch.round(codes) if self._kind == "int8" else codes
        self.values.view(torch.int8).index_copy_(0, slots, codes.to(code).view(torch.int8))
        self.scales.index_copy_(0, slots, scale)

    def read(self, tables: Tensor) -> Tensor:
        """(rows, width of the table · block_size, heads, width) of the blocks in `tables` (rows, width of the table)."""
        values = self._blocks(self.values, tables)
        if self.scales is None:
            return values
        return (values.float() * self._blocks(self.scales, tables)).to(self._dtype)

    @property
    def pages(self) -> Tensor:
        """(blocks, block_size, heads, width) as they are stored."""
        return self.values.view(-1, self._block, *self.values.shape[1:])

    def _blocks(self, store: Tensor, tables: Tensor) -> Tensor:
        rows, width = tables.shape
        blocks = store.view(-1, self._block, *store.shape[1:])
        if store.element_size() == 1:
            blocks = blocks.view(torch.int8)
        return blocks.index_select(0, tables.reshape(-1)).view(store.dtype).view(rows, width * self._block, *store.shape[1:])


@dataclass(frozen=True)
class LayerKv:
    """K and V of one layer; a latent cache has one vector per token, which is K and, in its first part, V."""

    keys: Vectors
    values: Vectors | None


def head_shapes(mixer: Attention | MLA, ranks: int) -> list[tuple[int, int]]:
    """(heads, width) of each kind of cached vector of one layer on one rank."""
    if isinstance(mixer, MLA):
        return [(1, mixer.latent_dim)]
    heads = max(mixer.kv_heads // ranks, 1)
    return [(heads, mixer.head_dim), (heads, mixer.value_dim)]


def _mixers(model: Model) -> list[Attention | MLA]:
    mixers = [model.layers[kind].mixer for kind in model.stack]
    return [mixer for mixer in mixers if isinstance(mixer, Attention | MLA)]


def bytes_per_token(model: Model, fmt: KvFormat, ranks: int = 1) -> int:
    """Bytes that one token takes in the cache of one rank, all layers, scales included. Windows save nothing here."""
    return sum(heads * fmt.bytes_per_head(width) for mixer in _mixers(model) for heads, width in head_shapes(mixer, ranks))


def build_cache(model: Model, blocks: int, block_size: int, fmt: KvFormat, ranks: int, device: torch.device) -> list[LayerKv]:
    """The caches of all layers of one rank."""
    cache = []
    for mixer in _mixers(model):
        kinds = [Vectors(blocks, block_size, heads, width, fmt, device) for heads, width in head_shapes(mixer, ranks)]
        cache.append(LayerKv(kinds[0], kinds[1] if len(kinds) > 1 else None))
    return cache
