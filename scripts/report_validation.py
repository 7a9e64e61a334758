"""Writes the report of a validation again from its records: `python scripts/report_validation.py FOLDER…`.

Nothing is measured: the same records give the same README.md, figures and verdict.json. With several folders under one parent the
parent gets a README.md that compares their verdicts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from roofline import units
from roofline.report import write
from roofline.report.validation import tell
from roofline.validation.compare import Validation, assemble
from roofline.validation.health import UNTRUSTED
from roofline.validation.verdicts import GroupVerdict

LEAST = 3  # trusted runs that a published report has


def regenerate(folder: Path) -> Validation:
    """The report of one run."""
    found = assemble(folder)
    write(tell(found), folder / "README.md")
    (folder / "verdict.json").write_text(json.dumps(found.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return found


def agreement(folders: Sequence[Path], runs: Sequence[Validation]) -> str:
    """Verdicts, errors and the state of the machine of several runs side by side; agreement is judged over the trusted ones."""
    first = runs[0]
    believed = [run for run in runs if run.trustworthy]
    found = [{group.group: group for group in run.groups} for run in runs]
    names = list(dict.fromkeys(name for groups in found for name in groups))
    links = [f"[{folder.name}]({folder.name}/README.md)" for folder in folders]
    lines = [
        f"# {first.run['model']} on {first.run['device']}: {len(runs)} runs",
        "",
        "Written by `python scripts/report_validation.py` from the records; a GPU was not at hand: not measured.",
        "",
        f"| median error of held-out shapes | aim | {' | '.join(links)} |",
        "|---" * (2 + len(runs)) + "|",
        *(_claim(name, [groups.get(name) for groups in found]) for name in names),
        _line("run", ["–", *("trusted" if run.trustworthy else "untrusted" for run in runs)]),
        "",
        *_agreement(folders, runs, believed),
        "In bold: beyond the aim. Constants come from other shapes of the same pass, and predictions were on record before each stage.",
        "",
        "## The machine meanwhile",
        "",
        f"| | {' | '.join(links)} |",
        "|---" * (1 + len(runs)) + "|",
        _line("verdict", [run.verdict for run in runs]),
        _line("trustworthy", ["yes" if run.trustworthy else "no" for run in runs]),
        _line("seconds (budget)", [f"{run.run['seconds']:.0f} ({run.run['budget_s']:.0f})" for run in runs]),
        _line("threads", [f"{run.run['threads']}, {'CPU seconds' if run.run['cpu_time'] else 'wall clock'}" for run in runs]),
        _line("cores that other processes took", [_number(run.facts.others) for run in runs]),
        _line("slowest / fastest pass − 1", [_percent(run.facts.drift) for run in runs]),
        *(
            _line(f"change under a prediction, half of the passes: {stage}", [_percent(run.facts.moved.get(stage)) for run in runs])
            for stage in ("kernels", "steps", "trace")
        ),
        _line("half of the rows are known within", [_percent(run.facts.spread) for run in runs]),
        _line("memory", [units.format(run.facts.bandwidth or 0.0, "bandwidth") for run in runs]),
        _line("fp32 products", [units.format(run.facts.gemm.get("fp32", 0.0), "flop_rate") for run in runs]),
    ]
    if len(believed) < LEAST:
        lines += ["", f"Preliminary: fewer than {LEAST} runs can be trusted; `scripts/validate_cpu.sh` measures again."]
    return "\n".join(lines) + "\n"


def _agreement(folders: Sequence[Path], runs: Sequence[Validation], believed: Sequence[Validation]) -> list[str]:
    """On what the trusted runs agree, and why the others are not trusted."""
    words = [{group.group: group.word for group in run.groups} for run in believed]
    names = list(dict.fromkeys(name for each in words for name in each))
    same = [name for name in names if len({each.get(name) for each in words}) == 1]
    apart = [name for name in names if name not in same]
    agree = f"{', '.join(same) or 'nothing'}." + (f" Not on: {', '.join(apart)}." if apart else "")
    lines = [
        f"The {len(believed)} trusted runs agree on: {agree}" if len(believed) > 1 else f"{len(believed)} of {len(runs)} runs trusted."
    ]
    for folder, run in zip(folders, runs, strict=True):
        reasons = "; ".join(finding.what for finding in run.findings if finding.severity == UNTRUSTED)
        lines += [f"Untrusted: {folder.name}: {reasons}."] if reasons else []
    return ["\n\n".join(lines), ""]


def _claim(name: str, groups: Sequence[GroupVerdict | None]) -> str:
    target = next((group.target for group in groups if group and group.target), None)
    return f"| {name} | {f'≤ {100 * target:.0f} %' if target else '–'} | {' | '.join(_cell(group) for group in groups)} |"


def _line(name: str, values: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(values)} |"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _cell(group: GroupVerdict | None) -> str:
    if group is None:
        return "not measured"
    error = group.median_error.get("this_run")
    beyond = error is not None and group.target is not None and error > group.target
    return f"**{_percent(error)}**, {group.word}" if beyond else f"{_percent(error)}, {group.word}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


if __name__ == "__main__":
    given = [Path(name) for name in sys.argv[1:]]
    found = [regenerate(folder) for folder in given]
    if len(given) > 1:
        (given[0].parent / "README.md").write_text(agreement(given, found), encoding="utf-8")
