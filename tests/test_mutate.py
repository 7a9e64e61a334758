"""The program that mutates code: each mutant is one change, compiles, and reaches the tests without touching the disk."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

from tests.scripting import load_script

mutate = load_script("mutate")
CODE = '''"""A docstring with 1 number."""

__all__ = ["half"]
LIMIT: int = 3


def half(values: list[int], most: int = 8) -> float:
    """Half of the sum: 2."""
    if not values or len(values) > LIMIT:
        raise ValueError(f"at most {LIMIT + 1} values, got {len(values)} of {2 * most}")
    return min(sum(values), most) / 2
'''


def test_each_mutant_is_one_change(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text(CODE, encoding="utf-8")
    plain = ast.unparse(ast.parse(CODE))
    found = mutate.mutants(path)
    assert {mutant.text.split(":")[0] for mutant in found} == {"3 → 4", "8 → 9", "2 → 3", "Gt → GtE", "and ↔ or", "min ↔ max", "Div → Mult"}
    for mutant in found:
        changed = [(a, b) for a, b in zip(plain.splitlines(), mutant.source.splitlines(), strict=True) if a != b]
        assert len(changed) == 1
        assert "raise" not in changed[0][0]
        assert '"""' not in changed[0][0]


def test_a_mutant_is_what_is_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "somewhere"
    folder.mkdir()
    path = folder / "code.py"
    path.write_text(CODE, encoding="utf-8")
    monkeypatch.setattr(mutate, "CHECKOUT", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    mutant = next(mutant for mutant in mutate.mutants(path) if mutant.text.startswith("Div → Mult"))
    monkeypatch.setattr(sys, "meta_path", [mutate.Replacing(mutant), *sys.meta_path])
    assert importlib.import_module("somewhere.code").half([1, 2]) == 6
    assert path.read_text(encoding="utf-8") == CODE


def test_the_rooms_exist() -> None:
    for room in mutate.ROOMS.values():
        assert all(list(mutate.CHECKOUT.glob(pattern)) for pattern in room.code)
        assert all((mutate.CHECKOUT / test).exists() for test in room.tests)


def test_changes_that_nobody_can_notice_are_still_there() -> None:
    listed = {mutate.CHECKOUT / "roofline" / file for file, *_ in mutate.SAME}
    reasons = {mutate.same(mutant) for path in listed for mutant in mutate.mutants(path)}
    assert reasons == {"", *(why for *_, why in mutate.SAME)}
