"""What each engine does with device memory: its fraction, its blocks, its windows, by version."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from roofline.capacity.ranges import ByteRange
from roofline.errors import InputError

Fraction = Literal["total", "static", "free"]
Windows = Literal["full", "grouped", "exact"]


@dataclass(frozen=True)
class Engine:
    """Memory rules of one engine version.

    utilization: default fraction (None: a rule of the engine sets it). fraction: of what it is: `total` memory, weights and
    KV pool together (`static`), or what is `free` after loading; meaning says it in words. block_tokens: tokens of a KV
    block. graphs_charged: CUDA graphs come out of the fraction. windows: sliding layers are charged in full, share pages
    with the full layers by groups, or keep exactly their window. logit_bytes: peak bytes per sampled logit. estimates:
    activations and runtime are charged at all. prints_concurrency: the printed token count is concurrency × max_model_len.
    null_blocks: blocks that hold no tokens.
    """

    name: str
    version: tuple[int, int]
    v0: bool
    utilization: float | None
    fraction: Fraction
    meaning: str
    block_tokens: int
    windows: Windows
    logit_bytes: ByteRange
    graphs_charged: bool = False
    estimates: bool = True
    prints_concurrency: bool = False
    null_blocks: int = 0


NEWEST_VLLM = (0, 33)
_SORTING_SAMPLER = ByteRange(38.3, 14.0, 46.0)
_PLAIN_SAMPLER = ByteRange(14.0, 6.0, 38.3)
_OF_TOTAL = "of the memory that CUDA reports, for weights, activations, runtime and KV together"

ENGINES: tuple[str, ...] = ("vllm", "sglang", "trtllm", "llamacpp", "reference", "plain")


def engine_rules(name: str, version: str | None = None) -> Engine:
    """The memory rules of an engine ("vllm", "sglang", "trtllm", "llamacpp", "reference", "plain").

    version: like "0.11" or "0.6.4"; "V0" in it means vLLM's first engine; None: the newest known. `plain` charges weights
    only. Raises InputError for an unknown engine or a version without two numbers.
    """
    number, v0 = _version(name, version)
    if name == "vllm":
        return _vllm(number, v0)
    if name == "sglang":
        meaning = "of the memory that is free after CUDA starts, for weights and KV; activations and graphs live in the rest"
        return Engine(name, number, False, None, "static", meaning, 1, "full", _PLAIN_SAMPLER)
    if name == "trtllm":
        meaning = "of what is free after weights and activations, for KV"
        return Engine(name, number, False, 0.9, "free", meaning, 32, "exact", ByteRange(6.0, 4.0, 14.0), graphs_charged=True)
    if name == "llamacpp":
        meaning = "of all memory: weights, compute buffer and a KV cache that is allocated whole at start"
        return Engine(name, number, False, 1.0, "total", meaning, 1, "exact", ByteRange(4.0, 4.0, 8.0))
    if name == "reference":
        return Engine(
            name, number, False, 0.9, "total", _OF_TOTAL, 16, "full", ByteRange(10.0, 6.0, 14.0), graphs_charged=True, null_blocks=1
        )
    if name == "plain":
        meaning = "of total memory, for weights and KV; nothing else is charged"
        return Engine(name, number, False, 0.9, "total", meaning, 1, "full", _PLAIN_SAMPLER, estimates=False)
    raise InputError(f"unknown engine {name!r}; known: {', '.join(ENGINES)}")


def _vllm(number: tuple[int, int], v0: bool) -> Engine:
    """vLLM by version.

    Fraction 0.9 through 0.19, 0.92 in 0.33 (the change is put at 0.20). The sampler of the profile run sorted all logits: 38
    bytes each, the same to 1 % in three start-up logs of 0.11 and met by 0.6 to 0.19; later versions mask without sorting:
    logits in bf16 and fp32, probabilities, noise. Graph memory is charged since 0.21, and the printed token count is the
    concurrency at full length since then. Layers with a window shared the price of full ones before 0.9.
    """
    sorting = number < (0, 20)
    return Engine(
        name="vllm",
        version=number,
        v0=v0,
        utilization=0.9 if sorting else 0.92,
        fraction="total",
        meaning=_OF_TOTAL,
        block_tokens=16,
        windows="full" if v0 or number < (0, 9) else "grouped",
        logit_bytes=_SORTING_SAMPLER if sorting else _PLAIN_SAMPLER,
        graphs_charged=number >= (0, 21),
        prints_concurrency=number >= (0, 21),
        null_blocks=1,
    )


def _version(engine: str, text: str | None) -> tuple[tuple[int, int], bool]:
    if text is None:
        return (NEWEST_VLLM if engine == "vllm" else (999, 0)), False
    match = re.search(r"(\d+)\.(\d+)", text)
    if not match:
        raise InputError(f"engine version {text!r} has no number like 0.11")
    number = (int(match[1]), int(match[2]))
    return number, engine == "vllm" and (number < (0, 8) or bool(re.search(r"\bv0\b", text, re.IGNORECASE)))
