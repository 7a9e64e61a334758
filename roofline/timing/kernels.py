"""The time of kernels of one kind on one device: bound, expectation and interval, from shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from roofline.profiles.calibration import CalibrationBlock
from roofline.timing.constants import Choice, choose
from roofline.timing.correction import log_correction
from roofline.timing.estimate import Estimate
from roofline.timing.forms import Form, Key, form
from roofline.timing.forms.base import Array, DeviceSpec, Shape
from roofline.timing.intervals import log_interval


def kernel_times(
    family: str,
    shape: Mapping[str, Array | float],
    key: Key,
    spec: DeviceSpec,
    *,
    hot: bool,
    own: Sequence[CalibrationBlock] = (),
    corrected: bool = True,
) -> tuple[Estimate, list[str]]:
    """Estimate of each row of `shape` (arrays or numbers that broadcast), and what constants were used, one text per row.

    hot: operands may sit in cache (kernel tables), else cold (plans). own: blocks that go before the shipped ones. corrected:
    with the residual tables of the blocks, which are closer on average but neither smooth nor monotone.
    """
    kind = form(family)
    rows = kind.prepare(_arrays(kind, shape))
    size = rows[kind.columns[0]].size
    if kind.variant is None:
        choice = choose(kind, key, spec, own)
        return estimate(kind, rows, key, spec, choice, hot, corrected), [choice.used] * size
    mask = kind.variant(rows, key, spec.generation)
    parts: list[tuple[NDArray[np.bool_], Estimate]] = []
    used = np.empty(size, dtype=object)
    for where, name in ((~mask, ""), (mask, "variant")):
        if where.any():
            choice = choose(kind, replace(key, form=name), spec, own)
            parts.append((where, estimate(kind, {n: v[where] for n, v in rows.items()}, key, spec, choice, hot, corrected)))
            used[where] = choice.used
    return _merged(parts, size), list(used)


def estimate(kind: Form, shape: Shape, key: Key, spec: DeviceSpec, choice: Choice, hot: bool, corrected: bool = True) -> Estimate:
    """Estimate with the constants of `choice`. corrected: with the residual table, if the block has one."""
    key = replace(key, form=choice.form)
    bound = kind.bound(shape, key, spec, hot)
    expected = kind.seconds(shape, key, spec, choice.constants, hot)
    if corrected and len(choice.block.correction_percent):
        expected = expected * np.exp(log_correction(kind, shape, key, spec, choice.block.correction_percent))
    expected = np.maximum(expected, bound)
    low, high = log_interval(kind, shape, key, choice.block, choice.widening)
    return Estimate(bound, expected, np.maximum(bound, expected * np.exp(low)), expected * np.exp(high))


def _arrays(kind: Form, shape: Mapping[str, Array | float]) -> dict[str, Array]:
    columns = [np.atleast_1d(np.asarray(shape[name], dtype=np.float64)) for name in kind.columns]
    return dict(zip(kind.columns, np.broadcast_arrays(*columns), strict=True))


def _merged(parts: list[tuple[NDArray[np.bool_], Estimate]], size: int) -> Estimate:
    names = ("bound_s", "expected_s", "low_s", "high_s")
    whole = {name: np.empty(size) for name in names}
    for where, part in parts:
        for name in names:
            whole[name][where] = getattr(part, name)
    return Estimate(**whole)
