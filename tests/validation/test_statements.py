"""Predictions are on record before their measurements, unchanged; otherwise the run is refused."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest

from roofline.errors import InputError, UntrustworthyError
from roofline.records import JsonlWriter
from roofline.validation.fitting import disjoint
from roofline.validation.predictions import THIS_RUN, Prediction
from roofline.validation.statements import MEASUREMENTS, PREDICTIONS, begin, check, state

STATED = [Prediction("gemm/a", "gemm", THIS_RUN, 1.0, 2.0, 1.5, 2.5)]


def run(folder: Path, *, late: bool = False) -> None:
    ticks = count(100.0)
    clock = lambda: next(ticks)  # noqa: E731
    digest = state(folder, "kernels", STATED, (lambda: 500.0) if late else clock)
    with JsonlWriter(folder / MEASUREMENTS) as writer:
        begin(writer, "kernels", digest, clock)


def test_statement_comes_first_and_its_hash_is_in_the_measurements(tmp_path: Path) -> None:
    run(tmp_path)
    assert check(tmp_path) == ["kernels"]
    statement = json.loads((tmp_path / PREDICTIONS).read_text().splitlines()[-1])
    mark = json.loads((tmp_path / MEASUREMENTS).read_text())
    assert statement["stated_s"] < mark["begun_s"]
    assert statement["sha256"] == mark["predictions_sha256"]


def test_a_statement_after_the_fact_is_refused(tmp_path: Path) -> None:
    run(tmp_path, late=True)
    with pytest.raises(UntrustworthyError, match="before its predictions were on record"):
        check(tmp_path)


def test_a_changed_prediction_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    path = tmp_path / PREDICTIONS
    path.write_text(path.read_text().replace('"expected_s":2.0', '"expected_s":2.1'))
    with pytest.raises(UntrustworthyError, match="were changed"):
        check(tmp_path)


def test_fitted_and_judged_shapes_must_differ() -> None:
    disjoint(["a"], ["b"])
    with pytest.raises(InputError, match="fitted and judged at once: b"):
        disjoint(["a", "b"], ["b", "c"])
