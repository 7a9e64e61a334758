"""Robust fits in log space: constants of a form, its residual table, and cross-validation by site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from roofline.timing.correction import basis, log_correction
from roofline.timing.forms.base import Array, Constant, DeviceSpec, Form, Key

_SOFT = 0.08  # log residual beyond which a row counts linearly, not squared
_SPREAD = 0.5  # how far constants of the same kernel usually lie apart, in logs: the ridge counts this as one row at _SOFT
_CLAMP = 35  # largest residual correction, percent
_FOLDS = 5


@dataclass(frozen=True)
class Rows:
    """Measured rows of one key on one device: shape columns, seconds, and the site that each belongs to (for the folds)."""

    key: Key
    spec: DeviceSpec
    shape: Mapping[str, Array]
    seconds: Array
    site: NDArray[np.int64]

    def take(self, where: NDArray[np.bool_]) -> Rows:
        """The rows where the mask is true."""
        return Rows(self.key, self.spec, {n: v[where] for n, v in self.shape.items()}, self.seconds[where], self.site[where])

    def __len__(self) -> int:
        return int(self.seconds.size)


@dataclass(frozen=True)
class Fit:
    """Constants and residual table (percent; empty = none) of one key, with the held-out log residuals of the fitted rows."""

    constants: dict[str, float]
    correction: tuple[int, ...]
    held_out: Array  # log(measured / predicted) of each row, predicted without its site
    at_bounds: tuple[str, ...]

    @property
    def held_out_error(self) -> float:
        """Median |predicted / measured − 1| over held-out rows."""
        return float(np.median(np.abs(np.exp(-self.held_out) - 1.0)))


def _encode(constants: Sequence[Constant], values: Mapping[str, float]) -> Array:
    clipped = [min(max(values.get(c.name, c.start), c.low), c.high) for c in constants]
    return np.array([np.log(v) if c.log else v for c, v in zip(constants, clipped, strict=True)])


def _decode(constants: Sequence[Constant], x: Array) -> dict[str, float]:
    return {c.name: float(np.exp(v)) if c.log else float(v) for c, v in zip(constants, x, strict=True)}


def log_residual(form: Form, rows: Rows, constants: Mapping[str, float], correction: Sequence[int] = ()) -> Array:
    """log(measured / predicted) of each row."""
    predicted = form.seconds(rows.shape, rows.key, rows.spec, constants, True)
    return np.log(rows.seconds / predicted) - log_correction(form, rows.shape, rows.key, rows.spec, correction)


def fit_constants(
    form: Form, groups: Sequence[Rows], start: Mapping[str, float], spread: float = _SPREAD, steps: int = 60
) -> dict[str, float]:
    """One set of constants for all `groups` (same key form), by a soft-L1 fit of log(measured / predicted).

    start: where the search begins and what the ridge pulls to, `spread` (in logs) being its width. Rows faster than the hot
    bound must have been removed.
    """
    constants = form.constants(groups[0].key)
    x0 = _encode(constants, start)
    low = np.array([np.log(c.low) if c.log else c.low for c in constants]) - 1e-9
    high = np.array([np.log(c.high) if c.log else c.high for c in constants]) + 1e-9
    pull = _SOFT / spread * np.array([1.0 if c.log else 2.0 for c in constants])

    def residual(x: Array) -> Array:
        values = _decode(constants, x)
        return np.concatenate([*(log_residual(form, g, values) for g in groups), pull * (x - x0)])

    inside = np.clip(x0, low + 1e-6, high - 1e-6)
    options = {"loss": "soft_l1", "f_scale": _SOFT, "diff_step": 1e-3, "max_nfev": steps, "ftol": 1e-5, "xtol": 1e-4}
    found = least_squares(residual, inside, bounds=(low, high), **options)
    return _decode(constants, np.clip(found.x, low + 1e-9, high - 1e-9))


def fit_correction(
    form: Form, groups: Sequence[tuple[Rows, Mapping[str, float]]], prior: Sequence[int] = (), ridge: float = 0.5, huber: float = 0.12
) -> tuple[int, ...]:
    """Residual table in whole percent: ridge regression (towards `prior`) of the log residual, Huber weights, clamped to ±35 %.

    groups: rows with the constants of their closed form; several share one table.
    """
    if form.grid is None:
        return ()
    matrix = np.concatenate([basis(form, rows.shape, rows.key, rows.spec) for rows, _ in groups])
    target = np.concatenate([log_residual(form, rows, constants) for rows, constants in groups])
    base: Array = np.asarray(prior, dtype=np.float64) / 100.0 if len(prior) else np.zeros(form.grid.size)
    target = target - matrix @ base
    weight = np.ones(target.size)
    values: Array = np.zeros(form.grid.size)
    for _ in range(4):
        weighted = matrix * weight[:, None]
        values = np.linalg.solve(weighted.T @ matrix + ridge * np.eye(form.grid.size), weighted.T @ target)
        left = np.abs(target - matrix @ values)
        weight = np.where(left > huber, huber / np.maximum(left, 1e-9), 1.0)
    return tuple(int(v) for v in np.clip(np.rint(100.0 * (base + values)), -_CLAMP, _CLAMP))


def site_ids(columns: Sequence[Array]) -> NDArray[np.int64]:
    """A number per row that depends on the site's values only, the same in every table: rows of one site are never torn apart."""
    table = np.stack([np.asarray(c, dtype=np.float64) for c in columns], axis=1)
    known, index = np.unique(table, axis=0, return_inverse=True)
    names = [",".join(f"{v:g}" for v in row) for row in known]
    return np.asarray([crc32(name.encode()) for name in names], dtype=np.int64)[index.reshape(-1)]


def folds(site: NDArray[np.int64]) -> NDArray[np.int64]:
    """Fold 0 … 4 of each row: all rows of a site together, sites dealt out in the order of their numbers (which is no order)."""
    _, rank = np.unique(site, return_inverse=True)
    return np.asarray(rank % _FOLDS, dtype=np.int64)


def cost(residual: Array) -> float:
    """What the choice between candidates minimises: median + a quarter of the 90th percentile of the relative error."""
    error = np.abs(np.exp(-residual) - 1.0)
    return float(np.median(error) + np.quantile(error, 0.9) / 4.0)


def fit_group(form: Form, rows: Rows, start: Mapping[str, float], prior: Sequence[int] = (), spread: float = _SPREAD) -> Fit:
    """Constants, gated residual table and held-out residuals of one group.

    start, prior: constants and table of the generation (or generic ones): where the search begins and what the ridge pulls to.
    The table is kept only where cross-validation by site says that it lowers the cost by 2 %.
    """
    constants = fit_constants(form, [rows], start, spread)
    fold = folds(rows.site)
    closed, corrected = np.zeros(len(rows)), np.zeros(len(rows))
    for number in range(_FOLDS):
        test = fold == number
        if not test.any():
            continue
        if test.all():
            closed[:] = corrected[:] = log_residual(form, rows, constants)
            break
        inner = fit_constants(form, [rows.take(~test)], start, spread, steps=30)
        table = fit_correction(form, [(rows.take(~test), inner)], prior)
        closed[test] = log_residual(form, rows.take(test), inner)
        corrected[test] = log_residual(form, rows.take(test), inner, table)
    keep = form.grid is not None and cost(corrected) < 0.98 * cost(closed)
    table = fit_correction(form, [(rows, constants)], prior) if keep else ()
    return Fit(constants, table, corrected if keep else closed, bounds_hit(form, rows.key, constants))


def bounds_hit(form: Form, key: Key, constants: Mapping[str, float]) -> tuple[str, ...]:
    """Names of the constants that ended within 1 % of the range's edges: they are not measured by these rows."""
    hit = []
    for c in form.constants(key):
        value = constants[c.name]
        margin = 0.01 * (c.high - c.low) if not c.log else 0.0
        if value <= (c.low * 1.01 if c.log else c.low + margin) or value >= (c.high * 0.99 if c.log else c.high - margin):
            hit.append(c.name)
    return tuple(hit)
