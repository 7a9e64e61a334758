"""The residual table: what a closed form misses, as percent on small tables, interpolated linearly and clamped at the edges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from roofline.timing.forms.base import Array, DeviceSpec, Form, Grid, Key, Shape, Table


def log_correction(form: Form, shape: Shape, key: Key, spec: DeviceSpec, percent: Sequence[int]) -> Array:
    """log of the factor on the closed form, one per row: the interpolated residual (percent / 100). Empty percent: zeros."""
    rows = next(iter(shape.values())).shape[:1]
    total: Array = np.zeros(rows)
    if form.grid is None or not len(percent):
        return total
    values = np.asarray(percent, dtype=np.float64) / 100.0
    for index, weight in _corners(form.grid, form.grid.coordinates(shape, key, spec)):
        total += weight * values[index]
    return total


def basis(form: Form, shape: Shape, key: Key, spec: DeviceSpec) -> Array:
    """The matrix (rows, table values) whose product with the residual values is the log correction."""
    rows = next(iter(shape.values())).shape[0]
    if form.grid is None:
        return np.zeros((rows, 0))
    matrix: Array = np.zeros((rows, form.grid.size))
    at = np.arange(rows)
    for index, weight in _corners(form.grid, form.grid.coordinates(shape, key, spec)):
        np.add.at(matrix, (at, index), weight)
    return matrix


def _corners(grid: Grid, coordinates: tuple[Array, ...]) -> Iterator[tuple[NDArray[np.int64], Array]]:
    """(index of a table value, its weight) per row, for each corner of the cell that a row lies in, over all tables."""
    offset = 0
    for table in grid.tables:
        yield from _table_corners(table, coordinates, offset)
        offset += table.size


def _table_corners(table: Table, coordinates: tuple[Array, ...], offset: int) -> Iterator[tuple[NDArray[np.int64], Array]]:
    lower, fraction = [], []
    for axis, knots in zip(table.axes, table.knots, strict=True):
        k = np.asarray(knots, dtype=np.float64)
        x = np.clip(coordinates[axis], k[0], k[-1])
        i = np.clip(np.searchsorted(k, x, side="right") - 1, 0, len(k) - 2)
        lower.append(i)
        fraction.append((x - k[i]) / (k[i + 1] - k[i]))
    for corner in product((0, 1), repeat=len(table.axes)):
        index: NDArray[np.int64] = np.zeros(lower[0].shape, dtype=np.int64)
        weight: Array = np.ones(lower[0].shape)
        for i, f, bit, knots in zip(lower, fraction, corner, table.knots, strict=True):
            index = index * len(knots) + i + bit
            weight = weight * (f if bit else 1.0 - f)
        yield index + offset, weight
