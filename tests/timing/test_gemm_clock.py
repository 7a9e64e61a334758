"""Fixed work of a GEMM passes in clocks: a device twice as fast in clock alone does it in half the time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from roofline.timing.forms import FORMS, DeviceSpec, Key

SLOW = DeviceSpec("test", "hopper", {"bf16": 1e15}, 3e12, 132.0, 50e6, 1.8e9, 450e9)
FIXED = {"t0_us", "ts_us", "tsk_us", "tk_ns"}


@pytest.mark.parametrize("form", ["A", "B min"])
def test_fixed_work_passes_in_clocks(form: str) -> None:
    key = Key("vllm", "bf16", form=form)
    c = {constant.name: constant.start for constant in FORMS["gemm"].constants(key)}
    shape = {name: np.array([value]) for name, value in (("m", 8.0), ("n", 4096.0), ("k", 4096.0))}
    fast = FORMS["gemm"].seconds(shape, key, replace(SLOW, clock_hz=3.6e9), c, False)
    halved = {name: value / 2 if name in FIXED else value for name, value in c.items()}
    assert fast == pytest.approx(FORMS["gemm"].seconds(shape, key, SLOW, halved, False))
