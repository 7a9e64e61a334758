"""Writes the report of a validation again from its records: `python scripts/report_validation.py FOLDER…`.

Nothing is measured: the same records give the same README.md, figures and verdict.json. With several folders under one parent the
parent gets a README.md that compares their verdicts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from roofline.report import write
from roofline.report.validation import tell
from roofline.validation.compare import Validation, assemble
from roofline.validation.verdicts import GroupVerdict


def regenerate(folder: Path) -> Validation:
    """The report of one run."""
    found = assemble(folder)
    write(tell(found), folder / "README.md")
    (folder / "verdict.json").write_text(json.dumps(found.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return found


def agreement(folders: Sequence[Path], runs: Sequence[Validation]) -> str:
    """Verdicts and errors of several runs side by side."""
    first = runs[0]
    found = [{group.group: group for group in run.groups} for run in runs]
    names = list(dict.fromkeys(name for groups in found for name in groups))
    lines = [
        f"# {first.run['model']} on {first.run['device']}: {len(runs)} runs",
        "",
        "Written by `python scripts/report_validation.py` from the records; a GPU was not at hand: not measured.",
        "",
        f"| run | load | drift | trustworthy | verdict | {' | '.join(names)} |",
        "|---" * (5 + len(names)) + "|",
    ]
    for folder, run, groups in zip(folders, runs, found, strict=True):
        cells = [_cell(groups.get(name)) for name in names]
        load = f"{run.facts.load:.1f}" if run.facts.load is not None else "–"
        trust = "yes" if run.trustworthy else "no"
        row = [f"[{folder.name}]({folder.name}/README.md)", load, f"{run.facts.drift:.0%}", trust, run.verdict, *cells]
        lines.append(f"| {' | '.join(row)} |")
    same = [name for name in names if len({groups[name].word if name in groups else None for groups in found}) == 1]
    apart = [name for name in names if name not in same]
    lines += ["", f"All runs agree on: {', '.join(same) or 'nothing'}." + (f" Not on: {', '.join(apart)}." if apart else "")]
    lines += [
        "",
        "In brackets: median error of predictions from constants of other shapes of the same run. Drift: how much the same shape changed.",
    ]
    if not all(run.trustworthy for run in runs):
        lines += [
            "",
            "Preliminary: not every run can be trusted, since other work ran on the machine; `scripts/validate_cpu.sh` measures again.",
        ]
    return "\n".join(lines) + "\n"


def _cell(group: GroupVerdict | None) -> str:
    return f"{group.word} ({_percent(group.median_error.get('this_run'))})" if group else "not measured"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


if __name__ == "__main__":
    given = [Path(name) for name in sys.argv[1:]]
    found = [regenerate(folder) for folder in given]
    if len(given) > 1:
        (given[0].parent / "README.md").write_text(agreement(given, found), encoding="utf-8")
