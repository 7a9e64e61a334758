"""`roofline doctor`: what is installed, what this machine can do, and the line that installs what a command lacks.

Versions come from the packages' metadata: nothing heavy is imported, except torch where only torch can say which GPU is here.
"""

from __future__ import annotations

import platform
import re
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from roofline import __version__, units
from roofline.cli import options
from roofline.cli.output import Answer, emit
from roofline.cli.render import Block, Column, Heading, Paragraph, Table
from roofline.cli.shell import new_app
from roofline.profiles.detect import Detected, detect

app = new_app()

# distributions by extra, as pyproject.toml has them; "" is the core
PACKAGES: dict[str, tuple[str, ...]] = {
    "": ("numpy", "pandas", "matplotlib", "typer", "rich", "pyyaml", "pydantic", "scipy", "jinja2"),
    "gpu": ("torch", "safetensors", "nvidia-ml-py"),
    "serve": ("aiohttp", "prometheus-client", "tokenizers"),
    "hub": ("huggingface-hub", "tokenizers"),
    "gguf": ("gguf",),
    "silicon": ("aiconfigurator-core", "pyarrow"),
    "parquet": ("pyarrow",),
    "sweep": ("joblib",),
}


@dataclass(frozen=True)
class Need:
    """A command, or a part of one, that needs packages of an extra, or of several with a comma between."""

    what: str
    extra: str
    packages: tuple[str, ...]


NEEDS = (
    Need("bench, validate, engine", "gpu", ("torch",)),
    Need("engine: weights of a checkpoint", "gpu", ("safetensors",)),
    Need("serve", "gpu,serve", ("torch", "aiohttp", "prometheus-client")),
    Need("-H auto: NVIDIA GPUs without torch", "gpu", ("nvidia-ml-py",)),
    Need("hf:OWNER/NAME as MODEL", "hub", ("huggingface-hub",)),
    Need("loadtest --tokenizer", "hub", ("tokenizers",)),
    Need("tables in parquet", "parquet", ("pyarrow",)),
    Need("tables named silicon (public kernels)", "silicon", ("aiconfigurator-core", "pyarrow")),
    Need("sweep on several processes", "sweep", ("joblib",)),
)

READY = (Column("what", "command"), Column("state", "state"), Column("lacks", "lacks", drop=1))


@app.command()
def doctor(as_json: options.AsJson = False, as_csv: options.AsCsv = False, output: options.OutFile = None) -> None:
    """What is installed, what this machine can do, and what is missing for which command, with the line that installs it.

    Everything that is not named here needs the core alone. Exit code 0, whatever is missing.
    """
    build = torch_build()
    found = detect(ask_torch=build not in (None, "cpu"))
    packages = [
        {"package": name, "version": version(name) or None, "extra": extra or None} for extra, names in PACKAGES.items() for name in names
    ]
    needs = [readiness(need) for need in NEEDS]
    data = {
        "version": __version__,
        "python": platform.python_version(),
        "packages": packages,
        "commands": [{key: row[key] for key in ("what", "extra", "missing", "install")} for row in needs],
        "machine": {"system": platform.platform(), "torch_build": build, "devices": [asdict(device) for device in found]},
    }
    table = Table(READY, needs, marks={i: "yellow" for i, row in enumerate(needs) if row["missing"]}, more=("extra", "install"))
    blocks: list[Block] = [
        Paragraph(f"roofline {__version__} on Python {data['python']}, {platform.platform(terse=True)}"),
        Heading("This machine"),
        *(Paragraph(text, bullet="·") for text in machine(found, build)),
        Heading("Installed"),
        *(Paragraph(f"{extra or 'core'}: {_versions(names)}", bullet="·") for extra, names in PACKAGES.items()),
        Heading("What needs more than the core"),
        table,
    ]
    missing = list(dict.fromkeys(row["install"] for row in needs if row["missing"]))
    blocks += [Heading("What would install the rest"), *(Paragraph(line) for line in missing)] if missing else []
    emit(Answer("doctor", {}, data, table, blocks), as_json=as_json, as_csv=as_csv, path=output)


def version(distribution: str) -> str:
    """The installed version of a distribution, or "" when it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def readiness(need: Need) -> dict[str, Any]:
    """A need as a row: ready, or which packages are missing and the line that installs them."""
    missing = [name for name in need.packages if not version(name)]
    return {
        "what": need.what,
        "extra": need.extra,
        "missing": missing,
        "state": "missing" if missing else "ready",
        "lacks": ", ".join(missing),
        "install": f"pip install 'roofline[{need.extra}]'" if missing else None,
    }


def torch_build() -> str | None:
    """What the installed torch computes on ("cpu", "CUDA 12.8", "ROCm 6.2"), read from its files; None without torch."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    for key, name in (("cuda", "CUDA"), ("hip", "ROCm"), ("xpu", "XPU")):
        if match := re.search(rf"^{key}[^=\n]*= *'([^']+)'", text, re.MULTILINE):
            return f"{name} {match[1]}"
    return "cpu"


def machine(found: tuple[Detected, ...], build: str | None) -> list[str]:
    """Sentences about the devices, and what may be run on them."""
    *gpus, cpu = found
    memory = units.format(cpu.memory_bytes, "bytes", binary=True) if cpu.memory_bytes else "unknown"
    lines = [f"CPU: {cpu.name}, {units.counted(cpu.threads or 0, 'thread')} for this process, {memory} of memory"]
    for gpu in gpus:
        size = units.format(gpu.memory_bytes, "bytes", binary=True) if gpu.memory_bytes else "unknown size"
        known = f"profile {gpu.profile_id}" if gpu.profile_id else f"no profile: {'; '.join(gpu.evidence)}"
        lines.append(f"GPU: {gpu.name}, {size}, {known} (read with {gpu.probe})")
    if not gpus:
        lines.append("no GPU was found: plans need none; bench, validate and engine run on the CPU")
    if build is not None:
        lines.append(f"torch {version('torch')} is built for {build}")
    if gpus and build in (None, "cpu"):
        lines.append("to measure the GPU, torch must be built for it: its own index of packages has such builds")
    return lines


def _versions(names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {version(name) or 'not installed'}" for name in names)
