"""Reading config.json: no key is overlooked, no damage gives a traceback, no expert model is read as a dense one."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roofline.errors import InputError, ProfileError
from roofline.ledger import parameters
from roofline.profiles import modelfile
from roofline.profiles.hf import config, jsonfile
from roofline.profiles.hf.irrelevant import IRRELEVANT, RECIPE_IRRELEVANT
from roofline.profiles.model import Model, MoE

CONFIGS = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (Path(__file__).parents[1] / "data" / "configs").glob("*.json")
}
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
    "torch_dtype": "bfloat16",
}


def read(data: dict[str, Any] | str) -> Model:
    text = data if isinstance(data, str) else json.dumps(data, indent=1)
    return config.read(jsonfile.parse(text, Path("config.json")), "made")


def error_of(data: dict[str, Any] | str) -> ProfileError:
    with pytest.raises(ProfileError) as caught:
        read(data)
    return caught.value


def paths(data: dict[str, Any], prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Places of all keys of objects, at any depth."""
    found = []
    for key, value in data.items():
        found.append((*prefix, key))
        if isinstance(value, dict):
            found += paths(value, (*prefix, key))
    return found


def renamed(data: dict[str, Any], path: tuple[str, ...], name: str) -> dict[str, Any]:
    data = copy.deepcopy(data)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[name] = inner.pop(path[-1])
    return data


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_no_renamed_key_makes_another_model(name: str) -> None:
    """Each key of each expert model is renamed in turn: the reader refuses, or the model is the same; never a dense one."""
    original = read(CONFIGS[name])
    assert any(isinstance(layer.ffn, MoE) for layer in original.layers.values())
    for path in paths(CONFIGS[name]):
        for other in (f"{path[-1]}_x", f"my_{path[-1]}", path[-1].upper()):
            try:
                found = read(renamed(CONFIGS[name], path, other))
            except ProfileError:
                continue
            assert found.layers == original.layers, path
            for what in ("order", "hidden_size", "vocab_size"):
                assert getattr(found, what) == getattr(original, what), path


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_no_missing_key_makes_another_model_in_silence(name: str) -> None:
    """Without a key the model is refused, the same, or says what it assumed."""
    original = read(CONFIGS[name])
    for path in paths(CONFIGS[name]):
        data = copy.deepcopy(CONFIGS[name])
        inner = data
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]
        try:
            found = read(data)
        except ProfileError:
            continue
        experts = [any(isinstance(layer.ffn, MoE) for layer in model.layers.values()) for model in (original, found)]
        assert experts[0] == experts[1], path
        if parameters(found) != parameters(original):
            assert set(found.assumptions) - set(original.assumptions) or _documented_default(path), path


def _documented_default(path: tuple[str, ...]) -> bool:
    """Flags and lists whose absence means what transformers' class says (no bias, no tied head, no shared expert)."""
    return path[-1] in {
        "tie_word_embeddings", "attention_bias", "use_routing_bias", "first_k_dense_replace", "mlp_layer_types", "n_shared_experts",
        "indexer_types", "index_topk_freq", "index_skip_topk_offset", "shared_expert_intermediate_size", "moe_latent_size",
        "num_hash_layers", "hc_mult", "moe_shared_expert_intermediate_size", "attention_k_eq_v", "num_global_key_value_heads",
        "q_lora_rank", "layer_types", "use_conv_bias",
    }  # fmt: skip


def test_every_irrelevant_key_has_a_reason() -> None:
    assert all(reason and key == key.strip() for key, reason in (IRRELEVANT | RECIPE_IRRELEVANT).items())
    structural = ("expert", "_heads", "layers", "intermediate", "hidden_size", "lora", "vocab", "window", "kv")
    allowed = {
        "cross_attention_hidden_size",
        "pruned_heads",
        "router_aux_loss_coef",
        "num_expert_group",
        "moe_router_enable_expert_bias",
        "moe_shared_expert_overlap",
    }
    assert not [key for key in IRRELEVANT if any(word in key for word in structural) and key not in allowed]


SHARED = Path(os.environ.get("ROOFLINE_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "data" / "models" / "configs"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of checkpoints' configurations is not here")
def test_every_key_of_every_checkpoint_is_accounted_for() -> None:
    """An unknown key anywhere is refused, so a configuration that is read has none; one more key in each object is one too many."""
    for folder in sorted(SHARED.iterdir()):
        data = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        read(data)
        objects = [()] + [(key,) for key in ("text_config", "vision_config") if isinstance(data.get(key), dict)]
        for place in objects:
            changed = copy.deepcopy(data)
            inner = changed[place[0]] if place else changed
            inner["num_secret_experts"] = 2
            error = error_of(changed)
            assert error.key == ".".join((*place, "num_secret_experts"))
            assert error.line is not None


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        ({"model_type": "mamba9"}, "model_type", "not supported"),
        ({"model_type": None}, "model_type", "missing"),
        ({"num_key_value_heads": 3}, "num_key_value_heads", "does not divide"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "num_attention_heads", "does not divide hidden_size"),
        ({"num_hidden_layers": "4"}, "num_hidden_layers", "whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "≥ 1"),
        ({"num_hidden_layers": True}, "num_hidden_layers", "whole number"),
        ({"hidden_size": -64}, "hidden_size", "whole number"),
        ({"hidden_size": 1e300}, "hidden_size", "whole number"),
        ({"vocab_size": None}, "vocab_size", "missing"),
        ({"attention_bias": "yes"}, "attention_bias", "true or false"),
        ({"torch_dtype": "int4"}, "torch_dtype", "supported: bfloat16"),
        ({"num_experts": 8}, "num_experts", "unknown key"),
        ({"dtype": "float16"}, "torch_dtype", "they mean the same"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(change: dict[str, Any], key: str, words: str) -> None:
    data = {**LLAMA, **change}
    error = error_of(data)
    assert words in error.message
    assert error.key == key
    lines = json.dumps(data, indent=1).splitlines()
    assert f'"{key}"' in lines[(error.line or 0) - 1]


@pytest.mark.parametrize(
    ("family", "change", "words"),
    [
        ("gpt_oss", {"layer_types": ["full_attention"]}, "one per layer"),
        ("gpt_oss", {"experts_per_token": 5}, "they mean the same"),
        ("gpt_oss", {"num_experts_per_tok": 33, "experts_per_token": 33}, "more than the 32 experts"),
        ("qwen3_moe", {"mlp_only_layers": [48]}, "layers 0 to 47"),
        ("deepseek_v3", {"first_k_dense_replace": 62}, "more than the 61 layers"),
        ("deepseek_v3", {"num_key_value_heads": 64}, "latent attention"),
        ("deepseek_v3", {"topk_method": "greedy"}, "not supported"),
        ("glm_moe_dsa", {"indexer_types": ["shared"] * 78}, "none before it"),
        ("glm_moe_dsa", {"mlp_layer_types": ["dense"] * 78}, "contradicts"),
        ("nemotron_h", {"hybrid_override_pattern": "M*E"}, "one per layer"),
        ("nemotron_h", {"hybrid_override_pattern": "M" * 87 + "x"}, "known: M"),
        ("deepseek_v4", {"compress_ratios": [4] * 61}, "one per layer"),
        ("deepseek_v4", {"compress_ratios": [8] * 62}, "not supported"),
        ("minimax_m2", {"attn_type_list": [1] * 61 + [0]}, "not supported"),
    ],
)
def test_contradictory_geometry_is_refused(family: str, change: dict[str, Any], words: str) -> None:
    assert words in str(error_of({**CONFIGS[family], **change}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("   \n", "is empty"),
        ("[1, 2]", "must be a JSON object"),
        ('{"a": 1\n "b": 2}', "missing comma"),
        ('{"a": 1, "a": 2}', "appears twice"),
        ("{" * 100_000, "not valid JSON"),
        ('{"a": ' + "[" * 100_000, "nested too deeply"),
        ('{"num_hidden_layers": ' + "9" * 5000 + "}", "too many digits"),
        ("{}", "'model_type' is missing"),
    ],
)
def test_a_file_that_is_no_configuration_says_so(text: str, words: str) -> None:
    assert words in str(error_of(text))


def test_places_that_are_no_configuration_say_so(tmp_path: Path) -> None:
    empty, big, binary = tmp_path / "empty", tmp_path / "config.json", tmp_path / "b.json"
    empty.mkdir()
    big.touch()
    os.truncate(big, 2 * 2**30)  # sparse: nothing is written, and nothing may be read
    binary.write_bytes(b"\xff\xfe\x00\x01")
    for path, words in (
        (empty, "without a config.json"),
        (big, "2,147,483,648 bytes"),
        (binary, "not UTF-8"),
        (tmp_path / "no.json", "no such file"),
    ):
        with pytest.raises(ProfileError) as caught:
            modelfile.load(path)
        assert words in str(caught.value)
        assert str(path) in str(caught.value)


def test_a_missing_comma_has_its_line() -> None:
    text = json.dumps(LLAMA, indent=1).replace('"hidden_size": 64,', '"hidden_size": 64')
    assert error_of(text).line == 5


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(CONFIGS)), st.integers(0, 2**32))
def test_random_damage_never_gives_a_traceback(name: str, seed: int) -> None:
    """Bytes are cut, doubled or replaced, values are swapped for others: a model or an InputError comes out, nothing else."""
    chance = random.Random(seed)
    text = json.dumps(CONFIGS[name])
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(text))
        text = chance.choice(
            [
                text[:at] + text[at + chance.randint(1, 30) :],
                text[:at] + chance.choice('{}[]",:0-e.\\n\x00') + text[at + 1 :],
                text.replace(
                    chance.choice(["128", "true", "null", "false", '"'])[:5], chance.choice(["-1", "{}", "[]", "1e400", "NaN"]), 1
                ),
            ]
        )
    with contextlib.suppress(InputError):
        read(text)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_a_value_of_another_type_never_gives_a_traceback(name: str, data: st.DataObject) -> None:
    junk: Any = data.draw(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(-5, 10**20),
            st.floats(),
            st.text(max_size=5),
            st.lists(st.integers(), max_size=3),
            st.just({"a": 1}),
        )
    )
    changed = copy.deepcopy(CONFIGS[name])
    place = data.draw(st.sampled_from(paths(changed)))
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = junk
    with contextlib.suppress(InputError):
        read(changed)
