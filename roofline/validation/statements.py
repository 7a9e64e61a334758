"""Predictions on record before anything is measured: rows, then a line with their hash and the time; checked afterwards."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from roofline.errors import UntrustworthyError
from roofline.records.files import JsonlWriter, read_jsonl
from roofline.validation.predictions import Prediction

PREDICTIONS, MEASUREMENTS = "predictions.jsonl", "measurements.jsonl"


def state(
    folder: Path,
    stage: str,
    predictions: Sequence[Prediction],
    clock: Callable[[], float] = time.time,
    *,
    simulated: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Writes the predictions of a stage to the disk and returns their SHA-256. simulated: rows of a simulation that belong to them."""
    rows = [{**p.to_json(), "stage": stage} for p in predictions] + [{"kind": "simulated", **row, "stage": stage} for row in simulated]
    digest = _digest(rows)
    with JsonlWriter(folder / PREDICTIONS) as writer:
        for row in rows:
            writer.write(row)
        writer.write({"kind": "statement", "stage": stage, "stated_s": clock(), "rows": len(rows), "sha256": digest})
    return digest


def begin(writer: JsonlWriter, stage: str, digest: str, clock: Callable[[], float] = time.time) -> None:
    """Marks in the measurements that a stage begins, and which predictions were on record then."""
    writer.write({"kind": "stage", "stage": stage, "begun_s": clock(), "predictions_sha256": digest})
    writer.flush()


def check(folder: Path) -> list[str]:
    """The stages whose predictions were on record, unchanged, before their first sample.

    Raises UntrustworthyError when a stage was measured before or without its predictions, or these were changed afterwards.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    stated: dict[str, Mapping[str, Any]] = {}
    for _, row in read_jsonl(folder / PREDICTIONS):
        if row["kind"] in ("prediction", "simulated"):
            rows.setdefault(row["stage"], []).append(row)
        else:
            stated[row["stage"]] = row
    marks = (row for _, row in read_jsonl(folder / MEASUREMENTS, skip_cut_lines=True) if row["kind"] == "stage")
    begun = {row["stage"]: row for row in marks if row["predictions_sha256"]}
    for stage, mark in begun.items():
        statement = stated.get(stage)
        if statement is None or statement["stated_s"] > mark["begun_s"]:
            raise UntrustworthyError(f"{folder}: {stage} was measured before its predictions were on record")
        if not statement["sha256"] == mark["predictions_sha256"] == _digest(rows.get(stage, [])):
            raise UntrustworthyError(f"{folder / PREDICTIONS}: the predictions of {stage} were changed after they were stated")
    return list(begun)


def _digest(rows: Sequence[Mapping[str, Any]]) -> str:
    text = "\n".join(json.dumps(row, sort_keys=True) for row in rows)
    return hashlib.sha256(text.encode()).hexdigest()
