"""From the records of a run to its verdicts: the same records give the same answer, whenever they are read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roofline.errors import RecordError
from roofline.profiles.hardware import Hardware
from roofline.records import Environment, Measurement, read_jsonl
from roofline.validation import health, passes, serve, statements
from roofline.validation.predictions import SHIPPED, THIS_RUN, Prediction
from roofline.validation.verdicts import PASS, GroupVerdict, Measured, Row, attribute, judge, judge_groups, overall

RUN = "run.json"
KERNELS = ("gemm", "attention")


@dataclass(frozen=True)
class Validation:
    """All that a run found. run: what run.json says of it (model, device, settings, bases, what was left out).

    requests: of the trace as served; simulated: the same as stated before.
    """

    run: Mapping[str, Any]
    environment: Environment
    measurements: Sequence[Measurement]
    rows: Sequence[Row]
    groups: Sequence[GroupVerdict]
    facts: health.Facts
    findings: Sequence[health.Finding]
    stages: Sequence[str]
    requests: Sequence[Mapping[str, Any]]
    simulated: Sequence[Mapping[str, Any]] = ()

    @property
    def verdict(self) -> str:
        """The worst of the groups; FAIL as well for a device that is not what it should be."""
        word = overall(self.groups)
        return "FAIL" if any(f.severity == health.FAULT for f in self.findings) else word

    @property
    def trustworthy(self) -> bool:
        """Whether nothing speaks against believing it."""
        return health.trustworthy(self.findings)

    @property
    def exit_code(self) -> int:
        """130 interrupted, 4 untrustworthy, 1 FAIL, else 0."""
        if self.run.get("interrupted"):
            return 130
        return 4 if not self.trustworthy else 1 if self.verdict == "FAIL" else 0

    def to_json(self) -> dict[str, Any]:
        """The keys of the command's document."""
        return {
            "verdict": self.verdict, "trustworthy": self.trustworthy, "model": self.run["model"], "device": self.run["device"],
            "bases": self.run["bases"], "groups": [g.to_json() for g in self.groups], "rows": [r.to_json() for r in self.rows],
            "health": {"facts": self.facts.to_json(), "findings": [f.to_json() for f in self.findings]},
            "predictions_stated_first": list(self.stages), "left_out": self.run["left_out"], "seconds": self.run["seconds"],
            "environment": self.environment.to_json(),
        }  # fmt: skip


def assemble(folder: Path) -> Validation:
    """Reads a run's records and judges them. Raises RecordError for missing files, UntrustworthyError for predictions after the fact."""
    path = folder / RUN
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot read what `roofline validate -o {folder}` writes: {error}") from None
    stages = statements.check(folder)
    environment, measurements, requests = _read(folder / statements.MEASUREMENTS)
    kernels, steps = ([m for m in measurements if (m.op == "engine_step") == wanted] for wanted in (False, True))
    moved = {"kernels": passes.drift(kernels), "steps": passes.drift_within(steps)}
    hardware = Hardware.model_validate(run["hardware"]) if run["hardware"] else None
    seen = health.facts(passes.middle(kernels), environment, run["cores_present"], max(moved.values()), run["untrustworthy"])
    rows = _rows(folder, run, measurements, moved, requests)
    findings = health.diagnose(seen, hardware)
    repeat = requests[0].get("repeat") if requests else None
    told = (row for _, row in read_jsonl(folder / statements.PREDICTIONS) if row["kind"] == "simulated")
    simulated = [row for row in told if row["stage"] == f"trace {repeat}"]
    return Validation(run, environment, measurements, rows, judge_groups(rows), seen, findings, stages, requests, simulated)


def _read(path: Path) -> tuple[Environment, list[Measurement], list[Mapping[str, Any]]]:
    environment: Environment | None = None
    measurements: list[Measurement] = []
    requests: list[dict[str, Any]] = []
    noisy: list[int] = []
    for line, row in read_jsonl(path, skip_cut_lines=True):
        if row["kind"] == "environment" and environment is None:
            environment = Environment(**{key: value for key, value in row.items() if key not in ("kind", "id", "seed")})
        elif row["kind"] == "measurement":
            measurements.append(Measurement.from_json(row, f"{path}:{line}"))
        elif row["kind"] == "request":
            requests.append(row)
        elif row["kind"] == "served" and passes.disturbed(row.get("others")):
            noisy.append(int(row["repeat"]))
    if environment is None:
        raise RecordError(f"{path}:1: no environment record: these are not the measurements of a validation")
    return environment, measurements, serve.middle([row for row in requests if row.get("repeat", 0) not in noisy] or requests)


def _rows(
    folder: Path,
    run: Mapping[str, Any],
    measurements: Sequence[Measurement],
    moved: Mapping[str, float],
    requests: Sequence[Mapping[str, Any]],
) -> list[Row]:
    predicted: dict[str, dict[str, dict[str, Prediction]]] = {}
    for _, row in read_jsonl(folder / statements.PREDICTIONS):
        if row["kind"] == "prediction":
            p = Prediction(**{key: value for key, value in row.items() if key not in ("kind", "stage")})
            predicted.setdefault(p.target, {}).setdefault(row["stage"], {})[p.basis] = p
    middle = {str(m.notes["case"]): m for m in passes.middle(measurements)}
    number = {case: m.notes.get("pass") for case, m in middle.items()}
    spans = passes.intervals(measurements)
    measured = {}
    for case, m in middle.items():
        wide = 1 + moved["steps" if m.op == "engine_step" else "kernels"]
        measured[case] = Measured(m.median_s, spans[case][0] / wide, spans[case][1] * wide, len(m.samples_s))
    if requests:
        measured |= (served := serve.measured(requests))
        number |= dict.fromkeys(served, requests[0].get("repeat"))
    return [
        _row(target, _stated(predicted[target], number[target]), measured, run["alone"].get(target, {}))
        for target in predicted
        if target in measured
    ]


def _stated(stages: Mapping[str, Mapping[str, Prediction]], number: object) -> dict[str, Prediction]:
    """By basis what was stated for this pass ("steps 2"), and what was stated once for all of them ("kernels")."""
    found: dict[str, Prediction] = {}
    for stage, stated in stages.items():
        if not stage[-1].isdigit() or stage.endswith(f" {number}"):
            found |= stated
    return found


def _row(target: str, predictions: Mapping[str, Prediction], measured: Mapping[str, Measured], alone: Mapping[str, tuple[str, int]]) -> Row:
    """Kernels are judged on the shipped constants, a claim that was made before this machine was seen; where there are none, on this
    run's. So are steps and traces: what the reference engine adds to its kernels is in no profile."""
    kernel = next(iter(predictions.values())).group in KERNELS
    judged = next(basis for basis in ((SHIPPED, THIS_RUN) if kernel else (THIS_RUN, SHIPPED)) if basis in predictions)
    seen, prediction = measured[target], predictions[judged]
    verdict = judge(prediction, seen)
    if not prediction.parts:
        return Row(target, prediction.group, seen, predictions, judged, verdict)
    kernels: dict[str, float] = {}
    for name, (case, count) in alone.items():
        if case in measured:
            kernels[name] = kernels.get(name, 0.0) + count * measured[case].median_s
    cause, parts = attribute(seen.median_s, prediction, kernels)
    return Row(target, prediction.group, seen, predictions, judged, verdict, cause if verdict.word != PASS else "", parts)
