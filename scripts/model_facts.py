# ruff: noqa: E501  a table reads best with a row per line
"""Names of the checkpoints whose configurations are at hand, and public geometries of those whose are not."""

from __future__ import annotations

from typing import Any

CARD = "public geometry of the checkpoint (its model card and configuration class), not re-read; parameter total checked"

CHECKPOINTS: dict[str, dict[str, Any]] = {
    "meta-llama--Llama-2-7b-hf": {"name": "llama-2-7b", "hf_ids": ["meta-llama/Llama-2-7b-chat-hf"], "aliases": ["llama2-7b"]},
    "meta-llama--Meta-Llama-3.1-8B": {
        "name": "llama-3.1-8b",
        "hf_ids": ["meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B-Instruct"],
        "aliases": ["llama3.1-8b", "llama31-8b"],
    },
    "meta-llama--Meta-Llama-3.1-70B": {
        "name": "llama-3.1-70b",
        "hf_ids": [
            "meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Meta-Llama-3.1-70B-Instruct",
            "meta-llama/Llama-3.3-70B-Instruct", "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
        ],
        "aliases": ["llama3.1-70b", "llama31-70b", "llama-3.3-70b", "llama3.3-70b"],
    },
    "meta-llama--Meta-Llama-3.1-405B": {
        "name": "llama-3.1-405b",
        "hf_ids": ["meta-llama/Llama-3.1-405B", "meta-llama/Llama-3.1-405B-Instruct", "meta-llama/Meta-Llama-3.1-405B-Instruct"],
        "aliases": ["llama3.1-405b"],
    },
    "nvidia--Llama-3.1-70B-Instruct-FP8": {"name": "llama-3.1-70b-fp8", "hf_ids": ["nvidia/Llama-3.3-70B-Instruct-FP8"]},
    "mistralai--Mixtral-8x7B-v0.1": {"name": "mixtral-8x7b", "hf_ids": ["mistralai/Mixtral-8x7B-Instruct-v0.1"]},
    "mistralai--Mixtral-8x22B-v0.1": {"name": "mixtral-8x22b", "hf_ids": ["mistralai/Mixtral-8x22B-Instruct-v0.1"]},
    "Qwen--Qwen3-0.6B": {"name": "qwen3-0.6b"},
    "Qwen--Qwen3-1.7B": {"name": "qwen3-1.7b"},
    "Qwen--Qwen3-8B": {"name": "qwen3-8b"},
    "Qwen--Qwen3-32B": {"name": "qwen3-32b"},
    "Qwen--Qwen3-32B-FP8": {"name": "qwen3-32b-fp8"},
    "Qwen--Qwen3-32B-FP8-Static-PerTensor": {"name": "qwen3-32b-fp8-static"},
    "Qwen--Qwen3-30B-A3B": {"name": "qwen3-30b-a3b"},
    "Qwen--Qwen3-30B-A3B-FP8": {"name": "qwen3-30b-a3b-fp8"},
    "Qwen--Qwen3-235B-A22B": {"name": "qwen3-235b-a22b"},
    "Qwen--Qwen3-235B-A22B-FP8": {"name": "qwen3-235b-a22b-fp8"},
    "nvidia--Qwen3-235B-A22B-NVFP4": {"name": "qwen3-235b-a22b-nvfp4"},
    "XiaomiMiMo--MiMo-7B-Base": {"name": "mimo-7b"},
    "openai--gpt-oss-20b": {"name": "gpt-oss-20b"},
    "openai--gpt-oss-120b": {"name": "gpt-oss-120b"},
    "deepseek-ai--DeepSeek-V3": {"name": "deepseek-v3", "hf_ids": ["deepseek-ai/DeepSeek-V3-0324", "deepseek-ai/DeepSeek-V3.1"]},
    "deepseek-ai--DeepSeek-R1": {"name": "deepseek-r1", "hf_ids": ["deepseek-ai/DeepSeek-R1-0528"]},
    "nvidia--DeepSeek-V3.1-NVFP4": {"name": "deepseek-v3.1-nvfp4"},
    "moonshotai--Kimi-K2-Instruct": {"name": "kimi-k2", "hf_ids": ["moonshotai/Kimi-K2-Base"]},
    "MiniMaxAI--MiniMax-M2.5": {"name": "minimax-m2.5", "hf_ids": ["MiniMaxAI/MiniMax-M2"], "aliases": ["minimax-m2"]},
    "MiniMaxAI--MiniMax-M2.7": {"name": "minimax-m2.7"},
    "nvidia--MiniMax-M2.5-NVFP4": {"name": "minimax-m2.5-nvfp4"},
    "nvidia--MiniMax-M2.7-NVFP4": {"name": "minimax-m2.7-nvfp4"},
    "Qwen--Qwen3-VL-2B-Instruct": {"name": "qwen3-vl-2b"},
    "Qwen--Qwen3-VL-4B-Instruct": {"name": "qwen3-vl-4b"},
    "Qwen--Qwen3-VL-32B-Instruct": {"name": "qwen3-vl-32b", "hf_ids": ["Qwen/Qwen3-VL-32B-Thinking"]},
    "Qwen--Qwen3-VL-30B-A3B-Instruct": {"name": "qwen3-vl-30b-a3b"},
    "Qwen--Qwen3-VL-235B-A22B-Instruct": {"name": "qwen3-vl-235b-a22b"},
    "Qwen--Qwen3.5-27B": {"name": "qwen3.5-27b", "hf_ids": ["Qwen/Qwen3.6-27B", "Qwen/Qwen3.8-27B"], "aliases": ["qwen3.6-27b", "qwen3.8-27b"]},
    "Qwen--Qwen3.5-35B-A3B": {"name": "qwen3.5-35b-a3b", "hf_ids": ["Qwen/Qwen3.6-35B-A3B"], "aliases": ["qwen3.6-35b-a3b"]},
    "Qwen--Qwen3.5-122B-A10B": {"name": "qwen3.5-122b-a10b"},
    "Qwen--Qwen3.5-397B-A17B": {"name": "qwen3.5-397b-a17b"},
    "nvidia--Qwen3.5-122B-A10B-NVFP4": {"name": "qwen3.5-122b-a10b-nvfp4"},
    "nvidia--Qwen3.5-397B-A17B-NVFP4": {"name": "qwen3.5-397b-a17b-nvfp4"},
    "nvidia--Qwen3.6-27B-NVFP4": {"name": "qwen3.6-27b-nvfp4"},
    "deepseek-ai--DeepSeek-V3.2": {"name": "deepseek-v3.2"},
    "nvidia--DeepSeek-V3.2-NVFP4": {"name": "deepseek-v3.2-nvfp4"},
    "deepseek-ai--DeepSeek-V4-Pro": {"name": "deepseek-v4-pro"},
    "nvidia--DeepSeek-V4-Pro-NVFP4": {"name": "deepseek-v4-pro-nvfp4"},
    "sgl-project--DeepSeek-V4-Pro-FP8": {"name": "deepseek-v4-pro-fp8"},
    "zai-org--GLM-5": {"name": "glm-5", "hf_ids": ["zhipuai/GLM-5"]},
    "zai-org--GLM-5-FP8": {"name": "glm-5-fp8"},
    "nvidia--GLM-5-NVFP4": {"name": "glm-5-nvfp4"},
    "zai-org--GLM-5.1": {"name": "glm-5.1"},
    "zai-org--GLM-5.1-FP8": {"name": "glm-5.1-fp8"},
    "nvidia--GLM-5.1-NVFP4": {"name": "glm-5.1-nvfp4"},
    "zai-org--GLM-5.2": {"name": "glm-5.2"},
    "zai-org--GLM-5.2-FP8": {"name": "glm-5.2-fp8"},
    "nvidia--GLM-5.2-NVFP4": {"name": "glm-5.2-nvfp4"},
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": {"name": "llama-4-scout", "hf_ids": ["meta-llama/Llama-4-Scout-17B-16E"]},
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": {"name": "llama-4-maverick", "hf_ids": ["meta-llama/Llama-4-Maverick-17B-128E", "meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8"]},
    "moonshotai--Kimi-K2.5": {"name": "kimi-k2.5", "hf_ids": ["moonshotai/Kimi-K2.6"]},
    "nvidia--Kimi-K2.5-NVFP4": {"name": "kimi-k2.5-nvfp4"},
    "nvidia--Kimi-K2.6-NVFP4": {"name": "kimi-k2.6-nvfp4", "hf_ids": ["nvidia/Kimi-K2.7-Code-NVFP4"]},
    "nvidia--Gemma-4-26B-A4B-NVFP4": {"name": "gemma-4-26b-a4b-nvfp4"},
    "nvidia--Gemma-4-31B-IT-NVFP4": {"name": "gemma-4-31b-nvfp4"},
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1": {"name": "nemotron-super-49b", "hf_ids": ["nvidia/Llama-3_3-Nemotron-Super-49B-v1_5"]},
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": {"name": "nemotron-3-nano-30b-a3b"},
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": {"name": "nemotron-3-nano-30b-a3b-nvfp4"},
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8": {"name": "nemotron-3-super-120b-a12b-fp8"},
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": {"name": "nemotron-3-super-120b-a12b-nvfp4"},
    "nvidia--NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": {"name": "nemotron-3.5-lightning-30b-a3b-nvfp4"},
}  # fmt: skip


def _llama(layers: int, hidden: int, heads: int, kv: int, inner: int, vocab: int, positions: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "num_key_value_heads": kv, "intermediate_size": inner, "vocab_size": vocab, "max_position_embeddings": positions,
        "torch_dtype": "bfloat16", **more,
    }  # fmt: skip


def _qwen2(layers: int, hidden: int, heads: int, kv: int, inner: int, vocab: int = 152064, **more: Any) -> dict[str, Any]:
    return _llama(layers, hidden, heads, kv, inner, vocab, 32768, **({"use_sliding_window": False} | more)) | {"model_type": "qwen2"}


def _qwen3(layers: int, hidden: int, heads: int, inner: int, **more: Any) -> dict[str, Any]:
    return _llama(layers, hidden, heads, 8, inner, 151936, 40960, head_dim=128, **more) | {"model_type": "qwen3"}


def _gemma3(layers: int, hidden: int, heads: int, kv: int, inner: int, head_dim: int, window: int = 1024) -> dict[str, Any]:
    """With the SigLIP tower of 896 × 896 pixels that all sizes from 4B on have."""
    base = _llama(layers, hidden, heads, kv, inner, 262208, 131072, head_dim=head_dim, sliding_window=window, sliding_window_pattern=6)
    tower = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "patch_size": 14, "image_size": 896}
    return {"model_type": "gemma3", "text_config": base | {"model_type": "gemma3_text"}, "vision_config": tower}


def _gemma2(layers: int, hidden: int, heads: int, kv: int, inner: int, head_dim: int) -> dict[str, Any]:
    base = _llama(layers, hidden, heads, kv, inner, 256000, 8192, head_dim=head_dim, sliding_window=4096)
    return base | {"model_type": "gemma2"}


def _opt(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "opt", "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "ffn_dim": 4 * hidden,
        "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": hidden, "torch_dtype": "float16",
    }  # fmt: skip


def _gpt2(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    return {"model_type": "gpt2", "n_layer": layers, "n_embd": hidden, "n_head": heads, "n_positions": 1024, "vocab_size": 50257}


PUBLIC: dict[str, dict[str, Any]] = {
    "llama-2-13b": {"hf_ids": ["meta-llama/Llama-2-13b-hf", "meta-llama/Llama-2-13b-chat-hf"], "aliases": ["llama2-13b"],
        "config": _llama(40, 5120, 40, 40, 13824, 32000, 4096, torch_dtype="float16"), "source": CARD},
    "llama-2-70b": {"hf_ids": ["meta-llama/Llama-2-70b-hf", "meta-llama/Llama-2-70b-chat-hf"], "aliases": ["llama2-70b"],
        "config": _llama(80, 8192, 64, 8, 28672, 32000, 4096, torch_dtype="float16"), "source": CARD},
    "llama-3-8b": {"hf_ids": ["meta-llama/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3-8B-Instruct"], "aliases": ["llama3-8b"],
        "config": _llama(32, 4096, 32, 8, 14336, 128256, 8192), "source": CARD},
    "llama-3-70b": {"hf_ids": ["meta-llama/Meta-Llama-3-70B", "meta-llama/Meta-Llama-3-70B-Instruct"], "aliases": ["llama3-70b"],
        "config": _llama(80, 8192, 64, 8, 28672, 128256, 8192), "source": CARD},
    "llama-3.1-405b-fp8": {"hf_ids": ["meta-llama/Llama-3.1-405B-Instruct-FP8"],
        "config": _llama(126, 16384, 128, 8, 53248, 128256, 131072, quantization_config={"quant_method": "fp8"}), "source": CARD,
        "assumptions": ["fbgemm fp8: all linear layers counted as fp8, though the published checkpoint keeps the attention and the first and last layers in bf16"]},
    "llama-3.2-1b": {"hf_ids": ["meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B-Instruct"],
        "config": _llama(16, 2048, 32, 8, 8192, 128256, 131072, tie_word_embeddings=True), "source": CARD},
    "llama-3.2-3b": {"hf_ids": ["meta-llama/Llama-3.2-3B", "meta-llama/Llama-3.2-3B-Instruct"],
        "config": _llama(28, 3072, 24, 8, 8192, 128256, 131072, tie_word_embeddings=True, head_dim=128), "source": CARD},
    "codellama-34b": {"hf_ids": ["codellama/CodeLlama-34b-hf", "codellama/CodeLlama-34b-Instruct-hf"],
        "config": _llama(48, 8192, 64, 8, 22016, 32000, 16384), "source": CARD},
    "tinyllama-1.1b": {"hf_ids": ["TinyLlama/TinyLlama-1.1B-Chat-v1.0"],
        "config": _llama(22, 2048, 32, 4, 5632, 32000, 2048), "source": CARD},
    "mistral-7b-v0.1": {"hf_ids": ["mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-Instruct-v0.1"],
        "config": _llama(32, 4096, 32, 8, 14336, 32000, 32768, sliding_window=4096) | {"model_type": "mistral"}, "source": CARD},
    "mistral-7b": {"hf_ids": ["mistralai/Mistral-7B-v0.3", "mistralai/Mistral-7B-Instruct-v0.3"], "aliases": ["mistral-7b-v0.3"],
        "config": _llama(32, 4096, 32, 8, 14336, 32768, 32768, sliding_window=None) | {"model_type": "mistral"}, "source": CARD},
    "mistral-nemo-12b": {"hf_ids": ["mistralai/Mistral-Nemo-Instruct-2407", "mistralai/Mistral-Nemo-Base-2407"],
        "config": _llama(40, 5120, 32, 8, 14336, 131072, 131072, head_dim=128, sliding_window=None) | {"model_type": "mistral"}, "source": CARD},
    "mistral-small-24b": {
        "hf_ids": ["mistralai/Mistral-Small-24B-Instruct-2501", "mistralai/Mistral-Small-3.2-24B-Instruct-2506"],
        "config": _llama(40, 5120, 32, 8, 32768, 131072, 131072, head_dim=128, sliding_window=None) | {"model_type": "mistral"}, "source": CARD},
    "ministral-8b": {"hf_ids": ["mistralai/Ministral-8B-Instruct-2410"],
        "config": _llama(36, 4096, 32, 8, 12288, 131072, 32768, head_dim=128, sliding_window=32768) | {"model_type": "mistral"}, "source": CARD},
    "ministral-3-14b": {"hf_ids": ["mistralai/Ministral-3-14B-Reasoning-2512"],
        "config": _llama(40, 5120, 32, 8, 16384, 131072, 262144, head_dim=128, sliding_window=None) | {"model_type": "mistral"}, "source": CARD,
        "assumptions": ["geometry of the text model; the vision tower is not counted"]},
    "qwen1.5-7b": {"hf_ids": ["Qwen/Qwen1.5-7B-Chat"], "config": _qwen2(32, 4096, 32, 32, 11008, 151936), "source": CARD},
    "qwen1.5-14b": {"hf_ids": ["Qwen/Qwen1.5-14B-Chat"], "config": _qwen2(40, 5120, 40, 40, 13696), "source": CARD},
    "qwen1.5-72b": {"hf_ids": ["Qwen/Qwen1.5-72B-Chat"], "config": _qwen2(80, 8192, 64, 64, 24576), "source": CARD},
    "qwen2.5-0.5b": {"hf_ids": ["Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B-Instruct"],
        "config": _qwen2(24, 896, 14, 2, 4864, 151936, tie_word_embeddings=True), "source": CARD},
    "qwen2.5-1.5b": {"hf_ids": ["Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-1.5B-Instruct"],
        "config": _qwen2(28, 1536, 12, 2, 8960, 151936, tie_word_embeddings=True), "source": CARD},
    "qwen2.5-3b": {"hf_ids": ["Qwen/Qwen2.5-3B", "Qwen/Qwen2.5-3B-Instruct"],
        "config": _qwen2(36, 2048, 16, 2, 11008, 151936, tie_word_embeddings=True), "source": CARD},
    "qwen2.5-7b": {"hf_ids": ["Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct"], "config": _qwen2(28, 3584, 28, 4, 18944), "source": CARD},
    "qwen2.5-14b": {"hf_ids": ["Qwen/Qwen2.5-14B", "Qwen/Qwen2.5-14B-Instruct"], "config": _qwen2(48, 5120, 40, 8, 13824), "source": CARD},
    "qwen2.5-32b": {
        "hf_ids": ["Qwen/Qwen2.5-32B", "Qwen/Qwen2.5-32B-Instruct", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "Qwen/QwQ-32B"],
        "config": _qwen2(64, 5120, 40, 8, 27648), "source": CARD},
    "qwen2.5-72b": {"hf_ids": ["Qwen/Qwen2.5-72B", "Qwen/Qwen2.5-72B-Instruct"], "config": _qwen2(80, 8192, 64, 8, 29568), "source": CARD},
    "qwen3-4b": {"hf_ids": ["Qwen/Qwen3-4B"], "config": _qwen3(36, 2560, 32, 9728, tie_word_embeddings=True), "source": CARD},
    "qwen3-14b": {"hf_ids": ["Qwen/Qwen3-14B"], "config": _qwen3(40, 5120, 40, 17408), "source": CARD},
    "phi-2": {"hf_ids": ["microsoft/phi-2"], "source": CARD, "config": {
        "model_type": "phi", "num_hidden_layers": 32, "hidden_size": 2560, "num_attention_heads": 32, "intermediate_size": 10240,
        "vocab_size": 51200, "max_position_embeddings": 2048, "torch_dtype": "float16", "num_key_value_heads": 32}},
    "phi-3-mini": {"hf_ids": ["microsoft/Phi-3-mini-4k-instruct", "microsoft/Phi-3-mini-128k-instruct", "microsoft/Phi-3-vision-128k-instruct"],
        "config": _llama(32, 3072, 32, 32, 8192, 32064, 131072) | {"model_type": "phi3"}, "source": CARD,
        "assumptions": ["no window (the 4k variant has 2047, the 128k variant 262144)"]},
    "phi-4": {"hf_ids": ["microsoft/phi-4"], "config": _llama(40, 5120, 40, 10, 17920, 100352, 16384) | {"model_type": "phi3"}, "source": CARD},
    "phi-4-mini": {"hf_ids": ["microsoft/Phi-4-mini-instruct"],
        "config": _llama(32, 3072, 24, 8, 8192, 200064, 131072, tie_word_embeddings=True) | {"model_type": "phi3"}, "source": CARD},
    "gemma-2-9b": {"hf_ids": ["google/gemma-2-9b-it", "google/gemma-2-9b"], "config": _gemma2(42, 3584, 16, 8, 14336, 256), "source": CARD},
    "gemma-2-27b": {"hf_ids": ["google/gemma-2-27b-it", "google/gemma-2-27b"], "config": _gemma2(46, 4608, 32, 16, 36864, 128), "source": CARD},
    "gemma-3-4b": {"hf_ids": ["google/gemma-3-4b-it"], "config": _gemma3(34, 2560, 8, 4, 10240, 256), "source": CARD},
    "gemma-3-12b": {"hf_ids": ["google/gemma-3-12b-it"], "config": _gemma3(48, 3840, 16, 8, 15360, 256), "source": CARD},
    "gemma-3-27b": {"hf_ids": ["google/gemma-3-27b-it", "google/gemma-3-27b-pt"], "config": _gemma3(62, 5376, 32, 16, 21504, 128), "source": CARD},
    "deepseek-v2-lite": {"hf_ids": ["deepseek-ai/DeepSeek-V2-Lite", "deepseek-ai/DeepSeek-V2-Lite-Chat"], "source": CARD, "config": {
        "model_type": "deepseek_v2", "num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16,
        "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
        "first_k_dense_replace": 1, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "vocab_size": 102400, "max_position_embeddings": 163840, "torch_dtype": "bfloat16"}},
    "deepseek-v2": {"hf_ids": ["deepseek-ai/DeepSeek-V2", "deepseek-ai/DeepSeek-V2-Chat"], "source": CARD, "config": {
        "model_type": "deepseek_v2", "num_hidden_layers": 60, "hidden_size": 5120, "num_attention_heads": 128, "num_key_value_heads": 128,
        "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 2, "num_experts_per_tok": 6,
        "first_k_dense_replace": 1, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "vocab_size": 102400, "max_position_embeddings": 163840, "torch_dtype": "bfloat16"}},
    "glm-4.7": {"hf_ids": ["zai-org/GLM-4.7", "zai-org/GLM-4.6", "zai-org/GLM-4.5"], "source": CARD, "config": {
        "model_type": "glm4_moe", "num_hidden_layers": 92, "hidden_size": 5120, "num_attention_heads": 96, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "first_k_dense_replace": 3, "attention_bias": True, "use_qk_norm": True, "num_nextn_predict_layers": 1,
        "vocab_size": 151552, "max_position_embeddings": 202752, "torch_dtype": "bfloat16"}},
    "falcon-7b": {"hf_ids": ["tiiuae/falcon-7b", "tiiuae/falcon-7b-instruct"], "source": CARD, "config": {
        "model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71, "multi_query": True,
        "parallel_attn": True, "bias": False, "alibi": False, "new_decoder_architecture": False, "vocab_size": 65024, "torch_dtype": "bfloat16"}},
    "falcon-40b": {"hf_ids": ["tiiuae/falcon-40b", "tiiuae/falcon-40b-instruct"], "source": CARD, "config": {
        "model_type": "falcon", "num_hidden_layers": 60, "hidden_size": 8192, "num_attention_heads": 128, "num_kv_heads": 8,
        "parallel_attn": True, "bias": False, "alibi": False, "new_decoder_architecture": True, "vocab_size": 65024, "torch_dtype": "bfloat16"}},
    "gpt2": {"hf_ids": ["openai-community/gpt2", "gpt2"], "config": _gpt2(12, 768, 12), "source": CARD},
    "gpt2-xl": {"hf_ids": ["openai-community/gpt2-xl"], "config": _gpt2(48, 1600, 25), "source": CARD},
    "opt-6.7b": {"hf_ids": ["facebook/opt-6.7b"], "config": _opt(32, 4096, 32), "source": CARD},
    "opt-13b": {"hf_ids": ["facebook/opt-13b"], "config": _opt(40, 5120, 40), "source": CARD},
    "opt-30b": {"hf_ids": ["facebook/opt-30b"], "config": _opt(48, 7168, 56), "source": CARD},
    "opt-66b": {"hf_ids": ["facebook/opt-66b"], "config": _opt(64, 9216, 72), "source": CARD},
    "opt-175b": {"config": _opt(96, 12288, 96), "aliases": ["gpt3-175b", "gpt-3"], "source": "table 1 of the OPT paper (arXiv 2205.01068), the geometry of GPT-3"},
    "gpt-neox-20b": {"hf_ids": ["EleutherAI/gpt-neox-20b"], "source": CARD, "config": {
        "model_type": "gpt_neox", "num_hidden_layers": 44, "hidden_size": 6144, "num_attention_heads": 64, "intermediate_size": 24576,
        "vocab_size": 50432, "max_position_embeddings": 2048, "torch_dtype": "float16"}},
    "pythia-6.9b": {"hf_ids": ["EleutherAI/pythia-6.9b"], "source": CARD, "config": {
        "model_type": "gpt_neox", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 16384,
        "vocab_size": 50432, "max_position_embeddings": 2048, "torch_dtype": "float16"}},
}  # fmt: skip


def _qwen35(layers: int, hidden: int, heads: int, kv: int, inner: int, value_heads: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "qwen3_5_text", "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "num_key_value_heads": kv, "head_dim": 256, "intermediate_size": inner, "full_attention_interval": 4,
        "linear_num_key_heads": 16, "linear_num_value_heads": value_heads, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "vocab_size": 248320, "max_position_embeddings": 262144, "torch_dtype": "bfloat16", **more,
    }  # fmt: skip


_INFERRED = "geometry inferred from public start-up logs and from the family's larger models; the configuration was not at hand"
_MOE_KEYS = {"intermediate_size": None, "decoder_sparse_step": 1}
PUBLIC |= {
    "qwen3-next-80b-a3b": {"hf_ids": ["Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3-Next-80B-A3B-Thinking"], "aliases": ["qwen3-next-80b"], "source": CARD,
        "config": _qwen35(48, 2048, 16, 2, 5120, 32) | _MOE_KEYS | {"model_type": "qwen3_next", "vocab_size": 151936, "num_experts": 512,
            "num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "intermediate_size": 5120}},
    "qwen3.5-0.8b": {"hf_ids": ["Qwen/Qwen3.5-0.8B"], "source": CARD, "config": _qwen35(24, 1024, 8, 2, 3584, 16, tie_word_embeddings=True),
        "assumptions": [_INFERRED]},
    "qwen3.5-2b": {"hf_ids": ["Qwen/Qwen3.5-2B"], "source": CARD, "config": _qwen35(24, 2048, 8, 2, 6144, 16, tie_word_embeddings=True),
        "assumptions": [_INFERRED]},
    "qwen3.5-9b": {"hf_ids": ["Qwen/Qwen3.5-9B"], "source": CARD, "config": _qwen35(32, 4096, 16, 4, 12288, 32), "assumptions": [_INFERRED]},
    "kimi-linear-48b-a3b": {"hf_ids": ["moonshotai/Kimi-Linear-48B-A3B-Instruct"], "source": CARD, "config": {
        "model_type": "kimi_linear", "num_hidden_layers": 27, "hidden_size": 2304, "num_attention_heads": 32, "num_key_value_heads": 32,
        "intermediate_size": 9216, "moe_intermediate_size": 1024, "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1,
        "first_k_dense_replace": 1, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "mla_use_nope": True, "vocab_size": 163840, "model_max_length": 1048576, "torch_dtype": "bfloat16",
        "linear_attn_config": {"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4, "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "kda_layers": [i for i in range(1, 28) if i not in (4, 8, 12, 16, 20, 24, 27)]}}},
    "bamba-9b": {"hf_ids": ["ibm-fms/Bamba-9B", "ibm-ai-platform/Bamba-9B-v2"], "source": CARD, "config": {
        "model_type": "bamba", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_conv": 4,
        "mamba_expand": 2, "attn_layer_indices": [9, 18, 27], "vocab_size": 128256, "max_position_embeddings": 262144, "torch_dtype": "bfloat16"}},
    "jamba-v0.1": {"hf_ids": ["ai21labs/Jamba-v0.1"], "source": CARD, "config": {
        "model_type": "jamba", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "num_experts": 16, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1,
        "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 256,
        "vocab_size": 65536, "max_position_embeddings": 262144, "torch_dtype": "bfloat16"}},
    "command-r": {"hf_ids": ["CohereForAI/c4ai-command-r-v01"], "source": CARD, "config":
        _llama(40, 8192, 64, 64, 22528, 256000, 131072, torch_dtype="float16") | {"model_type": "cohere"}},
    "granite-3b-a800m": {"hf_ids": ["ibm-granite/granite-3.1-3b-a800m-instruct"], "source": CARD, "config":
        _llama(32, 1536, 24, 8, 512, 49155, 131072, tie_word_embeddings=True, num_local_experts=40, num_experts_per_tok=8)
        | {"model_type": "granitemoe"}},
    "nemotron-nano-9b-v2": {"hf_ids": ["nvidia/NVIDIA-Nemotron-Nano-9B-v2"], "source": CARD, "config": {
        "model_type": "nemotron_h", "num_hidden_layers": 56, "hidden_size": 4480, "num_attention_heads": 40, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 15680, "mamba_num_heads": 128, "mamba_head_dim": 80, "ssm_state_size": 128, "n_groups": 8,
        "conv_kernel": 4, "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        "vocab_size": 131072, "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}},
    "kimi-k2-thinking": {"hf_ids": ["moonshotai/Kimi-K2-Thinking"], "source": CARD, "config": {
        "model_type": "kimi_k2", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 64, "num_key_value_heads": 64,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 8,
        "first_k_dense_replace": 1, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "vocab_size": 163840, "max_position_embeddings": 262144, "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
            r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"], "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None,
            "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}}}}}},
    "gemma-4-31b": {"hf_ids": ["google/gemma-4-31B-it", "google/gemma-4-31B"], "source": "config.json of nvidia/Gemma-4-31B-IT-NVFP4 without its quantisation",
        "config": {"model_type": "gemma4_text", "num_hidden_layers": 60, "hidden_size": 5376, "num_attention_heads": 32, "num_key_value_heads": 16,
            "num_global_key_value_heads": 4, "attention_k_eq_v": True, "head_dim": 256, "global_head_dim": 512, "intermediate_size": 21504,
            "sliding_window": 1024, "vocab_size": 262144, "max_position_embeddings": 262144, "torch_dtype": "bfloat16"}},
    "gemma-4-26b-a4b": {"hf_ids": ["google/gemma-4-26B-A4B-it", "google/gemma-4-26B-A4B"],
        "source": "config.json of nvidia/Gemma-4-26B-A4B-NVFP4 without its quantisation",
        "config": {"model_type": "gemma4_text", "num_hidden_layers": 30, "hidden_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 8,
            "num_global_key_value_heads": 2, "attention_k_eq_v": True, "head_dim": 256, "global_head_dim": 512, "intermediate_size": 2112,
            "enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
            "sliding_window": 1024, "vocab_size": 262144, "max_position_embeddings": 262144, "torch_dtype": "bfloat16"}},
}  # fmt: skip

UNQUANTISED: dict[str, dict[str, Any]] = {  # the same checkpoint before its recipe
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8": {
        "name": "nemotron-3-super-120b-a12b",
        "hf_ids": ["nvidia/NVIDIA-Nemotron-3-Super-120B-A12B", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16"],
    },
}

PUBLIC |= {
    "mimo-v2-flash": {"hf_ids": ["XiaomiMiMo/MiMo-V2-Flash"], "source": CARD, "config": {
        "model_type": "mimo_v2_flash", "num_hidden_layers": 48, "hidden_size": 4096, "num_attention_heads": 64, "num_key_value_heads": 4,
        "swa_num_key_value_heads": 8, "head_dim": 192, "v_head_dim": 128, "intermediate_size": 16384, "moe_intermediate_size": 2048,
        "n_routed_experts": 256, "num_experts_per_tok": 8, "sliding_window": 128, "vocab_size": 152576, "max_position_embeddings": 262144,
        "layer_types": ["full_attention" if i % 6 == 5 or i == 0 else "sliding_attention" for i in range(48)],
        "mlp_layer_types": ["dense"] + ["sparse"] * 47, "torch_dtype": "bfloat16"}},
}  # fmt: skip

_MADE = "made for this project: small enough to run on a CPU"
TINY: dict[str, dict[str, Any]] = {
    "tiny-llama-15m": {"config": _llama(6, 288, 6, 6, 768, 32000, 256, tie_word_embeddings=True), "source": "geometry of llama2.c's stories15M"},
    "tiny-llama-110m": {"config": _llama(12, 768, 12, 12, 2048, 32000, 1024, tie_word_embeddings=True), "source": "geometry of llama2.c's stories110M"},
    "tiny-qwen3-60m": {"source": _MADE, "config": _llama(12, 512, 8, 2, 2048, 32000, 4096, head_dim=64, tie_word_embeddings=True) | {"model_type": "qwen3"}},
    "tiny-moe-100m": {"source": _MADE, "config": {
        "model_type": "qwen3_moe", "num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 64, "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 384, "decoder_sparse_step": 1,
        "vocab_size": 32000, "max_position_embeddings": 4096, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}},
    "tiny-mla-60m": {"source": _MADE, "config": {
        "model_type": "deepseek_v3", "num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8,
        "intermediate_size": 1536, "moe_intermediate_size": 256, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
        "first_k_dense_replace": 1, "kv_lora_rank": 128, "q_lora_rank": 192, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32,
        "v_head_dim": 32, "vocab_size": 32000, "max_position_embeddings": 4096, "torch_dtype": "bfloat16"}},
}  # fmt: skip
