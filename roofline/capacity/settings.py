"""Limits that an engine sets for itself when its user does not: lengths, token budget, sequences, memory fraction."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.capacity.engines import Engine
from roofline.capacity.ranges import GiB
from roofline.errors import InputError
from roofline.ledger import Parallel
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model

_MB = 2.0**20


@dataclass(frozen=True)
class Settings:
    """Limits in force: tokens of one sequence, tokens of one step (of one rank), sequences at once, memory fraction."""

    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    utilization: float


def resolve_settings(
    engine: Engine,
    model: Model,
    hardware: Hardware,
    visible_bytes: float,
    parallel: Parallel,
    *,
    utilization: float | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
) -> Settings:
    """What is asked, and the engine's defaults for the rest. Raises InputError for a limit below 1 or a fraction outside (0, 1].

    Source of the defaults: vLLM 0.33 and SGLang 0.5.23 (serve class); TensorRT-LLM's LLM API; llama.cpp's ubatch and four slots.
    """
    for name, value in (
        ("max_model_len", max_model_len),
        ("max_num_seqs", max_num_seqs),
        ("max_num_batched_tokens", max_num_batched_tokens),
    ):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    if utilization is not None and not 0 < utilization <= 1:
        raise InputError(f"the memory fraction must be above 0 and at most 1, got {utilization}")
    length = max_model_len or model.max_position_embeddings or 4096
    tokens, sequences = _default_limits(engine, hardware, visible_bytes, parallel, length)
    sequences = max_num_seqs or sequences
    tokens = min(tokens, sequences * length) if max_num_batched_tokens is None else max_num_batched_tokens
    sequences = sequences if max_num_seqs else min(sequences, tokens)
    if utilization is None:
        utilization = engine.utilization or sglang_fraction(visible_bytes, tokens, parallel)
    return Settings(length, tokens, sequences, utilization)


def _default_limits(engine: Engine, hardware: Hardware, visible: float, parallel: Parallel, length: int) -> tuple[int, int]:
    """(tokens per step, sequences) by engine and memory."""
    if engine.name == "vllm":
        return _vllm_limits(engine, hardware, visible, length)
    if engine.name == "sglang":
        return sglang_chunk(visible), 2048
    if engine.name == "trtllm":
        return 8192, 2048
    if engine.name == "llamacpp":
        return 512, 4
    return 2048, 256


def _vllm_limits(engine: Engine, hardware: Hardware, visible: float, length: int) -> tuple[int, int]:
    if engine.v0:
        # The whole prompt runs in one step, unless a long context switches chunking on: 29k may fail where 35k starts.
        return (2048 if length > 32768 else max(length, 2048)), 256
    small = hardware.unified_memory or hardware.id.startswith("a100") or visible < 70 * GiB
    if small:
        return 2048, 256
    return (16384 if visible >= 160 * GiB else 8192), 1024


def sampled_rows(engine: Engine, settings: Settings, visible_bytes: float, parallel: Parallel, spec_tokens: int = 0) -> int:
    """Rows whose logits are alive at once: one (and the drafts) per running sequence; llama.cpp makes room for every row."""
    rows = settings.max_num_seqs * (1 + spec_tokens)
    if engine.name == "llamacpp":
        rows = settings.max_num_batched_tokens
    if engine.name == "sglang":
        rows = min(rows, sglang_graph_batch(visible_bytes, parallel.tp))
    return min(rows, settings.max_num_batched_tokens)


def sglang_chunk(memory_bytes: float) -> int:
    """SGLang's default chunked_prefill_size in tokens by device memory."""
    steps = ((20, 2048), (60, 4096), (160, 8192))
    return next((chunk for gib, chunk in steps if memory_bytes < gib * GiB), 16384)


def sglang_graph_batch(memory_bytes: float, tp: int) -> int:
    """The largest decode batch that SGLang captures as a CUDA graph, by device memory and tp."""
    steps = ((20, 8, 8), (35, 24, 80), (60, 32, 160), (160, 256, 512))
    for gib, few, many in steps:
        if memory_bytes < gib * GiB:
            return few if tp < 4 else many
    return 512


def sglang_fraction(memory_bytes: float, chunk: int, parallel: Parallel) -> float:
    """SGLang's default mem_fraction_static: what a reserve for chunk, graphs and ranks leaves, rounded to 0.001.

    Reserve in MiB: 512 + 1.5 · chunk + 2 · graph batch + 1024 · tp · pp / 8, and at least 10 GiB above 60 GiB of memory.
    Source: SGLang server_args (pull request 10975).
    """
    reserved = (512 + 1.5 * max(chunk, 2048) + 2 * sglang_graph_batch(memory_bytes, parallel.tp) + 128 * parallel.tp * parallel.pp) * _MB
    if memory_bytes > 60 * GiB:
        reserved = max(reserved, 10 * GiB)
    fraction = round((memory_bytes - reserved) / memory_bytes, 3)
    if fraction <= 0:
        raise InputError(f"SGLang's own reserve ({reserved / GiB:.1f} GiB) is more than the device has; give the memory fraction")
    return fraction
