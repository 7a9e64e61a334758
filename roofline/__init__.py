"""What can this model do on this hardware, why, and is the machine delivering it?

The names below are the whole public interface for Python (docs/api.md); each is imported when it is first used, and __init__.pyi
tells type checkers what it is. They are the objects behind the command line's JSON, in base units: seconds, bytes, FLOP.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Batch": "batch",
    "Conventions": "ledger",
    "Hardware": "profiles.hardware",
    "Lengths": "serving.asked",
    "Load": "planning.load",
    "Model": "profiles.model",
    "Parallel": "ledger",
    "Precision": "ledger",
    "RooflineError": "errors",
    "Setup": "phases",
    "Traffic": "serving.asked",
    "build_ledger": "ledger",
    "deploy": "serving.deployment",
    "kv_bytes_per_token": "ledger",
    "kv_bytes_stored": "ledger",
    "load_hardware": "profiles.catalog",
    "load_model": "profiles.catalog",
    "make_plan": "planning.plan",
    "phase": "phases",
    "plan_document": "planning.document",
}

__all__ = [
    "Batch",
    "Conventions",
    "Hardware",
    "Lengths",
    "Load",
    "Model",
    "Parallel",
    "Precision",
    "RooflineError",
    "Setup",
    "Traffic",
    "build_ledger",
    "deploy",
    "kv_bytes_per_token",
    "kv_bytes_stored",
    "load_hardware",
    "load_model",
    "make_plan",
    "phase",
    "plan_document",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'roofline' has no attribute {name!r}")
    found = getattr(import_module(f"roofline.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
