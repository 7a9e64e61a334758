"""Recipes and headers: bytes are those of the files, and a recipe that says nonsense is refused with its place."""

from __future__ import annotations

import json
import os
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from roofline.errors import ProfileError
from roofline.ledger import Parallel, stage_weights
from roofline.profiles import gguf, modelfile
from roofline.profiles.hf import config, headers, jsonfile
from roofline.profiles.model import Model
from tests.profiles.checkpoints import Files, llama

BASE: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 1024,
    "vocab_size": 320,
    "torch_dtype": "bfloat16",
}
GROUP = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
PACKED = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": GROUP}}}
FP8 = {"quant_method": "modelopt", "quant_algo": "FP8"}
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "tensor"}
RECIPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # name: (quantization_config, how the files are written)
    "fp8_block": ({"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}, {}),
    "fp8_static": (
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}, "ignore": ["lm_head"]},
        {"kv_scales": True},
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}, {}),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}, {}),
    "packed": (
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "ignore": ["lm_head", "re:.*layers\\.1\\..*"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": GROUP, "input_activations": None}},
        },
        {"plain_layers": (1,)},
    ),
    "nvfp4": (
        {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "group_size": 16,
            "exclude_modules": ["lm_head", "model.layers.0*", "model.layers.3.*"],
        },
        {"plain_layers": (0, 3)},
    ),
}


def read(recipe: dict[str, Any], **more: Any) -> Model:
    data = {**BASE, **more, "quantization_config": recipe}
    return config.read(jsonfile.parse(json.dumps(data, indent=1), Path("config.json")), "made")


def refused(recipe: dict[str, Any]) -> ProfileError:
    with pytest.raises(ProfileError) as caught:
        read(recipe)
    return caught.value


@pytest.mark.parametrize("name", RECIPES)
def test_weight_bytes_are_the_sum_of_the_headers(name: str, tmp_path: Path) -> None:
    """With the files: exact. From the recipe alone: all but the scales per tensor and indices that it does not tell."""
    recipe, how = RECIPES[name]
    files = llama(name, BASE, **how)
    files.write(tmp_path, {**BASE, "quantization_config": recipe})
    assert stage_weights(modelfile.load(tmp_path)).bytes == files.total
    assert stage_weights(read(recipe)).bytes == files.total - files.small
    halves = [stage_weights(modelfile.load(tmp_path), Parallel(pp=2), stage=stage).bytes for stage in (0, 1)]
    assert sum(halves) == pytest.approx(files.total, rel=1e-12)


def test_other_tensors_of_the_files_are_not_the_text_model(tmp_path: Path) -> None:
    files = llama("plain", BASE)
    expected = files.total
    files.add("visual.blocks.0.attn.qkv.weight", "BF16", 100, 100)
    files.add("model.layers.4.eh_proj.weight", "BF16", 512, 1024)
    files.write(tmp_path, BASE)
    model = modelfile.load(tmp_path)
    assert stage_weights(model).bytes == expected
    assert any("1,068,576 bytes of other tensors" in text for text in model.assumptions)


def test_a_recipe_per_layer_is_kept_per_layer() -> None:
    model = read(RECIPES["nvfp4"][0])
    assert model.order == "dense + 2*dense_2 + dense"
    assert model.weights == {"default": "nvfp4"}
    assert model.layers["dense"].weights == {"attention": "bf16", "mlp": "bf16"}
    assert model.layers["dense_2"].weights == {}


def test_mixed_groups_name_their_modules() -> None:
    groups = {
        "group_0": {"targets": ["re:.*self_attn.*"], "weights": FLOAT8, "input_activations": FLOAT8},
        "group_1": {"targets": ["re:.*mlp.*"], "weights": GROUP, "input_activations": None},
    }
    model = read({"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": groups})
    assert model.weight_dtype("attention", "q_proj").name == "fp8"
    assert model.weight_dtype("mlp", "up_proj").bits_per_element == 4.5
    assert model.weight_dtype("lm_head", "lm_head").name == "bf16"


def test_a_recipe_beside_the_configuration_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BASE), encoding="utf-8")
    side = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
    }
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(side), encoding="utf-8")
    model = modelfile.load(tmp_path)
    assert (model.weights, model.kv_dtype) == ({"default": "fp8"}, "fp8")


@pytest.mark.parametrize(
    ("recipe", "words", "key"),
    [
        ({"quant_method": "magic"}, "not supported", "quant_method"),
        ({"bits": 4}, "missing", "quant_method"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "[128, 128]", "weight_block_size"),
        ({"quant_method": "awq", "bits": 5, "group_size": 128}, "supported: 2, 3, 4, 8", "bits"),
        ({"quant_method": "fp8", "new_key": 1}, "unknown key", "new_key"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:x": {}}}, "per module", "dynamic"),
        ({"quant_method": "modelopt", "quant_algo": "FP3"}, "not supported", "quant_algo"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}, "supported: 16", "quant_algo"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "is missing", "quantized_layers"),
        ({**FP8, "kv_cache_scheme": {"num_bits": 3, "type": "int"}}, "not supported", "kv_cache_scheme"),
        ({**FP8, "ignore": [3]}, "name of a module", "ignore[0]"),
        ({**PACKED, "ignore": ["re:("]}, "regular expression", "ignore[0]"),
        ({"quant_method": "compressed-tensors"}, "is missing", "config_groups"),
        ({"quant_method": "bitsandbytes"}, "neither", "load_in_4bit"),
    ],
)  # fmt: skip
def test_a_recipe_that_is_not_understood_is_refused(recipe: dict[str, Any], words: str, key: str) -> None:
    error = refused(recipe)
    assert words in error.message
    assert error.key == f"quantization_config.{key}"


def test_quantised_layers_that_do_not_exist_are_refused() -> None:
    listed = {f"model.layers.{i}.mlp.up_proj": {"quant_algo": "FP8"} for i in (0, 7)}
    error = refused({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": listed})
    assert "layer 7; the model has layers 0 to 3" in error.message


def test_a_header_that_lies_about_its_length_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 4 * 10**9) + b"{}")
    tracemalloc.start()
    with pytest.raises(ProfileError, match="claims a header of 4,000,000,000 bytes"):
        headers.read_header(path)
    os.truncate(path, 5 * 10**9)  # now the file is as large as it claims, without a byte written
    with pytest.raises(ProfileError, match="at most 67,108,864 are read"):
        headers.read_header(path)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"dtype": "F7", "shape": [1], "data_offsets": [0, 1]}, "unknown dtype"),
        ({"dtype": "BF16", "shape": [4], "data_offsets": [0, 800]}, "outside of the 64 bytes"),
        ({"dtype": "BF16", "shape": [4], "data_offsets": [0, 6]}, "does not have the 6 bytes"),
        ({"dtype": "BF16", "shape": [-4], "data_offsets": [0, 8]}, "whole numbers"),
        ({"dtype": "BF16", "shape": "4", "data_offsets": [0, 8]}, "whole numbers"),
        (7, "must be an object"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(entry: Any, words: str, tmp_path: Path) -> None:
    raw = json.dumps({"model.norm.weight": entry}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(64))
    with pytest.raises(ProfileError, match=r"model\.norm\.weight") as caught:
        headers.read_header(path)
    assert words in str(caught.value)


def test_random_damage_to_headers_never_gives_a_traceback(tmp_path: Path) -> None:
    Files({"a": ("BF16", [4]), "b": ("F32", [2])}).write(tmp_path, BASE, shards=1)
    (path,) = tmp_path.glob("*.safetensors")
    whole, chance = path.read_bytes(), random.Random(1)
    for _ in range(300):
        damaged = bytearray(whole[: chance.randint(0, len(whole))])
        for _ in range(chance.randint(0, 3)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(bytes(damaged))
        try:
            headers.read_header(path)
        except ProfileError:
            continue


def _gguf(path: Path, kind: str) -> int:
    """A small Llama written by the gguf package; returns the bytes of its tensors."""
    writer_module = pytest.importorskip("gguf")
    np = pytest.importorskip("numpy")
    writer = writer_module.GGUFWriter(str(path), "llama")
    writer.add_block_count(2)
    writer.add_embedding_length(512)
    writer.add_feed_forward_length(1024)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_context_length(2048)
    writer.add_token_list([f"t{i}" for i in range(320)])
    quantised = getattr(writer_module.GGMLQuantizationType, kind)
    block, size = writer_module.GGML_QUANT_SIZES[quantised]
    total = 0

    def matrix(name: str, n: int, k: int) -> None:
        nonlocal total
        writer.add_tensor(name, np.zeros((n, k // block * size), dtype=np.uint8), raw_dtype=quantised)
        total += n * k // block * size

    def vector(name: str, n: int) -> None:
        nonlocal total
        writer.add_tensor(name, np.zeros(n, dtype=np.float32))
        total += 4 * n

    matrix("token_embd.weight", 320, 512)
    for i in range(2):
        for name, n, k in (("attn_q", 512, 512), ("attn_k", 256, 512), ("attn_v", 256, 512), ("attn_output", 512, 512)):
            matrix(f"blk.{i}.{name}.weight", n, k)
        for name, n, k in (("ffn_gate", 1024, 512), ("ffn_up", 1024, 512), ("ffn_down", 512, 1024)):
            matrix(f"blk.{i}.{name}.weight", n, k)
        vector(f"blk.{i}.attn_norm.weight", 512)
        vector(f"blk.{i}.ffn_norm.weight", 512)
    vector("output_norm.weight", 512)
    matrix("output.weight", 320, 512)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return total


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q8_0", "Q4_0", "IQ4_XS"])
def test_a_gguf_file_has_the_bytes_of_its_tensors(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    total = _gguf(path, kind)
    model = modelfile.load(path)
    assert stage_weights(model).bytes == total
    assert stage_weights(model).parameters == 2 * 320 * 512 + 2 * (2 * 512 * 512 + 2 * 256 * 512 + 3 * 512 * 1024 + 2 * 512) + 512
    assert sum(tensor.bytes for tensor in gguf.read_header(path).tensors) == total
    whole = path.read_bytes()
    for cut in (3, 20, 500, len(whole) // 2):
        path.write_bytes(whole[:cut])
        with pytest.raises(ProfileError):
            modelfile.load(path)


def test_damage_to_a_gguf_never_gives_a_traceback_and_reads_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    text = struct.pack("<Q", 20) + b"general.architecture" + struct.pack("<IQ", 8, 5) + b"llama"
    whole = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text + struct.pack("<Q", 1) + b"a" + struct.pack("<IQIQ", 1, 32, 2, 0) + bytes(18)
    chance = random.Random(2)
    tracemalloc.start()
    for _ in range(300):
        damaged = bytearray(whole[: chance.randint(0, len(whole))])
        for _ in range(chance.randint(0, 3)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(bytes(damaged))
        with pytest.raises(ProfileError):
            gguf.load(path)
    assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    tracemalloc.stop()
