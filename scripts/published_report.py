"""Writes reports/accuracy/published.md: throughput of published tables against predictions for model × device pairs left out.

python scripts/published_report.py TABLE [-o reports/accuracy/published.md]

Two kinds of rows have their lengths stated: one static batch (Argonne's LLM-Inference-Bench and others) and the highest offline
throughput (TensorRT-LLM's performance pages). Calibrated kernel times of the pass are combined by seven constants of the engine,
fitted for each source and engine, then drawn towards each device, on the rows of all other model × device pairs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares

from roofline.batch import Batch
from roofline.errors import InputError, RooflineError
from roofline.ledger import Conventions, Parallel, Precision, build_ledger, kv_bytes_stored, stage_weights
from roofline.profiles.catalog import load_hardware
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model
from roofline.serving.recipes import as_served
from roofline.timing.calibrated import as_run, pass_times

Float = NDArray[np.float64]
SAME_GEOMETRY = {
    "Qwen2-7B": "qwen2.5-7b", "Qwen2.5-Coder-7B": "qwen2.5-7b", "Qwen2-72B": "qwen2.5-72b", "LLaMA-7B": "llama-2-7b",
    "Llama-3.3-70B": "llama-3.1-70b", "Mistral-7B": "mistral-7b-v0.1", "DeepSeek-R1/V3": "deepseek-v3",
}  # fmt: skip
NAMES = ("fixed_s", "per_layer_s", "per_layer_rank_s", "decode_scale", "kv_scale", "prompt_scale", "per_sequence_s")
START = np.array([1e-3, 0.0, 5e-6, 1.1, 0.05, 1.1, 10e-6])
UNIT = np.array([2e-3, 50e-6, 10e-6, 0.3, 0.3, 0.5, 20e-6])
LOW = np.array([0.0, 0.0, 0.0, 0.6, 0.0, 0.5, 0.0])
HIGH = np.array([60e-3, 2e-3, 400e-6, 4.0, 30.0, 10.0, 2e-3])
ENGINE_PULL, DEVICE_PULL, SOFT, FEWEST = 0.02, 0.2, 0.15, 5
MOST_SEQUENCES, RUNTIME_BYTES, USABLE = 2048.0, 4e9, 0.9  # TensorRT-LLM's own limit of a batch, and what of the memory it takes
WORST = 12
REASONS = """
## What the worst groups have in common

- Eight ranks over PCIe (L40S): the all-reduce that kernel times were calibrated on reached 0.8 GB/s with eight ranks on its
  host; the published throughputs need at least eight times that. A PCIe link's rate belongs to a host, not to a card.
- MI300X and Max 1550 under vLLM of 2024 (early back ends): from batch 1 to 256 the measured time per token grows several times faster
  than the bytes that a step reads, and differently for every model.
- Mixtures of experts in NVFP4 and FP8 under TensorRT-LLM 1.x: the back end (CUTLASS, TRTLLM-Gen, with or without attention data
  parallelism) is chosen per model and not stated.
- Two models on one device (ROCm), one pair in all (LMDeploy): little or nothing is left to fit once a pair is left out.
- The number of requests of an offline run is not stated: long outputs end in a tail at a falling batch, which no row here has.
"""


@dataclass(frozen=True)
class Row:
    """Kernel seconds of one published row. running: sequences in flight; copies: data-parallel ranks, each with as many.

    decode_s: of a step at the mean context; prompt_s: of all prompts in flight; kv_s: time to read the cached tokens of a step.
    """

    layers: int
    log_ranks: float
    running: float
    copies: float
    decode_s: float
    prompt_s: float
    kv_s: float
    output_len: float


def kernels(model: Model, batch: Batch, hardware: Hardware, engine: str, parallel: Parallel, precision: Precision) -> float:
    """Calibrated seconds of one pass through all stages."""
    total = 0.0
    for stage in range(parallel.pp):
        ledger = build_ledger(model, batch, parallel=parallel, precision=precision, conventions=Conventions(elementwise=True), stage=stage)
        total += float(pass_times(as_run(ledger), hardware, engine).expected_s)
    return total


@lru_cache(maxsize=4096)
def price(
    name: str, weights: str, device: str, engine: str, parallel: Parallel, kv: str | None, lengths: tuple[float, float], batch: float
) -> Row:
    """A row as priced; batch 0: as many sequences as fit, at most the engine's limit."""
    hardware = load_hardware(device)
    model, precision = as_served(name, weights, weights, "fp4" in hardware.peaks), Precision(kv=kv)
    prompt, output = lengths
    stored = kv_bytes_stored(model, np.array([prompt, prompt + output]), parallel=parallel, precision=precision)
    mean_kv = float(np.mean(stored))
    if batch:
        running = max(batch / parallel.dp, 1.0)
    else:
        memory = hardware.memory_reported_bytes or hardware.memory_bytes
        free = USABLE * memory - stage_weights(model, parallel).bytes - RUNTIME_BYTES
        running = float(np.clip(free / mean_kv, 1.0, MOST_SEQUENCES))
    at_once = max(running / parallel.pp, 1.0)  # stages work on different micro-batches
    few = min(at_once, max(8192 / prompt, 1.0))
    decode = kernels(model, Batch.decode(at_once, prompt + output / 2), hardware, engine, parallel, precision)
    prompts = kernels(model, Batch.prefill(few, prompt), hardware, engine, parallel, precision) * running / few / parallel.pp
    ranks = float(np.log2(parallel.tp * parallel.dp))
    kv_s = at_once * mean_kv * parallel.pp / hardware.memory_bandwidth
    return Row(model.num_layers, ranks, running, parallel.dp, decode, prompts, kv_s, output)


def read(row: dict[Any, Any]) -> Row:
    """A published row, priced. Raises InputError for what is not stated, UnknownNameError for a model or device without profile."""
    if not isinstance(row["hardware"], str):
        raise InputError("device without a profile")
    weights = weight_format(str(row["quant"]).lower())
    attention_dp = isinstance(row["dp"], str)
    copies = int(row["dp"][-1]) if attention_dp else 1
    tp = 1 if attention_dp else int(row["tp"] if str(row["tp"]).isdigit() else row["n_gpus"])
    parallel = Parallel(tp=tp, dp=copies, pp=whole(row["pp"]), ep=whole(row["ep"]))
    name = SAME_GEOMETRY.get(row["model_canonical"], row["model_canonical"].lower())
    engine = "trtllm" if "TensorRT" in row["engine"] else "vllm"
    kv = "fp8" if "fp8" in str(row["kv_dtype"]).lower() else None
    batch = 0.0 if row["mode"].startswith("offline") else float(row["concurrency"])
    return price(name, weights, row["hardware"], engine, parallel, kv, (float(row["isl"]), float(row["osl"])), batch)


def weight_format(text: str) -> str:
    """ "" for the checkpoint as it is."""
    for name in ("nvfp4", "fp8"):
        if name in text and "mxfp4" not in text:
            return name
    if text in ("fp16", "bf16") or "mxfp4" in text:
        return ""
    raise InputError(f"weights as {text}: a format of another engine")


def whole(value: float) -> int:
    """A whole number, 1 where blank."""
    return int(value) if value == value else 1


def rates(rows: list[Row], constants: Float) -> Float:
    """Output tokens per second of all devices together."""
    layers, ranks, running, copies, decode, prompts, kv, output = (
        np.array([getattr(row, name) for row in rows]) for name in Row.__dataclass_fields__
    )
    fixed, per_layer, per_rank, decode_scale, kv_scale, prompt_scale, per_sequence = constants
    step = fixed + per_layer * layers + per_rank * layers * ranks + decode_scale * decode + kv_scale * kv + per_sequence * running
    return np.asarray(copies * running * output / (output * step + prompt_scale * prompts))


def fit(rows: list[Row], measured: Float, near: Float, pull: float) -> Float:
    """Constants that explain the rates of some rows, drawn towards `near`."""

    def residual(x: Float) -> Float:
        return np.concatenate([np.log(rates(rows, x * UNIT) / measured), np.sqrt(pull) * (x - near / UNIT)])

    start = np.clip(near / UNIT, LOW / UNIT + 1e-6, HIGH / UNIT - 1e-6)
    return np.asarray(least_squares(residual, start, bounds=(LOW / UNIT, HIGH / UNIT), loss="soft_l1", f_scale=SOFT).x * UNIT)


def left_out(table: pd.DataFrame, rows: list[Row]) -> Float:
    """Predicted rates of one source and engine, each model × device pair from the others; NaN where nothing else was measured."""
    measured, device = table["output_tok_s"].to_numpy(), table["hardware"].to_numpy()
    pair = (table["hardware"] + " " + table["model_canonical"]).to_numpy()
    found = np.full(len(rows), np.nan)
    for name in np.unique(pair):
        held, others = pair == name, pair != name
        if others.sum() < FEWEST:
            continue
        near = fit(chosen(rows, others), measured[others], START, ENGINE_PULL)
        same = others & (device == device[held][0])
        if same.any():
            near = fit(chosen(rows, same), measured[same], near, DEVICE_PULL)
        found[held] = rates(chosen(rows, held), near)
    return found


def chosen(rows: list[Row], where: NDArray[np.bool_]) -> list[Row]:
    """Rows at the places that are true."""
    return [row for row, use in zip(rows, where, strict=True) if use]


def groups(table: pd.DataFrame) -> pd.Series:
    """Source, engine and kind of run: what one set of constants is for."""
    source = table["source"].str.extract(r"github:([\w-]+)/", expand=False)
    kind = np.where(table["mode"].str.startswith("offline"), "offline maximum", "static batch")
    version = np.where(table["mode"].str.startswith("offline"), " " + table["engine_version"].str.replace("1.1/1.2", "1.x").str[:4], "")
    version = np.where(version == " 1.0", " 1.x", version)
    return source + ", " + table["engine"] + version + ", " + kind


def page(table: pd.DataFrame, refused: pd.Series) -> Iterator[str]:
    """Markdown lines."""
    yield "# Published throughput tables: predicted against stated\n"
    yield "Written by `scripts/published_report.py`. Each model × device pair is priced by constants fitted on all other pairs of the same"
    yield "source and engine; median / p90 of |error| of output tokens/s in %. Rows that nothing else could be fitted for count as 100 %.\n"
    yield "| source, engine, kind | rows | pairs | median / p90 | bias |\n|---|---|---|---|---|"
    offline = table["group"].str.contains("offline")
    together = [
        ("TensorRT-LLM, offline maximum, together", table[offline]),
        ("Argonne, together", table[table["group"].str.contains("argonne")]),
    ]
    for name, part in [*table.groupby("group"), *together, ("all", table)]:
        yield f"| {name} | {len(part)} | {part['pair'].nunique()} | {short(part)} | {100 * part['error'].median():+.0f} |"
    yield "\n## By device\n\n| source, engine, kind | device | rows | median / p90 | bias |\n|---|---|---|---|---|"
    for (name, device), part in table.groupby(["group", "hardware"]):
        yield f"| {name} | {device} | {len(part)} | {short(part)} | {100 * part['error'].median():+.0f} |"
    yield f"\n## The {WORST} worst pairs of at least four rows\n"
    yield "| source, engine, kind | pair | rows | median / p90 | bias |\n|---|---|---|---|---|"
    pairs = [(name, part) for name, part in table.groupby(["group", "pair"]) if len(part) >= 4]
    for (name, pair), part in sorted(pairs, key=lambda item: -item[1]["error"].abs().median())[:WORST]:
        yield f"| {name} | {pair} | {len(part)} | {short(part)} | {100 * part['error'].median():+.0f} |"
    yield REASONS
    yield "## Not priced\n\n| why | rows |\n|---|---|"
    for why, count in refused.value_counts().items():
        yield f"| {why} | {count} |"


def short(part: pd.DataFrame) -> str:
    """Median / p90 in percent."""
    size = part["error"].abs()
    return f"{100 * size.median():.1f} / {100 * size.quantile(0.9):.0f}"


def main() -> None:
    """Prices, fits and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("reports/accuracy/published.md"))
    options = parser.parse_args()
    table = pd.read_csv(options.table)
    static = table["mode"].str.startswith("static") & (table["osl"] > 1) & table["concurrency"].notna()
    table = table[(static | table["mode"].str.startswith("offline max")) & table["output_tok_s"].notna()].reset_index(drop=True)
    priced, refused = dict[int, Row](), dict[int, str]()
    for place, row in enumerate(table.to_dict("records")):
        try:
            priced[place] = read(row)
        except RooflineError as error:
            refused[place] = str(error).split(";")[0]
    table = table.loc[list(priced)].assign(row=pd.Series(priced, dtype=object))
    table = table.assign(group=groups(table), pair=table["hardware"] + " " + table["model_canonical"], expected=np.nan)
    for _, part in table.groupby("group"):
        table.loc[part.index, "expected"] = left_out(part, list(part["row"]))
    table["error"] = (table["expected"] / table["output_tok_s"] - 1).fillna(-1.0)
    options.output.write_text("\n".join(page(table, pd.Series(refused))) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
