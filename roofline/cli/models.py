"""`roofline models`: the models that are known, and new ones from their configuration."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from roofline.cli import options
from roofline.cli.output import Answer, emit, print_text, write_atomically
from roofline.cli.render import Block, Column, Heading, Paragraph, Table, assumed
from roofline.cli.shell import new_app
from roofline.ledger import active_parameters, extra_weights, kv_bytes_per_token, parameters, stage_weights
from roofline.profiles import catalog
from roofline.profiles.model import MLA, MLP, Attention, Layer, Model, MoE

app = new_app(no_args_is_help=True, help="The models that are known, and new ones from their configuration.")

LIST = (
    Column("model", "model"),
    Column("parameters", "parameters", "parameters"),
    Column("active_parameters", "active", "parameters", drop=2),
    Column("weight_bytes", "weights", "bytes"),
    Column("kv_bytes_per_token", "KV per token", "memory"),
    Column("layers", "layers", "integer", drop=4),
    Column("max_position_embeddings", "context", "integer", drop=3),
    Column("weight_format", "stored as", drop=1),
)
LAYERS = (
    Column("layer", "layer"),
    Column("count", "count", "integer"),
    Column("mixer", "attention", drop=2),
    Column("ffn", "feed-forward", drop=1),
)


ACTIVE = "active: the parameters that one token multiplies; experts it does not choose and the input embedding, a lookup, are not."


@app.command("list")
def list_(
    contains: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only models whose name or hub id has this text.")] = "",
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    output: options.OutFile = None,
) -> None:
    """All models: parameters, weights, KV per token."""
    known = (catalog.load_model(path) for path in catalog.files(catalog.MODELS).values())
    rows = [
        _summary(model) for model in known if any(contains.lower() in name.lower() for name in (model.name, *model.hf_ids, *model.aliases))
    ]
    table = Table(LIST, rows, more=("hf_ids", "model_type"))
    blocks: list[Block] = [
        table,
        Paragraph(ACTIVE, style="dim"),
        Paragraph(f"{len(rows)} models; any config.json works too: `roofline models import CONFIG`.", style="dim"),
    ]
    emit(Answer("models list", {"contains": contains}, {"models": rows}, table, blocks), as_json=as_json, as_csv=as_csv, path=output)


@app.command()
def show(model: options.ModelName, as_json: options.AsJson = False, as_csv: options.AsCsv = False, output: options.OutFile = None) -> None:
    """One model: parameters, weights by part, layers, KV, and what was assumed."""
    spec = catalog.load_model(model)
    emit(_described("models show", spec, {"model": spec.name}), as_json=as_json, as_csv=as_csv, path=output)


@app.command("import")
def import_(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A folder or file with a config.json.")],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the profile; that of the folder unless given.")] = None,
    as_json: options.AsJson = False,
    output: options.OutFile = None,
) -> None:
    """Reads a configuration and prints the model as a profile (YAML), or writes it with -o FILE.yaml.

    A key that changes the arithmetic and is not understood stops with file:line:key.
    """
    spec = catalog.load_model(Path(config))
    spec = spec.model_copy(update={"name": name}) if name else spec
    if as_json:
        emit(_described("models import", spec, {"config": config, "name": spec.name}), as_json=True, path=output)
        return
    text = yaml.safe_dump(spec.as_yaml_data(), sort_keys=False, allow_unicode=True, width=120)
    if output is None:
        print_text(text, utf8=True)
    else:
        write_atomically(output, text)


def _summary(model: Model) -> dict[str, Any]:
    weights = stage_weights(model)
    return {
        "model": model.name,
        "model_type": model.model_type,
        "hf_ids": " ".join(model.hf_ids),
        "parameters": parameters(model),
        "active_parameters": active_parameters(model),
        "weight_bytes": weights.bytes,
        "kv_bytes_per_token": kv_bytes_per_token(model),
        "layers": model.num_layers,
        "max_position_embeddings": model.max_position_embeddings,
        "weight_format": model.weights.get("default", model.dtype),
    }


def _described(command: str, model: Model, inputs: dict[str, Any]) -> Answer:
    """One model as data and as a page."""
    summary = _summary(model)
    layers = [
        {"layer": name, "count": count, "mixer": _mixer(model.layers[name]), "ffn": _ffn(model.layers[name])}
        for name, count in Counter(model.stack).items()
    ]
    by_part = stage_weights(model).bytes_by_role
    parts = [{"part": part, "bytes": size, "share": size / summary["weight_bytes"]} for part, size in by_part.items()]
    held = [extra_weights(model, extra) for extra in model.extras]
    extras = [extra.model_dump() | {"parameters": w.parameters, "bytes": w.bytes} for extra, w in zip(model.extras, held, strict=True)]
    table = Table(LAYERS, layers)
    blocks: list[Block] = [
        Heading(f"{model.name}: {model.num_layers} layers, hidden size {model.hidden_size:,}, vocabulary {model.vocab_size:,}"),
        Table(LIST, [summary]),
        Heading(f"Stack: {model.order}"),
        table,
        Heading("Weights"),
        Table((Column("part", "part"), Column("bytes", "bytes", "bytes"), Column("share", "share", "percent")), parts),
    ]
    for extra, weights in zip(model.extras, held, strict=True):
        how = "loaded" if extra.loaded else "not loaded"
        blocks.append(Paragraph(f"Beside the text model: {extra.name}, {weights.parameters:,} parameters, {how} by engines. {extra.note}"))
    blocks += [
        Paragraph(""),
        Paragraph(ACTIVE, style="dim"),
        Paragraph(f"Source: {model.source}", style="dim"),
        *assumed(model.assumptions),
    ]
    data = summary | {
        "hf_ids": model.hf_ids,
        "weight_bytes_by_part": by_part,
        "stack": layers,
        "extras": extras,
        "profile": model.as_yaml_data(),
    }
    return Answer(command, inputs, data, table, blocks, model.assumptions)


def _mixer(layer: Layer) -> str:
    """The token mixer in a few words."""
    mixer = layer.mixer
    if isinstance(mixer, Attention):
        kind = "MHA" if mixer.kv_heads == mixer.heads else "MQA" if mixer.kv_heads == 1 else "GQA"
        reach = f", window {mixer.window:,}" if mixer.window else f", chunk {mixer.chunk:,}" if mixer.chunk else ""
        return f"{kind} {mixer.heads}/{mixer.kv_heads} heads × {mixer.head_dim}{reach}"
    if isinstance(mixer, MLA):
        return f"MLA {mixer.heads} heads, latent {mixer.kv_lora_rank} + {mixer.qk_rope_head_dim}"
    return "none" if mixer is None else mixer.kind


def _ffn(layer: Layer) -> str:
    """The feed-forward part in a few words."""
    ffn = layer.ffn
    if isinstance(ffn, MoE):
        shared = f" + shared {ffn.shared_intermediate:,}" if ffn.shared_intermediate else ""
        return f"MoE {ffn.top_k} of {ffn.experts} × {ffn.intermediate:,}{shared}"
    if isinstance(ffn, MLP):
        return f"{'gated ' if ffn.gated else ''}MLP {ffn.intermediate:,}"
    return "none"
