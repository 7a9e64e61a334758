"""Decode attention: one new token per sequence over a cached context, split along the context (flash decoding).

A kernel has its own way to split, to skip what a window hides and to pack the heads of a group: `smax`, `chunk`, `ws`, `wl`.
"""

from __future__ import annotations

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

KV_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "fp8": 1.0, "nvfp4": 0.5625, "int8": 1.0}
_TWO_KERNELS = ("hopper", "ada", "blackwell-rtx")  # TensorRT-LLM there serves heads = kv_heads with a kernel of its own


def kv_bytes(key: Key) -> float:
    """Bytes of one cached element. Raises InputError with the known names."""
    if key.kv_dtype not in KV_BYTES:
        raise InputError(f"unknown kv_dtype {key.kv_dtype!r}; known: {', '.join(KV_BYTES)}")
    return KV_BYTES[key.kv_dtype]


def impossible(shape: Shape) -> dict[str, NDArray[np.bool_]]:
    """Shapes that no attention kernel can have (Form.impossible)."""
    return {"kv_heads: is more than heads": shape["kv_heads"] > shape["heads"]}


def _constants(key: Key) -> tuple[Constant, ...]:
    kv_bytes(key)
    return (
        Constant("ec", 0.3, 0.02, 3.0),
        Constant("em", 0.88, 0.2, 1.25),
        Constant("t0_us", 8.0, 1.0, 120.0),
        Constant("p", 2.0, 1.0, 12.0),
        Constant("tc_us", 1.2, 0.02, 10.0),
        Constant("hot", 1.6, 1.0, 8.0),
        Constant("bsm", 4.0, 0.5, 20.0),
        Constant("tr_us", 0.5, 0.005, 6.0),
        Constant("smax", 16.0, 1.0, 150.0),
        Constant("chunk", 256.0, 32.0, 6000.0),
        Constant("ws", 0.97, 0.005, 1.0, log=False),
        Constant("wl", 0.8, 0.005, 1.0, log=False),
    )


def seen_context(context: Array, window: Array, small: float, large: float) -> Array:
    """Positions that the kernel reads: the window's, and the share of the hidden ones that it does not skip."""
    inside = np.where(window > 0, np.minimum(context, window), context)
    skipped = np.where(window < 4096, small, large)
    return np.asarray(inside + (1.0 - skipped) * (context - inside))


def seconds(shape: Shape, key: Key, spec: DeviceSpec, c: Constants, hot: bool = True) -> Array:
    """Expected time of one decode-attention call over all heads of a rank, s; counts reading K and V and combining splits.

    shape: batch, context, heads, kv_heads, head_dim, window (0 = none).
    """
    batch, heads, d = shape["batch"], shape["heads"], shape["head_dim"]
    length = seen_context(shape["context"], shape["window"], c["ws"], c["wl"])
    size, bw, sm = kv_bytes(key), spec.bandwidth, spec.sm_count
    unpacked = (shape["window"] > 0) & ("fa2" in key.kernel)
    rows = np.where(unpacked, heads, shape["kv_heads"])
    group = np.where(unpacked, 1.0, heads / shape["kv_heads"])
    units = batch * rows
    split = np.clip(sm / units, 1.0, np.maximum(1.0, np.minimum(c["smax"], length / c["chunk"])))
    kv: Array = 2.0 * batch * length * shape["kv_heads"] * d * size
    if hot and spec.l2_bytes:
        hit = np.clip(1.0 - (kv / spec.l2_bytes - 0.5) / 0.6, 0.0, 1.0)
        kv = kv * (1.0 - hit + hit / c["hot"])
    memory = (kv + 4.0 * batch * heads * d) / (c["em"] * bw)
    padded = np.where(d == 192, 256.0, d)
    feed = 2.0 * d * size / (c["bsm"] * bw / sm)
    math = 4.0 * padded * 16.0 * np.ceil(group / 16.0) / (c["ec"] * spec.peak("bf16") / sm)
    serial = waves(units * split / sm, 0.3) * (length / split * np.maximum(feed, math) + c["tc_us"] * 1e-6)
    return np.asarray(c["t0_us"] * 1e-6 + c["tr_us"] * 1e-6 * np.log2(split) + pnorm(memory, serial, c["p"]))


def bound(shape: Shape, key: Key, spec: DeviceSpec, hot: bool) -> Array:
    """Hard bound, s: K and V of the visible positions once / bandwidth, and 4·heads·head_dim per position / dense bf16 peak."""
    window, context = shape["window"], shape["context"]
    length = np.where(window > 0, np.minimum(context, window), context)
    moved = shape["batch"] * shape["head_dim"] * (2.0 * length * shape["kv_heads"] * kv_bytes(key) + 4.0 * shape["heads"])
    flops = 4.0 * shape["batch"] * length * shape["heads"] * shape["head_dim"]
    compute = "fp8" if key.kv_dtype == "fp8" else "bf16"
    return np.maximum(flops / spec.peak(compute), beyond_cache(moved, spec, hot) / spec.bandwidth)


def _kv_bytes(shape: Shape, key: Key) -> Array:
    window, context = shape["window"], shape["context"]
    length = np.where(window > 0, np.minimum(context, window), context)
    return np.asarray(2.0 * shape["batch"] * length * shape["kv_heads"] * shape["head_dim"] * kv_bytes(key))


def _band(shape: Shape, key: Key) -> NDArray[np.int64]:
    return bands_of(_kv_bytes(shape, key), (1e6, 32e6, 1e9))


def _coordinates(shape: Shape, key: Key, spec: DeviceSpec) -> tuple[Array, ...]:
    window, context = shape["window"], shape["context"]
    length = np.where(window > 0, np.minimum(context, window), context)
    return (
        np.log2(length),
        np.log2(shape["batch"] * shape["kv_heads"]),
        np.log2(shape["heads"] / shape["kv_heads"]),
        np.log2(shape["head_dim"]),
        np.log2(np.where(window > 0, window, 2.0**17)),
    )


def _variant(shape: Shape, key: Key, generation: str) -> NDArray[np.bool_]:
    own = key.software == "trtllm" and generation in _TWO_KERNELS
    return np.asarray((shape["heads"] == shape["kv_heads"]) & own, dtype=np.bool_)


DECODE_ATTENTION = Form(
    family="decode_attention",
    columns=("batch", "context", "heads", "kv_heads", "head_dim", "window"),
    keys=("software", "kernel", "kv_dtype"),
    constants=_constants,
    seconds=seconds,
    bound=bound,
    band=_band,
    bands=("kv<=1MB", "kv<=32MB", "kv<=1GB", "kv>1GB"),
    grid=Grid(
        (
            Table((0, 1), ((6, 8, 10, 12, 13.5, 15, 17), (0, 1.5, 3, 5, 7, 9, 11, 14))),
            Table((0, 2), ((6, 10, 13, 17), (0, 2, 4))),
            Table((0, 3), ((6, 10, 14), (6, 7, 8))),
            Table((0, 4), ((6, 10, 14), (7, 10, 13, 17))),
        ),
        _coordinates,
    ),
    site=("heads", "kv_heads", "head_dim"),
    discrete=("head_dim", "window"),
    impossible=impossible,
    variant=_variant,
)
