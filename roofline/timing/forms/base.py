"""What a kernel form is: constants with bounds, a time, a hard bound, a size band and the axes of its residual table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from roofline.errors import InputError

Array = NDArray[np.float64]
Shape = Mapping[str, Array]
Constants = Mapping[str, float]


@dataclass(frozen=True)
class DeviceSpec:
    """What the forms need to know of a device, SI units, dense peaks.

    generation groups devices whose kernels are the same code ("hopper", "blackwell", "blackwell-rtx", …).
    exponent_rate: exponentials per clock and SM in units of 16 (2 on B300 and GB300). link_bandwidth: per direction.
    """

    id: str
    generation: str
    peaks: Mapping[str, float]
    bandwidth: float
    sm_count: float
    l2_bytes: float
    clock_hz: float
    link_bandwidth: float
    exponent_rate: float = 1.0

    def peak(self, compute: str) -> float:
        """Dense FLOP/s of `compute`, or of bf16 where the device has no unit for it (the kernel then converts first)."""
        found = self.peaks.get(compute) or self.peaks.get("bf16") or self.peaks.get("fp16") or self.peaks.get("fp32")
        if not found:
            raise InputError(f"{self.id}: no dense peak for {compute}, bf16, fp16 or fp32: add one under peaks in its profile")
        return found


@dataclass(frozen=True, order=True)
class Key:
    """What selects a set of constants beside the device: the words of the table and the policy (`form`) of the library."""

    software: str
    dtype: str = ""
    kernel: str = ""
    kv_dtype: str = ""
    form: str = ""


@dataclass(frozen=True)
class Constant:
    """One constant of a form: where a fit starts, the range that makes physical sense, and whether it is fitted in its logarithm."""

    name: str
    start: float
    low: float
    high: float
    log: bool = True


@dataclass(frozen=True)
class Table:
    """One small residual table: which axes it spans and the knots on each."""

    axes: tuple[int, ...]
    knots: tuple[tuple[float, ...], ...]

    @property
    def size(self) -> int:
        """How many values the table has."""
        return math.prod(len(k) for k in self.knots)


@dataclass(frozen=True)
class Grid:
    """The residual correction of a form: a sum of small tables over the coordinates of a row."""

    tables: tuple[Table, ...]
    coordinates: Callable[[Shape, Key, DeviceSpec], tuple[Array, ...]]

    @property
    def size(self) -> int:
        """How many values all tables have."""
        return sum(table.size for table in self.tables)


@dataclass(frozen=True)
class Form:
    """One kernel family: everything that fitting, predicting and scoring need to know about it.

    columns: numeric columns of a row. constants: the constants of a key. seconds(shape, key, spec, constants, hot): expected
    time, s, one per row. bound(shape, key, spec, hot): hard bound, s. band: index into `bands`, the size classes of the interval.
    discrete: columns whose value is a fact of the kernel (a head_dim): one that no fit row has widens the interval.
    policy(generation, key): the key with the library's discrete choices. variant(shape, key, generation): rows that another kernel
    of the same name serves; their key has form "variant". prepare(shape): adds columns that do not depend on constants.
    impossible(shape): texts with the rows that they are true of, for shapes that no kernel can have.
    same_format(key, key): whether two kernels of one dtype multiply the same formats, so that one can stand in for the other.
    """

    family: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    constants: Callable[[Key], tuple[Constant, ...]]
    seconds: Callable[[Shape, Key, DeviceSpec, Constants, bool], Array]
    bound: Callable[[Shape, Key, DeviceSpec, bool], Array]
    band: Callable[[Shape, Key], NDArray[np.int64]]
    bands: tuple[str, ...]
    grid: Grid | None = None
    site: tuple[str, ...] = ()
    discrete: tuple[str, ...] = ()
    policy: Callable[[str, Key], Key] = field(default=lambda generation, key: key)
    variant: Callable[[Shape, Key, str], NDArray[np.bool_]] | None = None
    prepare: Callable[[Shape], Shape] = field(default=lambda shape: shape)
    impossible: Callable[[Shape], Mapping[str, NDArray[np.bool_]]] = field(default=lambda shape: {})
    same_format: Callable[[Key, Key], bool] = field(default=lambda key, other: True)


def pnorm(a: Array, b: Array, p: float) -> Array:
    """Soft maximum (a^p + b^p)^(1/p) of two non-negative times; p → ∞ is perfect overlap, p = 1 none."""
    top = np.maximum(np.maximum(a, b), 1e-30)
    low: Array = np.minimum(a, b) / top
    return np.asarray(top * (1.0 + low**p) ** (1.0 / p))


def waves(w: Array, wq: float) -> Array:
    """Effective waves of w = work units per SM: at least 1, and the last one rounded up by the share wq (1 = whole waves)."""
    return np.asarray(np.maximum(1.0, w * (np.ceil(w) / w) ** wq))


def bands_of(value: Array, edges: tuple[float, ...]) -> NDArray[np.int64]:
    """Index of the size band: 0 up to and including edges[0], and so on."""
    return np.asarray(np.searchsorted(np.asarray(edges), value, side="left"), dtype=np.int64)


def discrete_value(name: str, values: Array) -> Array:
    """The discrete fact in a shape column: the value itself; of a window its class (0 none, 1 below 4096, 2 from there on)."""
    return np.where(values > 0, np.where(values < 4096, 1.0, 2.0), 0.0) if name == "window" else values


def beyond_cache(bytes_: Array, spec: DeviceSpec, hot: bool) -> Array:
    """Bytes that must come from memory: all of them cold; hot, those that the L2 cannot hold."""
    return np.maximum(bytes_ - spec.l2_bytes, 0.0) if hot else bytes_
