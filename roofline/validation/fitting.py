"""Constants from shapes of the same run that are not judged: roofs and kernels of the device, and what the engine adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from roofline.errors import InputError
from roofline.profiles.hardware import Hardware
from roofline.records import Measurement
from roofline.validation.predictions import Step, StepConstants

_PULL = 0.3  # of the scale towards 1: kernels run in a step as they run alone unless the steps say otherwise
LEAST_STEPS = 4


def disjoint(fitted: Sequence[str], judged: Sequence[str]) -> None:
    """Raises InputError when a shape is both fitted and judged: its error would be no error of a prediction."""
    both = sorted(set(fitted) & set(judged))
    if both:
        raise InputError(f"fitted and judged at once: {', '.join(both[:5])}; a shape that was fitted says nothing about predictions")


def fit_device(measurements: Sequence[Measurement], profile: Hardware | None) -> Hardware:
    """The device with constants from these measurements: over its own roofs on a CPU, over the datasheet's on a GPU.

    Raises InputError when there are too few.
    """
    if profile is not None and profile.vendor != "measured":
        return _over_datasheet(measurements, profile)
    from roofline.calibration.machine import fit_machine

    machine = fit_machine(measurements)
    return Hardware(
        id="this-machine", vendor="measured", name=machine.device, memory_bytes=profile.memory_bytes if profile else 1.0,
        memory_bandwidth=machine.bandwidth, peaks=dict(machine.peaks), calibration=machine.blocks,
    )  # fmt: skip


def _over_datasheet(measurements: Sequence[Measurement], profile: Hardware) -> Hardware:
    import pandas as pd

    from microbench.summary import kernel_rows
    from roofline.calibration.calibrate import calibrate

    main = [m for m in measurements if m.cold and m.shape.get("kernel", "flash") == "flash"]  # other backends are other kernels
    table = pd.DataFrame(kernel_rows(main)).assign(hardware=profile.id)
    table["kv_dtype"] = table["kv_dtype"].fillna(table["dtype"])
    blocks = calibrate(table, profile, name="this run").file.blocks
    return profile.model_copy(update={"calibration": (*blocks, *profile.calibration)})


def fit_steps(steps: Mapping[Step, float], kernels_s: Mapping[Step, float]) -> StepConstants:
    """Constants of the engine from measured steps and the kernel times predicted for them: least squares of relative errors.

    All are ≥ 0, the scale between 0.5 and 3 and pulled a little towards 1. Raises InputError for fewer than LEAST_STEPS.
    """
    from scipy.optimize import lsq_linear

    if len(steps) < LEAST_STEPS:
        raise InputError(
            f"{len(steps)} steps of the engine were measured for its constants, {LEAST_STEPS} are needed: give a larger --budget"
        )
    rows = np.array([[1.0, step.tokens, kernels_s[step], step.cached, step.groups - 1.0] for step in steps])
    seconds = np.array(list(steps.values()))
    size = rows.max(axis=0)
    size[size == 0] = 1.0
    scaled = rows / seconds[:, None] / size
    pull = np.array([0.0, 0.0, _PULL * np.sqrt(len(steps)) / size[2], 0.0, 0.0])
    bounds = (np.array([0.0, 0.0, 0.5, 0.0, 0.0]) * size, np.array([np.inf, np.inf, 3.0, np.inf, np.inf]) * size)
    found = lsq_linear(np.vstack([scaled, pull]), np.append(np.ones(len(steps)), _PULL * np.sqrt(len(steps))), bounds)
    constants = StepConstants(*(float(value) for value in found.x / size))
    residual = rows @ (found.x / size) / seconds - 1
    free = max(len(steps) - rows.shape[1], 1)
    return replace(constants, spread=max(float(np.sqrt(np.sum(residual**2) / free)), 0.03))
