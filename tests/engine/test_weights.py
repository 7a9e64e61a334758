"""Weights and options that cannot work are refused, with the reason, before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from roofline.engine.build import Options, build_engine, check
from roofline.engine.numerics import from_folder
from roofline.engine.sampler import Sampling, pick, probabilities
from roofline.engine.weights import FolderWeights, SeededWeights, expected_shapes
from roofline.errors import InputError, ProfileError
from roofline.profiles.catalog import load_model
from tests.engine import tiny

SHAPES = expected_shapes(tiny.model())
NORM = "model.layers.1.input_layernorm.weight"


def tensors() -> dict[str, torch.Tensor]:
    weights = SeededWeights(SHAPES)
    return {name: weights.tensor(name) for name in SHAPES}


def test_a_folder_gives_what_was_saved(tmp_path: Path) -> None:
    saved = tensors() | {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "model.layers.9.input_layernorm.weight": torch.ones(3),
    }
    names = sorted(saved)
    save_file({name: saved[name] for name in names[::2]}, tmp_path / "model-1.safetensors")
    save_file({name: saved[name] for name in names[1::2]}, tmp_path / "model-2.safetensors")
    weights = FolderWeights(tmp_path, SHAPES)
    for name in SHAPES:
        assert torch.equal(weights.tensor(name), saved[name])


def damaged(name: str, tensor: torch.Tensor | None) -> dict[str, torch.Tensor]:
    found = tensors()
    if tensor is None:
        del found[name]
    else:
        found[name] = tensor
    return found


@pytest.mark.parametrize(
    ("name", "tensor", "says"),
    [
        (NORM, None, f"1 tensors are missing, the first is {NORM}"),
        (NORM, torch.ones(7), f"{NORM}: has shape \\(7,\\); the configuration needs \\(32,\\)"),
        ("model.layers.0.self_attn.q_proj.bias", torch.ones(32), "q_proj.bias: is a tensor that the forward pass would not use"),
    ],
)
def test_wrong_tensors(tmp_path: Path, name: str, tensor: torch.Tensor | None, says: str) -> None:
    save_file(damaged(name, tensor), tmp_path / "model.safetensors")
    with pytest.raises(ProfileError, match=says):
        FolderWeights(tmp_path, SHAPES)


def test_nan_in_weights(tmp_path: Path) -> None:
    save_file(damaged(NORM, torch.full((32,), float("nan"))), tmp_path / "model.safetensors")
    weights = FolderWeights(tmp_path, SHAPES)
    with pytest.raises(ProfileError, match=rf"model\.safetensors:{NORM}: holds NaN"):
        weights.tensor(NORM)


def test_no_or_cut_files(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"no \*\.safetensors"):
        FolderWeights(tmp_path, SHAPES)
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0")
    with pytest.raises(ProfileError, match=r"model\.safetensors: cannot be read"):
        FolderWeights(tmp_path, SHAPES)


def test_seeded_weights_depend_on_seed_and_name_only() -> None:
    first, again, other = SeededWeights(SHAPES), SeededWeights(dict(reversed(SHAPES.items()))), SeededWeights(SHAPES, seed=1)
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(first.tensor(name), again.tensor(name))
    assert not torch.equal(first.tensor(name), other.tensor(name))
    assert not torch.equal(first.tensor(name), first.tensor(name.replace("0", "1")))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "tpu"}, "cpu or cuda"),
        ({"dtype": "fp8"}, "computes in fp32"),
        ({"mode": "graphs"}, "graphs need a CUDA device"),
        ({"num_blocks": 1}, "at least 2 blocks"),
        ({"num_blocks": 10**12}, r"tiny llama takes 0.0 GB and 1000000000000 KV blocks .* GB; .* GB are free"),
        ({"weights": "int4", "dtype": "fp64"}, "16-bit activations"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        check(tiny.model(), Options(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gpt2", "gpt-oss-20b", "falcon-7b", "phi-4"])
def test_models_that_are_not_run(name: str) -> None:
    with pytest.raises(InputError, match="the engine does not run"):
        check(load_model(name), Options())


def test_requests_that_can_never_run() -> None:
    engine = tiny.engine(num_blocks=6)
    for prompt, count, says in (
        ([1] * 256, 1, "256 prompt tokens leave no room for output within max_model_len 256"),
        ([1] * 30, 10, "39 tokens need 10 KV blocks of 4 tokens and the pool has 5"),
        ([1, 61], 1, "token 61 is not in the vocabulary of 61"),
        ([], 1, "at least 1"),
    ):
        with pytest.raises(InputError, match=says):
            engine.add_request("a", prompt, count)
    engine.add_request("a", [1, 2], 2)
    with pytest.raises(InputError, match="is here already"):
        engine.add_request("a", [1, 2], 2)
    with pytest.raises(InputError, match="no such request"):
        engine.abort("b")
    assert len(tiny.finish(engine)["a"]) == 2


def test_configurations_that_are_not_computed(tmp_path: Path) -> None:
    for config, says in (
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"hidden_act": "relu"}, "relu"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": "many"}}, "wrong kind"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(InputError, match=says):
            from_folder(tiny.model(), tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ProfileError, match="cannot be read"):
        from_folder(tiny.model(), tmp_path)


def test_sampling() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    torch.testing.assert_close(probabilities(logits, Sampling(1.0, 0.75)), torch.tensor([0.625, 0.375, 0, 0]))
    squared = torch.tensor([0.25, 0.09, 0.0225, 0.0025])
    torch.testing.assert_close(probabilities(logits, Sampling(0.5)), squared / squared.sum())
    p = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    assert [pick(p, u) for u in (0.0, 0.49, 0.5, 0.999999999)] == [1, 1, 3, 3]
    for wrong in ((-1.0, 1.0), (1.0, 0.0), (float("inf"), 1.0)):
        with pytest.raises(InputError, match="temperature"):
            Sampling(*wrong)


@pytest.mark.slow
def test_a_compiled_decoder_says_the_same() -> None:
    setup = check(tiny.model(), Options(dtype="fp64", block_size=4, num_blocks=64, compiler="eager"))
    engine = build_engine(setup, setup.scheduler(), debug=True)
    engine.add_request("a", tiny.prompt(1, 5), 4)
    assert tiny.finish(engine)["a"] == tiny.alone("llama", tuple(tiny.prompt(1, 5)), 4)
