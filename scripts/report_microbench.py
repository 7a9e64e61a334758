"""Writes README.md, held_out.csv and roofs.png of a folder of microbenchmark records: `python scripts/report_microbench.py FOLDER`.

The folder has run_1.jsonl, run_2.jsonl, run_3.jsonl (the same sweep three times), collectives.jsonl, and run.json (what the machine
was, and the seconds of the three processes).
Nothing is measured here: the same records give the same text.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from microbench.summary import measured_roofs, rows
from microbench.sweep import drift
from microbench.visits import against_rival, apart, interval, merged, split
from roofline import units
from roofline.calibration.machine import FAMILIES, Machine, fit_machine
from roofline.charts.measured_roofs import measured_roofs as measured_roofs_chart
from roofline.charts.save import save
from roofline.records import Measurement, read_jsonl
from roofline.timing.host import PREFIX


def measurements(path: Path) -> list[Measurement]:
    """The measurements of a records file, the visits of a case together."""
    return merged([Measurement.from_json(row) for _, row in read_jsonl(path, skip_cut_lines=True) if row["kind"] == "measurement"])


def environment(path: Path) -> dict:
    """The first environment of a records file."""
    return next(row for _, row in read_jsonl(path) if row["kind"] == "environment")


def skipped(path: Path) -> int:
    """How many cases have a line that says why they were not measured."""
    return sum(row["kind"] == "skipped" for _, row in read_jsonl(path))


def visits(run: Sequence[Measurement]) -> int:
    """Visits of cases in a run."""
    return sum(len(m.notes["visits"]) for m in by_case(run).values())


def by_case(found: Sequence[Measurement]) -> dict[str, Measurement]:
    """Case id → measurement, sentinels left out."""
    return {str(m.notes["case"]): m for m in found if not m.notes.get("sentinel")}


def pooled(runs: Sequence[Sequence[Measurement]]) -> list[Measurement]:
    """One measurement for each case, with the samples of all runs: a neighbour that disturbed one run is outvoted."""
    return merged([m for run in runs for m in run if m.op != "collective" and not m.notes.get("sentinel")])


def agreement(runs: Sequence[Sequence[Measurement]]) -> list[str]:
    """How well pairs of runs agree: medians inside the other's interval, intervals that overlap, size of the differences."""
    inside, ratios, widths = [], [], []
    overlaps: dict[str, list[bool]] = {"stated": [], "all visits": [], "one visit": []}
    within = [apart([m]) for run in runs for m in by_case(run).values() if m.op != "collective"]
    for a, b in combinations(runs, 2):
        first, second = by_case(a), by_case(b)
        for case in sorted(first.keys() & second.keys() - {c for c in first if c.startswith("collective")}):
            x, y = first[case], second[case]
            (low_x, high_x), (low_y, high_y) = interval(x, drift(a), apart(a)), interval(y, drift(b), apart(b))
            inside += [low_x <= y.median_s <= high_x, low_y <= x.median_s <= high_y]
            ratios.append(abs(np.log(x.median_s / y.median_s)))
            widths.append(high_x / low_x)
            overlaps["stated"].append(meet((low_x, high_x), (low_y, high_y)))
            overlaps["all visits"].append(meet(interval(x), interval(y)))
            overlaps["one visit"].append(meet(*(np.quantile(split(m)[0], [0.1, 0.9]) for m in (x, y))))
    half, most = (percent(np.expm1(np.quantile(ratios, q))) for q in (0.5, 0.9))
    share = {name: percent(np.mean(found)) for name, found in overlaps.items()}
    return [
        f"- {len(ratios)} comparisons of a case between two runs: the intervals overlap in {share['stated']}, a median lies "
        f"in the other run's interval in {percent(np.mean(inside))}.",
        f"- Without the sentinels' drift the intervals overlap in {share['all visits']}; 10 % to 90 % of the first visit's samples alone "
        f"overlap in {share['one visit']}.",
        f"- Visits of one case in one run lie {percent(np.median(within))} apart in the median case (slowest / fastest median), "
        f"{percent(np.quantile(within, 0.9))} at the 90th percentile.",
        f"- Medians of two runs differ by {half} in the median and {most} at the 90th percentile; the intervals are "
        f"{np.median(widths):.2f} wide (high / low, median).",
    ]


def meet(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether two intervals overlap."""
    return bool(max(a[0], b[0]) <= min(a[1], b[1]))


def percent(share: float) -> str:
    """A share as a percentage."""
    return f"{100 * share:.1f} %"


def copies(found: Sequence[Measurement]) -> str:
    """Torch's copy out of memory against NumPy's, which took turns with it."""
    (m,) = [m for m in found if m.op == "stream" and m.shape["level"] == "memory" and m.notes.get("rival")]
    times = (m.samples_s, m.notes["rival"]["samples_s"])
    ours, theirs = (units.format(m.notes["bytes"] / float(np.median(samples)), "bandwidth") for samples in times)
    return f"{ours} against {theirs} of {m.notes['rival']['name']}: ratio {against_rival(m):.3f} (median of {len(m.samples_s)} pairs)"


def collectives(found: Sequence[Measurement]) -> list[str]:
    """A table of collectives: median time by ranks and message."""
    mine = sorted(
        (m for m in found if m.op == "collective"), key=lambda m: (m.shape["ranks"], str(m.shape["collective"]), m.shape["bytes"])
    )
    lines = ["| ranks | collective | message | median | IQR | sent per rank and second |", "|---|---|---|---|---|---|"]
    for m in mine:
        sent = units.format(m.notes["bytes"] / m.median_s, "bandwidth")
        message = units.format(float(m.shape["bytes"]), "bytes", binary=True)
        median = units.format(m.median_s, "time")
        lines.append(f"| {m.shape['ranks']} | {m.shape['collective']} | {message} | {median} | {percent(m.spread)} | {sent} |")
    return lines if mine else ["not measured"]


def calibration(machine: Machine) -> list[str]:
    """Held-out errors and constants by family and dtype."""
    lines = ["| family | dtype | shapes | median error held out | 90th percentile | constants |", "|---|---|---|---|---|---|"]
    for block in machine.blocks:
        errors = [h.error for h in machine.held_out if (PREFIX + h.family, h.dtype) == (block.family, block.dtype)]
        constants = ", ".join(f"{name} {value:g}" for name, value in block.constants.items())
        half, most = (percent(np.quantile(errors, q)) for q in (0.5, 0.9))
        lines.append(f"| {block.family.removeprefix(PREFIX)} | {block.dtype} | {block.provenance.rows} | {half} | {most} | {constants} |")
    return lines


def write_held_out(machine: Machine, path: Path) -> None:
    """Every held-out prediction, one row each."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["family", "dtype", "shape", "measured_s", "predicted_s", "error"])
        for h in machine.held_out:
            error = h.predicted_s / h.measured_s - 1
            writer.writerow([h.family, h.dtype, h.label, f"{h.measured_s:.6g}", f"{h.predicted_s:.6g}", f"{error:+.4f}"])


def page(folder: Path) -> str:
    """README.md of the folder."""
    paths = [folder / f"run_{i}.jsonl" for i in (1, 2, 3)]
    runs = [measurements(path) for path in paths]
    facts = environment(paths[0])
    cases = pooled(runs)
    machine = fit_machine(cases)
    write_held_out(machine, folder / "held_out.csv")
    best = measured_roofs(cases)
    command = f"python scripts/report_microbench.py {folder.name}"
    save(measured_roofs_chart(facts["cpu"], rows(cases, best), best.peaks, best.bandwidth, "of all runs", command), folder / "roofs.png")
    roofs = measured_roofs([m for run in runs for m in run])
    noted = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    head = [
        f"# Microbenchmarks: {facts['cpu']}, {facts['cores']} cores",
        "",
        "Written by `python scripts/report_microbench.py` from the records in this folder; a GPU was not at hand: not measured.",
        "",
        f"- {facts['system']}, {facts['python']}, torch {facts['software']['torch']}, {facts['device']['threads']} thread, "
        f"environment `{facts['id']}`, method: {runs[0][0].method}.",
        f"- {noted['machine']}",
        *[
            f"- Run {i}: load {min(loads(run)):.1f} to {max(loads(run)):.1f}, {len(by_case(run))} cases in {visits(run)} visits, "
            f"{skipped(path)} left out (no budget left), sentinels moved by {percent(drift(run))}, {noted['seconds'][i - 1]:.1f} s from "
            "start to end of the process."
            for i, (run, path) in enumerate(zip(runs, paths, strict=True), 1)
        ],
        "",
        "## Roofs (best samples of three runs)",
        "",
        *[f"- {name}: {units.format(peak, 'flop_rate')}" for name, peak in sorted(roofs.peaks.items())],
        f"- memory: {units.format(roofs.bandwidth, 'bandwidth')}",
        "",
        "## Do three runs agree?",
        "",
        *agreement(runs),
        "",
        "## Copy out of memory",
        "",
        *[f"- Run {i}: {copies(run)}" for i, run in enumerate(runs, 1)],
        f"- All runs together: {copies(cases)}",
        "",
        "## Held-out shapes",
        "",
        f"Constants from the samples of all runs together ({len(cases)} cases), five folds by site "
        "((n, k) of a product; the whole shape of attention): every shape is predicted by a fit that has not seen its site. Each is a row "
        "of held_out.csv.",
        "",
        *calibration(machine),
        "",
        *[f"- {family}: median error {percent(machine.median_error(family))}" for family in FAMILIES],
        "",
        "## Collectives over gloo",
        "",
        *collectives(measurements(folder / "collectives.jsonl")),
    ]
    return "\n".join(head) + "\n"


def loads(run: Sequence[Measurement]) -> list[float]:
    """Load averages that the records saw."""
    return [m.notes["before"]["load"] for m in run if m.notes.get("before")]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    (target / "README.md").write_text(page(target), encoding="utf-8")
