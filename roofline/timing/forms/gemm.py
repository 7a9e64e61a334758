"""GEMM y[m, n] = x[m, k] · w[n, k]: the library's choice of tile, memory time of hot or cold weights, activation quantisation.

Form B takes the best of the (tile, split-K) candidates that the library's policy allows; form A is smooth in tiles and serves
kernels whose choice is not understood. Times of fixed work (launch, prologue, floor per k) are stated at 1.8 GHz and pass in clocks.
Derivation and errors: docs/concepts/kernel-forms.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from roofline.errors import InputError
from roofline.timing.forms.base import (
    Array,
    Constant,
    Constants,
    DeviceSpec,
    Form,
    Grid,
    Key,
    Shape,
    Table,
    bands_of,
    beyond_cache,
    pnorm,
    waves,
)


@dataclass(frozen=True)
class Operands:
    """Bytes per weight and per activation element, the peak used, and whether activations are quantised inside the call."""

    compute: str
    weight_bytes: float
    activation_bytes: float
    quantised: bool = False


OPERANDS = {
    "bf16": Operands("bf16", 2.0, 2.0),
    "fp16": Operands("fp16", 2.0, 2.0),
    "fp8": Operands("fp8", 1.0, 1.0, True),
    "fp8_static": Operands("fp8", 1.0, 1.0),
    "fp8_block": Operands("fp8", 1.0 + 4 / 128**2, 1.0, True),
    "nvfp4": Operands("fp4", 0.5625, 0.5625, True),
    "w8a8": Operands("int8", 1.0, 1.0, True),
    "w8a16": Operands("bf16", 1.0, 2.0, True),
    "w4a16": Operands("bf16", 0.53125, 2.0, True),
}
_CLOCK_HZ = 1.8e9  # at which t0_us, ts_us, tsk_us and tk_ns are stated
_IN_CLOCKS = ("t0_us", "ts_us", "tsk_us", "tk_ns")
_MEASURED_AS = {("sglang", "w8a16", ""): "w8a8"}  # its rows beat the dense bf16 peak: the kernel multiplies in 8 bits
WEIGHT_ONLY = "weight_only"  # kernel of a key that means 8-bit weights with 16-bit activations, whatever a table calls so

_TILES = ((64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256), (256, 64), (256, 128))
_SPLITS = (1, 2, 4, 8)
_POLICIES = {
    ("ampere", "trtllm", "w4a16"): "A",
    ("ampere", "trtllm", "w8a16"): "A",
    ("xe", "vllm", "fp8"): "A",
    ("hopper", "sglang", "w8a16"): "A",
    ("hopper", "sglang", "fp8"): "B cut",
    ("hopper", "vllm", "fp8"): "B cut",
    ("hopper", "trtllm", "fp8_block"): "B cutm",
    ("blackwell", "sglang", "fp8"): "B nosplit",
    ("blackwell", "sglang", "fp8_block"): "B nosplit",
    ("blackwell", "sglang", "nvfp4"): "B nosplit",
    ("blackwell", "trtllm", "fp8_block"): "B nosplit",
    ("blackwell", "trtllm", "nvfp4"): "B nosplit",
    ("blackwell", "vllm", "fp8"): "B nosplit",
    ("blackwell", "vllm", "nvfp4"): "B nosplit",
    ("ada", "sglang", "fp8"): "A",
    ("ada", "vllm", "fp8"): "A",
    ("ada", "trtllm", "fp8_block"): "A",
    ("blackwell-rtx", "sglang", "fp8"): "A",
    ("blackwell-rtx", "sglang", "nvfp4"): "A",
    ("blackwell-rtx", "trtllm", "nvfp4"): "A",
    ("blackwell-rtx", "vllm", "fp8"): "A",
    ("blackwell-rtx", "vllm", "nvfp4"): "A",
}


def operands(key: Key) -> Operands:
    """The operand formats of a GEMM key. Raises InputError with the known names."""
    found = OPERANDS.get(_format(key))
    if found is None:
        raise InputError(f"unknown GEMM dtype {key.dtype!r}; known: {', '.join(OPERANDS)}")
    return found


def _same_format(key: Key, other: Key) -> bool:
    """SGLang's kernel for 8-bit weights alone quantises activations too: it says nothing of kernels that do not."""
    return _format(key) == _format(other)


def _format(key: Key) -> str:
    return _MEASURED_AS.get((key.software, key.dtype, key.kernel), key.dtype)


def _policy(generation: str, key: Key) -> Key:
    """The key with the library's tile policy: a discrete fact per (generation, software, dtype), chosen by fit cost."""
    form = _POLICIES.get((generation, key.software, key.dtype), "B min")
    return Key(key.software, key.dtype, key.kernel, key.kv_dtype, form)


def _constants(key: Key) -> tuple[Constant, ...]:
    ops = operands(key)
    common = [
        Constant("ec", 0.72, 0.05, 1.5),
        Constant("em", 0.83, 0.1, 1.3),
        Constant("t0_us", 2.5, 0.05, 120.0),
        Constant("p", 2.0, 1.0, 8.0),
        Constant("wq", 0.2, 0.0, 1.2, log=False),
        Constant("hot", 1.2, 1.0, 8.0),
    ]
    if key.form == "A":
        common.append(Constant("tk_ns", 0.6, 0.02, 10.0))
    else:
        common += [Constant("bsm", 4.8, 1.0, 15.0), Constant("ts_us", 0.6, 0.02, 8.0), Constant("tk_ns", 0.3, 0.02, 4.0)]
        if key.form != "B nosplit" and key.form != "B cut":
            common.append(Constant("tsk_us", 3.0, 0.1, 40.0))
    if ops.quantised:
        common += [Constant("cq", 1.2, 0.01, 30.0), Constant("cr_ns", 0.4, 0.005, 30.0)]
    return tuple(common)


def _candidates(form: str, m: Array) -> list[tuple[int, int, int, NDArray[np.bool_] | None]]:
    """(tile m, tile n, split, rows where allowed or None for all) under a policy."""
    if form == "B nosplit":
        return [(tm, tn, 1, None) for tm, tn in _TILES]
    small: NDArray[np.bool_] = m <= 128
    if form == "B cut":
        return [(64, 64, 1, m <= 64), (64, 128, 1, small & (m > 64)), (128, 128, 1, ~small)]
    if form == "B cutm":
        return [*((tm, tn, s, small) for tm, tn in _TILES for s in _SPLITS), (128, 128, 1, ~small)]
    return [(tm, tn, s, None) for tm, tn in _TILES for s in _SPLITS]


def _tile_time(shape: Shape, key: Key, spec: DeviceSpec, c: Constants) -> Array:
    """Time of the main loop, s: the best of the candidates that the policy allows."""
    m, n, k = shape["m"], shape["n"], shape["k"]
    ops = operands(key)
    sm, rate, feed = spec.sm_count, c["ec"] * spec.peak(ops.compute) / spec.sm_count, c["bsm"] * spec.bandwidth / spec.sm_count
    best: Array = np.full(m.shape, np.inf)
    rows_n = {t: np.ceil(n / t) for t in (64, 128, 256)}
    rows_m = {t: np.ceil(m / t) for t in (64, 128, 256)}
    reduce = 4.0 * m * n / spec.bandwidth
    for tm, tn, split, allowed in _candidates(key.form, m):
        per_k = max(2.0 * tm * tn / rate, (tm * ops.activation_bytes + tn * ops.weight_bytes) / feed, c["tk_ns"] * 1e-9)
        time = waves(rows_m[tm] * rows_n[tn] * (split / sm), c["wq"]) * (k * (per_k / split) + c["ts_us"] * 1e-6)
        if split > 1:
            time += c["tsk_us"] * 1e-6 + split * reduce
        np.minimum(best, time if allowed is None else np.where(allowed, time, np.inf), out=best)
    return best


def _memory_time(shape: Shape, key: Key, spec: DeviceSpec, c: Constants, hot: bool) -> Array:
    m, n, k = shape["m"], shape["n"], shape["k"]
    ops = operands(key)
    weights: Array = n * k * ops.weight_bytes
    if hot and spec.l2_bytes:
        hit = np.clip(1.0 - (weights / spec.l2_bytes - 0.15) / 0.25, 0.0, 1.0)
        weights = weights * (1.0 - hit + hit / c["hot"])
    return (weights + m * k * ops.activation_bytes + 2.0 * m * n) / (c["em"] * spec.bandwidth)


def seconds(shape: Shape, key: Key, spec: DeviceSpec, c: Constants, hot: bool = True) -> Array:
    """Expected time of one GEMM call, s; counts the launch, the quantisation of activations and the bf16 output.

    shape: m, n, k as arrays of one shape. hot: the weights may sit in L2 (kernel tables); cold in plans.
    """
    m, n, k = shape["m"], shape["n"], shape["k"]
    ops = operands(key)
    p = c["p"]
    c = {name: value * (_CLOCK_HZ / spec.clock_hz if name in _IN_CLOCKS else 1.0) for name, value in c.items()}
    if key.form == "A":
        w = np.ceil(m / 128) * np.ceil(n / 128) / spec.sm_count
        rounding = (np.ceil(w) / w) ** c["wq"]
        compute = pnorm(2.0 * m * n * k * rounding / (c["ec"] * spec.peak(ops.compute)), c["tk_ns"] * 1e-9 * k, p)
    else:
        compute = _tile_time(shape, key, spec, c)
    total = c["t0_us"] * 1e-6 + pnorm(compute, _memory_time(shape, key, spec, c, hot), p)
    if ops.quantised:
        total += c["cq"] * 3.0 * m * k / spec.bandwidth + c["cr_ns"] * 1e-9 * m
    return total


def bound(shape: Shape, key: Key, spec: DeviceSpec, hot: bool) -> Array:
    """Hard bound, s: max of 2mnk / dense peak and each operand once / bandwidth (hot: what the L2 cannot hold)."""
    m, n, k = shape["m"], shape["n"], shape["k"]
    ops = operands(key)
    moved = n * k * ops.weight_bytes + m * k * ops.activation_bytes + 2.0 * m * n
    return np.maximum(2.0 * m * n * k / spec.peak(ops.compute), beyond_cache(moved, spec, hot) / spec.bandwidth)


def _band(shape: Shape, key: Key) -> NDArray[np.int64]:
    return bands_of(shape["m"], (16.0, 128.0, 1024.0))


def _coordinates(shape: Shape, key: Key, spec: DeviceSpec) -> tuple[Array, ...]:
    return np.log2(shape["m"]), np.log2(shape["n"]), np.log2(shape["k"])


GEMM = Form(
    family="gemm",
    columns=("m", "n", "k"),
    keys=("software", "dtype"),
    constants=_constants,
    seconds=seconds,
    bound=bound,
    band=_band,
    bands=("m<=16", "m<=128", "m<=1024", "m>1024"),
    grid=Grid((Table((0, 1, 2), ((0, 4, 6, 7, 8, 9.5, 12, 15), (8, 10, 12, 14, 16), (8, 10, 12, 14, 16))),), _coordinates),
    site=("n", "k"),
    policy=_policy,
    same_format=_same_format,
)
