"""The Dockerfiles: linted, and the rules that a linter does not know."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
FILES = sorted((CHECKOUT / "docker").glob("Dockerfile*"))
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))


def _instructions(path: Path) -> list[tuple[str, str]]:
    lines = [line.split(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, rest in lines]


def test_hadolint_is_content() -> None:
    beside = Path(sys.executable).with_name("hadolint")
    program = str(beside) if beside.exists() else shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([program, *map(str, FILES)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_rules(path: Path) -> None:
    steps = _instructions(path)
    words = [word for word, _ in steps]
    bases = [rest.split()[0] for word, rest in steps if word == "FROM"]
    assert all(":" in base and not base.endswith(":latest") for base in bases)
    assert dict(steps)["USER"].split(":")[0] not in ("root", "0")
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert dict(steps)["ENTRYPOINT"] == '["roofline"]'


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_built_is_copied_and_not_ignored(path: Path) -> None:
    copied = " ".join(rest for word, rest in _instructions(path) if word == "COPY").split()
    allowed = {line[1:] for line in (CHECKOUT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")}
    build = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {
        *build["packages"],
        *build["force-include"],
        PROJECT["project"]["readme"],
        *PROJECT["project"]["license-files"],
        "pyproject.toml",
    }
    assert needed <= set(copied)
    assert needed <= allowed


def test_the_slim_image_has_no_torch_and_the_other_has_extras_that_exist() -> None:
    slim, cuda = ((CHECKOUT / "docker" / name).read_text(encoding="utf-8") for name in ("Dockerfile", "Dockerfile.cuda"))
    assert "[" not in slim.split("pip install")[1].splitlines()[0]
    extras = cuda.split('".[')[1].split("]")[0].split(",")
    assert "gpu" in extras
    assert set(extras) <= set(PROJECT["project"]["optional-dependencies"])
