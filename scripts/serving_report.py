"""Writes reports/accuracy/serving.md: how far serving predictions are from measured points that were not fitted.

python scripts/serving_report.py TABLE [--split dev] [-o reports/accuracy/serving.md]

Beside sets per stack and per engine: engine sets fitted without a model × device pair, for the pair's own rows; and what one factor
from k measured points of a stack does to its other points.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import fit_serving
import numpy as np
import pandas as pd

from roofline.calibration import tables
from roofline.errors import RooflineError
from roofline.profiles.catalog import load_model
from roofline.serving import points
from roofline.serving.recipes import family
from roofline.serving.steady import loads, steady

CLASSES = {"dense": "dense", "moe": "MoE", "hybrid": "MoE", "mla": "MLA"}
APART = "Qwen3-235B on vLLM, H200 (unexplained: TPOT hardly depends on load)"


def main() -> None:
    """Predicts the usable rows of the split with sets per stack and per engine, and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--split", default="dev")
    parser.add_argument("-o", "--output", type=Path, default=Path("reports/accuracy/serving.md"))
    options = parser.parse_args()
    table = tables.read(options.table)
    table = table[(table["split"] == options.split) & table["suspect"].isna()]
    stacks, engine = points.predict_points(table), with_engine_sets(table)
    table = table.assign(group=[model_class(name) for name in table["model"]])
    unexplained = table["model"].str.contains("Qwen3-235B") & (table["software"] == "vllm")
    table.loc[unexplained, "group"] = APART
    lines = [*page(table, stacks, engine, options.split), *pairs(options.table, table), *curve(table, stacks, engine)]
    options.output.write_text("\n".join([*lines, *by_stack(table, stacks, engine)]) + "\n", encoding="utf-8")


def with_engine_sets(table: pd.DataFrame) -> pd.DataFrame:
    """Predictions as for stacks that were never measured."""
    known = points.shipped("serving")
    only = {points.key_of(b): b for b in known if not b.kernel}
    own, points.choose = points.choose, lambda stack, known=None: own(stack, only)  # type: ignore[assignment]
    try:
        return points.predict_points(table)
    finally:
        points.choose = own


def model_class(name: str) -> str:
    """dense, MoE or MLA; "" for a model that no profile knows."""
    try:
        return CLASSES[family(load_model(name))]
    except RooflineError:
        return ""


def page(table: pd.DataFrame, stacks: pd.DataFrame, engine: pd.DataFrame, split: str) -> Iterator[str]:
    """Markdown lines."""
    yield "# Serving points: predicted against measured\n"
    yield f"Rows of split `{split}` without `suspect`; median / p90 of |error| in %. Constants were fitted on fit rows alone"
    yield "(`scripts/fit_serving.py`); `scripts/serving_report.py` writes this page. A row without a prediction counts as 100 % wrong.\n"
    yield "| rows | count | TPOT, engine sets | TPOT, stack sets | bias | in the interval | high/low | TTFT | in its interval | high/low |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    agg = table["mode"] == "agg"
    usual = table["group"] != APART
    named = [("aggregated, all", agg & usual)]
    named += [(f"aggregated, {name}", agg & (table["group"] == name)) for name in ("dense", "MoE", "MLA", APART)]
    sibling = stacks["calibration"].str.contains("(siblings", regex=False)
    named += [("aggregated, set of siblings (model in the fit, not on this device in this precision)", agg & usual & sibling)]
    named += [("aggregated, engine's own set (model not in the fit)", agg & usual & (stacks["calibration"].str.count(" ") == 1))]
    named += [("disaggregated, workers stated", ~agg)]
    for name, where in named:
        if where.any():
            yield line(name, table[where], stacks[where], engine[where])


def pairs(path: Path, table: pd.DataFrame) -> Iterator[str]:
    """Engine sets fitted without any row of a model × device pair, on the rows of that pair."""
    known, asked, stacks = fit_serving.read(path)
    together = np.array([not stack.apart for stack in stacks])
    load, tpot = loads(asked), known["tpot_ms"].to_numpy() / 1e3
    owner = np.array([f"{stack.model} {stack.hardware}" for stack in stacks])
    engine = np.array([stack.engine for stack in stacks])
    rows = table[(table["mode"] == "agg") & (table["group"] != APART)]
    mine = [points.read_row(row) for row in rows.to_dict("records")]
    named = np.array([f"{stack.engine}|{stack.model} {stack.hardware}" for _, stack in mine])
    error = np.empty(len(rows))
    for name in np.unique(named):
        software, pair = name.split("|")
        use, test = together & (engine == software) & (owner != pair), named == name
        values = fit_serving.fit_steps(
            load.rows(use), tpot[use], np.zeros(use.sum()), fit_serving.START, fit_serving.PULL["engine"], starts=()
        )
        part = loads([one for (one, _), chosen in zip(mine, test, strict=True) if chosen])
        error[test] = steady(part, fit_serving.spread(values, np.zeros(2), test.sum())).tpot_s
    off = pd.Series(error / (rows["tpot_ms"].to_numpy() / 1e3) - 1)
    yield "\n## Model × device pairs left out of the fit in turn\n"
    yield f"Engine sets fitted without any row of a pair, on the pair's rows of this split: TPOT {short(off)} ({len(rows)} rows)."


def curve(table: pd.DataFrame, stacks: pd.DataFrame, engine: pd.DataFrame) -> Iterator[str]:
    """What one factor from k measured points of a stack does to the others: geometric mean ratio, drawn to 1 by one more point."""
    keys = ["software", "hardware", "model", "precision", "software_version"]
    use = table[(table["mode"] == "agg") & (table["group"] != APART)].fillna({"precision": "bf16", "software_version": ""})
    yield "\n## One factor per stack from k of its points, on its other points\n"
    yield "| k | TPOT, engine sets | TPOT, stack sets |"
    yield "|---|---|---|"
    rng = np.random.default_rng(0)
    draws = [(at, rng.permutation(at)) for _, part in use.groupby(keys) if len(at := part.index.to_numpy()) >= 10 for _ in range(20)]
    for k in (0, 1, 3, 8):
        cells = []
        for frame in (engine, stacks):
            ratio = np.log(table["tpot_ms"] / 1e3 / frame["tpot_s_expected"])
            left = [ratio[order[8:]] - ratio[order[:k]].sum() / (k + 1) for _, order in draws]
            cells.append(f"{100 * np.median(np.abs(np.expm1(-np.concatenate(left)))):.1f}")
        yield f"| {k} | {' | '.join(cells)} |"


def by_stack(table: pd.DataFrame, stacks: pd.DataFrame, engine: pd.DataFrame) -> Iterator[str]:
    """A line per stack."""
    agg = table["mode"] == "agg"
    yield "\n## By stack\n"
    yield "| engine | device | model | precision | rows | TPOT, per engine | TPOT, per stack | bias | TTFT | constants |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    keys = ["software", "hardware", "model", "precision"]
    for words, part in table[agg].fillna({"precision": "bf16"}).groupby(keys):
        at = part.index
        e = [errors(part, frame.loc[at], "tpot") for frame in (engine, stacks)]
        ttft = errors(part, stacks.loc[at], "ttft")
        used = ", ".join(sorted({name.partition(" (")[0] for name in stacks.loc[at, "calibration"]}))
        cells = [*map(str, words), str(len(part)), short(e[0]), short(e[1]), f"{100 * e[1].median():+.0f}", short(ttft), used]
        yield f"| {' | '.join(cells)} |"


def errors(table: pd.DataFrame, predicted: pd.DataFrame, measure: str) -> pd.Series:
    """Relative errors, −1 where nothing was predicted."""
    return (predicted[f"{measure}_s_expected"] / (table[f"{measure}_ms"] / 1e3) - 1).fillna(-1.0)


def short(error: pd.Series) -> str:
    """Median / p90 in percent."""
    return f"{100 * error.abs().median():.1f} / {100 * error.abs().quantile(0.9):.0f}"


def line(name: str, table: pd.DataFrame, stacks: pd.DataFrame, engine: pd.DataFrame) -> str:
    """One row of the first table."""
    cells = [name, str(len(table)), short(errors(table, engine, "tpot")), short(errors(table, stacks, "tpot"))]
    cells.append(f"{100 * errors(table, stacks, 'tpot').median():+.1f}")
    for measure in ("tpot", "ttft"):
        value, low, high = table[f"{measure}_ms"] / 1e3, stacks[f"{measure}_s_low"], stacks[f"{measure}_s_high"]
        if measure == "ttft":
            cells.append(short(errors(table, stacks, "ttft")))
        cells += [f"{100 * ((value >= low) & (value <= high)).mean():.0f} %", f"{(high / low).median():.2f}"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
