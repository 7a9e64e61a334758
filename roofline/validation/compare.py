"""From the records of a run to its verdicts: the same records give the same answer, whenever they are read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roofline.errors import RecordError
from roofline.profiles.hardware import Hardware
from roofline.records import Environment, Measurement, read_jsonl
from roofline.validation import health, passes, serve, statements
from roofline.validation.predictions import SHIPPED, THIS_RUN, Prediction
from roofline.validation.verdicts import PASS, GroupVerdict, Measured, Row, attribute, judge, judge_groups, overall

RUN = "run.json"
KERNELS, TRACE = ("gemm", "attention"), ("ttft", "tpot")


@dataclass(frozen=True)
class Validation:
    """All that a run found. run: what run.json says of it (model, device, settings, bases, what was left out).

    requests: of the sections of the trace as served; simulated: the same as stated before each, by basis and edge of the interval.
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
    records = _read(folder)
    kernels, steps = ([m for m in records.measurements if (m.op == "engine_step") == wanted] for wanted in (False, True))
    rows = _measured_rows(records, run["alone"]) + _trace_rows(records)
    hardware = Hardware.model_validate(run["hardware"]) if run["hardware"] else None
    change = _change(kernels, steps, stages)
    widths = [row.measured.width for row in rows if row.group not in TRACE]
    seen = health.facts(passes.middle(kernels), records.environment, run["cores_present"], change, widths, run["untrustworthy"])
    findings = health.diagnose(seen, hardware)
    return Validation(
        run,
        records.environment,
        records.measurements,
        rows,
        judge_groups(rows),
        seen,
        findings,
        stages,
        records.requests,
        records.simulated,
    )


@dataclass(frozen=True)
class _Records:
    """What the files of a run hold. predicted: target → stage → basis; requests, simulated: of the sections that count."""

    environment: Environment
    measurements: Sequence[Measurement]
    predicted: Mapping[str, Mapping[str, Mapping[str, Prediction]]]
    requests: Sequence[Mapping[str, Any]]
    simulated: Sequence[Mapping[str, Any]]


def _read(folder: Path) -> _Records:
    path = folder / statements.MEASUREMENTS
    environment: Environment | None = None
    measurements: list[Measurement] = []
    rows: dict[str, list[dict[str, Any]]] = {"request": [], "served": []}
    for line, row in read_jsonl(path, skip_cut_lines=True):
        if row["kind"] == "environment" and environment is None:
            environment = Environment(**{key: value for key, value in row.items() if key not in ("kind", "id", "seed")})
        elif row["kind"] == "measurement":
            measurements.append(Measurement.from_json(row, f"{path}:{line}"))
        elif row["kind"] in rows:
            rows[row["kind"]].append(row)
    if environment is None:
        raise RecordError(f"{path}:1: no environment record: these are not the measurements of a validation")
    predicted: dict[str, dict[str, dict[str, Prediction]]] = {}
    simulated = []
    for _, row in read_jsonl(folder / statements.PREDICTIONS):
        if row["kind"] == "prediction":
            p = Prediction(**{key: value for key, value in row.items() if key not in ("kind", "stage")})
            predicted.setdefault(p.target, {}).setdefault(row["stage"], {})[p.basis] = p
        elif row["kind"] == "simulated" and "basis" in row:
            simulated.append(row | {"pass": int(row["stage"].split()[-1])})
    calm = {row["pass"] for row in rows["served"] if "pass" in row and not passes.disturbed(row["others"])}
    counted = calm or {row["pass"] for row in rows["served"] if "pass" in row}
    requests = [row for row in rows["request"] if row.get("pass") in counted]
    return _Records(environment, measurements, predicted, requests, [row for row in simulated if row["pass"] in counted])


def _change(kernels: Sequence[Measurement], steps: Sequence[Measurement], stages: Sequence[str]) -> health.Change:
    """How the machine changed: kernels by the sentinel, in a pass from its constants to what was judged by them; the engine by the
    steps that set its pace, from before a pass to after it.
    """
    sentinels = [m for m in kernels if m.notes.get("sentinel")]
    before, after = (passes.paces([m for m in sentinels if m.notes.get("phase") == each]) for each in (passes.CONSTANTS, passes.JUDGED))
    engine = passes.paces([m for m in steps if m.notes.get("pass") and m.notes.get("phase") == passes.CONSTANTS])
    later = {number - 1: pace for number, pace in engine.items()}
    within = {"kernels": list(passes.moved(before, after).values())}
    for name in ("steps", "trace"):
        mine = {int(stage.split()[1]) for stage in stages if stage.startswith(f"{name} ")}
        within[name] = [share for number, share in passes.moved(engine, later).items() if number in mine]
    between = max(passes.drift(passes.paces(sentinels)), passes.drift(engine))
    return health.Change(between, {name: float(np.median(shares)) for name, shares in within.items() if shares})


def _measured_rows(records: _Records, alone: Mapping[str, Mapping[str, tuple[str, int]]]) -> list[Row]:
    """Kernels and steps: measured over stated of each pass, and of these the one in the middle."""
    kernels = {str(m.notes["case"]): m.median_s for m in passes.middle(records.measurements)}
    found = []
    for target, by_pass in passes.by_pass(records.measurements).items():
        stages = records.predicted.get(target, {})
        pairs = [(m, stated) for number, m in by_pass.items() if (stated := _stated(stages, number))]
        if pairs:
            found.append(
                _row(target, pairs, {name: count * kernels[c] for name, (c, count) in alone.get(target, {}).items() if c in kernels})
            )
    return sorted(found, key=lambda row: list(records.predicted).index(row.target))


def _stated(stages: Mapping[str, Mapping[str, Prediction]], number: object) -> dict[str, Prediction]:
    """By basis what was stated for this pass ("steps 2"), and what was stated once for all of them ("profile")."""
    found: dict[str, Prediction] = {}
    for stage, stated in stages.items():
        if not stage[-1].isdigit() or stage.endswith(f" {number}"):
            found |= stated
    return found


def _row(target: str, pairs: Sequence[tuple[Measurement, Mapping[str, Prediction]]], kernels: Mapping[str, float]) -> Row:
    """The pass whose ratio of measured to stated is in the middle, the sign kept: a change of the machine under one pass is outvoted,
    an error of the prediction stays. Its interval is that of the middle ratio of another run; of one pass, 10 to 90 % of its samples.
    """
    judged = _judged(pairs[0][1])
    ratios = sorted((m.median_s / stated[judged].expected_s, at) for at, (m, stated) in enumerate(pairs))
    m, predictions = pairs[ratios[(len(ratios) - 1) // 2][1]]
    expected = predictions[judged].expected_s
    if len(pairs) > 1:
        low, high = (expected * end for end in passes.of_median([ratio for ratio, _ in ratios]))
        seen = Measured(m.median_s, low, high, len(m.samples_s), len(pairs), high / low - 1)
    else:
        low, high = (float(end) for end in np.quantile(m.samples_s, [0.1, 0.9]))
        seen = Measured(m.median_s, low, high, len(m.samples_s), 1, m.spread)
    verdict = judge(predictions[judged], seen)
    if not predictions[judged].parts:
        return Row(target, predictions[judged].group, seen, predictions, judged, verdict)
    cause, parts = attribute(seen.median_s, predictions[judged], kernels)
    return Row(target, predictions[judged].group, seen, predictions, judged, verdict, cause if verdict.word != PASS else "", parts)


def _trace_rows(records: _Records) -> list[Row]:
    """Statistics over the requests of all sections, as simulated before each and as served."""
    if not (records.requests and records.simulated):
        return []
    stated: dict[str, dict[str, Prediction]] = {}
    for p in serve.predictions(records.simulated):
        stated.setdefault(p.target, {})[p.basis] = p
    measured = serve.measured(records.requests)
    found = []
    for target, predictions in stated.items():
        judged = _judged(predictions)
        verdict = judge(predictions[judged], measured[target])
        found.append(Row(target, predictions[judged].group, measured[target], predictions, judged, verdict))
    return found


def _judged(predictions: Mapping[str, Prediction]) -> str:
    """Kernels are judged on the shipped constants, a claim that was made before this machine was seen; where there are none, on this
    run's. So are steps and traces: what the reference engine adds to its kernels is in no profile."""
    kernel = next(iter(predictions.values())).group in KERNELS
    return next(basis for basis in ((SHIPPED, THIS_RUN) if kernel else (THIS_RUN, SHIPPED)) if basis in predictions)
