"""Collectives inside one node or NVLink domain: a latency and a link efficiency per number of ranks, joined by a soft maximum."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from roofline.errors import InputError
from roofline.timing.forms.base import Array, Constant, Constants, DeviceSpec, Form, Grid, Key, Shape, Table, bands_of, pnorm

PASSES = {"all_reduce": 2.0, "custom_all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "alltoall": 1.0, "broadcast": 1.0}
_KNOTS = (1.0, 2.0, 3.0, 4.0)  # log2 of 2, 4, 8, 16 ranks


def _constants(key: Key) -> tuple[Constant, ...]:
    _passes(key)
    latency = [Constant(f"lat{n}_us", start, 0.5, 300.0) for n, start in ((2, 7.0), (4, 10.0), (8, 15.0), (16, 25.0))]
    share = [Constant(f"eff{n}", 0.6, 0.001, 1.3) for n in (2, 4, 8, 16)]
    return (*latency, *share, Constant("p", 1.5, 0.7, 8.0))


def _passes(key: Key) -> float:
    passes = PASSES.get(key.kernel)
    if passes is None:
        raise InputError(f"unknown collective {key.kernel!r}; known: {', '.join(PASSES)}")
    return passes


def _traffic(shape: Shape, key: Key) -> Array:
    """Bytes that each rank sends: passes · (n − 1)/n · bytes."""
    ranks = shape["ranks"]
    return np.asarray(_passes(key) * (ranks - 1.0) / ranks * shape["bytes"])


def seconds(shape: Shape, key: Key, spec: DeviceSpec, c: Constants, hot: bool = True) -> Array:
    """Expected time of one collective over `ranks` devices, s; bytes: size of the whole buffer of one rank.

    Counts the launch; a device without a fast link uses PCIe per direction. One rank takes no time.
    """
    steps = np.log2(np.maximum(shape["ranks"], 2.0))
    latency = np.exp(np.interp(steps, _KNOTS, np.log([c["lat2_us"], c["lat4_us"], c["lat8_us"], c["lat16_us"]])))
    share = np.exp(np.interp(steps, _KNOTS, np.log([c["eff2"], c["eff4"], c["eff8"], c["eff16"]])))
    wire = _traffic(shape, key) / (share * spec.link_bandwidth)
    return np.where(shape["ranks"] > 1, pnorm(latency * 1e-6, wire, c["p"]), 0.0)


def bound(shape: Shape, key: Key, spec: DeviceSpec, hot: bool) -> Array:
    """Hard bound, s. Switches that reduce in the network halve what a rank sends, so an all-reduce is bounded by one pass."""
    return _traffic(shape, key) / PASSES[key.kernel] / spec.link_bandwidth


def _band(shape: Shape, key: Key) -> NDArray[np.int64]:
    return bands_of(shape["bytes"], (65536.0, 8388608.0))


def _coordinates(shape: Shape, key: Key, spec: DeviceSpec) -> tuple[Array, ...]:
    return np.log2(shape["bytes"]), np.log2(shape["ranks"])


COLLECTIVE = Form(
    family="collective",
    columns=("ranks", "bytes"),
    keys=("software", "kernel", "dtype"),
    constants=_constants,
    seconds=seconds,
    bound=bound,
    band=_band,
    bands=("<=64KiB", "<=8MiB", ">8MiB"),
    grid=Grid((Table((0,), ((9, 13, 16, 18, 20, 22, 24, 27, 30),)), Table((0, 1), ((9, 16, 20, 22, 24, 27, 30), (1, 2, 3)))), _coordinates),
    site=("ranks", "bytes"),
)
