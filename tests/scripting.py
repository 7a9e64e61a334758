"""The programs under scripts/ as modules: they are no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

CHECKOUT = Path(__file__).parents[1]


def load_script(name: str) -> ModuleType:
    """scripts/NAME.py, imported."""
    spec = importlib.util.spec_from_file_location(name, CHECKOUT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    folder = str(CHECKOUT / "scripts")
    if folder not in sys.path:
        sys.path.append(folder)  # a script may be in two files
    spec.loader.exec_module(module)
    return module
