"""Start-up logs of real engines as test cases: rows of tests/data/startup_logs.csv and models of their geometry."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from roofline.ledger import Parallel, Precision
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import MLA, MLP, Attention, Layer, Model, MoE

DATA = Path(__file__).parent.parent / "data"
GiB = 2**30
Row = dict[str, str]

_MOE_WIDTH = {
    "mixtral-8x7b": 14336,
    "gpt-oss-120b": 2880,
    "gpt-oss-20b": 2880,
    "deepseek-v2-lite": 1408,
    "deepseek-v3": 2048,
    "kimi-k2": 2048,
}
_FIRST_DENSE = {"deepseek-v2-lite": 1, "deepseek-v3": 3, "kimi-k2": 1}
_FORMATS = {
    "int4": "int4",
    "awq int4": "int4",
    "gptq int4": "int4",
    "int4 bnb": "nf4",
    "fp8": "fp8",
    "int8 w8a8": "int8",
    "gguf q8_0": "w8a16",
    "mxfp4": "mxfp4",
}


def rows() -> list[Row]:
    with (DATA / "startup_logs.csv").open() as file:
        return list(csv.DictReader(file))


def row(name: str) -> Row:
    return next(r for r in rows() if r["id"] == name)


def geometry(key: str) -> Row:
    with (DATA / "startup_geometries.csv").open() as file:
        return next(r for r in csv.DictReader(file) if r["key"] == key)


def model(key: str) -> Model:
    """A model of the geometry of one row; windows and experts as it says, latent attention where it has a latent rank."""
    g = geometry(key)
    mixer = _mixer(g)
    dense = MLP(intermediate=_width(g, key))
    layers = {"full": Layer(mixer=mixer, ffn=_moe(g, key) or dense)}
    order = f"{int(g['num_layers'])}*full"
    if int(g["sliding_layers"] or 0):
        layers["sliding"] = Layer(mixer=mixer.model_copy(update={"window": int(g["sliding_window"])}), ffn=layers["full"].ffn)
        order = f"{g['full_attn_layers']}*full + {g['sliding_layers']}*sliding"
    if first := _FIRST_DENSE.get(key):
        layers["dense"] = Layer(mixer=mixer, ffn=dense)
        order = f"{first}*dense + {int(g['num_layers']) - first}*full"
    return Model(
        name=key,
        model_type="test",
        source="startup_geometries.csv",
        hidden_size=int(g["hidden"]),
        vocab_size=int(g["vocab"]),
        max_position_embeddings=131072,
        tie_word_embeddings=g["tie_embeddings"] == "True",
        layers=layers,
        order=order,
    )


def _mixer(g: Row) -> Attention | MLA:
    if g["kv_lora_rank"]:
        return MLA(heads=int(g["q_heads"]), kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    return Attention(heads=int(g["q_heads"]), kv_heads=int(g["kv_heads"]), head_dim=int(g["head_dim"]))


def _width(g: Row, key: str) -> int:
    return int(re.match(r"\d+", g["intermediate"])[0]) if g["intermediate"] else _MOE_WIDTH[key]


def _moe(g: Row, key: str) -> MoE | None:
    if not g["experts"]:
        return None
    experts, shared, top = re.fullmatch(r"(\d+)(?:\+(\d+))? \(top(\d+)\)", g["experts"]).groups()
    width = _MOE_WIDTH.get(key) or _width(g, key)
    return MoE(experts=int(experts), top_k=int(top), intermediate=width, shared_intermediate=int(shared or 0) * width)


def device(memory_bytes: float, name: str = "test-device", **facts: object) -> Hardware:
    return Hardware(id=name, vendor="NVIDIA", name=name, memory_bytes=memory_bytes, memory_bandwidth=1e12, peaks={"bf16": 1e14}, **facts)


def layout(r: Row) -> Parallel:
    return Parallel(tp=int(r["tp"] or 1), dcp=int(r["dcp"] or 1))


def precision(r: Row) -> Precision:
    kv = "bf16" if r["kv_dtype"] in ("", "f16") else r["kv_dtype"]
    return Precision(weights=_FORMATS.get(r["weight_dtype"]), kv=kv)


def number(r: Row, key: str) -> float | None:
    return float(r[key]) if r[key] else None


def count(r: Row, key: str) -> int | None:
    return int(float(r[key])) if r[key] else None
