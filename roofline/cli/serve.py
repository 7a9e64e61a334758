"""`roofline serve`: the reference engine as an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roofline.cli import engine_options, options
from roofline.cli.shell import new_app
from roofline.errors import MissingDependencyError
from roofline.profiles.catalog import load_model
from roofline.scheduling import VllmConfig

if TYPE_CHECKING:
    from roofline.engine.server.run import Place

app = new_app()


@app.command()
def serve(
    model: options.ModelName,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; other than loopback, others can reach it.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Port; 0 takes a free one.")] = 8000,
    served_model_name: Annotated[str, typer.Option(metavar="NAME", help="Name in /v1/models; the profile's if not given.")] = "",
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A tokenizer.json or its folder; else MODEL's, else words.")
    ] = None,
    api_key_env: Annotated[
        str, typer.Option(metavar="NAME", help="Environment variable with the API key; unset: no key.")
    ] = "ROOFLINE_API_KEY",
    max_concurrent_requests: Annotated[int, typer.Option(min=1, metavar="N", help="Answers in the making; more are told 429.")] = 1024,
    drain_timeout: Annotated[float, typer.Option(min=0, metavar="S", help="After SIGTERM, time for answers to end.")] = 30.0,
    device: engine_options.Device = "cpu",
    dtype: engine_options.ComputeType = "fp32",
    weights: engine_options.LayerWeights = "",
    kv_dtype: engine_options.KvType = "",
    kv_blocks: engine_options.KvBlocks = 1024,
    block_size: engine_options.BlockSize = 16,
    max_model_len: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Longest sequence; the model's own, as far as KV goes, if not given.")
    ] = None,
    max_num_batched_tokens: engine_options.MaxBatchedTokens = 512,
    max_num_seqs: engine_options.MaxSequences = 64,
    prefix_caching: engine_options.PrefixCaching = True,
    speculative: engine_options.Speculative = "",
    graphs: engine_options.Graphs = True,
    attention: engine_options.AttentionBackend = "sdpa",
    compiler: engine_options.Compiler = "",
    threads: engine_options.Threads = 0,
    random_weights: engine_options.RandomWeights = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Of random weights.")] = 0,
) -> None:
    """Serves a model on the reference engine: /v1/completions, /v1/chat/completions, /v1/models, /health, /metrics (vLLM's names).

    SIGTERM lets answers in the making end. Weights are random unless MODEL is a folder with safetensors.
    """
    engine_options.use_torch("serve", threads, "gpu,serve")
    try:
        from roofline.engine.server import run
    except ModuleNotFoundError as error:
        raise MissingDependencyError(str(error.name), "serve", "serve") from None
    from roofline.engine import build
    from roofline.engine.server.service import Bounds
    from roofline.engine.server.text import load_text
    from roofline.loadtest.wire import key_from_environment

    profile, key = load_model(model), key_from_environment(api_key_env)
    how = build.Options(
        device, dtype, engine_options.storage_format(weights, dtype), engine_options.storage_format(kv_dtype, dtype), kv_blocks,
        block_size, seed, "graphs" if graphs and device == "cuda" else "eager", compiler, attention,
    )  # fmt: skip
    setup = build.check(
        profile,
        how,
        folder=engine_options.weights_folder(model, random_weights),
        speculation=engine_options.speculation(speculative, random_weights),
        max_model_len=max_model_len,
    )
    setup = setup.within_pool(exactly=max_model_len is not None)
    text = load_text(profile.vocab_size, tokenizer, Path(model) if Path(model).is_dir() else None)
    config = VllmConfig(max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=min(max_num_seqs, max_num_batched_tokens))
    place = run.Place(host, port, served_model_name or profile.name, key, drain_timeout)
    served = run.build(setup, text, config, prefix_caching=prefix_caching)
    for note in (*setup.assumptions, *_remarks(place, text.name)):
        _say(note)
    bounds = Bounds(most=max_concurrent_requests)
    asyncio.run(run.serve(served, place, bounds, lambda url: _ready(url, place.name)))
    _say("ended")


def _remarks(place: Place, tokenizer: str) -> list[str]:
    remarks = [f"tokens: {'words, by their hash (no tokenizer.json)' if tokenizer == 'words' else tokenizer}"]
    if not place.loopback:
        key = "with an API key" if place.key else "without an API key (set ROOFLINE_API_KEY)"
        remarks.append(f"warning: {place.host} is reachable from other machines, {key} and without encryption")
    return remarks


def _ready(url: str, name: str) -> None:
    print(f"serving {name} on {url} (pid {os.getpid()})", flush=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
