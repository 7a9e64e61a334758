"""Captured CUDA graphs: which batch sizes an engine captures, what a pass outside of them costs its host, and the sampler."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from roofline.ledger import Ledger, Op
from roofline.ledger.ops import Array
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model
from roofline.timing.calibrated import as_run
from roofline.timing.engines import EngineStep, engine_step

_GIB = 2**30
_SGLANG_LARGEST = ((20, 8, 8), (35, 24, 80), (60, 32, 160), (160, 256, 512))  # memory below GiB, largest with tp < 4, with more
_EXPERT_KERNELS = 4  # of one mixture of experts: permute, two grouped GEMMs, combine (its activation is an op of its own)


def captured_sizes(engine: str, hardware: Hardware, tp: int = 1) -> tuple[int, ...]:
    """Token counts of the decode graphs that an engine captures by default, ascending; () where none matter.

    A batch runs as the next larger size; above the last one it runs eagerly. vLLM 0.33: 1, 2, 4, then every 8 to 256 and every 16
    to 512 (1,024 on data-centre Blackwell). SGLang 0.5: by memory and tp. TensorRT-LLM: every 8 to 128, then every 64, as far as
    the deployment's max_batch_size goes, which is taken to cover what it runs. Source: the engines' argument defaults.
    """
    if engine == "vllm":
        return (1, 2, 4, *range(8, 256, 8), *range(256, 1025 if hardware.compute_capability.startswith("10.") else 513, 16))
    if engine == "sglang":
        memory = hardware.memory_reported_bytes or hardware.memory_bytes
        largest = next((few if tp < 4 else many for gib, few, many in _SGLANG_LARGEST if memory < gib * _GIB), 512)
        sizes = (1, 2, 4, *range(8, 20, 4), *range(24, 257, 8), *range(272, 497, 16), 512)
        return tuple(size for size in sizes if size <= largest)
    if engine == "trtllm":
        return (1, 2, 4, *range(8, 129, 8), *range(192, 8193, 64))
    return ()


def padded(tokens: int, sizes: Sequence[int]) -> int:
    """The captured size that runs `tokens` rows; `tokens` itself above the largest."""
    at = bisect_left(sizes, tokens)
    return sizes[at] if at < len(sizes) else tokens


def least_eager_s(ledger: Ledger, engine: EngineStep) -> float:
    """Seconds that the host needs to launch the kernels of a pass one by one: the least that a pass outside a graph takes.

    ledger: as launched (engine_ops). Kernels on the device overlap with the launches of the next ones, so a pass takes the longer
    of the two.
    """
    return engine.launch_s * sum(op.count * (_EXPERT_KERNELS if op.kind == "moe" else 1) for op in ledger)


def engine_ops(ledger: Ledger, model: Model, engine: str) -> Ledger:
    """The kernels of a pass of an engine: as_run, and the sampler behind the head.

    Sampling reads and writes the gathered logits of each sequence: bytes per logit by engine (EngineStep.sampling_bytes).
    """
    ops = as_run(ledger).ops
    each = engine_step(engine).sampling_bytes
    return Ledger((*ops, *(sampling(op.m, model.vocab_size, each) for op in ops if each and op.name == "lm_head" and not op.layer)))


def sampling(rows: Array, vocabulary: int, bytes_per_logit: float) -> Op:
    """Choosing one token for each of `rows` sequences on the device, logits in memory."""
    return Op(
        name="sampling",
        kind="sampling",
        layer="",
        count=1,
        compute="",
        formula=f"{bytes_per_logit:g} bytes per logit",
        m=rows,
        n=float(vocabulary),
        activation_bytes_each=rows * float(vocabulary) * bytes_per_logit,
    )
