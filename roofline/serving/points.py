"""Serving rows of a table: TTFT, TPOT and tokens per second of each, with bound and interval."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.errors import InputError, RooflineError
from roofline.ledger import Parallel, Precision
from roofline.profiles.calibration import CalibrationBlock, shipped
from roofline.profiles.catalog import load_hardware
from roofline.serving import published
from roofline.serving.measured import SEEN_WITH
from roofline.serving.passes import Passes, price_passes
from roofline.serving.recipes import as_served, count, engine_name, family, layout, precision_of, quantity, word
from roofline.serving.speculation import Drafter
from roofline.serving.steady import Asked, Constants, Float, Loads, Steady, at_batch, loads, settle

if TYPE_CHECKING:
    import pandas as pd

MEASURES = ("ttft_s", "tpot_s", "output_tokens_per_s")
_NUMBERS = ("bound", "expected", "low", "high")
_MEAN_LENGTH = 0.9  # InferenceX draws lengths from 80 to 100 % of the nominal ones
_ROUNDS = 10.0  # requests measured, in multiples of the concurrency
_ACCEPTANCE = 0.6  # of a draft; fit rows of DeepSeek-R1 with two drafts on B200 imply 0.5 to 0.7
WIDER = {"sibling": 1.4, "engine": 1.4}  # the interval where a row's own model was not measured on its device
Key = tuple[str, str, str, str]  # software, kernel, dtype, version
_NO_LIMIT = 1 << 40  # sequences at once


@dataclass(frozen=True)
class Stack:
    """Words by which constants are looked up: engine, device, model and its family, precision; prompts on devices of their own."""

    engine: str
    hardware: str
    model: str
    family: str
    precision: str
    version: str = ""
    apart: bool = False

    def block_keys(self) -> tuple[Key, ...]:
        """Keys of blocks, nearest first: of this model on this device in this version, in any; of the model on any device and in any
        precision; of the engine."""
        own = f"{self.hardware} {self.model}"
        engine = f"{self.engine} {APART}" if self.apart else self.engine
        model = (engine, own, self.precision, "")
        return (engine, own, self.precision, self.version or UNSTATED), model, (engine, self.model, "", ""), (engine, "", "", "")


def key_of(block: CalibrationBlock) -> Key:
    """What a block is looked up by."""
    return block.software, block.kernel, block.dtype, block.software_version


LEVELS = ("version", "model", "sibling", "engine")
APART, UNSTATED = "disaggregated", "unstated"
_SAID = {"sibling": " (siblings: the model on other devices or in other precisions)"}


def predict_points(table: pd.DataFrame, hot: bool = False, own: Sequence[CalibrationBlock] = ()) -> pd.DataFrame:
    """Columns ttft_s_*, tpot_s_*, output_tokens_per_s_* (bound, expected, low, high), `calibration`, `error` for serving rows.

    Columns read: model, hardware, software, isl, osl, concurrency, and tp, attention_dp, ep, gemm_dtype, moe_dtype, kv_dtype,
    precision, num_requests, max_num_seqs, speculative_tokens (drafts per step), acceptance (of a draft, if those before it were
    right; default 0.6), receive_interval (decode steps between two looks of SGLang's scheduler at new requests) and
    batch_wait_steps (that TensorRT-LLM waits for more prompts) where given; disaggregated rows (mode disagg) the prefill_* and
    decode_* ones. Means over a closed loop of 10 × concurrency requests that start together, unless num_requests says otherwise.
    Rates are of all GPUs; their bound is the highest rate, and low ≤ expected ≤ high as for times. hot is ignored: a model's
    weights never fit a cache. own: blocks that go before the shipped ones. Arguments of published runs: roofline.serving.published.
    Assumed: experts as unequally popular as with real prompts (timing.forms.moe.SERVED); the bound reads the fewest that can be.
    Not counted: tokenisation and network beyond what fitted runs had, prefix hits, transfer of KV between pools.
    """
    import pandas as pd

    found = pd.DataFrame({"calibration": "", "error": ""}, index=table.index)
    for name in (f"{measure}_{number}" for measure in MEASURES for number in _NUMBERS):
        found[name] = np.nan
    known = {**_blocks(), **{key_of(block): block for block in own if block.family == "serving"}} if own else None
    places, asked, chosen = [], list[Asked](), list[tuple[str, CalibrationBlock]]()
    for place, row in zip(table.index, table.to_dict("records"), strict=True):
        try:
            one, stack = read_row(row)
            constants = choose(stack, known)
        except RooflineError as error:
            found.loc[place, "error"] = str(error)
            continue
        places.append(place)
        asked.append(one)
        chosen.append(constants)
    if asked:
        for name, values in _predicted(asked, chosen).items():
            found.loc[places, name] = values
    return found


def _predicted(asked: Sequence[Asked], chosen: Sequence[tuple[str, CalibrationBlock]]) -> dict[str, Any]:
    load = loads(asked)
    state, ttft = settle(load, Constants.stacked([block.constants for _, block in chosen]))
    bound = bounds(load, state)
    values: dict[str, Any] = {"calibration": [f"{block.label}{_SAID.get(level, '')}" for level, block in chosen]}
    for measure, expected, least in (("ttft_s", ttft, bound[0]), ("tpot_s", state.tpot_s, bound[1])):
        quantiles = np.array([_quantiles(level, block, measure) for level, block in chosen])
        expected = np.maximum(expected, least)
        low = np.maximum(expected * np.exp(quantiles[:, 0]), least)
        values |= dict(zip((f"{measure}_{n}" for n in _NUMBERS), (least, expected, low, expected * np.exp(quantiles[:, 1])), strict=True))
    concurrency = np.array([one.concurrency for one in asked])
    for number, opposite in zip(_NUMBERS, ("bound", "expected", "high", "low"), strict=True):
        latency = values[f"ttft_s_{opposite}"] + np.maximum(load.output_len - 1, 0.0) * values[f"tpot_s_{opposite}"]
        values[f"output_tokens_per_s_{number}"] = concurrency * load.output_len / latency
    return values


def bounds(load: Loads, state: Steady) -> tuple[Float, Float]:
    """Least TTFT and TPOT, seconds: one prompt, and a decode step at the running batch, each at full peak and bandwidth."""
    return load.prompt_bound_s, np.asarray(at_batch(load.decode_bound_s, state.running))


def _quantiles(level: str, block: CalibrationBlock, measure: str) -> tuple[float, float]:
    low, high = block.interval_log_quantiles[measure]
    wider = WIDER.get(level, 1.0)
    return min(wider * low, 0.0), max(wider * high, 0.0)


@lru_cache(maxsize=1)
def _blocks() -> dict[Key, CalibrationBlock]:
    return {key_of(block): block for block in shipped("serving")}


def choose(stack: Stack, blocks: Mapping[Key, CalibrationBlock] | None = None) -> tuple[str, CalibrationBlock]:
    """(level, block) of the nearest constants of a stack. Raises InputError for an engine that was never measured."""
    known = _blocks() if blocks is None else blocks
    level, key = nearest(stack, known)
    return level, known[key]


def nearest(stack: Stack, known: Collection[Key]) -> tuple[str, Key]:
    """(level, key) of the nearest of the sets that exist; pools of an engine that never had any take those of the engine."""
    for level, key in zip((*LEVELS, "engine"), (*stack.block_keys(), (stack.engine, "", "", "")), strict=True):
        if key in known:
            return level, key
    engines = sorted({software for software, kernel, *_ in known if not kernel and " " not in software})
    raise InputError(f"software: no serving constants of {stack.engine!r}; known: {', '.join(engines)}")


def read_row(row: Mapping[Any, Any]) -> tuple[Asked, Stack]:
    """A row of a table, priced. Raises InputError that names the column, ShardError, UnknownNameError."""
    for name in ("model", "hardware", "software"):
        if not word(row, name):
            raise InputError(f"{name}: is empty")
    engine, hardware = engine_name(word(row, "software")), load_hardware(word(row, "hardware"))
    concurrency = count(row, "concurrency", None)
    row = {**published.arguments(row, engine), **{name: value for name, value in row.items() if value is not None and value == value}}
    layout(row)  # says which column is no number before anything reads one
    gemm, apart, precision = word(row, "gemm_dtype"), word(row, "mode").lower() == "disagg", precision_of(row)
    share = _MEAN_LENGTH if word(row, "origin").startswith("inferencex") else 1.0
    lengths = share * count(row, "isl", None), share * count(row, "osl", None)
    drafts = count(row, "speculative_tokens") if quantity(row, "speculative_tokens", 0.0) else 0
    served = (word(row, "model"), gemm, word(row, "moe_dtype"), hardware.id, engine)
    sides = [layout(row, side) for side in ("prefill", "decode")] if apart else [layout(row)] * 2
    prompt, decode = (_passes(*served, side, precision, *lengths, drafts) for side in sides)
    for passes in (prompt, decode):
        _check_fit(passes, count(row, "isl", None))
    asked = Asked(
        engine, decode, prompt, float(concurrency), *lengths, _rounds(row, concurrency),
        workers=(count(row, "prefill_num_workers", None), count(row, "decode_num_workers", None)) if apart else None,
        max_sequences=count(row, "max_num_seqs", _NO_LIMIT),
        emitted=Drafter(drafts, quantity(row, "acceptance", _ACCEPTANCE)).tokens_per_step() if drafts else 1.0,
        delay_steps=quantity(row, "receive_interval", 0.0) / 2 + quantity(row, "batch_wait_steps", 0.0),
    )  # fmt: skip
    model = as_served(served[0], "", "")
    longest = model.max_position_embeddings
    if longest is not None and count(row, "isl", None) > longest:
        raise InputError(f"isl: {count(row, 'isl', None):,} tokens are more than the {longest:,} that {model.name} takes")
    name = SEEN_WITH.get(model.name, model.name)
    return asked, Stack(
        engine, hardware.id, name, family(model), word(row, "precision") or gemm or "bf16", word(row, "software_version"), apart
    )


def _check_fit(passes: Passes, input_len: int) -> None:
    """Raises InputError where weights and the KV of one prompt are more than all memory of a GPU."""
    need = passes.weight_bytes + passes.kv_bytes[0]
    if need > passes.memory_bytes:
        raise InputError(
            f"tp: does not fit: {passes.weight_bytes / 1e9:.3g} GB of weights and {passes.kv_bytes[0] / 1e9:.3g} GB of KV of a prompt of "
            f"{input_len:,} tokens are more than the {passes.memory_bytes / 1e9:.3g} GB of a GPU; more ranks, or smaller formats"
        )


def _rounds(row: Mapping[Any, Any], concurrency: int) -> float:
    """Requests measured over concurrency: as stated, else 10; one burst in the gap analyses of SGLang that sent Qwen3."""
    if "num_requests" in row:
        return max(count(row, "num_requests") / concurrency, 1.0)
    one_burst = word(row, "origin") == "gap_analysis" and engine_name(word(row, "software")) == "sglang"
    return 1.0 if one_burst and "llama" not in word(row, "model").lower() else _ROUNDS


@lru_cache(maxsize=4096)
def _passes(
    model: str,
    gemm: str,
    moe: str,
    hardware: str,
    engine: str,
    parallel: Parallel,
    precision: Precision,
    input_len: float,
    output_len: float,
    drafts: int,
) -> Passes:
    device = load_hardware(hardware)
    served = as_served(model, gemm, moe, "fp4" in device.peaks)
    return price_passes(served, device, engine, parallel, precision, input_len, output_len, drafts)
