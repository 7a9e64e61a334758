"""Where weights come from: a seed, or a folder of safetensors. Names are those of Hugging Face checkpoints."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from roofline.errors import MissingDependencyError, ProfileError
from roofline.profiles.model import MLA, Attention, FeedForward, Layer, Model, MoE

Shapes = dict[str, tuple[int, ...]]
EMBEDDING, HEAD, FINAL_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


class Weights(Protocol):
    """Gives tensors by name, whole (not sharded)."""

    def tensor(self, name: str) -> Tensor:
        """The tensor called `name`, on the device that the weights are for."""


def norm_names(layer: Layer) -> tuple[str, ...]:
    """Names of a layer's hidden-sized norms, in the order in which they run."""
    if layer.norms == 4:
        return ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    return ("input_layernorm", "post_attention_layernorm")


def expert_names(model: Model) -> tuple[str, tuple[str, str, str]]:
    """Module of the feed-forward part, and names of gate, up and down projections of an expert."""
    if model.model_type == "mixtral":
        return "block_sparse_moe", ("w1", "w3", "w2")
    return "mlp", ("gate_proj", "up_proj", "down_proj")


def shared_name(model: Model) -> str:
    """Module of the shared expert."""
    return "shared_expert" if model.model_type.startswith("qwen") else "shared_experts"


def expected_shapes(model: Model) -> Shapes:
    """Name → shape of every tensor that the forward pass of a model uses."""
    shapes: Shapes = {EMBEDDING: (model.vocab_size, model.hidden_size), FINAL_NORM: (model.hidden_size,)}
    if not model.tie_word_embeddings:
        shapes[HEAD] = (model.vocab_size, model.hidden_size)
    for index, kind in enumerate(model.stack):
        layer, prefix = model.layers[kind], f"model.layers.{index}."
        shapes |= {f"{prefix}{name}.weight": (model.hidden_size,) for name in norm_names(layer)}
        assert isinstance(layer.mixer, Attention | MLA) and layer.ffn is not None  # noqa: S101, PT018 - check_supported
        mixer = (
            _attention(layer.mixer, model.hidden_size) if isinstance(layer.mixer, Attention) else _latent(layer.mixer, model.hidden_size)
        )
        shapes |= {f"{prefix}self_attn.{name}": shape for name, shape in mixer}
        shapes |= {prefix + name: shape for name, shape in _feed_forward(model, layer.ffn)}
    return shapes


def _attention(mixer: Attention, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    widths = {"q_proj": mixer.heads * mixer.head_dim, "k_proj": mixer.kv_heads * mixer.head_dim, "v_proj": mixer.kv_heads * mixer.value_dim}
    for name, width in widths.items():
        yield f"{name}.weight", (width, hidden)
        if mixer.qkv_bias:
            yield f"{name}.bias", (width,)
    yield "o_proj.weight", (hidden, mixer.heads * mixer.value_dim)
    if mixer.o_bias:
        yield "o_proj.bias", (hidden,)
    if mixer.qk_norm == "head":
        yield "q_norm.weight", (mixer.head_dim,)
        yield "k_norm.weight", (mixer.head_dim,)


def _latent(mixer: MLA, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    width = mixer.heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
    if mixer.q_lora_rank is None:
        yield "q_proj.weight", (width, hidden)
    else:
        yield "q_a_proj.weight", (mixer.q_lora_rank, hidden)
        yield "q_a_layernorm.weight", (mixer.q_lora_rank,)
        yield "q_b_proj.weight", (width, mixer.q_lora_rank)
    yield "kv_a_proj_with_mqa.weight", (mixer.latent_dim, hidden)
    yield "kv_a_layernorm.weight", (mixer.kv_lora_rank,)
    yield "kv_b_proj.weight", (mixer.heads * (mixer.qk_nope_head_dim + mixer.v_head_dim), mixer.kv_lora_rank)
    yield "o_proj.weight", (hidden, mixer.heads * mixer.v_head_dim)
    if mixer.bias:
        yield "o_proj.bias", (hidden,)
        yield "kv_a_proj_with_mqa.bias", (mixer.latent_dim,)
        if mixer.q_lora_rank is not None:
            yield "q_a_proj.bias", (mixer.q_lora_rank,)


def _feed_forward(model: Model, ffn: FeedForward) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = model.hidden_size
    if not isinstance(ffn, MoE):
        yield from _gated("mlp.", ("gate_proj", "up_proj", "down_proj"), ffn.intermediate, hidden, bias=ffn.bias)
        return
    module, names = expert_names(model)
    yield f"{module}.gate.weight", (ffn.experts, hidden)
    if ffn.router_bias:
        yield f"{module}.gate.e_score_correction_bias", (ffn.experts,)
    for expert in range(ffn.experts):
        yield from _gated(f"{module}.experts.{expert}.", names, ffn.intermediate, hidden)
    if ffn.shared_intermediate:
        plain = ("gate_proj", "up_proj", "down_proj")
        yield from _gated(f"{module}.{shared_name(model)}.", plain, ffn.shared_intermediate, hidden)
    if ffn.shared_gate:
        yield f"{module}.shared_expert_gate.weight", (1, hidden)


def _gated(
    prefix: str, names: tuple[str, str, str], width: int, hidden: int, *, bias: bool = False
) -> Iterator[tuple[str, tuple[int, ...]]]:
    gate, up, down = names
    for name, shape in ((gate, (width, hidden)), (up, (width, hidden)), (down, (hidden, width))):
        yield f"{prefix}{name}.weight", shape
        if bias:
            yield f"{prefix}{name}.bias", shape[:1]


class SeededWeights:
    """Random weights that depend on seed and name only: matrices with variance 1 / inputs, embeddings of 0.02, norms 1, biases small.

    Equal on all CPUs (another device draws other numbers).
    """

    def __init__(self, shapes: Shapes, seed: int = 0, device: torch.device | str = "cpu", norm_offset: float = 0.0) -> None:
        self._shapes, self._seed, self._device = shapes, seed, torch.device(device)
        self._norm = 1.0 - norm_offset

    def tensor(self, name: str) -> Tensor:
        """See Weights; fp32."""
        shape = self._shapes[name]
        if len(shape) == 1 and name.endswith("norm.weight"):
            return torch.full(shape, self._norm, device=self._device)
        digest = hashlib.blake2b(f"{self._seed}:{name}".encode(), digest_size=7).digest()
        generator = torch.Generator(self._device).manual_seed(int.from_bytes(digest, "big"))
        scale = 0.02 if name == EMBEDDING or len(shape) == 1 else shape[-1] ** -0.5
        return torch.randn(shape, generator=generator, device=self._device) * scale


class FolderWeights:
    """Weights of a folder of safetensors. Names and shapes are checked when it is opened, before a tensor is read.

    Raises ProfileError that names file and tensor for what is missing, has another shape, would be left unused, or is not finite.
    """

    def __init__(self, folder: Path, shapes: Shapes, device: torch.device | str = "cpu") -> None:
        files = {path: _open(path, str(device)) for path in sorted(folder.glob("*.safetensors"))}
        if not files:
            raise ProfileError("has no *.safetensors file", path=folder)
        self._found = {name: (path, file) for path, file in files.items() for name in file.keys()}  # noqa: SIM118 - not a mapping
        missing = [name for name in shapes if name not in self._found]
        if missing:
            raise ProfileError(f"{len(missing)} tensors are missing, the first is {missing[0]}", path=folder)
        for name, (path, file) in self._found.items():
            if name not in shapes:
                if not _ignorable(name, shapes):
                    raise ProfileError(
                        "is a tensor that the forward pass would not use; is the configuration complete?", path=path, key=name
                    )
            elif (shape := tuple(file.get_slice(name).get_shape())) != shapes[name]:
                raise ProfileError(f"has shape {shape}; the configuration needs {shapes[name]}", path=path, key=name)

    def tensor(self, name: str) -> Tensor:
        """See Weights; in the type of the file."""
        path, file = self._found[name]
        tensor: Tensor = file.get_tensor(name)
        if not torch.isfinite(tensor).all():
            raise ProfileError("holds NaN or infinity; the file is damaged", path=path, key=name)
        return tensor


def _ignorable(name: str, shapes: Shapes) -> bool:
    """A buffer, a copy of tied embeddings, or a part that text decoding does not run (vision, multi-token prediction)."""
    if name.endswith("rotary_emb.inv_freq") or name == HEAD:
        return True
    layer = re.match(r"model\.layers\.\d+\.", name)
    return f"{layer[0]}input_layernorm.weight" not in shapes if layer else not name.startswith("model.")


def _open(file: Path, device: str) -> Any:
    try:
        import safetensors
    except ImportError:
        raise MissingDependencyError("safetensors", "gpu", "reading weights") from None
    try:
        return safetensors.safe_open(file, framework="pt", device=device)
    except (OSError, safetensors.SafetensorError) as error:
        raise ProfileError(f"cannot be read: {error}", path=file) from None
