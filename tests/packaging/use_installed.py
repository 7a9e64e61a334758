"""Run by .ci/wheel with the Python of a fresh environment, from an empty folder: is the installed package whole by itself?"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import roofline

HOME = Path(roofline.__file__).parent
ROOFLINE = str(Path(sys.executable).with_name("roofline"))
COMMANDS = (
    ("plan", "llama-3.1-8b", "-H", "h100-sxm"),
    ("phases", "llama-3.1-8b", "-H", "h100-sxm"),
    ("ops", "llama-3.1-8b", "-H", "h100-sxm"),
    ("kv", "llama-3.1-8b", "deepseek-v3"),
    ("models", "list"),
    ("hardware", "list"),
    ("doctor",),
)


def main() -> None:
    """Raises AssertionError or CalledProcessError at the first thing that is missing."""
    assert "site-packages" in HOME.parts, f"imported {HOME}, not the installed package"
    assert importlib.util.find_spec("torch") is None, "the core must work without torch"
    for file in ("py.typed", "_data/hwprofiles/h100-sxm.yaml", "_data/hwprofiles/_sources.yaml", "_data/modelprofiles/llama-3.1-8b.yaml",
                 "__init__.pyi", "schemas/plan.json"):  # fmt: skip
        assert (HOME / file).is_file(), f"the installed package lacks {file}"
    for command in COMMANDS:
        done = subprocess.run([ROOFLINE, *command, "--json"], check=True, capture_output=True, text=True)
        assert json.loads(done.stdout)["schema_version"] == 1
    print(f"the installed package works alone: {len(COMMANDS)} commands from {Path.cwd()}")


if __name__ == "__main__":
    main()
