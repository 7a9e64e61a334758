"""Fits the constants of engines under load on the fit rows of a serving table and writes hwprofiles/calibration/serving.yaml.

python scripts/fit_serving.py TABLE [-o hwprofiles/calibration/serving.yaml]

One set per engine; then one per engine, device, model family and precision, drawn towards the engine's; then one per model,
drawn towards that. Rows with `suspect` and disaggregated rows are left out. Intervals: what configurations
left out in turn missed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from roofline.calibration import tables
from roofline.errors import RooflineError
from roofline.profiles.calibration import CalibrationBlock, CalibrationFile, Provenance, dump
from roofline.serving.points import Stack, read_row
from roofline.serving.steady import Asked, Constants, Float, Loads, loads, mean_waits, settle, steady

NAMES = ("fixed_s", "decode_scale", "prompt_scale", "per_layer_rank_s", "per_layer_s", "per_sequence_s")
START = np.array([0.3e-3, 1.0, 1.05, 5e-6, 0.3e-3, 10e-6])
UNIT = np.array([1e-3, 0.2, 0.3, 5e-6, 0.3e-3, 15e-6])  # what a constant may move by without being odd
LOW = np.array([0.0, 0.6, 0.6, 0.0, 0.0, 0.0])
HIGH = np.array([5e-3, 1.6, 2.5, 30e-6, 1.5e-3, 150e-6])
PULL = {"engine": 0.02, "stack": 0.2, "model": 0.01}  # ridge per row-equivalent, chosen over configurations of the fit rows
FIRST_PULL, FOLDS, SOFT = 0.5, 3, 0.1
Key = tuple[str, str, str]


def read(path: Path) -> tuple[pd.DataFrame, list[Asked], list[Stack]]:
    """Usable rows of the fit split with what they ask."""
    table = tables.read(path)
    table = table[(table["split"] == "fit") & (table["mode"] == "agg") & table["suspect"].isna()]
    kept, asked, stacks = [], [], []
    for place, row in zip(table.index, table.to_dict("records"), strict=True):
        try:
            one, stack = read_row(row)
        except RooflineError:
            continue
        kept.append(place)
        asked.append(one)
        stacks.append(stack)
    return table.loc[kept].reset_index(drop=True), asked, stacks


def configurations(table: pd.DataFrame) -> np.ndarray:
    """One word per row: all that is not concurrency."""
    names = ["model", "hardware", "software", "software_version", "precision", "isl", "osl", "tp", "attention_dp", "ep"]
    names += [name for name in table if name.startswith(("prefill_", "decode_")) and not name.endswith("batch_size")]
    return np.array(["|".join(map(str, row)) for row in table[names].itertuples(index=False)])


def spread(values: Float, first: Float, count: int) -> Constants:
    """The same constants for `count` rows."""
    named = dict(zip(NAMES, values, strict=True)) | {"first_s": first[0], "first_steps": first[1]}
    return Constants.stacked([named] * count)


def fit_steps(load: Loads, tpot: Float, wait: Float, near: Float, pull: float) -> Float:
    """The six constants of a step that explain the times per token of some rows, drawn towards `near`."""

    def residual(x: Float) -> Float:
        found = steady(load, spread(x * UNIT, np.zeros(2), tpot.size), wait, 15).tpot_s
        return np.concatenate([np.log(found / tpot), np.sqrt(pull) * (x - near / UNIT)])

    start = np.clip(near / UNIT, LOW / UNIT + 1e-6, HIGH / UNIT - 1e-6)
    return least_squares(residual, start, bounds=(LOW / UNIT, HIGH / UNIT), loss="soft_l1", f_scale=SOFT, max_nfev=40).x * UNIT


def fit_first(load: Loads, ttft: Float, steps: Float, near: Float, pull: float) -> Float:
    """Seconds and steps on top of queue and prefill that explain the measured TTFT."""
    constants = spread(steps, near, ttft.size)
    state, expected = settle(load, constants)
    rest = expected - constants.first_s - constants.first_steps * state.tpot_s
    unit = np.array([50e-3, 5.0])

    def residual(x: Float) -> Float:
        found = rest + x[0] * unit[0] + x[1] * unit[1] * state.tpot_s
        return np.concatenate([np.log(found / ttft), np.sqrt(pull) * (x - near / unit)])

    return least_squares(residual, near / unit + 1e-6, bounds=(0, np.array([20.0, 20.0])), loss="soft_l1", f_scale=0.2).x * unit


def fit(load: Loads, table: pd.DataFrame, stacks: Sequence[Stack]) -> dict[Key, Float]:
    """Constants (six of a step, two of the first token) by key of their block."""
    tpot, ttft = (table[name].to_numpy() / 1e3 for name in ("tpot_ms", "ttft_ms"))
    wait = np.zeros(len(table))
    found: dict[Key, Float] = {}
    keys = [stack.block_keys() for stack in stacks]
    for level in (2, 1, 0):
        for key in dict.fromkeys(k[level] for k in keys):
            at = np.array([k[level] == key for k in keys])
            near = found[keys[int(np.argmax(at))][level + 1]] if level < 2 else np.append(START, [20e-3, 4.0])
            part, pull = load.rows(at), PULL[("model", "stack", "engine")[level]]
            steps = fit_steps(part, tpot[at], wait[at], near[:6], pull)
            if level == 2:  # queueing from a first fit enters the second
                wait[at] = mean_waits(part, steady(part, spread(steps, near[6:], at.sum())), spread(steps, near[6:], at.sum()))
                steps = fit_steps(part, tpot[at], wait[at], near[:6], pull)
            found[key] = np.append(steps, fit_first(part, ttft[at], steps, near[6:], 0.02 if level == 2 else FIRST_PULL))
    return found


def predicted(load: Loads, keys: Sequence[Key], found: dict[Key, Float]) -> tuple[Float, Float]:
    """(TPOT, TTFT) of rows by constants of their keys."""
    names = (*NAMES, "first_s", "first_steps")
    state, ttft = settle(load, Constants.stacked([dict(zip(names, found[key], strict=True)) for key in keys]))
    return state.tpot_s, ttft


def nearest(stack: Stack, found: dict[Key, Float]) -> Key:
    """The key of the nearest constants."""
    return next(key for key in stack.block_keys() if key in found)


def left_out(load: Loads, table: pd.DataFrame, stacks: Sequence[Stack], groups: np.ndarray) -> tuple[Float, Float, np.ndarray]:
    """Log of measured over expected (TPOT, TTFT) of rows whose group was left out, and the level that priced them."""
    fold = np.unique(groups, return_inverse=True)[1] * 7 % FOLDS
    logs, levels = np.empty((2, len(table))), np.empty(len(table), dtype=int)
    for turn in range(FOLDS):
        test = fold == turn
        found = fit(load.rows(~test), table[~test], [s for s, t in zip(stacks, test, strict=True) if not t])
        mine = [s for s, t in zip(stacks, test, strict=True) if t]
        keys = [nearest(stack, found) for stack in mine]
        times = predicted(load.rows(test), keys, found)
        for i, name in enumerate(("tpot_ms", "ttft_ms")):
            logs[i, test] = np.log(table[name].to_numpy()[test] / 1e3 / times[i])
        levels[test] = [stack.block_keys().index(key) for stack, key in zip(mine, keys, strict=True)]
    return logs[0], logs[1], levels


def blocks(
    found: dict[Key, Float], stacks: Sequence[Stack], logs: tuple[Float, Float, np.ndarray], source: Provenance
) -> Iterator[CalibrationBlock]:
    """One block per key; intervals from what configurations left out missed, by engine and level."""
    engine = np.array([stack.engine for stack in stacks])
    for key, values in found.items():
        level = 2 if not key[1] else (0 if key in {s.block_keys()[0] for s in stacks} else 1)
        mine = engine == key[0]
        quantiles = {}
        for name, log in (("tpot_s", logs[0]), ("ttft_s", logs[1])):
            near = mine & (logs[2] >= level) if level else mine
            use = near if near.sum() >= 60 else mine
            low, high = np.quantile(log[use], (0.1, 0.9))
            quantiles[name] = (round(float(low), 4), round(float(high), 4))
        rows = sum(key in stack.block_keys() for stack in stacks)
        constants = dict(zip((*NAMES, "first_s", "first_steps"), map(float, values), strict=True))
        yield CalibrationBlock(
            family="serving", software=key[0], kernel=key[1], dtype=key[2], constants=constants, interval_log_quantiles=quantiles,
            provenance=source.model_copy(update={"rows": rows}),
        )  # fmt: skip


def main() -> None:
    """Fits and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("hwprofiles/calibration/serving.yaml"))
    options = parser.parse_args()
    table, asked, stacks = read(options.table)
    load = loads(asked)
    found = fit(load, table, stacks)
    logs = left_out(load, table, stacks, configurations(table))
    source = Provenance(source="aiconfigurator-core", version="0.12.0", rows=0, split="fit", date="2026-11-29")
    made = tuple(blocks(found, stacks, logs, source))
    header = (
        "Engines under load, fitted on measured serving points by scripts/fit_serving.py.\n"
        "kernel: device and model, or device and family; empty: the engine's own set."
    )
    options.output.write_text(dump(CalibrationFile(id="serving", blocks=made), header), encoding="utf-8")
    print(f"{len(made)} sets from {len(table)} rows; left out: TPOT {100 * np.median(np.abs(np.exp(-logs[0]) - 1)):.1f} %")


if __name__ == "__main__":
    main()
