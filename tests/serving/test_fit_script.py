"""What scripts/fit_serving.py takes for one measurement that was published twice."""

from __future__ import annotations

import pandas as pd

from tests.scripting import load_script


def test_a_rounded_copy_of_a_measurement_is_read_once() -> None:
    row = {"id": "a", "date": "2026-03-04", "origin": "one", "software_version": "0.5.9", "tp": 8, "ttft_ms": 290.5095, "tpot_ms": 22.6269}
    rounded = row | {"id": "b", "date": None, "origin": "two", "software_version": "nightly", "ttft_ms": 290.51, "tpot_ms": 22.63}
    other_times, other_layout = row | {"tpot_ms": 22.66}, row | {"tp": 4}
    repeated = load_script("fit_serving").repeated(pd.DataFrame([row, rounded, other_times, other_layout]))
    assert list(repeated) == [False, True, False, False]
