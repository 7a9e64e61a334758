"""The ledger against an independent hand-written reference (tests/golden/ref_ops.csv, ref_times.csv; five models).

Conventions of the reference that differ from the defaults: a decode step at context S counts S keys, the new one included
(here: S − 1 cached); one name each for the routed experts; fp8 without scales; experts uniformly routed.
"""

from __future__ import annotations

import ast
import csv
from collections import defaultdict
from pathlib import Path

import pytest

from roofline.batch import Batch
from roofline.ledger import Conventions, Ledger, Op, Parallel, Precision, build_ledger
from roofline.profiles.catalog import load_hardware, load_model
from roofline.profiles.hardware import Hardware
from roofline.timing.bound import op_bound_s, step_bound

GOLDEN = Path(__file__).parent.parent / "golden"
MODELS = {
    "llama2-7b": "llama-2-7b",
    "llama31-8b": "llama-3.1-8b",
    "llama31-70b": "llama-3.1-70b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "deepseek-v3": "deepseek-v3",
}
NAMES = {
    "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj", "gate": "gate_proj", "up": "up_proj", "down": "down_proj",
    "shared": "shared_experts", "q_a": "q_a_proj", "q_b": "q_b_proj", "kv_a": "kv_a_proj_with_mqa", "kv_b": "kv_b_proj",
    "attn": "attention",
}  # fmt: skip


def rows(name: str) -> list[dict[str, str]]:
    with (GOLDEN / name).open() as file:
        return list(csv.DictReader(file))


def ledger(model: str, phase: str, batch: int, tokens: int, causal: bool, tp: int, ep: int) -> Ledger:
    new = Batch.prefill(batch, tokens) if phase == "prefill" else Batch.decode(batch, tokens - 1)
    fp8 = model == "deepseek-v3"
    return build_ledger(
        load_model(MODELS[model]),
        new,
        parallel=Parallel(tp=tp, ep=ep),
        precision=Precision(weights="fp8" if fp8 else None, activations="bf16", kv="bf16"),
        conventions=Conventions(causal=causal),
    )


def device(name: str, model: str) -> Hardware:
    """The reference prices every op of the fp8 model at the fp8 peak, attention and head too."""
    hardware = load_hardware(name)
    if model != "deepseek-v3":
        return hardware
    return hardware.model_copy(update={"peaks": dict(hardware.peaks) | {"bf16": hardware.peaks["fp8"]}})


def _without_communication(pass_: Ledger) -> Ledger:
    return Ledger(tuple(op for op in pass_ if op.kind != "collective"))


def _cases() -> dict[tuple[str, ...], list[dict[str, str]]]:
    cases: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in rows("ref_ops.csv"):
        cases[tuple(row[key] for key in ("model", "hardware", "phase", "batch", "tokens", "causal", "tp", "ep"))].append(row)
    return cases


@pytest.mark.parametrize("case", _cases(), ids="-".join)
def test_every_op_has_the_flops_and_bytes_of_the_reference(case: tuple[str, ...]) -> None:
    model, hardware, phase, batch, tokens, causal, tp, ep = case
    ours: dict[str, list[Op]] = defaultdict(list)
    for op in _without_communication(ledger(model, phase, int(batch), int(tokens), causal == "True", int(tp), int(ep))):
        ours[op.name].append(op)
    for row in _cases()[case]:
        if row["op"] == "kv_store":  # the reference writes the latent cache in an op of its own
            assert ours["attention"][0].kv_bytes_each == pytest.approx(float(row["kv_bytes_each"]), rel=1e-12)
            continue
        ops = ours.pop(name) if (name := NAMES.get(row["op"], row["op"])) != "attention" else ours[name]
        assert sum(op.count for op in ops) == int(row["count"]), name  # one row of the reference may be two kinds of layers here
        for column in ("flops_each", "weight_bytes_each", "activation_bytes_each"):
            assert float(getattr(ops[0], column)) == pytest.approx(float(row[column]), rel=1e-12), (name, column)
        if not (model == "deepseek-v3" and phase == "prefill" and name == "attention"):
            assert float(ops[0].kv_bytes_each) == pytest.approx(float(row["kv_bytes_each"]), rel=1e-12), name
            bound = float(op_bound_s(ops[0], device(hardware, model), routing="uniform"))
            assert bound == pytest.approx(float(row["bound_s_each"]), rel=5e-3), name
    assert set(ours) == {"attention"}, "an op that the reference does not have"


@pytest.mark.parametrize("row", rows("ref_times.csv"), ids=lambda r: "-".join((r["model"], r["phase"], r["batch"], r["opts"])))
def test_times_of_whole_passes(row: dict[str, str]) -> None:
    options = ast.literal_eval(row["opts"])
    pass_ = ledger(
        row["model"],
        row["phase"],
        int(row["batch"]),
        int(row["seq"]),
        options.get("causal", True),
        options.get("tp", 1),
        options.get("ep", 1),
    )
    ours, machine = _without_communication(pass_), device(row["hw"], row["model"])
    bound = step_bound(ours, machine, routing="uniform")
    for total, column in (("flops", "TFLOP"), ("weight_bytes", "weight_GB"), ("kv_bytes", "kv_GB")):
        unit = 1e12 if total == "flops" else 1e9
        assert float(ours.total(total)) / unit == pytest.approx(float(row[column]), abs=6e-5, rel=1e-6), column
    assert float(bound.serial_s) * 1e3 == pytest.approx(float(row["t_ops_ms"]), rel=5e-3)
    assert float(bound.step_s) * 1e3 == pytest.approx(float(row["t_agg_ms"]), rel=5e-3)
    streams = float(ours.total("weight_bytes") + ours.total("kv_bytes")) / machine.memory_bandwidth
    assert max(float(bound.compute_s), streams) * 1e3 == pytest.approx(float(row["t_aggmin_ms"]), rel=5e-3)
