"""Options of whatever runs the reference engine, and what they mean to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from roofline.dtypes import dtype as known_dtype
from roofline.errors import InputError, MissingDependencyError
from roofline.profiles.catalog import load_model

if TYPE_CHECKING:
    from roofline.engine.build import Speculation

Device = Annotated[Literal["cpu", "cuda"], typer.Option(help="Where it runs.")]
ComputeType = Annotated[str, typer.Option(metavar="DTYPE", help="Activations and plain weights: fp32, bf16, fp16.")]
LayerWeights = Annotated[str, typer.Option(metavar="DTYPE", help="Storage of the layers' weights: w8a16, int4, int8 (W8A8), fp8.")]
KvType = Annotated[str, typer.Option(metavar="DTYPE", help="KV cache: int8 or fp8, else as the activations.")]
KvBlocks = Annotated[int, typer.Option(min=2, metavar="N", help="KV blocks, the null block included.")]
BlockSize = Annotated[int, typer.Option(min=1, metavar="N", help="Tokens per block.")]
MaxModelLen = Annotated[int | None, typer.Option(min=1, metavar="N", help="Longest sequence; the model's own if not given.")]
MaxBatchedTokens = Annotated[int, typer.Option(min=1, metavar="N", help="Tokens per step.")]
MaxSequences = Annotated[int, typer.Option(min=1, metavar="N", help="Sequences per step.")]
PrefixCaching = Annotated[bool, typer.Option(help="Share KV of equal beginnings.")]
Speculative = Annotated[str, typer.Option(metavar="ngram:K|MODEL:K", help="K drafts from the text itself or a smaller model.")]
Graphs = Annotated[bool, typer.Option(help="Replay decode steps from CUDA graphs (on cuda only).")]
AttentionBackend = Annotated[Literal["sdpa", "flash"], typer.Option(help="How KV pages are read; flash on cuda with 16-bit types.")]
Compiler = Annotated[str, typer.Option("--compile", metavar="BACKEND", help="Compile the decoder, e.g. with inductor.")]
Threads = Annotated[int, typer.Option(min=0, metavar="N", help="CPU threads; 0: as PyTorch chooses.")]
RandomWeights = Annotated[bool, typer.Option("--random-weights", help="Do not read the weights of a model folder.")]


def use_torch(command: str, threads: int = 0, extras: str = "gpu") -> Any:
    """The module torch, with so many CPU threads (0: as it is). Raises MissingDependencyError."""
    try:
        import torch
    except ImportError:
        raise MissingDependencyError("torch", extras, command) from None
    if threads:
        torch.set_num_threads(threads)
    return torch


def storage_format(name: str, activations: str) -> str:
    """The engine's word for a storage format: "" where it is the type of the activations itself."""
    if not name or name == activations:
        return ""
    found = known_dtype(name).name
    return "" if found == known_dtype(activations).name else found


def weights_folder(model: str, random_weights: bool) -> Path | None:
    """Where the weights are; None: nowhere, they are random."""
    path = Path(model)
    return path if path.is_dir() and not random_weights else None


def speculation(text: str, random_weights: bool) -> Speculation | None:
    """--speculative as the engine takes it."""
    from roofline.engine.build import Speculation

    if not text:
        return None
    name, _, count = text.rpartition(":")
    if not name or not count.isdigit():
        raise InputError(f"--speculative {text!r}: write ngram:K or MODEL:K with K drafts per step, like ngram:3")
    if name == "ngram":
        return Speculation("ngram", int(count))
    return Speculation("model", int(count), load_model(name), weights_folder(name, random_weights))
