"""The one JSON document of a command: plain numbers in base units, null for what is unknown."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

SCHEMA_VERSION = 1


def document(command: str, inputs: Mapping[str, Any], data: Mapping[str, Any], assumptions: Sequence[str]) -> str:
    """JSON text of schema_version, command, inputs, the command's own keys, and assumptions; ends with a newline."""
    whole = {"schema_version": SCHEMA_VERSION, "command": command, "inputs": inputs, **data, "assumptions": list(assumptions)}
    return json.dumps(plain(whole), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """`value` in JSON's types: arrays as lists, whole floats as integers, NaN as null (infinity too: JSON has neither)."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if hasattr(value, "as_json"):
        return plain(value.as_json())
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return _number(value)
    return str(value) if isinstance(value, Path) else value


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value
