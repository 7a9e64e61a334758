"""Options that several commands share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from roofline.dtypes import dtype
from roofline.errors import InputError


def _known_dtype(value: str | None) -> str | None:
    """The canonical name of a dtype; wrong spellings end as usage errors of the option."""
    if value is None:
        return None
    try:
        return dtype(value).name
    except InputError as error:
        raise typer.BadParameter(str(error)) from None


def complete_model(incomplete: str) -> list[str]:
    """Names of models that start as the word under the cursor, for the shell."""
    from roofline.profiles import catalog

    return [name for name in catalog.files(catalog.MODELS) if name.startswith(incomplete)]


def complete_hardware(incomplete: str) -> list[str]:
    """Names of devices that start as the word under the cursor, for the shell."""
    from roofline.profiles import catalog

    return [name for name in ("auto", *catalog.files(catalog.HARDWARE)) if name.startswith(incomplete)]


ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        autocompletion=complete_model,
        help="A profile name or hub id of the catalogue, a YAML or .gguf file, a folder or file with a config.json, or hf:OWNER/NAME.",
    ),
]
HardwareName = Annotated[
    str,
    typer.Option(
        "--hardware",
        "-H",
        metavar="HW",
        autocompletion=complete_hardware,
        help="A profile name or alias, a YAML file, or auto (this machine).",
    ),
]
InputLength = Annotated[int, typer.Option("--input-len", "--isl", min=1, metavar="N", help="Prompt tokens.")]
OutputLength = Annotated[int, typer.Option("--output-len", "--osl", min=1, metavar="N", help="Generated tokens.")]
Tp = Annotated[int, typer.Option("--tp", min=1, metavar="N", help="Tensor-parallel ranks.")]
Pp = Annotated[int, typer.Option("--pp", min=1, metavar="N", help="Pipeline stages.")]
Ep = Annotated[int, typer.Option("--ep", min=1, metavar="N", help="Ranks over which the experts are spread (within tp·dp).")]
Dp = Annotated[int, typer.Option("--dp", min=1, metavar="N", help="Attention data-parallel ranks.")]
Weights = Annotated[
    str | None,
    typer.Option(metavar="DTYPE", callback=_known_dtype, help="Weight format in place of the checkpoint's: bf16, fp8, w4a16, nvfp4, …"),
]
KvDtype = Annotated[str | None, typer.Option(metavar="DTYPE", callback=_known_dtype, help="KV cache format: bf16, fp8, …")]
Engine = Annotated[
    Literal["vllm", "sglang", "trtllm", "llamacpp", "reference"],
    typer.Option(help="Whose memory budget and step overhead to assume; reference: kernels alone."),
]
FullAttention = Annotated[bool, typer.Option("--full-attention", help="Count the full square of query-key pairs, not the causal half.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="The main table as CSV, numbers in base units.")]
OutFile = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Write to a file, whole or not at all (.json and .csv choose the form)."),
]
