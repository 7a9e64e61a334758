"""Calibration blocks: the constants of one kernel family on one device, with where they come from, and their files.

Shipped blocks lie beside the hardware profiles, in hwprofiles/calibration/: one file per measured device, one per generation
(constants that its devices share) and generic.yaml. Only the files of the device in use are read. A block in a device's own
profile, or in a file that `calibrate` wrote, goes before them.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

_COMMENTS = re.compile(r"\A(?:#.*\n)+")  # the lines on top of a file


class Provenance(BaseModel):
    """Where constants come from: nobody has to believe a number that they cannot trace.

    rows: how many were fitted. held_out_error: median |predicted / measured − 1| by cross-validation over sites (for a
    generation or generic block: over devices left out).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    source: str
    version: str = ""
    rows: int = 0
    split: str = ""
    held_out_error: float | None = None
    date: str = ""


class CalibrationBlock(BaseModel):
    """Constants of a kernel family for (software, kernel, dtypes); names of constants carry their unit.

    form: the policy of the form (a GEMM's tile choice), or "variant". correction_percent: the residual table, in YAML a text of
    integers; empty = none. interval_log_quantiles: size band → 10 % and 90 % quantile of log(measured / expected), held out.
    seen: values of discrete shape facts (head_dim) that were fitted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    family: str  # gemm, decode_attention, prefill_attention, mla_decode, mla_prefill, moe, collective, step, single_stream
    software: str = ""
    software_version: str = ""
    dtype: str = ""
    kernel: str = ""
    kv_dtype: str = ""
    form: str = ""
    constants: dict[str, float]
    correction_percent: tuple[int, ...] = ()
    interval_log_quantiles: dict[str, tuple[float, float]] = {}
    seen: dict[str, tuple[float, ...]] = {}
    provenance: Provenance

    @field_validator("correction_percent", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return tuple(int(word) for word in value.split()) if isinstance(value, str) else value

    @property
    def label(self) -> str:
        """The words that select the block: "gemm vllm bf16"."""
        words = (self.family, self.software, self.kernel, self.dtype, self.kv_dtype, self.form if self.form == "variant" else "")
        return " ".join(word for word in words if word)


class CalibrationFile(BaseModel):
    """What one file of blocks holds: the device or generation they are of, and the blocks."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    id: str
    blocks: tuple[CalibrationBlock, ...]


def load_file(path: Path | str) -> CalibrationFile:
    """The blocks in a YAML file. Raises ProfileError (file:line:key) for anything that cannot be used."""
    from roofline.profiles import yamlfile

    return yamlfile.read(path).validate(CalibrationFile)


@lru_cache(maxsize=512)
def shipped(name: str, family: str = "") -> tuple[CalibrationBlock, ...]:
    """Shipped blocks of a device id, of "generation-NAME" or of "generic", all or those of one kernel family.

    Empty where there is no such file. Only the blocks that are asked for are validated, since start-up time counts; a test
    loads every shipped file whole.
    """
    return tuple(CalibrationBlock.model_validate(block) for block in _shipped_data(name) if family in ("", block["family"]))


@lru_cache(maxsize=8)
def shipped_names(name: str) -> frozenset[tuple[str, str, str]]:
    """(software, kernel, dtype) of the shipped blocks of a file, none of them validated."""
    return frozenset((block.get("software", ""), block.get("kernel", ""), block.get("dtype", "")) for block in _shipped_data(name))


@lru_cache(maxsize=64)
def _shipped_data(name: str) -> list[dict[str, Any]]:
    from roofline.profiles import catalog

    for folder in catalog.folders(catalog.HARDWARE):
        path = folder / "calibration" / f"{name}.yaml"
        if path.is_file():
            return list(_plain(path.read_text(encoding="utf-8"))["blocks"])
    return []


def _plain(text: str) -> dict[str, Any]:
    """The values of a file of blocks: read as the JSON that `dump` writes, twenty times faster, or else as YAML."""
    try:
        found = json.loads(_COMMENTS.sub("", text))
    except ValueError:
        import yaml

        found = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  a safe loader either way
    return dict(found)


def dump(file: CalibrationFile, header: str) -> str:
    """The file as JSON under lines of comments, which is YAML: one block after the other, numbers with four digits."""
    comments = "".join(f"# {line}\n" for line in header.splitlines())
    blocks = ",\n".join(_block_text(block) for block in file.blocks)
    return f'{comments}{{"id": {json.dumps(file.id)}, "blocks": [\n{blocks}\n]}}\n'


def _block_text(block: CalibrationBlock) -> str:
    """The words that select the block on one line, then a line for each of its parts."""
    parts = block.model_dump(exclude_defaults=True)
    words = {name: value for name, value in parts.items() if isinstance(value, str)}
    rest = {name: _four_digits(value) for name, value in parts.items() if name not in words}
    if block.correction_percent:
        rest["correction_percent"] = " ".join(map(str, block.correction_percent))
    lines = [json.dumps({name: value}, ensure_ascii=False)[1:-1] for name, value in rest.items()]
    return "{" + ",\n ".join([json.dumps(words, ensure_ascii=False)[1:-1], *lines]) + "}"


def _four_digits(value: Any) -> Any:
    if isinstance(value, float):
        return json.loads(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: _four_digits(each) for name, each in value.items()}
    return [_four_digits(each) for each in value] if isinstance(value, tuple) else value
