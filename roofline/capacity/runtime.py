"""Memory that is neither weights nor activations nor KV: driver, CUDA context, communication, graphs, the operating system."""

from __future__ import annotations

from roofline.capacity.engines import Engine
from roofline.capacity.ranges import NOTHING, ByteRange, GiB
from roofline.capacity.settings import Settings, sglang_graph_batch
from roofline.ledger import Parallel
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model

_GRAPH_BYTES = ByteRange(0.25e6, 0.1e6, 0.5e6)  # per captured size and layer


def driver_reserve(hardware: Hardware) -> float:
    """Bytes between what the driver lists and what CUDA hands out on an NVIDIA card: about 0.45 GiB, less on small ones.

    Source: nvidia-smi against torch on H100 (479 MiB), RTX 4090 (483), L4 (475), RTX 3090 (430), T4 (266).
    """
    if hardware.vendor.upper() != "NVIDIA" or hardware.unified_memory:
        return 0.0
    return (0.45 if hardware.memory_bytes > 20e9 else 0.26) * GiB


def system_reserve(hardware: Hardware) -> ByteRange:
    """Bytes that a device which shares its memory with the CPU leaves to the system and its page cache; else 0.

    An assumption: 6 % and at least 2 GiB; between 2 GiB and 12 %. Apple: the working set that Metal recommends leaves a third
    (a quarter above 36 GiB), a limit that its owner can raise. Source: llama.cpp's Metal start-up lines.
    """
    if not hardware.unified_memory:
        return NOTHING
    memory = hardware.memory_bytes
    low = min(2 * GiB, 0.5 * memory)
    if hardware.vendor.upper() == "APPLE":
        kept = memory / 3 if memory <= 36 * GiB else memory / 4
        return ByteRange(kept, min(low, kept), kept)
    return ByteRange(max(low, 0.06 * memory), low, max(low, 0.12 * memory))


def non_torch(parallel: Parallel) -> ByteRange:
    """Context, libraries and workspaces that an engine measures as non-torch memory, and NCCL when ranks talk.

    Source: 15 start-up logs: 0.02 to 0.35 GiB on one GPU (0.13 in vLLM 0.11), 0.20 to 0.55 on several; the budgets of two logs
    on four GPUs leave room for about 2.
    """
    alone = ByteRange(0.15, 0.02, 0.6)
    ranks = ByteRange(0.4, 0.15, 1.6) if parallel.gpus > 1 else NOTHING
    return (alone + ranks).times(GiB)


def graph_sizes(engine: Engine, settings: Settings, visible_bytes: float, parallel: Parallel, spec_tokens: int = 0) -> int:
    """How many batch sizes an engine captures. vLLM: 1, 2, 4, then steps of 8 to 248, then of 16 to the largest (≤ 512)."""
    if engine.name == "sglang":
        largest = sglang_graph_batch(visible_bytes, parallel.tp)
        sizes = [1, 2, 4, 8, *range(12, 257, 8), *range(272, 497, 16), *range(512, largest + 1, 32)]
    else:
        largest = min(settings.max_num_seqs * (1 + spec_tokens) * 2, 512, settings.max_num_batched_tokens)
        sizes = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
    return sum(size <= largest for size in sizes)


def cuda_graphs(
    engine: Engine, model: Model, settings: Settings, visible_bytes: float, parallel: Parallel, spec_tokens: int = 0
) -> ByteRange:
    """Bytes of captured graphs on one rank: 0.25 MB (0.1 to 0.5) per size and layer.

    Source: estimates of 0.49 GiB (64 layers, tp 2) and 1.11 GiB (64 layers) in logs of vLLM 0.21 and 0.22 at up to 51 sizes.
    Not covered: estimates far above what graphs take (33 GiB against 8.6 in one log of a large MoE).
    """
    if engine.name in ("llamacpp", "plain"):
        return NOTHING
    layers = max(len(stage) for stage in parallel.stages(model))
    return _GRAPH_BYTES.times(layers * graph_sizes(engine, settings, visible_bytes, parallel, spec_tokens))
