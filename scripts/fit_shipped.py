"""Fits every shipped calibration block again, from the fit rows of kernel tables, and writes hwprofiles/calibration/.

    python scripts/fit_shipped.py TABLE [TABLE …] [-o hwprofiles/calibration]

TABLE: CSV or parquet in the schema of `roofline predict`; rows whose `split` is not "fit" are never read for a fit.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from functools import cache
from pathlib import Path

import pandas as pd

from roofline.calibration import tables
from roofline.calibration.blocks import fit_family
from roofline.calibration.groups import groups
from roofline.calibration.single_stream import fit_blocks
from roofline.profiles.calibration import CalibrationBlock, CalibrationFile, Provenance, dump
from roofline.profiles.catalog import load_hardware
from roofline.timing.forms import FORMS
from roofline.timing.forms.base import DeviceSpec
from roofline.timing.spec import device_spec

SOURCE = Provenance(source="aiconfigurator-core", version="0.12.0", split="fit")
STREAMS = Provenance(source="public batch-1 benchmarks (sources per row)", split="all rows; devices left out in turn")
HEADER = """Constants of kernel forms, fitted by scripts/fit_shipped.py. Measurements: NVIDIA aiconfigurator-core 0.12.0 (Apache-2.0).
Form of each family: roofline/timing/forms/. Names carry their unit; the rest are shares or pure numbers."""


@cache
def spec_of(name: str) -> DeviceSpec:
    """The spec of a device profile by name."""
    return device_spec(load_hardware(name))


def fit_rows(paths: list[Path]) -> pd.DataFrame:
    """All fit rows of the tables, normalised."""
    frames = [tables.normalised(tables.read(path)) for path in paths]
    whole = pd.concat(frames, ignore_index=True)
    kept = whole["split"].isin(("fit", "")) | whole["split"].isna() if "split" in whole else slice(None)
    return whole.loc[kept]


def main(arguments: list[str]) -> None:
    """Fits family by family and writes one file per device, generation, and generic.yaml."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, default=Path("hwprofiles/calibration"))
    options = parser.parse_args(arguments)
    table = fit_rows(options.table)
    blocks: dict[str, list[CalibrationBlock]] = defaultdict(list)
    for form in FORMS.values():
        start = time.perf_counter()
        measured = groups(form, table, spec_of)
        if not measured:
            continue
        fitted = fit_family(form, measured, SOURCE)
        for name, found in fitted.device.items():
            blocks[name] += found
        for name, found in fitted.generation.items():
            blocks[f"generation-{name}"] += found
        blocks["generic"] += fitted.generic
        suspects, spent = sum(g.suspect for g in measured), time.perf_counter() - start
        print(f"{form.family}: {len(fitted.fits)} blocks, {suspects} suspect rows left out, {spent:.0f} s", flush=True)
    streams = table[table["op"] == "single_stream"]
    if len(streams):
        blocks["single-stream"] = fit_blocks(streams, STREAMS)
    options.output.mkdir(parents=True, exist_ok=True)
    for name, found in blocks.items():
        (options.output / f"{name}.yaml").write_text(dump(CalibrationFile(id=name, blocks=tuple(found)), HEADER), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
