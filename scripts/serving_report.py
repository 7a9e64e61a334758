"""Writes reports/accuracy/serving.md: how far serving predictions are from measured points that were not fitted.

python scripts/serving_report.py TABLE [--split dev] [-o reports/accuracy/serving.md]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from roofline.calibration import tables
from roofline.errors import RooflineError
from roofline.profiles.catalog import load_model
from roofline.serving import points
from roofline.serving.recipes import family

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
    options.output.write_text("\n".join(page(table, stacks, engine, options.split)) + "\n", encoding="utf-8")


def with_engine_sets(table: pd.DataFrame) -> pd.DataFrame:
    """Predictions as for stacks that were never measured."""
    known = points.shipped("serving")
    only = {(b.software, b.kernel, b.dtype): b for b in known if not b.kernel}
    own, points.choose = points.choose, lambda stack: own(stack, only)  # type: ignore[assignment]
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
    seen = stacks["calibration"].str.count(" ") >= 2  # "serving ENGINE DEVICE MODEL PRECISION" against "serving ENGINE"
    named += [("aggregated, engine's own set (device × model not in the fit)", agg & usual & ~seen)]
    named += [("disaggregated, workers stated", ~agg)]
    for name, where in named:
        if where.any():
            yield line(name, table[where], stacks[where], engine[where])
    yield "\n## By stack\n"
    yield "| engine | device | model | precision | rows | TPOT, per engine | TPOT, per stack | bias | TTFT | constants |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    keys = ["software", "hardware", "model", "precision"]
    for words, part in table[agg].fillna({"precision": "bf16"}).groupby(keys):
        at = part.index
        e = [errors(part, frame.loc[at], "tpot") for frame in (engine, stacks)]
        ttft = errors(part, stacks.loc[at], "ttft")
        used = ", ".join(sorted(set(stacks.loc[at, "calibration"])))
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
