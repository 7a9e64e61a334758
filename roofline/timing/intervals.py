"""80 % intervals of kernel times: quantiles of held-out residuals, wider where constants or shapes are foreign."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from roofline.profiles.calibration import CalibrationBlock
from roofline.timing.forms.base import Array, Form, Key, Shape, discrete_value

DEFAULT = (-0.4, 0.4)  # log quantiles of a block that carries none
UNSEEN = 4.0  # factor for a head_dim that no fitted row had: restored 80 % coverage at head_dim 192


def log_interval(form: Form, shape: Shape, key: Key, block: CalibrationBlock, widening: float = 1.0) -> tuple[Array, Array]:
    """(low, high) of log(measured / expected) per row: 10 % and 90 % quantiles of its size band, times `widening`.

    Rows with a discrete fact that the block has never seen get UNSEEN times as much.
    """
    table = np.array([block.interval_log_quantiles.get(name, _widest(block.interval_log_quantiles)) for name in form.bands])
    quantiles = table[form.band(shape, key)]
    factor = widening * np.where(unseen(form, shape, block), UNSEEN, 1.0)
    return np.minimum(quantiles[:, 0], -1e-3) * factor, np.maximum(quantiles[:, 1], 1e-3) * factor


def unseen(form: Form, shape: Shape, block: CalibrationBlock) -> Array:
    """Whether a row has a discrete fact (form.discrete) that no fitted row of the block had."""
    rows = next(iter(shape.values())).shape[:1]
    found = np.zeros(rows, dtype=bool)
    for name in form.discrete:
        if name in block.seen:
            found |= ~np.isin(discrete_value(name, shape[name]), np.asarray(block.seen[name]))
    return np.asarray(found)


def _widest(quantiles: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    if not quantiles:
        return DEFAULT
    return min(low for low, _ in quantiles.values()), max(high for _, high in quantiles.values())


def combine_log_widths(seconds: Array, low: Array, high: Array, correlation: float = 0.5) -> tuple[float, float]:
    """Interval of a sum of times from the log intervals of its parts, as (low, high) factors on the sum.

    Errors of kernels of one device share causes: of each part's width the share `correlation` adds up linearly, the rest in
    quadrature, so the interval of a step does not shrink with the number of its kernels.
    """
    share = np.asarray(seconds) / np.sum(seconds)
    factors = []
    for quantile in (low, high):
        part = share * np.expm1(quantile)
        linear, quadrature = float(np.sum(part)), math.copysign(float(np.sqrt(np.sum(part**2))), float(np.sum(part)))
        factors.append(1.0 + correlation * linear + (1.0 - correlation) * quadrature)
    return factors[0], factors[1]
