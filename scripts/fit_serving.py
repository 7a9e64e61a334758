"""Fits the constants of engines under load on the fit rows of a serving table and writes hwprofiles/calibration/serving.yaml.

python scripts/fit_serving.py TABLE [-o hwprofiles/calibration/serving.yaml]

One set per engine; then one per engine and model, drawn towards the engine's, for devices and precisions that the model was not
measured in; then one per engine, device, model and precision, drawn towards that; then one per version of an engine that ran the
model in several, drawn towards that. Deployments with pools of their own for prompts have sets of their own, drawn towards those of
the engine. Rows with `suspect` are left out, those that repeat another one, and those of `speculated`.
Intervals: what configurations left out in turn missed.
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
from roofline.serving.points import LEVELS, UNSTATED, Key, Stack, nearest, read_row
from roofline.serving.steady import Asked, Constants, Float, Loads, loads, mean_waits, settle, steady

NAMES = ("fixed_s", "decode_scale", "expert_scale", "prompt_scale", "per_layer_rank_s", "per_layer_s", "per_sequence_s")
START = np.array([0.3e-3, 1.0, 0.85, 1.05, 5e-6, 0.3e-3, 10e-6])
UNIT = np.array([1e-3, 0.2, 0.2, 0.3, 5e-6, 0.3e-3, 15e-6])  # what a constant may move by without being odd
LOW = np.array([0.0, 0.5, 0.4, 0.6, 0.0, 0.0, 0.0])
HIGH = np.array([5e-3, 1.6, 1.6, 2.5, 30e-6, 1.5e-3, 150e-6])
LEAST = NAMES.index("per_layer_s")
STARTS = (0.6e-3,)  # of per_layer_s: where no pass with a prompt waits for its host, nothing pulls it back
PULL = {"engine": 0.02, "sibling": 0.02, "model": 0.05, "version": 0.2}  # ridge per row-equivalent, chosen on left-out configurations
FIRST_START, FIRST_UNIT = np.array([20e-3, 4.0]), np.array([50e-3, 5.0])
FIRST_PULL, FOLDS, SOFT = 0.5, 3, 0.1
VERSIONED = 4  # rows of a version from which it has a set of its own


def speculated(table: pd.DataFrame) -> pd.Series:
    """DeepSeek-R1 in FP8 with SGLang on B200 at TP 8: the published sweep with speculation, whose concurrencies alone go on to 512."""
    named = table["model"].str.endswith("DeepSeek-R1") & (table["software"] == "sglang") & (table["hardware"] == "b200-sxm")
    return named & (table["precision"] == "fp8") & (table["tp"] == 8)


def repeated(table: pd.DataFrame) -> pd.Series:
    """Rows whose times another row of the same deployment has to 0.01 ms: one measurement, published twice and once rounded."""
    same = table.drop(columns=["id", "date", "origin", "software_version"])
    return same.assign(**{name: same[name].round(2) for name in ("ttft_ms", "tpot_ms")}).duplicated()


def read(path: Path) -> tuple[pd.DataFrame, list[Asked], list[Stack]]:
    """Usable rows of the fit split with what they ask."""
    table = tables.read(path)
    table = table[(table["split"] == "fit") & table["suspect"].isna() & ~speculated(table)]
    table = table[~repeated(table)]
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


def fit_steps(load: Loads, tpot: Float, wait: Float, near: Float, pull: float, starts: Sequence[float] = STARTS) -> Float:
    """The constants of a step that explain the times per token of some rows, drawn towards `near`; starts: further per_layer_s."""

    def residual(x: Float) -> Float:
        found = steady(load, spread(x * UNIT, np.zeros(2), tpot.size), wait, 12).tpot_s
        return np.concatenate([np.log(found / tpot), np.sqrt(pull) * (x - near / UNIT)])

    tried = []
    for least in (near[LEAST], *starts):
        start = np.clip(np.where(np.arange(near.size) == LEAST, least, near) / UNIT, LOW / UNIT + 1e-6, HIGH / UNIT - 1e-6)
        tried.append(least_squares(residual, start, bounds=(LOW / UNIT, HIGH / UNIT), loss="soft_l1", f_scale=SOFT, max_nfev=25))
    return min(tried, key=lambda result: result.cost).x * UNIT


def fit_first(load: Loads, ttft: Float, steps: Float, near: Float, pull: float) -> Float:
    """Seconds and steps on top of queue and prefill that explain the measured TTFT."""
    state, expected = settle(load, spread(steps, near, ttft.size))
    step = load.emitted * state.tpot_s
    rest = expected - near[0] - near[1] * step

    def residual(x: Float) -> Float:
        found = rest + x[0] * FIRST_UNIT[0] + x[1] * FIRST_UNIT[1] * step
        return np.concatenate([np.log(found / ttft), np.sqrt(pull) * (x - near / FIRST_UNIT)])

    start = near / FIRST_UNIT + 1e-6
    return least_squares(residual, start, bounds=(0, np.array([20.0, 20.0])), loss="soft_l1", f_scale=0.2).x * FIRST_UNIT


def fit(load: Loads, table: pd.DataFrame, stacks: Sequence[Stack]) -> dict[Key, Float]:
    """Constants (of a step, then the two of the first token) by key of their block."""
    tpot, ttft = (table[name].to_numpy() / 1e3 for name in ("tpot_ms", "ttft_ms"))
    wait = np.where(load.apart, np.maximum(ttft - load.prompt_s, 0.0), 0.0)
    found: dict[Key, Float] = {}
    keys = [stack.block_keys() for stack in stacks]
    for level in reversed(range(len(LEVELS))):
        for key in sorted({k[level] for k in keys}, key=lambda k: (" " in k[0], k)):
            at = np.array([k[level] == key for k in keys])
            if not wanted(level, key, at, keys):
                continue
            near = found[parent(level, key, keys[int(np.argmax(at))])] if LEVELS[level] != "engine" or " " in key[0] else start()
            part, pull = load.rows(at), PULL[LEVELS[level]]
            steps = fit_steps(part, tpot[at], wait[at], near[:-2], pull)
            if LEVELS[level] == "engine" and " " not in key[0]:  # queueing from a first fit enters the second
                constants = spread(steps, near[-2:], at.sum())
                wait[at] = mean_waits(part, steady(part, constants), constants)
                steps = fit_steps(part, tpot[at], wait[at], near[:-2], pull)
            found[key] = np.append(steps, fit_first(part, ttft[at], steps, near[-2:], 0.02 if LEVELS[level] == "engine" else FIRST_PULL))
    return found


def start() -> Float:
    """Where the set of an engine starts."""
    return np.append(START, FIRST_START)


def parent(level: int, key: Key, keys: Sequence[Key]) -> Key:
    """The set that one of `key` is drawn towards; of an engine with pools, the same engine without."""
    return keys[level + 1] if level + 1 < len(keys) else (key[0].split(" ")[0], "", "", "")


def wanted(level: int, key: Key, at: np.ndarray, keys: Sequence[tuple[Key, ...]]) -> bool:
    """Whether a key gets a set: a version only if it is stated, has the rows, and its model ran in another one too."""
    if LEVELS[level] != "version":
        return True
    versions = {k[0][3] for k in keys if k[1] == (*key[:3], "")}
    return key[3] != UNSTATED and len(versions) > 1 and int(at.sum()) >= VERSIONED


def predicted(load: Loads, keys: Sequence[Key], found: dict[Key, Float]) -> tuple[Float, Float]:
    """(TPOT, TTFT) of rows by constants of their keys."""
    names = (*NAMES, "first_s", "first_steps")
    state, ttft = settle(load, Constants.stacked([dict(zip(names, found[key], strict=True)) for key in keys]))
    return state.tpot_s, ttft


def left_out(load: Loads, table: pd.DataFrame, stacks: Sequence[Stack], groups: np.ndarray) -> tuple[Float, Float, np.ndarray]:
    """Log of measured over expected (TPOT, TTFT) of rows whose group was left out, and the level that priced them."""
    fold = np.unique(groups, return_inverse=True)[1] * 7 % FOLDS
    logs, levels = np.empty((2, len(table))), np.empty(len(table), dtype=int)
    for turn in range(FOLDS):
        test = fold == turn
        found = fit(load.rows(~test), table[~test], [s for s, t in zip(stacks, test, strict=True) if not t])
        mine = [s for s, t in zip(stacks, test, strict=True) if t]
        keys = [nearest(stack, found)[1] for stack in mine]
        times = predicted(load.rows(test), keys, found)
        for i, name in enumerate(("tpot_ms", "ttft_ms")):
            logs[i, test] = np.log(table[name].to_numpy()[test] / 1e3 / times[i])
        levels[test] = [LEVELS.index(nearest(stack, found)[0]) for stack in mine]
    return logs[0], logs[1], levels


def blocks(
    found: dict[Key, Float], stacks: Sequence[Stack], logs: tuple[Float, Float, np.ndarray], source: Provenance
) -> Iterator[CalibrationBlock]:
    """One block per key; intervals from what configurations left out missed, by engine and level."""
    engine = np.array([stack.block_keys()[-1][0] for stack in stacks])
    for key, values in found.items():
        level = next(i for stack in stacks for i, k in enumerate(stack.block_keys()) if k == key)
        mine = engine == key[0]
        quantiles = {}
        for name, log in (("tpot_s", logs[0]), ("ttft_s", logs[1])):
            near = mine & (logs[2] >= level) if level >= LEVELS.index("sibling") else mine
            low, high = np.quantile(log[near if near.sum() >= 60 else mine], (0.1, 0.9))
            quantiles[name] = (round(float(low), 4), round(float(high), 4))
        rows = sum(key in stack.block_keys() for stack in stacks)
        constants = dict(zip((*NAMES, "first_s", "first_steps"), map(float, values), strict=True))
        yield CalibrationBlock(
            family="serving", software=key[0], kernel=key[1], dtype=key[2], software_version=key[3], constants=constants,
            interval_log_quantiles=quantiles, provenance=source.model_copy(update={"rows": rows}),
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
        "kernel: device and model, or the model on any device; empty: the engine's own set."
    )
    options.output.write_text(dump(CalibrationFile(id="serving", blocks=made), header), encoding="utf-8")
    print(f"{len(made)} sets from {len(table)} rows; left out: TPOT {100 * np.median(np.abs(np.exp(-logs[0]) - 1)):.1f} %")


if __name__ == "__main__":
    main()
