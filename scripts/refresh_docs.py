"""Runs what README.md and docs/ show, and puts the real output below it: python scripts/refresh_docs.py [--check] [PAGE...].

A block that starts with ```console holds commands (`$ roofline …`) and what they print. A command is a shell line, so it may end in
`| head -5`; the width is 96 columns. A ```python block with a ```text block after it is a cell of a notebook: the cells of a page
share their names, and the text is what they print and the value of their last line. What needs a server or a GPU belongs in a ```sh
block, which is not run. --check changes nothing and exits with 1 when an output differs; PAGE: only these.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
WIDTH = 96
_BLOCK = re.compile(r"```console\n(.*?)```\n", re.DOTALL)
_CELL = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```\n", re.DOTALL)
_SHELL = 'roofline() { "$PYTHON" -c "from roofline.cli.main import run; run()" "$@"; }\n'


def pages() -> list[Path]:
    """The Markdown files whose commands are run."""
    return [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]


def output_of(command: str) -> str:
    """What a shell line prints, standard error included."""
    env = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(CHECKOUT), "COLUMNS": str(WIDTH), "NO_COLOR": "1", "PYTHONUTF8": "1"}
    env.pop("ROOFLINE_PROFILE_PATH", None)
    done = subprocess.run(
        ["bash", "-c", _SHELL + command],
        cwd=CHECKOUT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


def value_of(cell: str, names: dict[str, Any]) -> str:
    """What a notebook's cell shows: what it prints, then the repr of its last expression unless that is None."""
    tree = ast.parse(cell)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(tree, "<cell>", "exec"), names)  # noqa: S102 - the documentation's own code
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)  # noqa: S307 - as above
            if value is not None:
                print(repr(value))
    return out.getvalue()


def refreshed(text: str) -> str:
    """The page with the output of every command and cell as it is now."""
    names: dict[str, Any] = {}

    def block(match: re.Match[str]) -> str:
        commands = [line for line in match[1].splitlines() if line.startswith("$ ")]
        parts = (f"{line}\n{printed}\n" if (printed := output_of(line[2:])) else f"{line}\n" for line in commands)
        return "```console\n" + "\n".join(parts) + "```\n"

    def cell(match: re.Match[str]) -> str:
        return f"```python\n{match[1]}```\n\n```text\n{value_of(match[1], names)}```\n"

    return _CELL.sub(cell, _BLOCK.sub(block, text))


def main(words: list[str]) -> int:
    """Exit code: 0 if everything is (now) real, 1 if --check found a difference."""
    check, chosen = "--check" in words, [Path(word).resolve() for word in words if not word.startswith("--")]
    stale = []
    for page in chosen or pages():
        old = page.read_text(encoding="utf-8")
        new = refreshed(old)
        if new != old:
            stale.append(str(page.relative_to(CHECKOUT)))
            if not check:
                page.write_text(new, encoding="utf-8")
    print(f"{'stale' if check else 'refreshed'}: {', '.join(stale)}" if stale else "all outputs are real")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.path.insert(0, str(CHECKOUT))
    sys.exit(main(sys.argv[1:]))
