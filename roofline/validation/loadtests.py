"""A plan or a simulation against what a load test measured: rows, groups and verdicts as everywhere else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roofline.errors import RecordError
from roofline.loadtest.compare import compare, load_prediction
from roofline.validation.verdicts import AMBIGUOUS, FAIL, PASS

AIM = 0.20  # median error of a metric


@dataclass(frozen=True)
class LoadCheck:
    """rows: one per stage, metric and statistic; groups: one per metric; warnings: why the load test is not to be trusted."""

    rows: Sequence[dict[str, Any]]
    groups: Sequence[dict[str, Any]]
    warnings: Sequence[str]

    @property
    def verdict(self) -> str:
        """The worst of the groups."""
        words = {group["verdict"] for group in self.groups}
        return FAIL if FAIL in words else AMBIGUOUS if AMBIGUOUS in words else PASS

    @property
    def exit_code(self) -> int:
        """4 untrustworthy, 1 FAIL, else 0."""
        return 4 if self.warnings else 1 if self.verdict == FAIL else 0


def check_loadtest(result: Path, prediction: Path) -> LoadCheck:
    """The stages of a `loadtest --json` result beside a `plan --json` or `simulate --json`.

    A row PASSes inside the predicted interval and FAILs outside it; without an interval it is AMBIGUOUS. A metric FAILs with more
    than half of its rows and PASSes with at least half of them and a median error within AIM. Raises RecordError for other files
    and when prediction and stages have no load in common.
    """
    measured = _load(result)
    rows = [{**row, "verdict": _word(row)} for row in compare(load_prediction(prediction), measured["stages"])]
    if not rows:
        raise RecordError(f"{prediction}: says nothing about the loads of {result}: plan or simulate the same concurrency or request rate")
    metrics = dict.fromkeys(row["metric"] for row in rows)
    return LoadCheck(rows, [_group(metric, [row for row in rows if row["metric"] == metric]) for metric in metrics], _doubts(measured))


def _load(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(document, dict) or document.get("command") != "loadtest" or not document.get("stages"):
        raise RecordError(f"{path}: not the result of a load test: write one with `roofline loadtest URL --json > FILE`")
    return document


def _word(row: Mapping[str, Any]) -> str:
    return AMBIGUOUS if row["inside"] is None else PASS if row["inside"] else FAIL


def _group(metric: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    words = [row["verdict"] for row in rows]
    error = float(np.median([abs(row["error"]) for row in rows if row["error"] is not None]))
    fails, passes = words.count(FAIL), words.count(PASS)
    word = FAIL if 2 * fails > len(words) else PASS if 2 * passes >= len(words) and error <= AIM else AMBIGUOUS
    counts = {"pass": passes, "fail": fails, "ambiguous": words.count(AMBIGUOUS)}
    return {
        "group": metric if metric.endswith("_per_s") else metric.removesuffix("_s"),
        "verdict": word,
        "rows": len(words),
        **counts,
        "median_error": error,
        "target": AIM,
    }


def _doubts(measured: Mapping[str, Any]) -> list[str]:
    found = [] if measured["client"]["trustworthy"] else [f"the client shaped these numbers: {'; '.join(measured['client']['reasons'])}"]
    if measured["error_rate"]:
        found.append(f"{measured['error_rate']:.1%} of the requests failed: the others were served faster than under the full load")
    if measured["length_mismatches"]:
        found.append(f"{measured['length_mismatches']} answers had another length than asked for")
    if measured["interrupted"]:
        found.append("the load test was interrupted")
    return found
