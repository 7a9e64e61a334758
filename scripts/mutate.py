"""Would the tests notice? python scripts/mutate.py [--minutes 10] [--seed 0] [ROOM...]

Changes one operator, number or condition of a room's code at a time and runs the room's tests until one fails: the mutant is killed. A
mutant that all tests let live is printed with its place. Mutants are a random sample, as many as the budget allows; nothing on disk is
touched, since a changed module exists only in the process that runs the tests. Messages of errors, annotations and docstrings stay as
they are, and so do changes that no result can show (SAME, each with its reason).
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import importlib.abc
import importlib.util
import os
import random
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
LONGEST_CPU_S = 300  # without a mutant; one that takes much longer than the code itself is killed
MOST_BYTES = 6 * 2**30


@dataclass(frozen=True)
class Room:
    """Code, the tests that answer for it (the quickest first, each entry a run of its own) and what they import from outside of it."""

    code: tuple[str, ...]
    tests: tuple[str, ...]
    outside: tuple[str, ...] = ("hypothesis", "numpy", "pytest", "roofline.batch", "roofline.profiles.catalog")

    def files(self) -> list[Path]:
        """The code, in a fixed order."""
        return [path for pattern in self.code for path in sorted(CHECKOUT.glob(pattern))]


def _room(code: Sequence[str], tests: str) -> Room:
    """tests: a folder and the files of it that come first."""
    folder, *files = tests.split()
    return Room(tuple(code), (*(f"tests/{folder}/test_{name}.py" for name in files), f"tests/{folder}"))


ROOMS = {
    "ledger": _room(
        ("roofline/ledger/*.py", "roofline/ledger/mixers/*.py"), "ledger by_hand parts_by_hand tensors_by_hand written_out mixers"
    ),
    "capacity": _room(("roofline/capacity/*.py",), "capacity blocks_by_hand plan_by_hand limits_by_hand written_out plan"),
    "blocks": _room(
        [f"roofline/scheduling/{name}.py" for name in ("blocks", "runs", "radix", "content")],
        "scheduling caches_written_out pools_written_out blocks sglang",
    ),
}
# Changes that no caller can notice: file, change, what stands in the line, and why.
SAME: tuple[tuple[str, str, str, str], ...] = (
    ("ledger/mixers/compressed.py", "0 → 1", "(spec.ratio or 0)", "layers without a ratio have no compressor, so the loop is empty"),
    ("ledger/mixers/compressed.py", "0 → 1", "drafts: int = 0", "has no convolution: the argument is not used"),
    ("scheduling/radix.py", "0 → 1", "Node(None, 0, 0, 0)", "the root has no stretch of its own: nobody looks at it"),
    ("scheduling/runs.py", "0 → 1", "Run(0, 0, 0)", "the queue's own end is no stretch: nobody looks at it"),
    ("scheduling/runs.py", "Gt → GtE", "if need > 0:", "taking no blocks changes nothing"),
    ("scheduling/blocks.py", "LtE → Lt", "if num_slots <= request.pool_mark:", "a shortcut: the blocks that are held suffice"),
    ("scheduling/blocks.py", "LtE → Lt", "if full <= done:", "registering no blocks changes nothing"),
    ("capacity/plan.py", "Gt → GtE", "if free > 0 else free", "nothing is nothing, also times a fraction"),
    ("capacity/runtime.py", "512 → 513", "* 2, 512, settings", "no captured size is 513"),
    ("capacity/runtime.py", "257 → 258", "range(12, 257, 8)", "252 is the last of the steps either way"),
    ("capacity/blocks.py", "2.0 → 3.0", "_FAR", "further than any window either way"),
    ("capacity/blocks.py", "40 → 41", "_FAR", "further than any window either way"),
    *(
        ("capacity/runtime.py", what, "range(12, 257, 8)", "SGLang's largest size is 8 at least and 512 at most")
        for what in ("1 → 2", "2 → 3", "4 → 5", "497 → 498")
    ),
    ("capacity/runtime.py", "513 → 514", "range(256, 513, 16)", "512 is the last of the steps either way"),
    ("capacity/runtime.py", "12 → 13", "range(12, 257, 8)", "no largest size (8, 24, 32, 80, 160, 256, 512) lies between"),
)
COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn,
    ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
BINARY = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}
LEFT_ALONE = (ast.Raise, ast.Assert, ast.JoinedStr, ast.ImportFrom, ast.Import)


@dataclass(frozen=True)
class Mutant:
    """A change: the file, the line, what it says."""

    path: Path
    line: int
    text: str
    source: str


def places(tree: ast.AST) -> Iterator[Any]:
    """Nodes that may be changed, depth first in a fixed order."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_params"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, LEFT_ALONE):
                continue
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
                continue
            if isinstance(node, ast.ClassDef) and any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases):
                continue
            if change(copy.deepcopy(node)):
                yield node
            yield from places(node)


def change(node: Any) -> str:
    """Changes the node in place; what was done, or "" where nothing can be."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARE:
        old, node.ops[0] = node.ops[0], COMPARE[type(node.ops[0])]()
        return f"{type(old).__name__} → {type(node.ops[0]).__name__}"
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in BINARY and not _is_text(node):
        old, node.op = node.op, BINARY[type(node.op)]()
        return f"{type(old).__name__} → {type(node.op).__name__}"
    if isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return "and ↔ or"
    if isinstance(node, ast.IfExp):
        node.body, node.orelse = node.orelse, node.body
        return "branches swapped"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        node.func = ast.Name({"min": "max", "max": "min"}[node.func.id], ast.Load())
        return "min ↔ max"
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        old = node.value
        node.value = not old if isinstance(old, bool) else old + 1
        return f"{old} → {node.value}"
    return ""


def _is_text(node: Any) -> bool:
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
    return any(isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str)) for side in sides)


def mutants(path: Path) -> list[Mutant]:
    """Every mutant of a file."""
    source = path.read_text(encoding="utf-8")
    tree, lines = ast.parse(source), source.splitlines()
    found = []
    for node in list(places(tree)):
        before = {key: list(value) if isinstance(value, list) else value for key, value in vars(node).items()}
        text = change(node)
        found.append(Mutant(path, node.lineno, f"{text}: {lines[node.lineno - 1].strip()}", ast.unparse(tree)))
        vars(node).update(before)
    return found


def same(mutant: Mutant) -> str:
    """Why a mutant does what the code does, or "" where it need not."""
    place, (change_, line) = mutant.path.as_posix(), mutant.text.split(": ", 1)
    return next((why for file, what, part, why in SAME if place.endswith(file) and what == change_ and part in line), "")


class Replacing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from another source."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant
        parts = mutant.path.relative_to(CHECKOUT).with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        package = self.mutant.path.name == "__init__.py"
        spec = importlib.util.spec_from_loader(name, self, origin=str(self.mutant.path), is_package=package)
        if spec is not None and package:
            spec.submodule_search_locations = [str(self.mutant.path.parent)]
        return spec

    def exec_module(self, module: Any) -> None:
        exec(compile(self.mutant.source, str(self.mutant.path), "exec"), module.__dict__)  # noqa: S102 - our own code


def passes(tests: Sequence[str], mutant: Mutant | None, cpu_s: int = LONGEST_CPU_S) -> bool:
    """Whether all tests pass with the mutant in place; in a child process of limited time (of the processor) and memory."""
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
            resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            if mutant is not None:
                sys.meta_path.insert(0, Replacing(mutant))
            code = _run(tests)
        os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def _run(tests: Sequence[str]) -> int:
    """The exit code of the first entry that fails; what an earlier entry ran is not run again."""
    import pytest

    for number, test in enumerate(tests):
        done = [f"--ignore={earlier}" for earlier in tests[:number]]
        if code := int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore", "--assert=plain", *done, test])):
            return code
    return 0


def main() -> int:
    """Exit code 1 when fewer than 85 % were killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=", ".join(ROOMS))
    parser.add_argument("--minutes", type=float, default=10.0, help="of each room")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.chdir(CHECKOUT)
    os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": "1"}  # hypothesis: the same examples each time, however slow
    total = dead = 0
    for name in given.rooms or ROOMS:
        room = ROOMS[name]
        for module in room.outside:
            importlib.import_module(module)
        every = [mutant for path in room.files() for mutant in mutants(path) if not same(mutant)]
        random.Random(given.seed).shuffle(every)  # noqa: S311 - no secrets
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        assert passes(room.tests, None), f"{name}: the tests fail without any mutant"
        enough = 10 + int(3 * (resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before))
        end, tried, killed = time.monotonic() + 60 * given.minutes, 0, 0
        while every and time.monotonic() < end:
            mutant = every.pop()
            lives = passes(room.tests, mutant, enough)
            tried, killed = tried + 1, killed + (not lives)
            if lives:
                print(f"  lives: {mutant.path.relative_to(CHECKOUT)}:{mutant.line}: {mutant.text}", flush=True)
        print(f"{name}: {killed} of {tried} killed ({killed / max(tried, 1):.1%}), {len(every):,} not tried", flush=True)
        total, dead = total + tried, dead + killed
    print(f"all: {dead} of {total} killed ({dead / max(total, 1):.1%})")
    return 0 if total and dead / total >= 0.85 else 1


if __name__ == "__main__":
    sys.path.insert(0, str(CHECKOUT))
    sys.exit(main())
