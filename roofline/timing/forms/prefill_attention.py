"""Prefill attention: new tokens over themselves and past ones, causal, tile by tile, with the exponentials of the softmax."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from roofline.errors import InputError
from roofline.timing.forms.base import Array, Constant, Constants, DeviceSpec, Form, Grid, Key, Shape, Table, bands_of, beyond_cache, pnorm
from roofline.timing.forms.decode_attention import impossible, kv_bytes

_PADDED = ("vllm_triton_attn",)  # multiplies heads of the next power of two (HEAD_SIZE_PADDED in vLLM's unified attention)
_COMPUTE = ("bf16", "fp16", "fp32", "fp8")


def _constants(key: Key) -> tuple[Constant, ...]:
    kv_bytes(key)
    if key.dtype not in _COMPUTE:
        raise InputError(f"unknown dtype {key.dtype!r} of prefill attention; known: {', '.join(_COMPUTE)}")
    return (
        Constant("ec", 0.8, 0.05, 1.5),
        Constant("e", 20.0, 1.0, 200.0),
        Constant("t0_us", 8.0, 0.1, 120.0),
        Constant("p", 2.0, 1.0, 12.0),
        Constant("cq", 0.1, 0.001, 6.0),
        Constant("ckv", 0.5, 0.005, 12.0),
        Constant("tail", 0.6, 0.03, 3.0),
        Constant("tc_us", 2.5, 0.01, 15.0),
        Constant("T", 64.0, 4.0, 512.0),
        Constant("ws", 0.9, 0.005, 1.0, log=False),
        Constant("wl", 0.85, 0.005, 1.0, log=False),
        Constant("d64", 1.1, 0.4, 4.0),
        Constant("d256", 1.1, 0.4, 4.0),
        Constant("d512", 1.2, 0.4, 4.0),
    )


def pairs(new: Array, past: Array, window: Array) -> Array:
    """Query-key pairs of causal attention per head: each query sees itself and what is before it, at most `window` (0 = all)."""
    full = new * past + new * (new + 1.0) / 2.0
    limit = np.where(window > 0, window, np.inf)
    ramp = np.clip(limit - past, 0.0, new)  # queries whose whole context still fits the window
    with np.errstate(invalid="ignore"):
        clipped = ramp * past + ramp * (ramp + 1.0) / 2.0 + np.where(new > ramp, (new - ramp) * limit, 0.0)
    return np.asarray(np.where(window > 0, clipped, full))


def seconds(shape: Shape, key: Key, spec: DeviceSpec, c: Constants, hot: bool = True) -> Array:
    """Expected time of one prefill-attention call over all heads of a rank, s; counts the KV write that the tables count.

    shape: batch, new_tokens, past_tokens, heads, kv_heads, head_dim, window (0 = none). Past tokens are extrapolated: no table has them.
    """
    batch, new, past = shape["batch"], shape["new_tokens"], shape["past_tokens"]
    heads, kv_heads, d, window = shape["heads"], shape["kv_heads"], shape["head_dim"], shape["window"]
    size, bw, sm = kv_bytes(key), spec.bandwidth, spec.sm_count
    skipped = np.where(window > 0, np.where(window < 4096, c["ws"], c["wl"]), 0.0)
    seen = np.where(window > 0, np.minimum(window, new + past), new + past)
    area = skipped * pairs(new, past, window) + (1.0 - skipped) * pairs(new, past, np.zeros_like(new)) + new * c["T"] / 2.0
    longest = np.minimum(skipped * seen + (1.0 - skipped) * (new + past) + c["T"], new + past + c["T"] / 2.0)
    work = batch * heads * area / sm + c["tail"] * 128.0 * longest
    width = 2.0 ** np.ceil(np.log2(d)) if key.kernel in _PADDED else d
    instances = np.log([c["d64"], 1.0, c["d256"], c["d512"]])  # each head_dim is a kernel of its own; others lie between
    instance = np.exp(np.interp(np.log2(width), (6.0, 7.0, 8.0, 9.0), instances))
    peak = spec.peak("fp8" if key.dtype == "fp8" else "bf16")
    per_pair = 4.0 * width / (c["ec"] * peak / sm) + 1.0 / (c["e"] * spec.exponent_rate * spec.clock_hz)
    compute = work * per_pair * instance + c["tc_us"] * 1e-6 * np.maximum(1.0, batch * heads * new / 128.0 / sm)
    passes = batch * new * d * (c["cq"] * 4.0 * heads + c["ckv"] * kv_heads * (4.0 + 2.0 * size)) / bw
    memory = batch * d * (4.0 * new * heads + 2.0 * size * (new + past) * kv_heads) / (0.8 * bw)
    return np.asarray(c["t0_us"] * 1e-6 + passes + pnorm(compute, memory, c["p"]))


def _flops(shape: Shape) -> Array:
    per_head = pairs(shape["new_tokens"], shape["past_tokens"], shape["window"])
    return np.asarray(4.0 * shape["batch"] * shape["heads"] * shape["head_dim"] * per_head)


def bound(shape: Shape, key: Key, spec: DeviceSpec, hot: bool) -> Array:
    """Hard bound, s: exact causal FLOPs / dense peak and Q, output, K, V once / bandwidth."""
    tokens = shape["new_tokens"] + shape["past_tokens"]
    kv = 2.0 * kv_bytes(key) * np.where(shape["window"] > 0, np.minimum(tokens, shape["window"] + shape["new_tokens"]), tokens)
    moved = shape["batch"] * shape["head_dim"] * (4.0 * shape["new_tokens"] * shape["heads"] + kv * shape["kv_heads"])
    peak = spec.peak("fp8" if key.dtype == "fp8" else "bf16")
    return np.maximum(_flops(shape) / peak, beyond_cache(moved, spec, hot) / spec.bandwidth)


def _band(shape: Shape, key: Key) -> NDArray[np.int64]:
    return bands_of(_flops(shape), (1e9, 1e11))


def _coordinates(shape: Shape, key: Key, spec: DeviceSpec) -> tuple[Array, ...]:
    return (
        np.log2(shape["new_tokens"]),
        np.log2(shape["batch"] * shape["heads"]),
        np.log2(np.where(shape["window"] > 0, shape["window"], 2.0**15)),
        np.log2(shape["heads"] / shape["kv_heads"]),
        np.log2(shape["head_dim"]),
    )


PREFILL_ATTENTION = Form(
    family="prefill_attention",
    columns=("batch", "new_tokens", "past_tokens", "heads", "kv_heads", "head_dim", "window"),
    keys=("software", "kernel", "dtype", "kv_dtype"),
    constants=_constants,
    seconds=seconds,
    bound=bound,
    band=_band,
    bands=("<=1GFLOP", "<=100GFLOP", ">100GFLOP"),
    grid=Grid(
        (
            Table((0, 1), ((6, 7, 8, 10, 12, 14), (0, 3, 5, 7, 9, 12))),
            Table((0, 3), ((6, 10, 14), (0, 3))),
            Table((0, 4), ((6, 10, 14), (6, 7, 8, 9))),
            Table((0, 2), ((8, 11, 14), (7, 10, 13, 15))),
        ),
        _coordinates,
    ),
    site=("heads", "kv_heads", "head_dim"),
    discrete=("head_dim", "window"),
    impossible=impossible,
)
