"""Capacity against published numbers: the independent reference (ref_memory.csv) and the article's rows (seed.csv)."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from roofline.capacity import Known, contiguous, memory_plan, paged, token_budget
from roofline.ledger import Parallel, kv_bytes_per_token, parameters, stage_weights
from roofline.profiles.catalog import load_hardware, load_model
from roofline.profiles.model import MLP, Attention, Layer, Model

GOLDEN = Path(__file__).parent.parent / "golden"
NAMES = {
    "llama2-7b": "llama-2-7b",
    "llama31-8b": "llama-3.1-8b",
    "llama31-70b": "llama-3.1-70b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "deepseek-v3": "deepseek-v3",
}
MEMORY = {"maxtok_0.9_80e9": 80e9, "maxtok_0.9_80GiB": 80 * 2**30, "maxtok_0.9_H100_81559MiB": 81559 * 2**20}


def table(name: str) -> list[dict[str, str]]:
    with (GOLDEN / name).open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("column", MEMORY)
@pytest.mark.parametrize("row", table("ref_memory.csv"), ids=lambda r: r["model"])
def test_tokens_of_the_reference(row: dict[str, str], column: str) -> None:
    """floor((0.9·M − weights/gpus) / kv), within one token, with weights and memory as the reference has them."""
    model, gpus = load_model(NAMES[row["model"]]), int(row["gpus"])
    weights = float(row["weight_bytes"]) / gpus  # the reference spreads weights evenly, replicated latents too
    known = Known(memory=MEMORY[column], weights=weights)
    hardware = load_hardware("h100-sxm")
    plan = memory_plan(model, hardware, Parallel(tp=gpus), engine="plain", utilization=0.9, known=known)
    assert plan.kv_bytes_per_token == float(row["kv_bytes_per_token_per_gpu"])
    expected = int(row[column])
    if expected > 0:
        assert plan.fits
        assert abs(plan.kv_tokens - expected) <= 1
    else:
        assert not plan.fits
        assert plan.kv_tokens == plan.max_sequences(1) == 0
        assert abs(plan.shortfall_bytes / plan.kv_bytes_per_token + expected) <= 2


@pytest.mark.parametrize("row", table("ref_memory.csv"), ids=lambda r: r["model"])
def test_weights_and_kv_of_the_reference(row: dict[str, str]) -> None:
    model = load_model(NAMES[row["model"]])
    assert parameters(model) == int(row["params"])
    assert stage_weights(model).bytes == int(row["weight_bytes"])
    assert kv_bytes_per_token(model) == int(row["kv_bytes_per_token"])


def test_the_products_own_weights_give_the_same_tokens_on_one_gpu() -> None:
    expected = next(r for r in table("ref_memory.csv") if r["model"] == "llama31-8b")["maxtok_0.9_H100_81559MiB"]
    plan = memory_plan(load_model("llama-3.1-8b"), load_hardware("h100-sxm"), engine="plain")
    assert plan.kv_tokens == int(expected)
    assert plan.activation_bytes == plan.runtime_bytes == 0


def seed(row: str, quantity: str) -> list[tuple[dict[str, float], float]]:
    rows = [r for r in table("seed.csv") if (r["row"], r["quantity"]) == (row, quantity)]
    assert rows
    return [({k: float(v) for k, v in (pair.split("=") for pair in r["inputs"].split(";"))}, float(r["value"])) for r in rows]


def test_seed_s5_kv_bytes() -> None:
    for inputs, value in seed("S5", "kv_bytes_per_token") + seed("S5", "kv_bytes"):
        heads = int(inputs["kv_heads"])
        layer = Layer(mixer=Attention(heads=32, kv_heads=heads, head_dim=int(inputs["head_dim"])), ffn=MLP(intermediate=11008))
        model = Model(name="s5", model_type="test", source="article", hidden_size=4096, vocab_size=32000, layers={"a": layer}, order="32*a")
        plan = memory_plan(model, load_hardware("a100-sxm-80gb"), engine="plain")
        assert plan.kv_bytes_per_token * inputs.get("tokens", 1) == value
        assert plan.pool.request_bytes(int(inputs.get("tokens", 1))) == value


def test_seed_s6_token_budget_and_tokens_used() -> None:
    ((inputs, value),) = seed("S6", "token_budget")
    assert token_budget(inputs["kv_memory"], inputs["kv_per_token"]) == value
    ((inputs, value),) = seed("S6", "tokens_used")
    used = inputs["sequences"] * inputs["context"]
    assert used == value
    assert used < token_budget(60e9, 131072)  # the article says that it overflows


def test_seed_s11_reserving_wastes_what_paging_keeps() -> None:
    ((inputs, value),) = seed("S11", "reserved_waste")
    reserved = contiguous(int(inputs["reserved"]), int(inputs["used"]))
    assert reserved.wasted == value
    assert reserved.utilization == pytest.approx(200 / 8192)
    assert paged(200).utilization == pytest.approx(200 / 208)
    assert paged(200).wasted == 8
    assert paged(208).wasted == 0
