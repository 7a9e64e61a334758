"""How well constants carry over to a device that was never measured: leave one out, fit the others, predict it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from roofline.calibration.blocks import joint_fit
from roofline.calibration.fit import log_residual
from roofline.calibration.groups import Group
from roofline.timing.forms import Form


def leave_device_out(
    form: Form, fitted: Sequence[Group], held: Sequence[Group], sustained: Callable[[str, Sequence[str]], float]
) -> list[dict[str, object]]:
    """Error of each held group under constants of the other devices' fit rows: of its generation, else of all.

    fitted, held: groups of the same keys; a group of `held` whose key no other device has is left out. sustained(device, others):
    share of its peak that a device sustains in units of what others do (timing.spec), by which its peaks are scaled. Rows of device,
    software, dtype, source ("generation" or "all devices"), median_error and p90_error as fractions.
    """
    rows: list[dict[str, object]] = []
    for group in held:
        others = [g for g in fitted if g.device != group.device and (g.key.software, g.key.dtype) == (group.key.software, group.key.dtype)]
        mates = [g for g in others if g.generation == group.generation]
        chosen = mates or [g for g in others if g.key.form == group.key.form]
        if not chosen:
            continue
        factor = sustained(group.device, [g.device for g in chosen])
        spec = replace(group.rows.spec, peaks={name: factor * peak for name, peak in group.rows.spec.peaks.items()})
        error = np.abs(np.expm1(-log_residual(form, replace(group.rows, spec=spec), joint_fit(form, chosen))))
        rows.append(
            {
                "device": group.device,
                "software": group.key.software,
                "dtype": group.key.dtype,
                "source": "generation" if mates else "all devices",
                "median_error": float(np.median(error)),
                "p90_error": float(np.quantile(error, 0.9)),
            }
        )
    return rows
