"""Batch-1 tables: reading their rows, fitting the constants of engine classes, predicting tokens per second."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from roofline.calibration import tables
from roofline.calibration.local_models import kv_bytes, local_model
from roofline.errors import InputError, RooflineError
from roofline.profiles.calibration import CalibrationBlock, Provenance, shipped
from roofline.profiles.catalog import load_hardware
from roofline.timing.forms.base import Array
from roofline.timing.forms.single_stream import (
    ENGINES,
    FABRIC,
    Streams,
    decode_bound,
    decode_seconds,
    engine_class,
    prefill_bound,
    prefill_seconds,
)

COLUMNS = ("hardware", "model", "engine", "weights_gb")
_SOFT, _SPREAD_LAYER, _SPREAD_ETA, _SPREAD_TP = 0.2, 1.0, 0.2, 1.5
_LARGEST = 1e9  # of any number in a row


def streams(table: pd.DataFrame) -> tuple[Streams, pd.Series]:
    """Rows as arrays, and an error text per row ("" where it can be predicted).

    A row without `hardware` is of the profile that the name in `device` is an alias of, else of a device of which only
    `spec_bw_gbs` is known, so that no prefill rate comes.
    weights_gb (blank: parameters × bits): of one device if below 75 % of parameters × bits, else of all devices together.
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
    models = [local_model(str(name)) for name in table["model"]]
    layers, share = np.array([m.layers for m in models], dtype=float), np.array([m.active for m in models])
    bits = number["bits_per_weight"].fillna(_bits(table)).to_numpy()
    weights = number["weights_gb"].fillna(number["params_b"] * bits / 8).to_numpy() * 1e9
    parameters = np.where(number["params_b"].notna(), number["params_b"] * 1e9, weights * 8 / bits)
    own = weights < 0.75 * parameters * bits / 8
    seen = number["context"].fillna(0.0).to_numpy() + number["gen_len"].fillna(0.0).to_numpy() / 2
    bandwidth, peak, fabric, errors = _devices(table)
    known = np.isfinite(weights) & (weights > 0)
    errors = errors.where(known, "weights_gb: must be a number > 0 (or blank with params_b)").mask((beyond != "") & known, beyond)
    names = table["device"].fillna("").astype(str) if "device" in table else pd.Series("", index=table.index)
    kinds = [ENGINES.index(engine_class(str(e), d)) for e, d in zip(table["engine"].fillna(""), names, strict=True)]
    rows = Streams(
        engine=np.asarray(kinds, dtype=np.int64), weight_bytes=np.where(own, weights, weights / devices) * share,
        kv_bytes=kv_bytes(models, seen) / devices, layers=layers, bits=bits, devices=devices, fabric=fabric,
        active_parameters=parameters * share, prompt=number["prompt_len"].fillna(512.0).clip(lower=1.0).to_numpy(),
        bandwidth=bandwidth, peak=peak,
    )  # fmt: skip
    return rows, errors


def _bits(table: pd.DataFrame) -> pd.Series:
    """Bits per weight that a quantisation's name says (Q3_K_S: 3, and half a bit of scales), 4.5 where it says none."""
    names = table["quant"].astype(str) if "quant" in table else pd.Series("", index=table.index)
    return names.str.extract(r"(?i)\bI?Q(\d)_", expand=False).astype(float).add(0.5).fillna(4.5)


def _devices(table: pd.DataFrame) -> tuple[Array, Array, Array, pd.Series]:
    """Bandwidth and 16-bit peak (NaN where unknown) and fabric of each row's device, and errors where nothing of it is known."""
    bandwidth, peak, fabric = np.full(len(table), np.nan), np.full(len(table), np.nan), np.ones(len(table))
    errors = pd.Series("", index=table.index, dtype=object)
    names = pd.Series(_device_names(table), index=table.index)
    given = tables.number(table, "spec_bw_gbs").to_numpy() * 1e9
    for name, part in names.groupby(names):
        at = table.index.get_indexer(part.index)
        try:
            if not name:
                raise InputError("hardware: is empty; name a device profile (roofline hardware list)")
            hardware = load_hardware(str(name))
        except RooflineError as error:
            stated = (given[at] > 0) & (given[at] < _LARGEST * 1e9) & ~_named(table)[at]
            bandwidth[at[stated]] = given[at[stated]]
            errors[part.index[~stated]] = str(error)
            continue
        bandwidth[at] = hardware.memory_bandwidth
        fabric[at] = FABRIC if hardware.form_factor.startswith(("SXM", "OAM")) else 1.0
        peak[at] = max(hardware.peaks.get(kind, 0.0) for kind in ("bf16", "fp16", "fp32"))
    return bandwidth, peak, fabric, errors


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
    """(rows, seconds per token, device, table) of the rows with a decode rate that can be predicted."""
    rows, errors = streams(table)
    rate = tables.number(table, "decode_tok_s").to_numpy()
    good = (errors == "").to_numpy() & np.isfinite(rate) & (rate > 0)
    return _take(rows, good), 1.0 / rate[good], _device_names(table)[good], table[good]


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


def _named(table: pd.DataFrame) -> np.ndarray:
    return np.asarray(table["hardware"].notna() & (table["hardware"] != ""))


def _device_names(table: pd.DataFrame) -> np.ndarray:
    """The device of each row: its profile's name, or where that is blank the name in the column `device`."""
    other = table["device"].fillna("").astype(str) if "device" in table else pd.Series("", index=table.index)
    return np.asarray(table["hardware"].where(_named(table), other).astype(str), dtype=object)


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
