# ruff: noqa: E501  a table reads best with a row per line
"""Parameter counts against transformers' own classes on the meta device, and against published totals."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from roofline.ledger import extra_weights, parameters, stage_weights
from roofline.profiles import catalog, modelfile
from roofline.profiles.hf import config, jsonfile

_TABLE = (Path(__file__).parents[1] / "golden" / "parameters.csv").read_text(encoding="utf-8")
GOLDEN = {row["hf_id"]: row for row in csv.DictReader(_TABLE.splitlines())}
SHARED = Path(os.environ.get("ROOFLINE_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "data" / "models" / "configs"


@pytest.mark.parametrize("hf_id", sorted(GOLDEN))
def test_profiles_have_the_parameters_of_the_reference_class(hf_id: str) -> None:
    """parameters.csv: counted by building each class of transformers 5.24.0 on the meta device from the checkpoint's config."""
    model = catalog.load_model(hf_id)
    assert parameters(model) == int(GOLDEN[hf_id]["parameters"])
    vision = sum(extra_weights(model, extra).parameters for extra in model.extras if extra.name == "vision")
    # the language-model class of some families leaves the tower out; then the table has 0
    assert int(GOLDEN[hf_id]["vision_parameters"]) in (0, vision)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of checkpoints' configurations is not here")
def test_every_checkpoint_is_read() -> None:
    """All configurations are read; parameters equal the reference class where it knows the type, else a published total."""
    published = {  # within 1 %: totals of the model cards
        "XiaomiMiMo/MiMo-7B-Base": 7.83e9,  # with its prediction layer
        "nvidia/Llama-3_3-Nemotron-Super-49B-v1": 49.9e9,
        "sgl-project/DeepSeek-V4-Pro-FP8": 1.573e12,  # DeepSeek-V4-Pro under another model_type
    }
    folders = sorted(SHARED.iterdir())
    for folder in folders:
        hf_id, model = folder.name.replace("--", "/", 1), config.load(folder)
        if hf_id in GOLDEN:
            assert parameters(model) == int(GOLDEN[hf_id]["parameters"]), hf_id
        else:
            mtp = sum(extra_weights(model, e).parameters for e in model.extras) if "MiMo" in hf_id else 0
            assert parameters(model) + mtp == pytest.approx(published[hf_id], rel=0.01), hf_id
    assert len(folders) == len(GOLDEN) + len(published)


PUBLISHED_BILLIONS = {  # model cards and papers
    "llama-2-13b": 13.02, "llama-2-70b": 68.98, "llama-3-8b": 8.03, "llama-3-70b": 70.6, "llama-3.2-1b": 1.24, "llama-3.2-3b": 3.21,
    "codellama-34b": 33.7, "tinyllama-1.1b": 1.10, "mistral-7b": 7.25, "mistral-7b-v0.1": 7.24, "mistral-nemo-12b": 12.2,
    "mistral-small-24b": 23.6, "ministral-8b": 8.02, "qwen1.5-7b": 7.72, "qwen1.5-14b": 14.2, "qwen1.5-72b": 72.3, "qwen2.5-0.5b": 0.494,
    "qwen2.5-1.5b": 1.54, "qwen2.5-3b": 3.09, "qwen2.5-7b": 7.62, "qwen2.5-14b": 14.8, "qwen2.5-32b": 32.8, "qwen2.5-72b": 72.7,
    "qwen3-4b": 4.02, "qwen3-14b": 14.8, "phi-2": 2.78, "phi-3-mini": 3.82, "phi-4": 14.7, "phi-4-mini": 3.84, "gemma-2-9b": 9.24,
    "gemma-2-27b": 27.2, "gemma-3-27b": 27.0, "deepseek-v2-lite": 15.7, "deepseek-v2": 236, "glm-4.7": 353, "gpt2": 0.124,
    "gpt2-xl": 1.56, "opt-6.7b": 6.66, "opt-30b": 29.97, "gpt-neox-20b": 20.6, "pythia-6.9b": 6.86, "falcon-7b": 6.92, "bamba-9b": 9.78,
    "jamba-v0.1": 51.6, "command-r": 35.0, "granite-3b-a800m": 3.3, "nemotron-nano-9b-v2": 8.89, "qwen3-next-80b-a3b": 79.7,
    "kimi-linear-48b-a3b": 49.1, "gemma-4-31b": 30.7, "qwen3.5-9b": 9.0,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED_BILLIONS)
def test_profiles_written_from_public_geometry_have_the_published_total(name: str) -> None:
    assert parameters(catalog.load_model(name)) / 1e9 == pytest.approx(PUBLISHED_BILLIONS[name], rel=0.01)


SMALL: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "vocab_size": 128, "attention_bias": True, "mlp_bias": True, "head_dim": 32},
    "mixtral": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "vocab_size": 128, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "vocab_size": 128, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 80,
        "decoder_sparse_step": 2, "mlp_only_layers": [1]},
    "phi": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 96, "vocab_size": 128},
    "phi3": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "vocab_size": 128, "pad_token_id": 0},
    "gemma2": {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "intermediate_size": 96, "vocab_size": 128, "sliding_window": 8},
    "gemma3_text": {"num_hidden_layers": 7, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "intermediate_size": 96, "vocab_size": 128, "sliding_window": 8},
    "deepseek_v2": {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 96,
        "moe_intermediate_size": 32, "n_routed_experts": 6, "n_shared_experts": 2, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
        "kv_lora_rank": 16, "q_lora_rank": None, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "vocab_size": 128},
    "gpt2": {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 32, "vocab_size": 128},
    "opt": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "ffn_dim": 96, "vocab_size": 128,
        "max_position_embeddings": 32, "word_embed_proj_dim": 64},
    "gpt_neox": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 128},
    "falcon": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_kv_heads": 2, "new_decoder_architecture": True,
        "vocab_size": 128},
    "cohere": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 128},
    "granitemoe": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32,
        "vocab_size": 128, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granite": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 128},
    "smollm3": {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 128, "pad_token_id": 0},
    "seed_oss": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 128},
    "olmo2": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 128},
    "olmoe": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 128,
        "num_experts": 4, "num_experts_per_tok": 2},
    "ministral3": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96, "vocab_size": 128},
    "mimo_v2_flash": {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 24, "v_head_dim": 16,
        "intermediate_size": 96, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8, "vocab_size": 128,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse", "sparse"]},
    "qwen3_next": {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "vocab_size": 128, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
        "decoder_sparse_step": 1, "full_attention_interval": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 8, "linear_value_head_dim": 12},
    "bamba": {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "vocab_size": 128, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 8, "attn_layer_indices": [1]},
    "jamba": {"num_hidden_layers": 8, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "vocab_size": 128, "num_experts": 4, "num_experts_per_tok": 2, "mamba_d_state": 8, "mamba_dt_rank": 6, "use_mamba_kernels": False},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", SMALL)
def test_small_models_have_the_parameters_of_the_reference_class(family: str) -> None:
    """The class is built here, on the meta device, from the same configuration that the importer reads."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model = config.read(jsonfile.parse(json.dumps({"model_type": family, **SMALL[family]}), Path("config.json")), family)
    with torch.device("meta"):
        reference = transformers.AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**SMALL[family]))
    buffers = sum(b.numel() for name, b in reference.named_buffers() if name.endswith("e_score_correction_bias"))
    assert parameters(model) == sum(p.numel() for p in reference.parameters()) + buffers


def test_what_is_stored_follows_the_recipe() -> None:
    """DeepSeek-V3: 671.03 B parameters in 673.15 GB with 128×128 scales; its prediction block adds 15.4 GB (both counted apart
    by an independent reference)."""
    model = catalog.load_model("deepseek-v3")
    found = stage_weights(model)
    assert (found.parameters, found.bytes) == (671026419200, 673150611808)
    (mtp,) = model.extras
    assert extra_weights(model, mtp).bytes / 1e9 == pytest.approx(15.4, abs=0.05)


def test_a_profile_reads_back_as_it_was_written(tmp_path: Path) -> None:
    for name in ("gemma-4-26b-a4b", "deepseek-v4-pro", "glm-5.2", "nemotron-3-super-120b-a12b-fp8", "qwen3.5-27b", "jamba-v0.1"):
        model, path = catalog.load_model(name), tmp_path / f"{name}.yaml"
        path.write_text(modelfile.dump(model), encoding="utf-8")
        assert modelfile.load(path) == model
