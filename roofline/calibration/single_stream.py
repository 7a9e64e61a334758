"""Batch-1 tables: reading their rows, fitting the constants of engine classes, predicting tokens per second."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from roofline.calibration import tables
from roofline.errors import InputError, RooflineError
from roofline.profiles.calibration import CalibrationBlock, Provenance, shipped
from roofline.profiles.catalog import load_hardware
from roofline.timing.forms.base import Array
from roofline.timing.forms.single_stream import ENGINES, Streams, decode_bound, decode_seconds, engine_class, prefill_bound, prefill_seconds

COLUMNS = ("hardware", "model", "engine", "weights_gb")
_SOFT, _SPREAD_LAYER, _SPREAD_ETA, _SPREAD_TP = 0.2, 1.0, 0.2, 1.5
_MODELS = (  # name pattern, layers, share of weights that one token reads: published configurations
    (r"gpt-oss-20b", 24, 3.6 / 20.9), (r"gpt-oss-120b", 36, 5.1 / 116.8), (r"30b-a3b", 48, 3.3 / 30.5), (r"235b", 94, 22 / 235),
    (r"scout", 48, 17 / 109), (r"hunyuan-a13b", 32, 13 / 80.4), (r"dots", 62, 14 / 142.8), (r"glm-4.5-air", 46, 12 / 110),
    (r"mixtral-8x7b", 32, 12.9 / 46.7), (r"405b", 126, 1.0), (r"70b", 80, 1.0), (r"34b", 48, 1.0), (r"qwen3-32b", 64, 1.0),
    (r"30b", 60, 1.0), (r"gemma-3-27b", 62, 1.0), (r"mistral-small", 40, 1.0), (r"13b", 40, 1.0), (r"gemma-3-4b", 34, 1.0),
    (r"qwen3-4b", 36, 1.0), (r"qwen2.5-coder-7b", 28, 1.0),
)  # fmt: skip
_FULL_HEADS = r"llama-2-(?:7|13)b|llama-(?:7|13|30)b"  # every head has its own cache: 4 × the usual
_LARGEST = 1e9  # of any number in a row
_KV_BYTES = 4096.0  # per token and layer: 8 KV heads × 128 × (K and V) × 2 bytes


def model_facts(name: str) -> tuple[int, float]:
    """(layers, share of the weights that one token reads) of a model by name; 32 layers and all weights for an unknown one."""
    lower = name.lower()
    return next(((layers, share) for pattern, layers, share in _MODELS if re.search(pattern, lower)), (32, 1.0))


def streams(table: pd.DataFrame) -> tuple[Streams, pd.Series]:
    """Rows as arrays, and an error text per row ("" where it can be predicted). A blank device uses `spec_bw_gbs` if given.

    weights_gb: of one device if below 75 % of parameters × bits, else of all devices together.
    """
    tables.require(table, COLUMNS, "single_stream")
    number = {
        name: tables.number(table, name) for name in ("weights_gb", "params_b", "bits_per_weight", "context", "prompt_len", "gen_len")
    }
    beyond = pd.Series("", index=table.index, dtype=object)
    for name, column in number.items():
        wrong = column.notna() & ~((column >= 0) & (column < _LARGEST))
        beyond = beyond.mask(wrong & (beyond == ""), f"{name}: must be a number ≥ 0 and < {_LARGEST:g}")
        number[name] = column.mask(wrong)
    devices = tables.number(table, "n_devices").fillna(1.0).clip(lower=1.0).to_numpy()
    if "parallel" in table:
        devices = np.where(table["parallel"] == "layer split", 1.0, devices)
    facts = [model_facts(str(name)) for name in table["model"]]
    layers, share = np.array([f[0] for f in facts], dtype=float), np.array([f[1] for f in facts])
    weights = number["weights_gb"].to_numpy() * 1e9
    bits = number["bits_per_weight"].fillna(4.5).to_numpy()
    parameters = np.where(number["params_b"].notna(), number["params_b"] * 1e9, weights * 8 / bits)
    own = weights < 0.75 * parameters * bits / 8
    heads = np.where(table["model"].str.contains(_FULL_HEADS, case=False), 4.0, 1.0)
    seen = number["context"].fillna(0.0).to_numpy() + number["gen_len"].fillna(0.0).to_numpy() / 2
    bandwidth, peak, errors = _devices(table)
    known = np.isfinite(weights) & (weights > 0)
    errors = errors.where(known, "weights_gb: must be a number > 0").mask((beyond != "") & known, beyond)
    names = table["device"].astype(str) if "device" in table else pd.Series("", index=table.index)
    kinds = [ENGINES.index(engine_class(str(e), d)) for e, d in zip(table["engine"], names, strict=True)]
    rows = Streams(
        engine=np.asarray(kinds, dtype=np.int64), weight_bytes=np.where(own, weights, weights / devices) * share,
        kv_bytes=_KV_BYTES * heads * layers * seen / devices, layers=layers, bits=bits, devices=devices,
        active_parameters=parameters * share, prompt=number["prompt_len"].fillna(512.0).clip(lower=1.0).to_numpy(),
        bandwidth=bandwidth, peak=peak,
    )  # fmt: skip
    return rows, errors


def _devices(table: pd.DataFrame) -> tuple[Array, Array, pd.Series]:
    """Bandwidth and 16-bit peak of each row's device, and errors of devices that no profile knows."""
    bandwidth, peak = np.full(len(table), np.nan), np.full(len(table), np.nan)
    errors = pd.Series("", index=table.index, dtype=object)
    for name, part in table.groupby("hardware", dropna=False):
        at = table.index.get_indexer(part.index)
        try:
            if not isinstance(name, str) or not name:
                raise InputError("hardware: is empty; name a device profile (roofline hardware list)")
            hardware = load_hardware(name)
            bandwidth[at] = hardware.memory_bandwidth
            peak[at] = max(hardware.peaks.get(kind, 0.0) for kind in ("bf16", "fp16", "fp32"))
        except RooflineError as error:
            errors[part.index] = str(error)
    return bandwidth, peak, errors


def _take(rows: Streams, where: np.ndarray) -> Streams:
    return replace(rows, **{name: getattr(rows, name)[where] for name in Streams.__dataclass_fields__})


def fit_streams(rows: Streams, token_s: Array, device: np.ndarray) -> dict[str, Array]:
    """Constants from measured times per token; devices weigh by the root of their rows, so that one with many does not rule."""
    count = len(ENGINES)
    _, index, sizes = np.unique(device, return_inverse=True, return_counts=True)
    weight = 1.0 / np.sqrt(sizes[index])
    weight = weight / weight.mean()
    start = np.concatenate([np.log([0.8, 0.8, 0.7]), [np.log(30.0)], np.zeros(2 * count), np.full(count, np.log(50.0))])
    pull = (
        np.concatenate(
            [np.full(4, 1 / 0.3), np.full(count, 1 / _SPREAD_LAYER), np.full(count, 1 / _SPREAD_ETA), np.full(count, 1 / _SPREAD_TP)]
        )
        * _SOFT
    )

    def residual(x: Array) -> Array:
        return np.concatenate([weight * np.log(decode_seconds(rows, unpacked(x)) / token_s), pull * (x - start)])

    def unpacked(x: Array) -> dict[str, Array]:
        layer = np.exp(x[3] + x[4 : 4 + count])
        return {"em": np.exp(x[:3]), "layer_us": layer, "eta": np.exp(x[4 + count : 4 + 2 * count]), "tp_us": np.exp(x[-count:])}

    reach = np.concatenate([np.full(3, 0.17), np.full(count + 1, 3.0), np.full(count, 0.7), np.full(count, 5.0)])  # 0.8 · e^0.17 = 0.95
    return unpacked(least_squares(residual, start, bounds=(start - 5 * reach, start + reach), loss="soft_l1", f_scale=_SOFT, max_nfev=40).x)


def measured(table: pd.DataFrame) -> tuple[Streams, Array, np.ndarray, pd.DataFrame]:
    """(rows, seconds per token, device, table) of the rows with a decode rate; devices without a profile use `spec_bw_gbs`."""
    rows, _ = streams(table)
    given = tables.number(table, "spec_bw_gbs").to_numpy() * 1e9
    bandwidth = np.where(np.isfinite(rows.bandwidth), rows.bandwidth, given)
    rate = tables.number(table, "decode_tok_s").to_numpy()
    good = np.isfinite(bandwidth) & np.isfinite(rate) & (rate > 0) & np.isfinite(rows.weight_bytes)
    return _take(replace(rows, bandwidth=bandwidth), good), 1.0 / rate[good], _device_names(table)[good], table[good]


def leave_devices_out(table: pd.DataFrame) -> pd.DataFrame:
    """The measured rows with `expected` decode tokens/s from constants fitted without their device, and `error`."""
    rows, token_s, device, kept = measured(table)
    expected = np.empty(token_s.size)
    for name in np.unique(device):
        test = device == name
        expected[test] = 1.0 / decode_seconds(_take(rows, test), fit_streams(_take(rows, ~test), token_s[~test], device[~test]))
    return kept.assign(expected=expected, error=np.abs(expected * token_s - 1.0))


def fit_blocks(table: pd.DataFrame, source: Provenance) -> list[CalibrationBlock]:
    """One block per engine class with the shared constants in it; the interval comes from devices left out."""
    rows, token_s, _, kept = measured(table)
    constants = fit_streams(rows, token_s, _device_names(kept))
    out = leave_devices_out(table)
    log = np.log(out["expected"].to_numpy() * token_s)  # seconds measured / seconds predicted
    low, high = (round(float(q), 4) for q in np.quantile(log, (0.1, 0.9)))
    mfu, spread = _prefill_share(kept, rows, constants["layer_us"])
    blocks = []
    for index, engine in enumerate(ENGINES):
        values = {f"em{bits}": constants["em"][i] for i, bits in enumerate((16, 8, 4))}
        values |= {name: constants[name][index] for name in ("eta", "layer_us", "tp_us")}
        values["mfu"] = mfu[index]
        share = out["error"][rows.engine == index]
        error = round(float(share.median()), 4) if len(share) else None
        provenance = source.model_copy(update={"rows": int((rows.engine == index).sum()), "held_out_error": error})
        quantiles = {"decode": (low, high), "prefill": spread}
        constants_of = {name: float(value) for name, value in values.items()}
        blocks.append(
            CalibrationBlock(
                family="single_stream", software=engine, constants=constants_of, interval_log_quantiles=quantiles, provenance=provenance
            )
        )
    return blocks


def _device_names(table: pd.DataFrame) -> np.ndarray:
    named = table["hardware"].notna() & (table["hardware"] != "")
    return np.asarray(table["hardware"].where(named, table.get("device", "")).astype(str), dtype=object)


def _prefill_share(table: pd.DataFrame, rows: Streams, layer_us: Array) -> tuple[Array, tuple[float, float]]:
    """Share of the 16-bit peak in prefill per engine class, and log quantiles of what it misses."""
    rate = tables.number(table, "prefill_tok_s").to_numpy()
    good = np.isfinite(rate) & (rate > 0) & np.isfinite(rows.peak)
    bound = prefill_bound(rows)
    seconds = np.where(good, rows.prompt / np.where(good, rate, 1.0), np.nan)
    share = bound / np.maximum(seconds - rows.layers * layer_us[rows.engine] * 1e-6, bound)
    overall = float(np.nanmedian(share[good]))
    own = [share[good & (rows.engine == i)] for i in range(len(ENGINES))]
    mfu = np.array([np.median(values) if len(values) >= 5 else overall for values in own])
    log = np.log(seconds[good] / prefill_seconds(rows, {"mfu": mfu, "layer_us": layer_us})[good])
    low, high = np.quantile(log, (0.1, 0.9))
    return mfu, (round(float(low), 4), round(float(high), 4))


def predict_streams(table: pd.DataFrame, hot: bool = False) -> pd.DataFrame:
    """Columns prefill_tok_s_* and decode_tok_s_* (bound, expected, low, high), `calibration`, `error`, one row per row of `table`.

    `bound` is the rate that nothing beats; low ≤ expected ≤ high are rates too. hot is ignored: weights of a model never fit a cache.
    """
    blocks = {block.software: block for block in shipped("single-stream")}
    if not blocks:
        raise InputError("hwprofiles/calibration/single-stream.yaml is missing: no batch-1 constants")
    rows, errors = streams(table)
    names = ("eta", "layer_us", "mfu", "tp_us")
    first = blocks[ENGINES[0]]
    c = {name: np.array([blocks[engine].constants[name] for engine in ENGINES]) for name in names}
    c |= {"em": np.array([first.constants[f"em{bits}"] for bits in (16, 8, 4)])}
    found = pd.DataFrame(index=table.index)
    good = (errors == "").to_numpy()
    rows = replace(rows, **{name: np.where(good, getattr(rows, name), 1.0) for name in ("weight_bytes", "active_parameters")})
    for phase, seconds, bound, tokens in (
        ("prefill", prefill_seconds(rows, c), prefill_bound(rows), rows.prompt),
        ("decode", decode_seconds(rows, c), decode_bound(rows), np.ones(len(table))),
    ):
        low, high = first.interval_log_quantiles[phase]
        expected = tokens / np.maximum(seconds, bound)
        top = tokens / bound
        values = {"bound": top, "expected": expected, "low": expected * np.exp(-high), "high": np.minimum(expected * np.exp(-low), top)}
        for name, value in values.items():
            found[f"{phase}_tok_s_{name}"] = np.where(errors == "", value, np.nan)
    found["calibration"] = [f"single_stream {ENGINES[i]} of all devices" for i in rows.engine]
    found["error"] = errors
    return found
