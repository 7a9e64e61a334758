"""`roofline phases`: prefill and decode side by side."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from roofline import units
from roofline.cli import options
from roofline.cli.output import Answer, emit
from roofline.cli.render import Block, Column, Heading, Paragraph, Table, assumed
from roofline.cli.shell import new_app
from roofline.ledger import Conventions, Parallel, Precision
from roofline.phases import Phase, Setup, attention_crossover, compute_bound_prompt, kv_crossover, phase
from roofline.profiles.catalog import load_hardware, load_model

app = new_app()

# property of a row → (what people read, kind of Column)
PROPERTIES: dict[str, tuple[str, str]] = {
    "tokens": ("tokens in the pass", "integer"),
    "shape": ("GEMM rows × hidden", "text"),
    "flops": ("FLOPs", "flop"),
    "linear_flops": ("  matrices", "flop"),
    "attention_flops": ("  attention", "flop"),
    "bytes": ("bytes moved", "bytes"),
    "weight_bytes": ("  weights", "bytes"),
    "kv_read_bytes": ("  KV read", "bytes"),
    "kv_write_bytes": ("  KV written", "bytes"),
    "activation_bytes": ("  activations", "bytes"),
    "intensity": ("intensity", "intensity"),
    "ridge": ("ridge", "intensity"),
    "limited_by": ("limited by", "text"),
    "bound": ("time, hard bound", "time"),
    "expected": ("time, expected", "time"),
    "low": ("  80 % interval", "time"),
    "high": ("  … to", "time"),
    "tokens_per_s": ("tokens per second", "token_rate"),
    "batching_gain": ("gain by batching", "number"),
}


@app.command()
def phases(
    model: options.ModelName,
    hardware: options.HardwareName,
    input_len: options.InputLength = 1024,
    output_len: options.OutputLength = 256,
    batch: Annotated[int, typer.Option(min=2, metavar="B", help="Sequences of the batched columns.")] = 16,
    tp: options.Tp = 1,
    pp: options.Pp = 1,
    ep: options.Ep = 1,
    dp: options.Dp = 1,
    weights: options.Weights = None,
    kv_dtype: options.KvDtype = None,
    engine: options.Engine = "vllm",
    full: options.FullAttention = False,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    output: options.OutFile = None,
) -> None:
    """Prefill of the prompt and one decode step, each for one sequence and for a batch: why the two need opposite things.

    Per GPU. Decode is a step in the middle of the output: input + output/2 tokens cached.
    """
    setup = Setup(
        load_model(model),
        load_hardware(hardware),
        Parallel(tp=tp, pp=pp, ep=ep, dp=dp),
        Precision(weights=weights, kv=kv_dtype),
        engine,
        Conventions(causal=not full),
    )
    context = input_len + output_len // 2
    found = [
        phase(setup, "prefill", batch=1, new_tokens=input_len, past=0),
        phase(setup, "prefill", batch=batch, new_tokens=input_len, past=0),
        phase(setup, "decode", batch=1, new_tokens=1, past=context),
        phase(setup, "decode", batch=batch, new_tokens=1, past=context),
    ]
    rows = [_row(p, found[2 * (i // 2)], setup) for i, p in enumerate(found)]
    crossovers = {
        "compute_bound_prompt_tokens": compute_bound_prompt(setup),
        "attention_half_of_prefill_tokens": attention_crossover(setup),
        "kv_over_weights_context_tokens": {"1": kv_crossover(setup, 1), str(batch): kv_crossover(setup, batch)},
    }
    assumptions = list(dict.fromkeys(note for p in found for note in p.assumptions)) + list(setup.model.assumptions)
    inputs = {
        "model": setup.model.name, "hardware": setup.hardware.id, "input_len": input_len, "output_len": output_len, "batch": batch,
        "tp": tp, "pp": pp, "ep": ep, "dp": dp, "weights": weights, "kv_dtype": kv_dtype, "engine": engine, "causal": not full,
    }  # fmt: skip
    by_phase = Table(
        [Column("phase", "phase"), Column("batch", "batch", "integer"), *(Column(k, t, kind) for k, (t, kind) in PROPERTIES.items())], rows
    )
    blocks: list[Block] = [
        Heading(f"{setup.model.name} on {setup.hardware.id}: a prompt of {input_len:,} tokens, then decode with {context:,} cached"),
        _turned(rows),
        Paragraph(""),
        *(Paragraph(line, bullet="·") for line in _findings(crossovers, batch, rows)),
        *assumed(assumptions),
    ]
    data = {"phases": [_json(row) for row in rows], "crossovers": crossovers}
    emit(Answer("phases", inputs, data, by_phase, blocks, assumptions), as_json=as_json, as_csv=as_csv, path=output)


def _row(p: Phase, alone: Phase, setup: Setup) -> dict[str, Any]:
    """The phase as a flat row; alone: the same phase with one sequence."""
    rows = int(setup.per_pass(p.batch)) * p.new_tokens
    row: dict[str, Any] = {key: getattr(p, key) for key in PROPERTIES if hasattr(p, key)}
    return row | {
        "phase": p.name,
        "batch": p.batch,
        "context": p.context,
        "tokens": p.batch * p.new_tokens,
        "shape": f"{rows:,} × {setup.model.hidden_size:,}",
        **p.time.as_json(),
        "serial": p.serial_s,
        "batching_gain": p.tokens_per_s / alone.tokens_per_s,
    }


def _json(row: dict[str, Any]) -> dict[str, Any]:
    times = ("bound", "expected", "low", "high")
    return {key: value for key, value in row.items() if key not in (*times, "serial")} | {
        "time_s": {key: row[key] for key in times},
        "serial_s": row["serial"],
    }


def _turned(rows: list[dict[str, Any]]) -> Table:
    """Properties down, phases across: what differs between the phases stands side by side."""
    columns = [
        Column("property", ""),
        *(Column(str(i), f"{row['phase']} × {row['batch']}", align="right", drop=int(i == 1)) for i, row in enumerate(rows)),
    ]
    lines = []
    for key, (title, kind) in PROPERTIES.items():
        cells = {str(i): Column(key, title, kind).cell(row[key]) + (" ×" if key == "batching_gain" else "") for i, row in enumerate(rows)}
        lines.append({"property": title} | cells)
    return Table(columns, lines)


def _findings(crossovers: dict[str, Any], batch: int, rows: list[dict[str, Any]]) -> list[str]:
    """What the numbers say, in sentences."""
    prompt, half, kv = crossovers.values()
    gain = rows[3]["batching_gain"]
    lines = [
        f"Batching {batch} sequences multiplies decode throughput by {units.significant(gain)} and prefill throughput by "
        f"{units.significant(rows[1]['batching_gain'])}: "
        "decode reads the weights once for all of them, prefill was already at work."
    ]
    if prompt:
        lines.append(f"Prefill is limited by compute from {prompt:,} prompt tokens on; shorter prompts wait for the weights.")
    if half:
        lines.append(f"Attention is half of the prefill FLOPs from {half:,} tokens on.")
    reads = [f"{context:,} at batch {size}" for size, context in kv.items() if context]
    if reads:
        lines.append(f"A decode step reads more KV than weights beyond this context: {', '.join(reads)}.")
    return lines
