"""Fetching from the hub, with the hub's client replaced: what is asked for, and what a failure says."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from roofline.errors import InputError, MissingDependencyError
from roofline.ledger import parameters
from roofline.profiles import catalog

CONFIG = Path(__file__).parents[1] / "data" / "configs" / "qwen3_moe.json"


def client(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    module = ModuleType("huggingface_hub")
    module.snapshot_download = answer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)


def test_only_configuration_files_are_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def download(hub_id: str, allow_patterns: list[str]) -> str:
        asked[hub_id] = allow_patterns
        (tmp_path / "config.json").write_text(CONFIG.read_text(encoding="utf-8"), encoding="utf-8")
        return str(tmp_path)

    client(monkeypatch, download)
    model = catalog.load_model("hf:some/model")
    assert asked == {"some/model": ["config.json", "hf_quant_config.json"]}
    assert (model.name, parameters(model)) == ("some/model", 30532122624)


def test_a_hub_that_does_not_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(hub_id: str, allow_patterns: list[str]) -> str:
        raise ConnectionError("no route\nto host")

    client(monkeypatch, download)
    with pytest.raises(InputError, match=r"hf:some/model cannot be fetched: ConnectionError: no route$"):
        catalog.load_model("hf:some/model")


def test_without_the_extra_the_message_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependencyError, match=r"roofline\[hub\]"):
        catalog.load_model("hf:some/model")
