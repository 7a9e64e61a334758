"""Draws docs/gallery: every kind of figure from the shipped profiles, with the command that draws it again; docs/img/roofline.svg; and
docs/img/demo.svg from the run of `roofline demo --json` that is saved beside it.

Run from the checkout: python scripts/make_gallery.py. The same bytes each time; what it no longer draws it does not delete.
"""

from __future__ import annotations

import csv
import json
import os
import shlex
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from roofline.charts import KINDS
from roofline.charts.demonstration import demonstration
from roofline.charts.save import save
from roofline.cli.main import run
from roofline.phases import Setup, phase
from roofline.profiles.catalog import load_hardware, load_model

ROOT = Path(__file__).resolve().parents[1]
GALLERY, IMAGES = ROOT / "docs" / "gallery", ROOT / "docs" / "img"
PREDICTIONS = GALLERY / "single-gpu-passes.csv"
CASES = {
    "llama-2-7b": ("Llama-2-7B on one A100", "llama-2-7b -H a100-sxm-80gb --isl 2048 --batch 16"),
    "llama-3.1-70b": ("Llama-3.1-70B on four H100", "llama-3.1-70b -H h100-sxm --tp 4 --isl 2048 --batch 32 --goodput tpot:50"),
    "deepseek-v3": ("DeepSeek-V3 on eight H200", "deepseek-v3 -H h200-sxm --tp 8 --ep 8 --isl 4096 --osl 512 --batch 64"),
    "llama-3.1-8b-4-bit": ("Llama-3.1-8B in four bits on an RTX 4090", "llama-3.1-8b -H rtx-4090 --weights w4a16 --engine llamacpp"),
}
OPENING = "roofline llama-3.1-70b -H h100-sxm --tp 4 --isl 2048 --batch 32"
COMPARED = "roofline llama-3.1-8b -H a100-sxm-80gb -H h100-sxm -H b200-sxm --isl 2048 --batch 16"


def main() -> None:
    """Draws everything and writes the page that shows it."""
    GALLERY.mkdir(parents=True, exist_ok=True)
    IMAGES.mkdir(parents=True, exist_ok=True)
    parts = ["# Gallery", "Every figure from the shipped profiles, drawn by the command under it; its data is the CSV of the same name."]
    for name, (title, words) in CASES.items():
        parts.append(f"## {title}")
        parts += [_figure(f"{kind}-{name}", f"{kind} {words}") for kind in KINDS if kind != "error"]
    parts += ["## Devices on the same axes", _figure("roofline-devices", COMPARED)]
    _predictions()
    command = f"error --table {PREDICTIONS.relative_to(ROOT)}"
    parts += ["## Predictions against measurements", _figure("error-passes", command), _note()]
    (GALLERY / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    _draw(OPENING, IMAGES / "roofline.svg")
    save(demonstration(json.loads((IMAGES / "demo.json").read_text(encoding="utf-8"))), IMAGES / "demo.svg")


def _figure(stem: str, words: str) -> str:
    """Draws one figure; its place on the page."""
    title = _draw(words, GALLERY / f"{stem}.svg")
    return f"![{title}]({stem}.svg)\n\n```\nroofline chart {words} -o {stem}.svg\n```"


def _draw(words: str, path: Path) -> str:
    """Runs the command as a user would, in the checkout; returns its finding."""
    with redirect_stdout(StringIO()) as out:
        try:
            run(["chart", *shlex.split(words), "-o", str(path.relative_to(ROOT)), "--json"])
        except SystemExit as end:
            if end.code:
                raise
    return str(json.loads(out.getvalue())["title"])


def _predictions() -> None:
    """Whole passes that a public project measured on single GPUs, beside what this one expects of their kernels."""
    names = {"llama2-7b": ("llama-2-7b", "a100-sxm-80gb"), "llama31-8b": ("llama-3.1-8b", "h100-sxm")}
    source = ROOT / "tests" / "golden" / "aiconfigurator_sol_silicon.csv"
    rows = []
    for row in csv.DictReader(source.read_text(encoding="utf-8").splitlines()):
        if row["db"] != "SILICON" or row["model"] not in names:
            continue
        model, device = names[row["model"]]
        setup = Setup(load_model(model), load_hardware(device), engine="reference")
        prefill, batch, tokens = row["mode"] == "static_ctx", int(row["B"]), int(row["S"])
        new, past = (tokens, 0) if prefill else (1, tokens)
        found = phase(setup, "prefill" if prefill else "decode", batch=batch, new_tokens=new, past=past)
        times = {"measured_s": float(row["ttft" if prefill else "tpot"]) / 1e3, "expected_s": float(found.time.expected_s)}
        rows.append({"op": found.name, "model": model, "hardware": device, "batch": batch, "tokens": tokens} | times)
    with PREDICTIONS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _note() -> str:
    return (
        "The measured side are sums of kernels measured by NVIDIA's aiconfigurator-core 0.12 (Apache-2.0) for whole passes on one GPU; "
        "the predicted side are kernels alone (`--engine reference`)."
    )


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
