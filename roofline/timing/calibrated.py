"""Expected times of a pass from calibrated kernel forms: each op becomes a row of its kernel family."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from roofline.dtypes import dtype
from roofline.errors import InputError
from roofline.ledger import Ledger, Op
from roofline.ledger.ops import Array
from roofline.profiles.hardware import Hardware
from roofline.timing import generic
from roofline.timing.bound import op_bound_s
from roofline.timing.forms import Key
from roofline.timing.forms.gemm import WEIGHT_ONLY
from roofline.timing.forms.moe import UNIFORM
from roofline.timing.kernels import kernel_times
from roofline.timing.spec import device_spec

Float = NDArray[np.float64]

# Stored weight format → the dtype of the measured GEMM and grouped-GEMM kernels that run it.
_GEMM = {
    "bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp8_block": "fp8_block", "fp8_block_e8m0": "fp8_block", "mxfp8": "fp8_block",
    "int8": "w8a8", "nvfp4": "nvfp4",
    "w8a16": "w8a16", "w8a16_fp8": "w8a16", "mxfp4": "w4a16", "w4a8_mxfp4": "w4a16", "w4afp8": "w4a16",
    "int4": "w4a16", "int4_g32": "w4a16", "int4_g64": "w4a16", "nf4": "w4a16", "int3": "w4a16", "int2": "w4a16",
}  # fmt: skip
# vLLM runs INT4 experts with Marlin (compressed_tensors_moe.py). The rows measured as w4a16 reach a tenth of the bandwidth (96 tokens on
# 256 experts of 7168 × 256: 1.0 ms on a B200, 94 µs of bytes) and served INT4 models do not; rows of MXFP4 with 16-bit activations do.
_INTEGER_EXPERTS = {"int4": "w4a16_mxfp4", "int4_g32": "w4a16_mxfp4", "int4_g64": "w4a16_mxfp4"}
_MOE = _GEMM | _INTEGER_EXPERTS | {"mxfp4": "w4a16_mxfp4", "w4a8_mxfp4": "w4a8_mxfp4", "w4afp8": "w4afp8"}
_WITHOUT_UNIT = {"fp8": "w8a16", "fp8_block": "w8a16", "w8a8": "w8a16", "nvfp4": "w4a16"}
_UNIT = {"fp8": "fp8", "fp8_block": "fp8", "w8a8": "int8", "nvfp4": "fp4"}
_CORRELATION = 0.5  # share of a kernel's error that it has in common with the other kernels of the pass


@dataclass(frozen=True)
class KernelTimes:
    """Kernels of a pass, run one after the other: seconds over the grid, and which constants priced them."""

    expected_s: Array
    low_s: Array
    high_s: Array
    used: tuple[str, ...]


def pass_times(ledger: Ledger, hardware: Hardware, software: str) -> KernelTimes:
    """Sum of the expected kernel times of a pass as an engine launches it, cold operands, with an 80 % interval.

    software: the engine whose kernels run ("vllm", "sglang", "trtllm"; anything else takes the nearest measured). Kernels that
    no form knows (element-wise work, fp32) are priced with generic constants. The interval adds half of each width linearly and
    half in quadrature: errors of kernels on one device have causes in common and do not average out.
    """
    times = [op_times(op, hardware, software) for op in ledger]
    expected = _total([op.count * t.expected_s for op, t in zip(ledger, times, strict=True)])
    below = [op.count * (t.expected_s - t.low_s) for op, t in zip(ledger, times, strict=True)]
    above = [op.count * (t.high_s - t.expected_s) for op, t in zip(ledger, times, strict=True)]
    used = tuple(dict.fromkeys(name for t in times for name in t.used))
    return KernelTimes(expected, expected - _joint(below), expected + _joint(above), used)


def _total(parts: list[Array]) -> Float:
    return np.asarray(sum(parts, start=0.0), dtype=np.float64)


def _joint(widths: list[Array]) -> Float:
    quadrature = np.sqrt(_total([np.square(w) for w in widths]))
    return np.asarray(_CORRELATION * _total(widths) + (1 - _CORRELATION) * quadrature)


def op_times(op: Op, hardware: Hardware, software: str, routing: float = UNIFORM) -> KernelTimes:
    """Expected time of one run of `op` with its interval; never below its hard bound. routing: `alpha` of the MoE form."""
    row = _row(op, hardware, software, routing)
    if row is None:
        guess = generic.expected_op_s(op, hardware)
        below, above = generic.SPREAD
        return KernelTimes(guess, guess * below, guess * above, (f"generic {op.kind}",))
    family, shape, key = row
    names = list(shape)
    columns = np.broadcast_arrays(*(np.asarray(shape[name], dtype=np.float64) for name in names))
    grid = columns[0].shape
    busy = columns[names.index(_COUNT[family])].ravel() > 0
    parts = {name: np.zeros(busy.size) for name in ("expected_s", "low_s", "high_s")}
    used: list[str] = []
    if busy.any():
        flat = {name: column.ravel()[busy] for name, column in zip(names, columns, strict=True)}
        spec = device_spec(hardware)
        estimate, used = kernel_times(family, flat, key, spec, hot=False, own=hardware.calibration, corrected=False)
        for name, values in parts.items():
            values[busy] = getattr(estimate, name)
    expected, low, high = (parts[name].reshape(grid) for name in ("expected_s", "low_s", "high_s"))
    if family.endswith(("attention", "mla_prefill", "mla_decode")):  # groups of equal sequences run one after the other
        expected, low, high = expected.sum(axis=-1), low.sum(axis=-1), high.sum(axis=-1)
    expected = np.maximum(expected, op_bound_s(op, hardware))
    return KernelTimes(expected, np.minimum(low, expected), np.maximum(high, expected), tuple(dict.fromkeys(used)))


_COUNT = {  # the column that is 0 where an op does not run at all
    "gemm": "m", "moe": "tokens", "collective": "bytes", "prefill_attention": "batch", "decode_attention": "batch",
    "mla_prefill": "batch", "mla_decode": "batch",
}  # fmt: skip
_NCCL = {"all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "all_to_all": "alltoall", "send_recv": "all_gather"}
_Row = tuple[str, dict[str, Array], Key]


def _row(op: Op, hardware: Hardware, software: str, routing: float) -> _Row | None:
    """Family, columns and key of an op; None for what only the generic forms know."""
    if op.kind == "gemm" and (name := _dtype(_GEMM, op, hardware)):
        return "gemm", {"m": op.m, "n": op.n, "k": op.k}, Key(software, name, WEIGHT_ONLY if name == "w8a16" else "")
    if op.kind == "moe" and (name := _dtype(_MOE, op, hardware)):
        columns = {column: op.shape[column] for column in ("hidden", "intermediate", "matrices", "top_k", "experts", "ep")}
        columns |= {"tokens": np.round(op.shape["tokens"]), "tp": op.shape["moe_tp"], "alpha": routing}
        return "moe", columns, Key(software, name)
    if op.kind == "collective":
        key = Key(software, "bf16", "custom_all_reduce") if op.name.endswith("all_reduce") else Key("nccl", "fp16", _NCCL[op.name])
        return "collective", {"ranks": op.shape["ranks"], "bytes": op.shape["bytes"]}, key
    if op.kind.endswith("_attention") and op.compute in ("bf16", "fp16") and "kv_dtype" in op.shape:
        return _attention(op, software)  # indexers and compressed caches are no measured kernels
    return None


def _attention(op: Op, software: str) -> _Row:
    if op.batch is None:
        raise InputError(f"{op.name}: an attention op without its batch cannot be priced")
    batch, shape = op.batch, op.shape
    kv = "fp8" if shape["kv_dtype"] in ("fp8", "int8") else "bf16"
    columns: dict[str, Array] = {"batch": batch.count, "heads": shape["heads"]}
    if op.kind == "decode_attention":
        columns["context"] = batch.past + 1
    else:
        columns["new_tokens"] = np.maximum(batch.new, 1.0)
    if shape.get("mla"):
        seen = shape["top_k"] or np.inf  # positions that a token attends to at most
        if op.kind == "decode_attention":
            columns["context"] = np.minimum(batch.past + 1, seen)
        else:  # measured without cached tokens: as many new ones as give the same pairs
            columns["new_tokens"] = np.sqrt(2 * batch.new * np.minimum(batch.past + batch.new / 2, seen))
        return "mla_decode" if op.kind == "decode_attention" else "mla_prefill", columns, Key(software, kv_dtype=kv)
    if op.kind == "prefill_attention":
        columns["past_tokens"] = batch.past
    columns |= {"kv_heads": shape["kv_heads"], "head_dim": shape["head_dim"], "window": shape["window"]}
    return op.kind, columns, Key(software, "bf16" if op.kind == "prefill_attention" else "", kv_dtype=kv)


def _dtype(names: dict[str, str], op: Op, hardware: Hardware) -> str | None:
    """The measured dtype that runs an op; weight-only kernels where the device has no unit for the format."""
    name = names.get(op.weight_dtype) or names.get(_as_integers(op.weight_dtype))
    if name in _UNIT and _UNIT[name] not in hardware.peaks:
        return _WITHOUT_UNIT[name]
    return name


def _as_integers(stored: str) -> str:
    """The plain name of weight-only integers, whatever their groups and scales: "int4" for "int4_g32_s16"."""
    found = dtype(stored) if stored else None
    if found is None or not (found.weight_only and found.group):
        return ""
    return "int4" if found.bits <= 4 else "w8a16"


def as_run(ledger: Ledger) -> Ledger:
    """The kernels an engine launches: GEMMs of one input fused, a shared expert as its two GEMMs, adds inside the norms."""
    ops: list[Op] = []
    for op in ledger.fused():
        if op.name == "residual_add":
            continue
        ops += _shared_expert(op) if op.name == "shared_experts" else [op]
    return Ledger(tuple(ops))


def _shared_expert(op: Op) -> list[Op]:
    """Gate and up together, then down: the ledger counts them as one op, an engine launches two."""
    width = op.shape["intermediate"]
    share = width / float(op.n)
    return [
        _part(op, "shared_experts.gate_up", float(op.n) - width, op.k, 1 - share),
        _part(op, "shared_experts.down", op.k, float(width), share),
    ]


def _part(op: Op, name: str, n: Array, k: Array, share: float) -> Op:
    return replace(
        op,
        name=name,
        n=n,
        k=k,
        flops_each=op.flops_each * share,
        weight_bytes_each=op.weight_bytes_each * share,
        activation_bytes_each=op.activation_bytes_each * share,
    )
