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


def regenerate(folder: Path) -> Validation:
    """The report of one run."""
    found = assemble(folder)
    write(tell(found), folder / "README.md")
    (folder / "verdict.json").write_text(json.dumps(found.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return found


def agreement(folders: Sequence[Path], runs: Sequence[Validation]) -> str:
    """Verdicts and errors of several runs side by side."""
    first = runs[0]
    lines = [
        f"# {first.run['model']} on {first.run['device']}: {len(runs)} runs",
        "",
        "Written by `python scripts/report_validation.py` from the records; a GPU was not at hand: not measured.",
        "",
        "| run | load | drift of the same shape | trustworthy | verdict | " + " | ".join(g.group for g in first.groups) + " |",
        "|---" * (5 + len(first.groups)) + "|",
    ]
    for folder, run in zip(folders, runs, strict=True):
        cells = [f"{g.word} ({_percent(g.median_error.get('this_run'))})" for g in run.groups]
        load = f"{run.facts.load:.1f}" if run.facts.load is not None else "–"
        trust = "yes" if run.trustworthy else "no"
        lines.append(
            f"| [{folder.name}]({folder.name}/README.md) | {load} | {run.facts.drift:.0%} | {trust} | {run.verdict} | {' | '.join(cells)} |"
        )
    names = [g.group for g in first.groups]
    same = [name for name in names if len({g.word for run in runs for g in run.groups if g.group == name}) == 1]
    lines += [
        "",
        f"The runs agree on {', '.join(same) or 'nothing'}"
        + (f"; not on {', '.join(n for n in names if n not in same)}." if len(same) < len(names) else "."),
    ]
    lines += ["", "In brackets: median error of predictions from constants of other shapes of the same run."]
    return "\n".join(lines) + "\n"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


if __name__ == "__main__":
    given = [Path(name) for name in sys.argv[1:]]
    found = [regenerate(folder) for folder in given]
    if len(given) > 1:
        (given[0].parent / "README.md").write_text(agreement(given, found), encoding="utf-8")
