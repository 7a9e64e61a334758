"""Multi-head latent attention (DeepSeek geometry): absorbed decode over the latent cache, and prefill with expanded heads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
from roofline.timing.forms.decode_attention import kv_bytes
from roofline.timing.forms.prefill_attention import pairs

LATENT, ROPE, HEAD, VALUE = 512.0, 64.0, 128.0, 128.0


def _decode_constants(key: Key) -> tuple[Constant, ...]:
    kv_bytes(key)
    return (
        Constant("ec", 0.6, 0.05, 2.0),
        Constant("em", 0.7, 0.1, 1.3),
        Constant("t0_us", 10.0, 1.0, 120.0),
        Constant("p", 2.0, 1.0, 12.0),
        Constant("tc_us", 1.0, 0.02, 20.0),
        Constant("hot", 1.6, 1.0, 8.0),
        Constant("bsm", 3.0, 0.3, 20.0),
        Constant("tr_us", 0.5, 0.005, 6.0),
        Constant("smax", 32.0, 1.0, 200.0),
        Constant("chunk", 128.0, 16.0, 4000.0),
        Constant("tile", 64.0, 8.0, 128.0),
        Constant("ch_ns", 1.0, 0.01, 200.0),
    )


def decode_seconds(shape: Shape, key: Key, spec: DeviceSpec, c: Constants, hot: bool = True) -> Array:
    """Expected time of absorbed MLA decode of one rank, s; the latent (512 + 64 per token) is read once for all heads.

    shape: batch, context, heads (per rank). Counts no projections.
    """
    batch, heads, length = shape["batch"], shape["heads"], shape["context"]
    size, bw, sm = kv_bytes(key), spec.bandwidth, spec.sm_count
    tiles = np.maximum(1.0, heads / c["tile"])
    units = batch * tiles
    split = np.clip(sm / units, 1.0, np.maximum(1.0, np.minimum(c["smax"], length / c["chunk"])))
    latent: Array = batch * length * (LATENT + ROPE) * size
    if hot and spec.l2_bytes:
        hit = np.clip(1.0 - (latent / spec.l2_bytes - 0.5) / 0.6, 0.0, 1.0)
        latent = latent * (1.0 - hit + hit / c["hot"])
    memory = (latent + 2.0 * batch * heads * (2.0 * LATENT + ROPE)) / (c["em"] * bw)
    feed = (LATENT + ROPE) * size / (c["bsm"] * bw / sm)
    rows = np.minimum(np.maximum(heads, 16.0), c["tile"])
    math = 2.0 * (2.0 * LATENT + ROPE) * rows / (c["ec"] * spec.peak("bf16") / sm)
    serial = waves(units * split / sm, 0.3) * (length / split * np.maximum(feed, math) + c["tc_us"] * 1e-6)
    extra = c["tr_us"] * 1e-6 * np.log2(split) + c["ch_ns"] * 1e-9 * batch * heads
    return np.asarray(c["t0_us"] * 1e-6 + extra + pnorm(memory, serial, c["p"]))


def _decode_bytes(shape: Shape, key: Key) -> Array:
    return np.asarray(shape["batch"] * shape["context"] * (LATENT + ROPE) * kv_bytes(key))


def decode_bound(shape: Shape, key: Key, spec: DeviceSpec, hot: bool) -> Array:
    """Hard bound, s: the latent cache once / bandwidth, and 2·(576 + 512) per head and position / dense peak."""
    moved = _decode_bytes(shape, key) + 2.0 * shape["batch"] * shape["heads"] * (2.0 * LATENT + ROPE)
    flops = 2.0 * shape["batch"] * shape["context"] * shape["heads"] * (2.0 * LATENT + ROPE)
    compute = "fp8" if key.kv_dtype == "fp8" else "bf16"
    return np.maximum(flops / spec.peak(compute), beyond_cache(moved, spec, hot) / spec.bandwidth)


def _decode_band(shape: Shape, key: Key) -> NDArray[np.int64]:
    return bands_of(_decode_bytes(shape, key), (1e6, 32e6, 1e9))


def _decode_coordinates(shape: Shape, key: Key, spec: DeviceSpec) -> tuple[Array, ...]:
    return np.log2(shape["context"]), np.log2(shape["batch"]), np.log2(shape["heads"])


def _prefill_constants(key: Key) -> tuple[Constant, ...]:
    kv_bytes(key)
    return (
        Constant("ec", 0.7, 0.05, 1.5),
        Constant("e", 20.0, 1.0, 200.0),
        Constant("t0_us", 8.0, 0.1, 120.0),
        Constant("p", 2.0, 1.0, 12.0),
        Constant("cq", 0.3, 0.001, 12.0),
        Constant("tail", 0.6, 0.03, 3.0),
        Constant("tc_us", 2.5, 0.01, 20.0),
        Constant("T", 64.0, 4.0, 512.0),
    )


def prefill_seconds(shape: Shape, key: Key, spec: DeviceSpec, c: Constants, hot: bool = True) -> Array:
    """Expected time of MLA prefill attention of one rank with expanded heads (192 for Q·K, 128 for values), s. No projections.

    shape: batch, new_tokens, heads (per rank).
    """
    batch, new, heads = shape["batch"], shape["new_tokens"], shape["heads"]
    bw, sm = spec.bandwidth, spec.sm_count
    area = new * (new + 1.0) / 2.0 + new * c["T"] / 2.0
    work = batch * heads * area / sm + c["tail"] * 128.0 * (new + c["T"] / 2.0)
    per_pair = 2.0 * (HEAD + ROPE + VALUE) / (c["ec"] * spec.peak("bf16") / sm) + 1.0 / (c["e"] * spec.exponent_rate * spec.clock_hz)
    compute = work * per_pair + c["tc_us"] * 1e-6 * np.maximum(1.0, batch * heads * new / 128.0 / sm)
    touched = 2.0 * batch * new * heads * (2.0 * (HEAD + ROPE) + 2.0 * VALUE)
    return np.asarray(c["t0_us"] * 1e-6 + c["cq"] * touched / bw + pnorm(compute, touched / (0.8 * bw), c["p"]))


def _prefill_flops(shape: Shape) -> Array:
    new = shape["new_tokens"]
    per_head = pairs(new, np.zeros_like(new), np.zeros_like(new))
    return np.asarray(2.0 * shape["batch"] * shape["heads"] * (HEAD + ROPE + VALUE) * per_head)


def prefill_bound(shape: Shape, key: Key, spec: DeviceSpec, hot: bool) -> Array:
    """Hard bound, s: exact causal FLOPs / dense bf16 peak and Q, K, V, output once / bandwidth."""
    moved = 2.0 * shape["batch"] * shape["new_tokens"] * shape["heads"] * (2.0 * (HEAD + ROPE) + 2.0 * VALUE)
    return np.maximum(_prefill_flops(shape) / spec.peak("bf16"), beyond_cache(moved, spec, hot) / spec.bandwidth)


def _prefill_band(shape: Shape, key: Key) -> NDArray[np.int64]:
    return bands_of(_prefill_flops(shape), (1e9, 1e11))


def _prefill_coordinates(shape: Shape, key: Key, spec: DeviceSpec) -> tuple[Array, ...]:
    return np.log2(shape["new_tokens"]), np.log2(shape["batch"]), np.log2(shape["heads"])


MLA_DECODE = Form(
    family="mla_decode",
    columns=("batch", "context", "heads"),
    keys=("software", "kernel", "kv_dtype"),
    constants=_decode_constants,
    seconds=decode_seconds,
    bound=decode_bound,
    band=_decode_band,
    bands=("kv<=1MB", "kv<=32MB", "kv<=1GB", "kv>1GB"),
    grid=Grid((Table((0, 1, 2), ((6, 9, 11, 13, 15, 17), (0, 2, 4, 6, 8, 10), (0, 2, 4, 5.5, 7))),), _decode_coordinates),
    site=("heads", "batch"),
)
MLA_PREFILL = Form(
    family="mla_prefill",
    columns=("batch", "new_tokens", "heads"),
    keys=("software", "kernel", "kv_dtype"),
    constants=_prefill_constants,
    seconds=prefill_seconds,
    bound=prefill_bound,
    band=_prefill_band,
    bands=("<=1GFLOP", "<=100GFLOP", ">100GFLOP"),
    grid=Grid((Table((0, 1, 2), ((6, 7, 8, 10, 12, 15), (0, 2, 4, 8), (0, 2, 4, 7))),), _prefill_coordinates),
    site=("heads", "batch"),
)
