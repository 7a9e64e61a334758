"""Runs every `$ roofline …` line of README.md and docs/ and puts its real output below it: python scripts/refresh_docs.py [--check].

A block that starts with ```console holds commands and what they print. A command is a shell line, so it may end in `| head -5`;
the width is 96 columns. What needs a server or a GPU belongs in a ```sh block, which is not run.
--check changes nothing and exits with 1 when an output differs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
WIDTH = 96
_BLOCK = re.compile(r"```console\n(.*?)```\n", re.DOTALL)
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


def refreshed(text: str) -> str:
    """The page with the output of every command as it is now."""

    def block(match: re.Match[str]) -> str:
        commands = [line for line in match[1].splitlines() if line.startswith("$ ")]
        parts = (f"{line}\n{printed}\n" if (printed := output_of(line[2:])) else f"{line}\n" for line in commands)
        return "```console\n" + "\n".join(parts) + "```\n"

    return _BLOCK.sub(block, text)


def main(check: bool) -> int:
    """Exit code: 0 if everything is (now) real, 1 if --check found a difference."""
    stale = []
    for page in pages():
        old = page.read_text(encoding="utf-8")
        new = refreshed(old)
        if new != old:
            stale.append(str(page.relative_to(CHECKOUT)))
            if not check:
                page.write_text(new, encoding="utf-8")
    print(f"{'stale' if check else 'refreshed'}: {', '.join(stale)}" if stale else "all outputs are real")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
