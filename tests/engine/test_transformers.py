"""Logits of every family agree with transformers', which shares no code with the engine."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from roofline.engine.kvcache import KvFormat, build_cache
from roofline.engine.model import build_decoder
from roofline.engine.numerics import check_supported, from_folder
from roofline.engine.runner import Row, Runner
from roofline.engine.weights import FolderWeights, expected_shapes
from roofline.profiles.catalog import load_model

transformers = pytest.importorskip("transformers")

DENSE: dict[str, Any] = {
    "vocab_size": 199, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "pad_token_id": 0,
}  # fmt: skip
LATENT: dict[str, Any] = DENSE | {
    "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "head_dim": 8, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
    "n_shared_experts": 2, "first_k_dense_replace": 1,
    "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.7,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
    "rope_theta": 5e5,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", DENSE),
    "llama-3.1 positions": ("Llama", DENSE | {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama, linear positions, biases": (
        "Llama",
        DENSE | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}, "attention_bias": True, "mlp_bias": True},
    ),
    "llama, yarn": ("Llama", DENSE | {"rope_parameters": YARN}),
    "mistral, a window": ("Mistral", DENSE | {"sliding_window": 12}),
    "qwen2": ("Qwen2", {key: value for key, value in DENSE.items() if key != "head_dim"}),
    "qwen3": ("Qwen3", DENSE),
    "mixtral": ("Mixtral", DENSE | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe": ("Qwen3Moe", DENSE | EXPERTS | {"norm_topk_prob": True}),
    "qwen2-moe": (
        "Qwen2Moe",
        {key: v for key, v in DENSE.items() if key != "head_dim"} | EXPERTS | {"shared_expert_intermediate_size": 48},
    ),
    "gemma": ("Gemma", DENSE),
    "gemma2": ("Gemma2", DENSE | {"sliding_window": 12, "query_pre_attn_scalar": 24}),
    "gemma3": ("Gemma3", DENSE | {"num_hidden_layers": 6, "sliding_window": 12, "query_pre_attn_scalar": 24}),
    "deepseek-v3": ("DeepseekV3", LATENT | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.8}}),
    "deepseek-v3, no q rank": ("DeepseekV3", LATENT | {"q_lora_rank": None, "n_group": 1, "topk_group": 1}),
    "deepseek-v2": ("DeepseekV2", LATENT | {"topk_method": "group_limited_greedy"}),
    "deepseek-v2-lite": ("DeepseekV2", LATENT | {"topk_method": "greedy", "q_lora_rank": None}),
}


def reference(family: str, settings: dict[str, Any], folder: Path) -> Any:
    """A random model of transformers, saved as a checkpoint."""
    torch.manual_seed(0)
    suffix = "TextConfig" if family == "Gemma3" else "Config"
    config = getattr(transformers, f"{family}{suffix}")(**settings, attn_implementation="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
        for name, tensor in model.state_dict().items():
            if tensor.dtype.is_floating_point and "inv_freq" not in name:
                tensor.normal_(0, 0.5 / (tensor.shape[-1] ** 0.5) if tensor.ndim > 1 else 0.3)
        model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    family, settings = CASES[case]
    oracle = reference(family, settings, tmp_path)
    torch.set_num_threads(1)
    tokens = torch.randint(1, 199, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        expected = oracle(torch.tensor([tokens])).logits[0]

    model = load_model(str(tmp_path))
    check_supported(model)
    cpu = torch.device("cpu")
    weights = FolderWeights(tmp_path, expected_shapes(model))
    decoder = build_decoder(model, from_folder(model, tmp_path), weights, dtype=torch.float32, device=cpu, positions=128)
    runner = Runner(decoder, build_cache(model, 8, 16, KvFormat(torch.float32), 1, cpu), 16, cpu)
    table = [5, 2, 7]
    whole = runner.run([Row(tokens, 0, table, 40)])[0]
    assert (whole - expected).abs().max() < 1e-4 * max(1, expected.abs().max())

    runner.run([Row(tokens[:21], 0, [1, 4, 6], 0)])
    pieces = runner.run([Row(tokens[21:39], 21, [1, 4, 6], 18)])[0]
    last = runner.run([Row(tokens[39:], 39, [1, 4, 6], 1)])[0]
    assert (torch.cat((pieces, last)) - expected[21:]).abs().max() < 1e-4 * max(1, expected.abs().max())
