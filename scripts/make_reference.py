"""Writes the reference pages from the code: python scripts/make_reference.py [--check]

docs/reference/commands.md from `--help`, json.md from the schemas, python.md from docstrings. --check changes nothing and exits with 1
when a page differs.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
PAGES = CHECKOUT / "docs" / "reference"
GROUPS = {"models": ("list", "show", "import"), "hardware": ("list", "show", "compare", "detect")}
JSON_HEAD = """# JSON documents

`--json` prints one document on standard output, in base units with the unit in the key. Every document has `schema_version`, `command`,
`inputs` and `assumptions`; the rest is below. The schemas are JSON Schema 2020-12, installed with the package:
`roofline/schemas/COMMAND.json`. CI holds real outputs against them.

## What may change

- Within a `schema_version` keys are added, never renamed, removed or given another meaning or unit. Ignore keys that you do not know:
  no schema forbids them.
- A key that will go is first *deprecated*: it stays, with its meaning, for at least two minor versions, the changelog says so under
  *Deprecated* with what replaces it, and both are printed meanwhile. Then it goes in a major version, and `schema_version` rises by one.
- Options of commands follow the same rule: a deprecated option works and says on standard error what replaces it. Exit codes do not change.
- Text that people read, `assumptions`, messages and titles may change at any time; so do numbers, when constants or methods improve. The
  changelog says which.
- `null` means unknown or not applicable, never zero. Infinity and NaN do not occur.

An *estimate* is `{bound, expected, low, high}`; *percentiles* are `{mean, p50, p90, p99}`. "–" in the last column: not in every document.
"""
PYTHON_HEAD = """# Public names of Python

From the docstrings; [the notebook](../api.md) shows them at work.
"""


def commands() -> str:
    """The page of all --help texts."""
    from roofline.cli.main import COMMANDS

    parts = ["# Commands\n\nWhat `--help` says.\n", f"```text\n{help_of()}```\n"]
    for name in COMMANDS:
        parts.append(f"## {name}\n\n```text\n{help_of(name)}```\n")
        parts += [f"### {name} {each}\n\n```text\n{help_of(name, each)}```\n" for each in GROUPS.get(name, ())]
    return "\n".join(parts)


def help_of(*words: str) -> str:
    """The help of a command, 96 columns wide."""
    from roofline.cli.main import run

    os.environ["COLUMNS"] = "96"
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        run([*words, "--help"])
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines()) + "\n"


def json_page() -> str:
    """The page of all schemas: one row per key."""
    parts = [JSON_HEAD]
    for path in sorted((CHECKOUT / "roofline" / "schemas").glob("*.json")):
        schema = json.loads(path.read_text(encoding="utf-8"))
        rows = "\n".join(keys(schema, ""))
        parts.append(f"## {path.stem}\n\n| key | type | unit | always |\n|---|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def keys(schema: dict[str, Any], prefix: str) -> Iterator[str]:
    """A table row for each key under `prefix`, depth first; the envelope is left out."""
    required = schema.get("required", ())
    for key, below in schema.get("properties", {}).items():
        if not prefix and key in ("schema_version", "command", "inputs", "assumptions"):
            continue
        unit = below.get("description", "")
        yield f"| `{prefix}{key}` | {kind(below)} | {unit} | {'yes' if key in required else '–'} |"
        yield from keys(below, f"{prefix}{key}.")
        yield from keys(below.get("items", {}), f"{prefix}{key}[].")
        if isinstance(more := below.get("additionalProperties"), dict):
            yield from keys(more, f"{prefix}{key}.NAME.")


def kind(schema: dict[str, Any]) -> str:
    """The type of a value in words."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(kind(each) for each in schema["anyOf"])
    types = schema.get("type", "anything")
    return types if isinstance(types, str) else " or ".join(types)


def python_page() -> str:
    """Signatures and docstrings of the public names."""
    import roofline

    parts = [PYTHON_HEAD]
    for name in roofline.__all__:
        found = getattr(roofline, name)
        text = inspect.getdoc(found) or ""
        parts.append(f"## {name}\n\n```text\n{signature(name, found)}\n\n{text}\n```\n")
        if inspect.isclass(found):
            parts += [f"### {name}.{each}\n\n```text\n{signature(each, method)}\n\n{doc}\n```\n" for each, method, doc in methods(found)]
    return "\n".join(parts)


def signature(name: str, found: Any) -> str:
    """As one would call it, types included; profiles are loaded, not called."""
    if hasattr(found, "model_fields"):
        return name
    try:
        text = f"{name}{inspect.signature(found)}"
    except (TypeError, ValueError):
        return name
    return re.sub(r"'([^']*)'", r"\1", text).replace("roofline.", "").replace("numpy.", "np.") if len(text) < 600 else f"{name}(…)"


def methods(found: type) -> Iterator[tuple[str, Any, str]]:
    """Public functions that a class defines itself, with their docstrings."""
    for name, member in vars(found).items():
        function = member.__func__ if isinstance(member, classmethod) else member
        if not name.startswith("_") and inspect.isfunction(function) and (text := inspect.getdoc(function)):
            yield name, function, text


def main(check: bool) -> int:
    """Exit code: 0 when the pages are (now) those of the code, 1 when --check found a difference."""
    stale = []
    for name, text in (("commands.md", commands()), ("json.md", json_page()), ("python.md", python_page())):
        path = PAGES / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    print(f"{'stale' if check else 'written'}: {', '.join(stale)}" if stale else "the reference is that of the code")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.path.insert(0, str(CHECKOUT))
    sys.exit(main("--check" in sys.argv[1:]))
