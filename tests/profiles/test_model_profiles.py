"""The shipped model profiles: all load, all names lead to one profile, and those that others rely on are there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from roofline.ledger import active_parameters, kv_bytes_per_token, parameters, stage_weights
from roofline.profiles import catalog, modelfile
from roofline.profiles.model import Attention, MoE, expand_order

FOLDER = Path(__file__).parents[2] / "modelprofiles"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
PROMISED = {
    "llama-2-7b",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "qwen3-8b",
    "qwen3-32b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "mixtral-8x7b",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "deepseek-v3",
    "deepseek-r1",
    "kimi-k2",
    "glm-5",
    "minimax-m2.5",
    "gemma-3-27b",
    "tiny-llama-15m",
    "tiny-llama-110m",
    "tiny-qwen3-60m",
    "tiny-moe-100m",
    "tiny-mla-60m",
}
ALIASES = {
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Llama-2-13b-chat-hf": "llama-2-13b",
    "Qwen/Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen/Qwen2.5-0.5B-Instruct": "qwen2.5-0.5b",
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": "mistral-small-24b",
    "zai-org/GLM-4.7": "glm-4.7",
    "Qwen/Qwen3.8-27B": "qwen3.5-27b",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2.5",
}


def test_there_are_enough() -> None:
    assert len(NAMES) >= 70
    assert not PROMISED - set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_loads_and_adds_up(name: str) -> None:
    model = catalog.load_model(name)
    assert model.name == name
    assert 0 < active_parameters(model) <= parameters(model)
    found = stage_weights(model)
    assert 0.4 * found.parameters < found.bytes <= 4 * found.parameters
    assert kv_bytes_per_token(model) >= 0
    assert model.source


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_is_written_as_it_is_read(name: str, tmp_path: Path) -> None:
    model = modelfile.load(FOLDER / f"{name}.yaml")
    path = tmp_path / "copy.yaml"
    path.write_text(modelfile.dump(model), encoding="utf-8")
    assert modelfile.load(path) == model


def test_every_name_leads_to_one_profile() -> None:
    names: Counter[str] = Counter()
    for name in NAMES:
        model = modelfile.load(FOLDER / f"{name}.yaml")
        names.update({catalog.normal(text) for text in (name, *model.aliases, *model.hf_ids)})
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize(("hub_id", "name"), ALIASES.items())
def test_hub_ids_are_names(hub_id: str, name: str) -> None:
    assert catalog.load_model(hub_id).name == name


def test_windows_and_geometry_by_kind() -> None:
    """Gemma 4: sliding layers with 16 heads of 256, full ones with 4 of 512 (220.0 GiB at 262,144 tokens in an engine's log)."""
    model = catalog.load_model("gemma-4-31b")
    mixers = {kind: layer.mixer for kind, layer in model.layers.items()}
    local, full = mixers["local"], mixers["global"]
    assert isinstance(local, Attention)
    assert isinstance(full, Attention)
    assert (local.kv_heads, local.head_dim, local.window) == (16, 256, 1024)
    assert (full.kv_heads, full.head_dim, full.window) == (4, 512, None)
    assert Counter(model.stack) == {"local": 50, "global": 10}
    assert kv_bytes_per_token(model) * 262_144 / 2**30 == pytest.approx(220.0, abs=0.05)


def test_experts_of_every_second_layer() -> None:
    model = catalog.load_model("llama-4-maverick")
    sparse = [isinstance(model.layers[name].ffn, MoE) for name in model.stack]
    assert sparse == [False, True] * 24


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3*a", "aaa"),
        ("2*(a + 3*b) + c", "abbbabbbc"),
        (" a+b ", "ab"),
        ("2*2*a", "aaaa"),
    ],
)
def test_order_expands(text: str, expected: str) -> None:
    assert "".join(expand_order(text)) == expected


@pytest.mark.parametrize("text", ["", "a b", "a +", "+ a", "(a", "a)", "0*a", "99999*a", "3*", "a-&b", "2*(", "()"])
def test_order_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        expand_order(text)
