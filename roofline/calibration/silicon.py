"""The public kernel tables inside an installed aiconfigurator-core (NVIDIA, Apache-2.0), as rows that predict and calibrate read.

The package's files are read, never its code: systems/data/DEVICE/GROUP/SOFTWARE/VERSION/NAME_perf.parquet, latencies in ms,
message sizes in elements. Nothing of it ships with this project.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from roofline.calibration.tables import DTYPES
from roofline.errors import InputError, MissingDependencyError, RecordError

DEVICES = {  # our profile → the package's folder
    "a100-sxm-80gb": "a100_sxm", "h100-sxm": "h100_sxm", "h200-sxm": "h200_sxm", "l40s": "l40s", "b200-sxm": "b200_sxm",
    "b300-sxm": "b300_sxm", "gb200": "gb200", "gb300": "gb300", "rtx-pro-6000-server": "rtx_pro_6000_server", "arc-pro-b60": "b60",
}  # fmt: skip
FILES = {  # kind of row → names of its files
    "gemm": ("gemm",), "decode_attention": ("generation_attention",), "prefill_attention": ("context_attention",),
    "mla_decode": ("generation_mla",), "mla_prefill": ("context_mla",), "moe": ("moe",),
    "collective": ("custom_allreduce", "nccl", "oneccl"),
}  # fmt: skip
_ATTENTION = {"batch": "batch_size", "heads": "num_heads", "kv_heads": "num_key_value_heads", "head_dim": "head_dim"}
COLUMNS = {  # our column → the package's, per kind
    "gemm": {"dtype": "gemm_dtype", "m": "m", "n": "n", "k": "k"},
    "decode_attention": {"kernel": "kernel_source", "kv_dtype": "kv_cache_dtype", **_ATTENTION, "window": "window_size"},
    "prefill_attention": {
        "kernel": "kernel_source", "dtype": "attn_dtype", "kv_dtype": "kv_cache_dtype", **_ATTENTION, "new_tokens": "isl",
        "past_tokens": "step", "window": "window_size",
    },
    "mla_decode": {"kernel": "kernel_source", "kv_dtype": "kv_cache_dtype", "batch": "batch_size", "heads": "num_heads"},
    "mla_prefill": {
        "kernel": "kernel_source", "kv_dtype": "kv_cache_dtype", "batch": "batch_size", "heads": "num_heads", "new_tokens": "isl",
    },
    "moe": {
        "dtype": "moe_dtype", "tokens": "num_tokens", "hidden": "hidden_size", "intermediate": "inter_size", "top_k": "topk",
        "experts": "num_experts", "tp": "moe_tp_size", "ep": "moe_ep_size", "routing": "distribution",
    },
    "collective": {"ranks": "num_gpus"},
}  # fmt: skip
_WORDS = {"sq": "w8a8", "int8_wo": "w8a16", "w4a8_mxfp4_mxfp8": "w4a8_mxfp4"}  # beside those of tables.DTYPES
_LIBRARIES = {"nccl": "nccl", "oneccl": "oneccl"}
_MOST_SHARED = 16  # query heads per KV head: rows with more are timed with another kernel than engines run


def read(op: str = "", hardware: Sequence[str] = ()) -> pd.DataFrame:
    """Rows of one kind (all seven by default) on the devices (all ten by default), in the columns of docs/reference/tables.md.

    Repeated shapes are one row with their median. Of several versions of an engine the latest is kept that has more than half
    of the fullest one's rows. Left out: eager collectives where graphs were timed as well, vLLM's fp8_block GEMM (measured without
    graphs: host time), attention with more than 16 query heads per KV head.
    Raises MissingDependencyError without the package, InputError for a kind or device that it does not have.
    """
    root = _folder()
    kinds = (op,) if op else tuple(FILES)
    devices = tuple(hardware) or tuple(DEVICES)
    if unknown := [kind for kind in kinds if kind not in FILES]:
        raise InputError(f"silicon:{unknown[0]}: unknown kind; known: {', '.join(FILES)}")
    if unknown := [name for name in devices if name not in DEVICES]:
        raise InputError(f"aiconfigurator-core has no tables of {unknown[0]}; it has {', '.join(DEVICES)}")
    parts = [part for kind in kinds for device in devices for part in _tables(root, kind, device)]
    if not parts:
        raise RecordError(f"{root}: no table of {', '.join(kinds)} for {', '.join(devices)}")
    table = pd.concat(parts, ignore_index=True)
    table.attrs["path"] = "aiconfigurator-core"
    return table


def _folder() -> Path:
    found = find_spec("aiconfigurator_core")
    if found is None or not found.submodule_search_locations:
        raise MissingDependencyError("aiconfigurator-core", "silicon", "reading the public kernel tables")
    return Path(next(iter(found.submodule_search_locations))) / "systems" / "data"


def _tables(root: Path, kind: str, device: str) -> Iterator[pd.DataFrame]:
    """The cleaned rows of a kind on a device, one table for all software."""
    parts = [
        _rows(path, name, kind, device)
        for name in FILES[kind]
        for path in sorted((root / DEVICES[device]).glob(f"*/*/*/{name}_perf.parquet"))
    ]
    rows = [part for part in parts if len(part)]
    if rows:
        yield _one_version(_medians(pd.concat(rows, ignore_index=True)))


def _rows(path: Path, name: str, kind: str, device: str) -> pd.DataFrame:
    """One file in our columns and units."""
    try:
        raw = pd.read_parquet(path)
        raw = raw if "window_size" in raw else raw.assign(window_size=0)  # older files: no windows
    except ImportError:
        raise MissingDependencyError("pyarrow", "silicon", "reading parquet") from None
    software, version = path.parts[-3], path.parts[-2]
    try:
        columns = {ours: _plain(raw[theirs]) for ours, theirs in COLUMNS[kind].items()}
        columns["seconds"] = raw["latency"] * 1e-3
        if kind in ("decode_attention", "mla_decode"):
            columns["context"] = raw["step"] + raw["isl"]
        if kind == "collective":
            columns |= _collective(raw, name)
    except KeyError as error:
        raise RecordError(f"{path}: the column {error} is missing: this version of aiconfigurator-core has other tables") from None
    head = {"op": kind, "hardware": device, "software": _LIBRARIES.get(name, software), "software_version": version}
    table = pd.DataFrame({**{key: [value] * len(raw) for key, value in head.items()}, **columns})
    return table.loc[_sound(table)]


def _plain(column: pd.Series) -> pd.Series:
    if pd.api.types.is_numeric_dtype(column):
        return column
    return column.astype(object).map(lambda word: _WORDS.get(word, DTYPES.get(word, word)))


def _collective(raw: pd.DataFrame, name: str) -> dict[str, pd.Series]:
    """Words, bytes and time of a collective; where graphs were timed as well, eager rows get no time and so are not kept."""
    custom = name == "custom_allreduce"
    dtype = raw["allreduce_dtype" if custom else "nccl_dtype"]
    size = dtype.map({"int8": 1.0}).fillna(2.0)
    eager = raw["kernel_source"].str.endswith("_eager")
    eager &= not eager.all()
    return {
        "collective": pd.Series("custom_all_reduce", index=raw.index) if custom else raw["op_name"],
        "dtype": dtype.replace({"bfloat16": "bf16", "half": "fp16"}),
        "bytes": raw["message_size"] * size,
        "seconds": (raw["latency"] * 1e-3).mask(eager),
    }


def _sound(table: pd.DataFrame) -> pd.Series[bool]:
    good = table["seconds"] > 0
    if "kv_heads" in table:
        good &= table["heads"] <= _MOST_SHARED * table["kv_heads"]
    if table["op"].eq("gemm").any():
        good &= ~((table["software"] == "vllm") & (table["dtype"] == "fp8_block"))
    return good


def _medians(table: pd.DataFrame) -> pd.DataFrame:
    names = [name for name in table.columns if name != "seconds"]
    return pd.DataFrame(table.groupby(names, sort=False, dropna=False)["seconds"].median().reset_index())


def _one_version(table: pd.DataFrame) -> pd.DataFrame:
    """Of each software and dtype the rows of the latest version that has more than half as many as the fullest one."""
    words = [name for name in ("software", "dtype") if name in table]
    kept = []
    for _, part in table.groupby(words, sort=False):
        counts = part["software_version"].value_counts()
        best = max(counts.index[counts > counts.max() / 2], key=_parts)
        kept.append(part.loc[part["software_version"] == best])
    whole: pd.DataFrame = pd.concat(kept, ignore_index=True)
    return whole


def _parts(version: str) -> list[int]:
    """The numbers in a version, in order: 0.5.14 comes after 0.5.9."""
    return [int(number) for number in re.findall(r"\d+", version)]
