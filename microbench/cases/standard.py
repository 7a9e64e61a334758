"""Which shapes `bench` measures: few and small on a CPU, those of models on a GPU."""

from __future__ import annotations

from collections.abc import Callable

from microbench.cases.attention import decode, naive, prefill
from microbench.cases.gemm import gemm
from microbench.cases.moving import elementwise, launch, stream, transfer
from microbench.device import Device
from microbench.measure import Case
from microbench.ops import Heads
from roofline.errors import InputError

MEMORY_STREAM = 2**28  # bytes of the arrays of one stream out of memory
_CPU_SITES = ((1024, 1024), (2048, 2048), (4096, 1024), (1024, 4096), (768, 3072))  # (n, k)
_GPU_SITES = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336))  # the linear layers of an 8B model
_CPU_HEADS = Heads(8, 8, 64)
_CPU_PROMPTS = (
    (1, 256, _CPU_HEADS), (1, 512, _CPU_HEADS), (1, 1024, _CPU_HEADS), (1, 512, Heads(8, 2, 64)), (2, 512, Heads(16, 4, 64)),
    (1, 768, Heads(8, 2, 128)), (1, 1536, Heads(4, 4, 64)), (4, 256, Heads(12, 12, 64)), (1, 384, Heads(16, 4, 128)),
)  # fmt: skip
_CPU_CACHES = (
    (1, 2047, _CPU_HEADS), (2, 4095, _CPU_HEADS), (4, 1023, Heads(8, 2, 64)), (8, 2047, Heads(8, 2, 64)), (4, 2047, Heads(16, 4, 64)),
    (8, 1023, Heads(8, 2, 128)), (4, 1023, _CPU_HEADS), (2, 2047, Heads(12, 12, 64)), (16, 511, Heads(16, 4, 64)),
    (1, 4095, Heads(16, 4, 128)),
)  # fmt: skip
_WEIGHT_ONLY = ("w8a16", "int4")


def _stream(d: Device) -> list[Case]:
    kernels = ("copy", "read", "triad")
    cached = [stream(kernel, level, int(size / 2), cold=False) for level, size in d.levels.items() for kernel in kernels]
    return [*cached, *(stream(kernel, "memory", MEMORY_STREAM, cold=True) for kernel in kernels)]


def _gemm(d: Device) -> list[Case]:
    """Ceilings: cubes with hot operands, in every type that multiplies."""
    sides = (256, 512, 1024) if d.kind == "cpu" else (1024, 2048, 4096, 8192)
    types = [t for t in d.dtypes if t not in _WEIGHT_ONLY]
    found = [gemm(m, m, m, t, cold=False) for m in sides for t in types if d.kind == "cuda" or m < 1024 or t in ("fp32", "bf16")]
    return found if d.kind == "cpu" else found + [gemm(4096, n, k, "bf16", cold=True) for n, k in _GPU_SITES]


def _gemv(d: Device) -> list[Case]:
    """The curve over rows: where a matrix-vector product leaves the memory slope."""
    if d.kind == "cpu":
        first, *others = _CPU_SITES
        found = [gemm(2**i, *first, "fp32", cold=True) for i in range(11)]
        found += [gemm(m, n, k, "fp32", cold=True) for n, k in others for m in (1, 4, 16, 64, 256)]
        return found + [gemm(m, 2048, 2048, t, cold=True) for t, m in (("bf16", 1), ("bf16", 16), ("w8a16", 1), ("int4", 1))]
    main = "bf16" if "bf16" in d.dtypes else "fp16"
    found = [gemm(2**i, n, k, main, cold=True) for n, k in _GPU_SITES for i in range(13)]
    types = [t for t in ("fp8", *_WEIGHT_ONLY) if t in d.dtypes]
    return found + [gemm(m, n, k, t, cold=True) for n, k in _GPU_SITES[2:] for t in types for m in (1, 16, 256)]


def _attention(d: Device) -> list[Case]:
    if d.kind == "cpu":
        found = [prefill(batch, tokens, of, "fp32") for batch, tokens, of in _CPU_PROMPTS]
        found += [decode(batch, context, of, "fp32") for batch, context, of in _CPU_CACHES]
        found += [prefill(1, 512, _CPU_HEADS, "fp32", kernel="math"), prefill(1, 512, _CPU_HEADS, "fp32", causal=False)]
        return [*found, decode(4, 1023, _CPU_HEADS, "fp32", paged=True), naive(1, 512, _CPU_HEADS, "fp32")]
    t = "bf16" if "bf16" in d.dtypes else "fp16"
    grouped, whole = Heads(32, 8, 128), Heads(32, 32, 128)
    found = [
        prefill(1, n, of, t, kernel=kernel) for n in (512, 2048, 8192, 32768) for of in (grouped, whole) for kernel in ("flash", "cudnn")
    ]
    found += [prefill(1, 8192, grouped, t, causal=False), prefill(1, 2048, grouped, t, kernel="math")]
    found += [decode(b, c, of, t) for b, c in ((1, 2047), (1, 32767), (16, 2047), (64, 2047), (16, 8191)) for of in (grouped, whole)]
    return [*found, decode(16, 2047, grouped, t, paged=True), *(naive(1, n, whole, t) for n in (2048, 8192))]


def _launch(d: Device) -> list[Case]:
    return [launch(graph=False), *([launch(graph=True)] if d.kind == "cuda" else [])]


def _elementwise(d: Device) -> list[Case]:
    tokens, width, t = (512, 2048, "fp32") if d.kind == "cpu" else (4096, 4096, "bf16" if "bf16" in d.dtypes else "fp16")
    return [elementwise(kernel, tokens, width, t) for kernel in ("residual_add", "norm", "mlp_act")]


def _transfer(d: Device) -> list[Case]:
    if d.kind == "cpu":
        return []
    return [transfer(way, 2**power, pinned=pinned) for way in ("h2d", "d2h") for power in (20, 28) for pinned in (True, False)]


GROUPS: dict[str, Callable[[Device], list[Case]]] = {
    "stream": _stream,
    "gemm": _gemm,
    "gemv": _gemv,
    "attention": _attention,
    "launch": _launch,
    "elementwise": _elementwise,
    "transfer": _transfer,
}


def cases(group: str, device: Device) -> list[Case]:
    """The cases of a group ("all": of every group). Raises InputError with the known names. Collectives: microbench.collectives."""
    if group == "all":
        return [case for build in GROUPS.values() for case in build(device)]
    if group not in GROUPS:
        raise InputError(f"unknown group {group!r}; known: {', '.join([*GROUPS, 'collective', 'all'])}")
    return GROUPS[group](device)


def sentinel(device: Device) -> Case:
    """The shape that is measured at the start, in the middle and at the end of each round of a sweep."""
    side, t = (512, "fp32") if device.kind == "cpu" else (4096, "fp16")
    return gemm(side, side, side, t, cold=False)
