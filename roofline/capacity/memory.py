"""The answer of a memory plan: what is charged, what is left for KV, and what that holds."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from roofline.capacity.activations import ActivationPeak
from roofline.capacity.blocks import Pool
from roofline.capacity.engines import Engine
from roofline.capacity.ranges import ByteRange
from roofline.capacity.settings import Settings
from roofline.errors import InputError
from roofline.ledger import Parallel


@dataclass(frozen=True)
class Known:
    """Measured figures in bytes per GPU that take the place of estimates; None: estimate it.

    memory: what CUDA reports as total. weights: as the engine loaded them. activations: peak of the profile run. runtime:
    everything else that is charged (non-torch memory, graphs).
    """

    memory: float | None = None
    weights: float | None = None
    activations: float | None = None
    runtime: float | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = 1.0 if name == "memory" else 0.0
            if value is not None and not (math.isfinite(value) and value >= least):
                raise InputError(f"known {name} must be finite and not negative, got {value}")


@dataclass(frozen=True)
class MemoryPlan:
    """Memory of one GPU of the pipeline stage that holds the fewest tokens (bytes), and of all GPUs where a name says total.

    total_bytes: of the device. usable_bytes: what the engine's fraction gives it (SGLang: to weights and KV). kv: what is left
    for the cache, negative ends included. pool, pool_charged_full, pool_windows_exact: the engine's own way to hand it out,
    and the two ways that bound it. required_tokens: the length of which at least one sequence must fit.
    """

    model: str
    hardware: str
    engine: Engine
    settings: Settings
    parallel: Parallel
    stage: int
    total_bytes: float
    usable_bytes: float
    weight_bytes: float
    weight_bytes_total: float
    activation: ByteRange
    activation_peak: ActivationPeak
    runtime: ByteRange
    kv: ByteRange
    kv_bytes_per_token: float
    pool: Pool
    pool_charged_full: Pool
    pool_windows_exact: Pool
    required_tokens: int
    assumptions: tuple[str, ...]

    @property
    def activation_bytes(self) -> float:
        """Expected peak of activations and logits."""
        return self.activation.expected

    @property
    def runtime_bytes(self) -> float:
        """Expected context, libraries, communication buffers and (where charged) CUDA graphs."""
        return self.runtime.expected

    @property
    def kv_bytes(self) -> float:
        """Expected bytes of the KV cache; 0 when nothing is left."""
        return max(0.0, self.kv.expected)

    @property
    def kv_bytes_total(self) -> float:
        """KV bytes of all GPUs, if each has as much as this one."""
        return self.kv_bytes * self.parallel.gpus

    @property
    def kv_tokens(self) -> int:
        """Tokens of one rank's cache with every caching layer charged for each; with recurrent states, those at max_model_len."""
        return self._tokens(self.pool)

    @property
    def kv_tokens_range(self) -> tuple[int, int]:
        """kv_tokens at the low and the high end of what is left."""
        low, high = (replace(self.pool, available_bytes=end) for end in (self.kv.low, self.kv.high))
        return self._tokens(low), self._tokens(high)

    @property
    def printed_tokens(self) -> int:
        """The count in the engine's log: newer vLLM prints concurrency · max_model_len where layers cache differently."""
        if self.engine.prints_concurrency and len(self.pool.shares) > 1:
            return self.pool.tokens_at(self.settings.max_model_len, self.settings.max_num_batched_tokens)
        return self.pool.tokens() if self.engine.name == "vllm" else self.kv_tokens

    @property
    def kv_tokens_total(self) -> int:
        """Tokens over all attention-data-parallel ranks."""
        return self.kv_tokens * self.parallel.dp

    @property
    def kv_tokens_bounds(self) -> tuple[int, int]:
        """Tokens if every layer is charged in full, and if windows are honoured exactly at max_model_len."""
        exact = self.pool_windows_exact
        return self.pool_charged_full.tokens(), exact.tokens_at(self.settings.max_model_len) if exact.shares else 0

    def max_sequences(self, tokens: int | None = None) -> int:
        """Whole sequences of `tokens` tokens (default max_model_len) that fit one replica's cache; no cap on running ones."""
        return self._sequences(self.pool, tokens)

    def max_sequences_range(self, tokens: int | None = None) -> tuple[int, int]:
        """max_sequences at the low and the high end of what is left."""
        low, high = (replace(self.pool, available_bytes=end) for end in (self.kv.low, self.kv.high))
        return self._sequences(low, tokens), self._sequences(high, tokens)

    @property
    def largest_model_len(self) -> int:
        """The longest single sequence that fits, at most max_model_len; 0 if none does."""
        low, high = 0, self.settings.max_model_len
        while self.pool.shares and low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.pool.sequences(middle) else (low, middle - 1)
        return low if self.pool.shares else (high if self.kv.expected >= 0 else 0)

    @property
    def shortfall_bytes(self) -> float:
        """Bytes missing on this GPU until one sequence of required_tokens fits; 0 when it fits."""
        need = self.pool.request_bytes(self.required_tokens) if self.pool.shares else 0.0
        null = self.pool.null_blocks * self.pool.shares[0].block_bytes if self.pool.shares else 0.0
        return max(0.0, need + null - self.kv.expected)

    @property
    def fits(self) -> bool:
        """Whether the model loads and one sequence of required_tokens fits, at expected values."""
        return self.shortfall_bytes == 0

    def as_dict(self) -> dict[str, Any]:
        """The `memory` object of the command line's JSON: per GPU unless a key ends in _total; ranges as _low and _high."""
        ranges = {"activation": self.activation, "runtime": self.runtime, "kv": self.kv}
        tokens = self.kv_tokens_range
        data: dict[str, Any] = {
            "total_bytes": self.total_bytes,
            "usable_bytes": self.usable_bytes,
            "weight_bytes": self.weight_bytes,
            "weight_bytes_total": self.weight_bytes_total,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_bytes_total": self.kv_bytes_total,
            "kv_tokens": self.kv_tokens,
            "kv_tokens_low": tokens[0],
            "kv_tokens_high": tokens[1],
            "kv_tokens_total": self.kv_tokens_total,
            "kv_tokens_windows_honoured": self.kv_tokens_bounds[1],
            "kv_tokens_printed": self.printed_tokens,
            "max_sequences": self.max_sequences(),
            "max_model_len": self.settings.max_model_len,
            "largest_model_len": self.largest_model_len,
            "request_fixed_bytes": self.pool.fixed_bytes,
            "request_bytes_per_token": self.pool.bytes_per_token,
            "shortfall_bytes": self.shortfall_bytes,
        }
        for name, item in ranges.items():
            data |= {
                f"{name}_bytes": max(0.0, item.expected),
                f"{name}_bytes_low": max(0.0, item.low),
                f"{name}_bytes_high": max(0.0, item.high),
            }
        return data

    def _tokens(self, pool: Pool) -> int:
        states = any(share.fixed is not None for share in pool.shares)
        return pool.tokens_at(self.settings.max_model_len) if states else pool.tokens()

    def _sequences(self, pool: Pool, tokens: int | None) -> int:
        length = self.settings.max_model_len if tokens is None else tokens
        return pool.sequences(length) * self.parallel.dp if pool.shares else 0
