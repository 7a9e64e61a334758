"""The public names: few, lazy, documented, typed, and the objects behind the JSON."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import roofline
from roofline.cli import jsonout
from tests.cli.conftest import Cli, cli  # noqa: F401 - a fixture

CHECKOUT = Path(__file__).parents[1]
NAMES = roofline.__all__


def test_at_most_twenty_names_each_documented() -> None:
    assert len(NAMES) <= 20
    page = (CHECKOUT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"`{name}`" in page
        assert inspect.getdoc(getattr(roofline, name)), name
    assert set(NAMES) <= set(dir(roofline))


def test_a_name_that_is_not_there_is_said() -> None:
    with pytest.raises(AttributeError, match="no attribute 'make_coffee'"):
        roofline.make_coffee  # type: ignore[attr-defined]  # noqa: B018


def test_the_stub_is_the_module() -> None:
    tree = ast.parse((CHECKOUT / "roofline" / "__init__.pyi").read_text(encoding="utf-8"))
    stub = {alias.asname: f"{node.module}.{alias.name}" for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert stub == {name: f"roofline.{home}.{name}" for name, home in roofline._HOMES.items()}
    assert sorted(stub) == sorted(NAMES)


def test_importing_loads_nothing() -> None:
    code = "import sys, roofline\nprint(*[name for name in sys.modules if name.startswith('roofline.') or name in ('numpy', 'pydantic')])"
    assert subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout == "\n"


def test_a_plan_in_python_is_the_plan_of_the_command(cli: Cli) -> None:  # noqa: F811
    said = cli("plan", "llama-3.1-8b", "-H", "l40s", "--isl", "512", "--concurrency", "8", "--json").json
    setup = roofline.Setup(roofline.load_model("llama-3.1-8b"), roofline.load_hardware("l40s"))
    plan = roofline.make_plan(setup, roofline.Load(512, 256, concurrency=8, think_time_s=30.0))
    document = json.loads(json.dumps(jsonout.plain(roofline.plan_document(plan))))
    assert document == {key: said[key] for key in document}
    assert set(said) - set(document) == {"schema_version", "command", "inputs", "assumptions"}


def test_a_simulation_in_python_is_the_simulation_of_the_command(cli: Cli) -> None:  # noqa: F811
    said = cli("simulate", "llama-3.1-8b", "-H", "l40s", "--request-rate", "2", "--num-requests", "50", "--json").json
    traffic = roofline.Traffic(request_rate=2.0, num_requests=50)
    server = roofline.deploy(roofline.load_model("llama-3.1-8b"), roofline.load_hardware("l40s"))
    found = json.loads(json.dumps(jsonout.plain(server.run(traffic.workload()).to_json())))
    assert {k: v for k, v in found.items() if k != "cpu_s"} == {key: said[key] for key in found if key != "cpu_s"}


def test_the_ledger_in_python_is_that_of_the_command(cli: Cli) -> None:  # noqa: F811
    said = cli("ops", "llama-3.1-8b", "-H", "l40s", "--batch", "4", "--context", "100", "--json").json["ops"]
    ledger = roofline.build_ledger(roofline.load_model("llama-3.1-8b"), roofline.Batch.decode(4, 100))
    assert [(op.name, op.count * float(op.flops_each)) for op in ledger] == [(row["name"], row["flops"]) for row in said]


def test_the_page_shows_no_empty_output() -> None:
    page = (CHECKOUT / "docs" / "api.md").read_text(encoding="utf-8")
    assert page.count("```python\n") == len(re.findall(r"```\n\n```text\n[^`]", page))
