"""From groups of rows to calibration blocks: own constants, generation and generic ones, and intervals from held-out residuals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roofline.calibration.fit import Fit, Rows, fit_constants, fit_group, log_residual
from roofline.calibration.groups import Group
from roofline.profiles.calibration import CalibrationBlock, Provenance
from roofline.timing.forms import Form, Key
from roofline.timing.forms.base import Array, discrete_value

MIN_ROWS = 15  # fewer rows than this say less than the constants of a neighbour
_JOINT_ROWS = 1500  # a joint fit reads an even sample of this size
_BAND_ROWS = 40  # fewer residuals than this in a band fall back to the band over all keys
_TRANSFER_SPREAD = 1.3  # factor on quantiles where only one device or generation was there to learn from


@dataclass(frozen=True)
class Residuals:
    """Held-out log residuals (measured / predicted) with the size band of each, and a number for its discrete facts (head_dim …)."""

    log: Array
    band: Array
    fact: Array

    @classmethod
    def of(cls, form: Form, rows: Rows, log: Array) -> Residuals:
        """Residuals of rows, with the bands that `form` gives them."""
        fact = np.zeros(log.size)
        for name in form.discrete:
            fact = 1000.0 * fact + discrete_value(name, rows.shape[name])
        return cls(log, form.band(rows.shape, rows.key).astype(np.float64), fact)

    @classmethod
    def joined(cls, parts: Iterable[Residuals]) -> Residuals:
        """All parts as one."""
        listed = list(parts)
        return cls(*(np.concatenate([getattr(p, name) for p in listed]) for name in ("log", "band", "fact")))

    def within(self, band: int) -> Residuals:
        """Those of one size band."""
        inside = self.band == band
        return Residuals(self.log[inside], self.band[inside], self.fact[inside])

    def spread(self) -> tuple[float, float]:
        """10 % and 90 % quantile, each combination of discrete facts weighing the same: a new shape is as likely to have any of them,
        and tables hold many rows of the head_dim that every kernel is tuned for."""
        _, index, count = np.unique(self.fact, return_inverse=True, return_counts=True)
        order = np.argsort(self.log)
        weight = (1.0 / count[index.reshape(-1)])[order]
        place = (np.cumsum(weight) - weight / 2) / weight.sum()
        low, high = np.interp((0.1, 0.9), place, self.log[order])
        return float(low), float(high)


def rounded(constants: Mapping[str, float]) -> dict[str, float]:
    """Constants with the four digits that files keep, so that a fit that starts from a file starts from the same numbers."""
    return {name: float(f"{value:.4g}") for name, value in constants.items()}


def joint_fit(form: Form, groups: Sequence[Group]) -> dict[str, float]:
    """One set of constants for all groups (which share a form), each row weighing the same; at most _JOINT_ROWS rows are read."""
    step = max(1, round(sum(len(g.rows) for g in groups) / _JOINT_ROWS))
    sample = [g.rows.take(np.arange(len(g.rows)) % step == 0) for g in groups]
    return rounded(fit_constants(form, sample, {}))


def left_out(form: Form, groups: Sequence[Group], part_of: Mapping[str, str]) -> Residuals | None:
    """Residuals of each part (device or generation, by device) under constants fitted on the others; None with one part only."""
    parts = sorted({part_of[g.device] for g in groups})
    if len(parts) < 2:
        return None
    found = []
    for part in parts:
        constants = joint_fit(form, [g for g in groups if part_of[g.device] != part])
        tested = [g for g in groups if part_of[g.device] == part]
        found += [Residuals.of(form, g.rows, log_residual(form, g.rows, constants)) for g in tested]
    return Residuals.joined(found)


def quantiles(form: Form, own: Residuals, family: Residuals, factor: float = 1.0) -> dict[str, tuple[float, float]]:
    """Size band → 10 % and 90 % quantile of the log residuals of `own`; of `family` where `own` has too few in a band."""
    table = {}
    for index, name in enumerate(form.bands):
        inside = next((part for part in (own.within(index), family.within(index)) if part.log.size >= _BAND_ROWS), family)
        low, high = inside.spread()
        table[name] = (round(low * factor, 4), round(high * factor, 4))
    return table


def seen(form: Form, groups: Sequence[Group]) -> dict[str, tuple[float, ...]]:
    """Values of the discrete shape facts among the rows."""
    values = {name: [discrete_value(name, g.rows.shape[name]) for g in groups] for name in form.discrete}
    return {name: tuple(float(v) for v in np.unique(np.concatenate(parts))) for name, parts in values.items()}


@dataclass(frozen=True)
class FamilyFit:
    """Blocks of one kernel family: by device, by generation, and generic; and the fits behind the device blocks."""

    device: dict[str, list[CalibrationBlock]]
    generation: dict[str, list[CalibrationBlock]]
    generic: list[CalibrationBlock]
    fits: list[tuple[Group, Fit]]


def fit_family(form: Form, groups: Sequence[Group], source: Provenance) -> FamilyFit:
    """All blocks of a family from its groups. source: provenance without rows and error. Groups under MIN_ROWS rows get no block."""
    usable = [g for g in groups if len(g.rows) >= MIN_ROWS]
    mates: dict[tuple[str, Key], list[Group]] = defaultdict(list)
    for group in usable:
        mates[group.generation, group.key].append(group)
    shared = {where: joint_fit(form, members) for where, members in mates.items()}
    fits = [(g, fit_group(form, g.rows, shared[g.generation, g.key])) for g in usable]
    residuals = [Residuals.of(form, g.rows, f.held_out) for g, f in fits]
    family = Residuals.joined(residuals)
    pooled: dict[tuple[str, str, str, str], list[Residuals]] = defaultdict(list)
    for (group, _), left in zip(fits, residuals, strict=True):
        pooled[_pool(group)].append(left)
    device: dict[str, list[CalibrationBlock]] = defaultdict(list)
    for group, fit in fits:
        interval = quantiles(form, Residuals.joined(pooled[_pool(group)]), family)
        device[group.device].append(device_block(form, group, fit, interval, source))
    generation: dict[str, list[CalibrationBlock]] = defaultdict(list)
    for (name, key), members in mates.items():
        own = Residuals.joined(r for (g, _), r in zip(fits, residuals, strict=True) if (g.generation, g.key) == (name, key))
        generation[name].append(_shared_block(form, key, members, shared[name, key], own, family, source))
    return FamilyFit(dict(device), dict(generation), _generic_blocks(form, usable, family, source), fits)


def _pool(group: Group) -> tuple[str, str, str, str]:
    return group.generation, group.key.software, group.key.dtype, group.key.kv_dtype


def device_block(form: Form, group: Group, fit: Fit, interval: Mapping[str, tuple[float, float]], source: Provenance) -> CalibrationBlock:
    """The block of one group of one device."""
    provenance = source.model_copy(update={"rows": len(group.rows), "held_out_error": round(fit.held_out_error, 4)})
    return CalibrationBlock(
        **_words(form, group.key), software_version=group.version, constants=rounded(fit.constants),
        correction_percent=fit.correction, interval_log_quantiles=dict(interval), seen=seen(form, [group]), provenance=provenance,
    )  # fmt: skip


def _words(form: Form, key: Key) -> dict[str, Any]:
    return {
        "family": form.family,
        "software": key.software,
        "dtype": key.dtype,
        "kernel": key.kernel,
        "kv_dtype": key.kv_dtype,
        "form": key.form,
    }


def _shared_block(
    form: Form, key: Key, groups: Sequence[Group], constants: dict[str, float], own: Residuals, family: Residuals, source: Provenance,
    part_of: Mapping[str, str] | None = None,
) -> CalibrationBlock:  # fmt: skip
    """A block for devices that were not measured: its interval is what the measured ones showed when they were left out."""
    left = left_out(form, groups, part_of or {g.device: g.device for g in groups})
    factor = 1.0 if left else _TRANSFER_SPREAD
    interval = quantiles(form, left or own, left or family, factor)
    error = float(np.median(np.abs(np.expm1(-(left or own).log))))
    provenance = source.model_copy(update={"rows": sum(len(g.rows) for g in groups), "held_out_error": round(error, 4)})
    return CalibrationBlock(
        **_words(form, key), constants=constants, interval_log_quantiles=interval, seen=seen(form, groups),
        provenance=provenance,
    )  # fmt: skip


def _generic_blocks(form: Form, groups: Sequence[Group], family: Residuals, source: Provenance) -> list[CalibrationBlock]:
    """Constants over all devices, per software and dtype (attention: per dtypes), for devices of a generation never measured."""
    pools: dict[Key, list[Group]] = defaultdict(list)
    for group in groups:
        key = group.key
        name = replace(key, kernel="", software="", form="") if "kernel" in form.keys and form.family != "collective" else key
        if form.family == "collective":
            name = replace(key, software="")
        generic = form.policy("", replace(name, form=""))
        pools[generic].append(replace(group, rows=replace(group.rows, key=replace(key, form=generic.form))))
    blocks = []
    for key, members in sorted(pools.items()):
        constants = joint_fit(form, members)
        own = Residuals.joined(Residuals.of(form, g.rows, log_residual(form, g.rows, constants)) for g in members)
        part_of = {g.device: g.generation for g in members}
        blocks.append(_shared_block(form, key, members, constants, own, family, source, part_of))
    return blocks
