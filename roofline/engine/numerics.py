"""What a forward pass must know beyond the geometry of a profile: norms, rotary positions, activations, routing.

A folder of weights says it in its config.json. A profile does not, so random weights run with the family's usual values, and
the engine says so among its assumptions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roofline.errors import InputError, ProfileError
from roofline.profiles.model import Model

FAMILIES = frozenset({
    "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "gemma", "gemma2", "gemma3_text",
    "deepseek_v2", "deepseek_v3", "kimi_k2",
})  # fmt: skip
_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_tanh": "gelu_tanh", "gelu": "gelu_tanh"}


@dataclass(frozen=True)
class Rope:
    """Rotary positions. kind: default, linear, llama3 or yarn; the other fields by the names of Hugging Face configurations.

    interleaved: pairs are neighbours (DeepSeek), not halves.
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    original: int = 0
    low: float = 1.0
    high: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    interleaved: bool = False

    def frequencies(self, dim: int) -> Tensor:
        """Radians per position of each of dim / 2 pairs, fp64. Sources: RoPE (arXiv 2104.09864), YaRN (2309.00071), Llama 3.1."""
        inverse = self.theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        if self.kind == "linear":
            return inverse / self.factor
        if self.kind == "llama3":
            turns = self.original * inverse / (2 * math.pi)
            smooth = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
            return inverse * (smooth + (1 - smooth) / self.factor)
        if self.kind == "yarn":
            first, last = (self._dimension(turns, dim) for turns in (self.beta_fast, self.beta_slow))
            first, last = max(math.floor(first), 0), min(math.ceil(last), dim - 1)
            ramp = ((torch.arange(dim // 2, dtype=torch.float64) - first) / max(last - first, 0.001)).clamp(0, 1)
            return inverse * ((1 - ramp) + ramp / self.factor)
        return inverse

    def _dimension(self, turns: float, dim: int) -> float:
        """The pair that makes so many turns over the original context."""
        return dim * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(self.theta))


@dataclass(frozen=True)
class Routing:
    """How a router picks experts. scoring: softmax or sigmoid; groups > 1: only experts of the best `top_groups` groups.

    group_score: a group is worth its best expert ("max") or the sum of its two best ("top2"). renormalise: weights of the chosen
    sum to 1, then times scale.
    """

    scoring: str = "softmax"
    groups: int = 1
    top_groups: int = 1
    group_score: str = "max"
    renormalise: bool = True
    scale: float = 1.0


@dataclass(frozen=True)
class Numerics:
    """Everything else. local_rope: of layers with a window (Gemma 3); query_scale: factor on scores (None: head_dim ** −0.5).

    norm_offset: added to the weights of norms; embedding_scale: on embeddings; *_softcap: cap · tanh(x / cap).
    """

    eps: float = 1e-6
    rope: Rope = Rope()
    local_rope: Rope | None = None
    activation: str = "silu"
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    query_scale: float | None = None
    query_factor: float = 1.0
    attention_softcap: float | None = None
    final_softcap: float | None = None
    routing: Routing = Routing()
    eos: tuple[int, ...] = ()


def check_supported(model: Model) -> None:
    """Raises InputError, with what does run, for a model whose forward pass this engine does not have."""
    if model.model_type not in FAMILIES:
        raise InputError(f"{model.name}: the engine does not run {model.model_type!r} models; it runs {', '.join(sorted(FAMILIES))}")
    for name, layer in model.layers.items():
        if name in model.stack:
            _check_layer(f"{model.name}: layers.{name}", layer)


def _check_layer(where: str, layer: Any) -> None:
    mixer, ffn = layer.mixer, layer.ffn
    if mixer is None or mixer.kind not in ("attention", "mla") or ffn is None:
        raise InputError(f"{where}: the engine runs layers with attention or mla and a feed-forward part")
    odd = [key for key in ("chunk", "sinks", "output_gate", "shares_kv", "k_is_v", "indexer") if getattr(mixer, key, None)]
    odd += [key for key in ("expert_bias", "router_linear_bias", "latent") if getattr(ffn, key, None)]
    odd += [key for key in ("parallel", "norm_bias", "vectors") if getattr(layer, key)] + ([] if ffn.gated else ["gated: false"])
    odd += [] if getattr(mixer, "qk_norm", "none") in ("none", "head") else ["qk_norm: full"]
    if odd:
        raise InputError(f"{where}: the engine does not compute {', '.join(odd)}")


def from_folder(model: Model, folder: Path) -> Numerics:
    """The numerics in a folder's config.json. Raises ProfileError for what cannot be read or is not computed."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProfileError(f"cannot be read: {error}", path=path) from None
    try:
        return from_config(model, config.get("text_config") or config)
    except (KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"a value of the wrong kind: {error}", path=path) from None


def from_config(model: Model, config: Mapping[str, Any]) -> Numerics:
    """The numerics that a configuration gives, with the family's defaults for keys that it lacks (an empty one lacks all)."""
    gemma, latent = model.model_type.startswith("gemma"), model.model_type in ("deepseek_v2", "deepseek_v3", "kimi_k2")
    ropes = _ropes(config, interleaved=bool(config.get("rope_interleave", True)) and latent)
    activation = config.get("hidden_activation") or config.get("hidden_act") or ("gelu_pytorch_tanh" if gemma else "silu")
    if activation not in _ACTIVATIONS:
        raise InputError(f"{model.name}: activation {activation!r} is not computed; {', '.join(_ACTIVATIONS)} are")
    scalar = config.get("query_pre_attn_scalar")
    mscale = _mscale(config) if latent else 1.0
    return Numerics(
        eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=ropes[0],
        local_rope=ropes[1] if model.model_type == "gemma3_text" else None,
        activation=_ACTIVATIONS[activation],
        norm_offset=1.0 if gemma else 0.0,
        embedding_scale=math.sqrt(model.hidden_size) if gemma else 1.0,
        query_scale=scalar**-0.5 if scalar else None,
        query_factor=mscale**2,
        attention_softcap=config.get("attn_logit_softcapping"),
        final_softcap=config.get("final_logit_softcapping"),
        routing=_routing(model.model_type, config),
        eos=_ids(config.get("eos_token_id")),
    )


def _ids(value: Any) -> tuple[int, ...]:
    return () if value is None else tuple(value) if isinstance(value, list) else (int(value),)


def _routing(family: str, config: Mapping[str, Any]) -> Routing:
    groups, top = config.get("n_group") or 1, config.get("topk_group") or 1
    scale = float(config.get("routed_scaling_factor") or 1.0)
    if family in ("deepseek_v3", "kimi_k2"):
        return Routing("sigmoid", groups, top, "top2", bool(config.get("norm_topk_prob", True)), scale)
    if family == "deepseek_v2":
        limited = config.get("topk_method") == "group_limited_greedy"
        return Routing("softmax", groups if limited else 1, top if limited else 1, "max", False, scale)
    return Routing(renormalise=family == "mixtral" or bool(config.get("norm_topk_prob", family == "qwen3_moe")))


def _ropes(config: Mapping[str, Any], *, interleaved: bool) -> tuple[Rope, Rope]:
    """Of full and of sliding layers, from `rope_parameters` or from the older rope_theta and rope_scaling."""
    given = config.get("rope_parameters") or {}
    if "full_attention" in given or "sliding_attention" in given:
        full, local = given.get("full_attention") or {}, given.get("sliding_attention") or {}
    else:
        full = {"rope_theta": config.get("rope_theta", 10000.0)} | (config.get("rope_scaling") or {}) | given
        local = {"rope_theta": config.get("rope_local_base_freq", 10000.0)}
    most = config.get("max_position_embeddings") or 0
    return _rope(full, most, interleaved), _rope(local, most, interleaved)


def _rope(given: Mapping[str, Any], positions: int, interleaved: bool) -> Rope:
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in ("default", "linear", "llama3", "yarn") or given.get("partial_rotary_factor", 1.0) != 1.0:
        raise InputError(f"rotary positions of kind {kind!r} or of part of a head are not computed; default, linear, llama3 and yarn are")
    factor = float(given.get("factor") or 1.0)
    scale = given.get("attention_factor")
    if kind == "yarn" and scale is None:
        some, every = given.get("mscale"), given.get("mscale_all_dim")
        scale = _yarn_scale(factor, some) / _yarn_scale(factor, every) if some and every else _yarn_scale(factor, 1.0)
    return Rope(
        theta=float(given.get("rope_theta", 10000.0)),
        kind=kind,
        factor=factor,
        original=int(given.get("original_max_position_embeddings") or positions),
        low=float(given.get("low_freq_factor", 1.0)),
        high=float(given.get("high_freq_factor", 4.0)),
        beta_fast=float(given.get("beta_fast") or 32.0),
        beta_slow=float(given.get("beta_slow") or 1.0),
        attention_factor=float(scale) if kind == "yarn" and scale is not None else 1.0,
        interleaved=interleaved,
    )


def _yarn_scale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _mscale(config: Mapping[str, Any]) -> float:
    """DeepSeek's factor on scores under YaRN, beside the one on cos and sin."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if given.get("rope_type", given.get("type", "default")) == "default" or not given.get("mscale_all_dim"):
        return 1.0
    return _yarn_scale(float(given.get("factor") or 1.0), float(given["mscale_all_dim"]))
