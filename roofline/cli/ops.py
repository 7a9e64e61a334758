"""`roofline ops`: the ledger of one forward pass, priced."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from roofline import units
from roofline.batch import Batch
from roofline.cli import options
from roofline.cli.output import Answer, emit
from roofline.cli.render import Block, Column, Heading, Paragraph, Table, assumed
from roofline.cli.shell import new_app
from roofline.ledger import Conventions, Op, Parallel, Precision, build_ledger
from roofline.profiles.catalog import load_hardware, load_model
from roofline.profiles.hardware import Hardware
from roofline.timing.bound import limited_by, op_bound_s, step_bound
from roofline.timing.calibrated import op_times
from roofline.timing.generic import DEFAULTS
from roofline.timing.peaks import notes

app = new_app()

COLUMNS = (
    Column("name", "op", most=32),
    Column("layer", "layer", drop=7),
    Column("count", "runs", "integer"),
    Column("m", "m", "integer", drop=8),
    Column("n", "n", "integer", drop=8),
    Column("k", "k", "integer", drop=8),
    Column("flops", "FLOPs", "flop"),
    Column("weight_bytes", "weights", "bytes", drop=2),
    Column("kv_bytes", "KV", "bytes", drop=3),
    Column("activation_bytes", "activations", "bytes", drop=5),
    Column("intensity", "FLOP/B", "number", drop=4),
    Column("limited_by", "limited by"),
    Column("bound_s", "bound", "time"),
    Column("expected_s", "expected", "time", drop=1),
    Column("formula", "formula", most=48, drop=9),
)
MORE = (
    "kind",
    "compute",
    "link_bytes",
    "flops_each",
    "weight_bytes_each",
    "kv_bytes_each",
    "activation_bytes_each",
    "bound_s_each",
    "expected_s_each",
)


@app.command()
def ops(
    model: options.ModelName,
    hardware: options.HardwareName,
    phase: Annotated[
        Literal["prefill", "decode"], typer.Option(help="Prefill computes --context tokens; decode one token on as many.")
    ] = "decode",
    batch: Annotated[int, typer.Option(min=1, metavar="B", help="Sequences in the pass.")] = 1,
    context: Annotated[int, typer.Option(min=0, metavar="T", help="Tokens: computed in prefill, cached before in decode.")] = 1024,
    tp: options.Tp = 1,
    pp: options.Pp = 1,
    ep: options.Ep = 1,
    dp: options.Dp = 1,
    weights: options.Weights = None,
    kv_dtype: options.KvDtype = None,
    full: options.FullAttention = False,
    naive: Annotated[bool, typer.Option("--naive-attention", help="Attention scores go through memory.")] = False,
    elementwise: Annotated[bool, typer.Option("--elementwise", help="Norms, activations and residual adds as ops of their own.")] = False,
    fused: Annotated[bool, typer.Option("--fused", help="GEMMs that read the same input as one, as engines run them.")] = False,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    output: options.OutFile = None,
) -> None:
    """The ledger: one row per operation with shape, FLOPs, bytes by kind, intensity, what limits it, time and formula.

    One rank of the first pipeline stage. Runs, FLOPs, bytes and times are totals over all runs of the op in the pass.
    """
    spec, device = load_model(model), load_hardware(hardware)
    who = Batch.prefill(batch, context) if phase == "prefill" else Batch.decode(batch, context)
    ledger = build_ledger(
        spec,
        who,
        parallel=Parallel(tp=tp, pp=pp, ep=ep, dp=dp),
        precision=Precision(weights=weights, kv=kv_dtype),
        conventions=Conventions(causal=not full, naive_attention=naive, elementwise=elementwise),
    )
    ledger = ledger.fused() if fused else ledger
    rows = [_row(op, device) for op in ledger]
    whole = step_bound(ledger, device)
    totals = {
        key: sum(row[key] for row in rows) for key in ("flops", "weight_bytes", "kv_bytes", "activation_bytes", "link_bytes", "expected_s")
    }
    totals |= {"bound_s": float(whole.step_s), "serial_s": float(whole.serial_s), "limited_by": whole.limited_by}
    totals["intensity"] = float(ledger.intensity)
    inputs = {
        "model": spec.name, "hardware": device.id, "phase": phase, "batch": batch, "context": context,
        "tp": tp, "pp": pp, "ep": ep, "dp": dp,
        "weights": weights, "kv_dtype": kv_dtype, "causal": not full, "naive_attention": naive, "elementwise": elementwise, "fused": fused,
    }  # fmt: skip
    assumptions = [*notes(device, {op.compute for op in ledger}), *_assumptions(full, elementwise), *spec.assumptions]
    table = Table(COLUMNS, rows, more=MORE)
    blocks: list[Block] = [
        Heading(_title(inputs)),
        table,
        Paragraph(_sum_line(totals)),
        *assumed(assumptions),
    ]
    emit(Answer("ops", inputs, {"ops": rows, "totals": totals}, table, blocks, assumptions), as_json=as_json, as_csv=as_csv, path=output)


def _row(op: Op, hardware: Hardware) -> dict[str, Any]:
    each = {
        f"{key}_each": float(getattr(op, f"{key}_each")) for key in ("flops", "weight_bytes", "kv_bytes", "activation_bytes", "link_bytes")
    }
    each |= {"bound_s_each": float(op_bound_s(op, hardware)), "expected_s_each": float(op_times(op, hardware, "vllm").expected_s)}
    shape = {"m": float(op.m), "n": float(op.n), "k": float(op.k)} if op.n else {"m": None, "n": None, "k": None}
    bytes_ = float(op.bytes_each)
    return {
        "name": op.name,
        "kind": op.kind,
        "layer": op.layer,
        "count": op.count,
        "compute": op.compute,
        **shape,
        **{key.removesuffix("_each"): op.count * value for key, value in each.items()},
        **each,
        "intensity": each["flops_each"] / bytes_ if bytes_ else None,
        "limited_by": "launch" if each["bound_s_each"] < DEFAULTS.launch else limited_by(op, hardware),
        "formula": op.formula,
    }


def _title(inputs: dict[str, Any]) -> str:
    sequences = f"{inputs['batch']:,} sequence" + ("s" if inputs["batch"] > 1 else "")
    what = (
        "of {:,} tokens".format(inputs["context"])
        if inputs["phase"] == "prefill"
        else "with {:,} cached tokens each".format(inputs["context"])
    )
    return f"One {inputs['phase']} pass of {sequences} {what}: {inputs['model']} on {inputs['hardware']}" + (
        f", rank of tp {inputs['tp']}" if inputs["tp"] > 1 else ""
    )


def _sum_line(totals: dict[str, Any]) -> str:
    moved = totals["weight_bytes"] + totals["kv_bytes"] + totals["activation_bytes"]
    return (
        f"Whole pass: {units.format(totals['flops'], 'flop')}, {units.format(moved, 'bytes')} moved, "
        f"{units.format(totals['intensity'], 'intensity')}; limited by {totals['limited_by']}. "
        f"Bound {units.format(totals['bound_s'], 'time')} if everything overlaps, {units.format(totals['serial_s'], 'time')} op after op; "
        f"expected {units.format(totals['expected_s'], 'time')} of kernels."
    )


def _assumptions(full: bool, elementwise: bool) -> list[str]:
    counted = "the full square of query-key pairs" if full else "only the query-key pairs that a causal kernel needs"
    notes = [f"attention counts {counted}; scores never touch memory unless --naive-attention"]
    if not elementwise:
        notes.append("norms, activations and residual adds are left out, as engines fuse most of them; --elementwise shows them")
    return [*notes, "expected times use constants that are the same for all devices; 1 MAC = 2 FLOP"]
