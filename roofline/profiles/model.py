"""What is known of a model: a stack of layers, each a token mixer (attention and its kin) and a feed-forward part.

Geometry only: a profile says what a forward pass computes and what a checkpoint weighs, never how fast anything is.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, PrivateAttr, field_validator, model_validator

from roofline.dtypes import DType, dtype
from roofline.profiles.parts import KDA, MLA, MLP, Attention, Compressed, FeedForward, GatedDelta, Indexer, Mamba, Mamba2, Mixer, MoE, Spec

__all__ = [
    "KDA",
    "MLA",
    "MLP",
    "ROLES",
    "Attention",
    "Compressed",
    "Extra",
    "FeedForward",
    "GatedDelta",
    "Indexer",
    "Layer",
    "Mamba",
    "Mamba2",
    "Mixer",
    "MoE",
    "Model",
    "Spec",
    "expand_order",
]


class Layer(Spec):
    """One kind of decoder layer.

    norms: hidden-sized normalisations (2 in pre-norm models, 4 with post-norms, 1 when attention and feed-forward run in
    parallel on one norm). parallel: attention and feed-forward read the same input and their outputs are added, so tensor
    parallelism needs one all-reduce, not two. streams: residual streams of hyper-connections (1: an ordinary residual).
    vectors: elements of small tensors that fit no other field, by name.
    weights: storage formats that differ from the model's, by role or tensor name.
    """

    mixer: Mixer | None = None
    ffn: FeedForward | None = None
    norms: NonNegativeInt = 2
    norm_bias: bool = False
    parallel: bool = False
    streams: PositiveInt = 1
    vectors: dict[str, PositiveInt] = Field(default_factory=dict)
    weights: dict[str, str] = Field(default_factory=dict)


class Extra(Spec):
    """A part of the checkpoint that text decoding does not run: a vision tower, a multi-token-prediction block.

    order: layers of the model's kinds that belong to it, as in Model.order. parameters, bytes: what it has beside those layers
    (projections, a tower). loaded: engines load it into device memory (a vision tower is, MTP only for speculation).
    """

    name: str
    order: str = ""
    parameters: NonNegativeInt = 0
    bytes: NonNegativeFloat = 0
    loaded: bool = True
    note: str = ""

    @property
    def stack(self) -> tuple[str, ...]:
        """Names of its layer kinds, one entry per layer."""
        return expand_order(self.order) if self.order else ()


ROLES: tuple[str, ...] = (
    "attention", "mlp", "experts", "shared_experts", "indexer", "mixer",  # follow `default`, the checkpoint's weight format
    "embedding", "lm_head", "router", "norm", "bias", "router_bias", "streams",  # stay at the model's dtype unless named
)  # fmt: skip
_UNQUANTISED = frozenset(ROLES[6:])


class Model(Spec):
    """A decoder-only language model.

    layers: kinds of layers by name; order: how they are stacked, as text: "3*dense + 58*moe", "10*(5*local + global) + 2*local".
    dtype: type of activations and of weights that are not quantised. weights: storage formats by role (`default` for the
    matrices of the layers; roles in ROLES; a tensor's own name wins over its role). hf_ids: hub names, which are aliases.
    vectors: elements of small tensors outside the layers that fit no other field, by name. checkpoint_bytes: exact bytes by
    role as the files of the checkpoint have them, where they were looked at (empty: the formats say it).
    """

    name: str
    hf_ids: Annotated[tuple[str, ...], Field(strict=False)] = ()
    aliases: Annotated[tuple[str, ...], Field(strict=False)] = ()
    model_type: str
    source: str
    hidden_size: PositiveInt
    vocab_size: PositiveInt
    max_position_embeddings: PositiveInt | None = None
    tie_word_embeddings: bool = False
    lm_head_bias: bool = False
    learned_positions: NonNegativeInt = 0
    embedding_norm: bool = False
    final_norm: bool = True
    norm_bias: bool = False
    vectors: dict[str, PositiveInt] = Field(default_factory=dict)
    dtype: str = "bf16"
    weights: dict[str, str] = Field(default_factory=dict)
    checkpoint_bytes: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    kv_dtype: str | None = None
    layers: dict[str, Layer]
    order: str
    extras: Annotated[tuple[Extra, ...], Field(strict=False)] = ()
    assumptions: Annotated[tuple[str, ...], Field(strict=False)] = ()

    _path: Path | None = PrivateAttr(None)

    @field_validator("weights")
    @classmethod
    def _known_formats(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value.values():
            dtype(name)
        return value

    @field_validator("order")
    @classmethod
    def _order_can_be_read(cls, value: str) -> str:
        expand_order(value)
        return value

    @model_validator(mode="after")
    def _order_names_layers(self) -> Model:
        used = set(self.stack).union(*(extra.stack for extra in self.extras))
        if unknown := used - set(self.layers):
            raise ValueError(f"order names layers that do not exist: {', '.join(sorted(unknown))}; layers: {', '.join(self.layers)}")
        if unused := set(self.layers) - used:
            raise ValueError(f"layers never used in order: {', '.join(sorted(unused))}")
        return self

    @property
    def stack(self) -> tuple[str, ...]:
        """Names of the layer kinds, first layer first, one entry per layer."""
        return expand_order(self.order)

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.stack)

    def weight_dtype(self, role: str, name: str = "", layer: Layer | None = None, override: str | None = None) -> DType:
        """Storage format of a tensor by its role and name; a layer's own entry wins over the model's.

        override: a format for the matrices of the layers in place of the checkpoint's (`--weights fp8`); embeddings, head,
        router, norms and biases keep the model's dtype then.
        """
        if override is not None:
            found = {} if role in _UNQUANTISED else {"default": override}
        else:
            found = self.weights | (layer.weights if layer else {})
        for key in (name, role):
            if key in found:
                return dtype(found[key])
        if role in ("router_bias", "streams"):
            return dtype("fp32")
        return dtype(self.dtype if role in _UNQUANTISED else found.get("default", self.dtype))

    def as_yaml_data(self) -> dict[str, Any]:
        """Plain data of the fields that differ from their defaults, for writing a profile."""
        data = self.model_dump(mode="json", exclude_defaults=True)
        for name, layer in self.layers.items():
            for part in ("mixer", "ffn"):
                if (spec := getattr(layer, part)) is not None:
                    data["layers"][name][part] = {"kind": spec.kind} | data["layers"][name][part]
        return data


MAX_LAYERS = 4096
_TOKEN = re.compile(r"\s*(?:(\d{1,9})\s*\*|([A-Za-z_][\w.-]*)|([()+]))")


@lru_cache(maxsize=1024)
def expand_order(text: str) -> tuple[str, ...]:
    """ "2*(a + 3*b) + c" → (a, b, b, b, a, b, b, b, c). Raises ValueError that shows the place of a mistake."""
    stack: list[list[str]] = [[]]
    repeats: list[int] = []
    pending, position, expect_term = 1, 0, True
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if not match:
            raise ValueError(f"cannot read {text[position:].strip()!r} (write like '3*dense + 58*moe')")
        number, name, sign = match.groups()
        if (number or name or sign == "(") and not expect_term:
            raise ValueError(f"'+' is missing before {text[position:].strip()!r}")
        if number:
            pending *= int(number)
        elif name:
            stack[-1].extend(_repeated([name], pending))
            pending, expect_term = 1, False
        elif sign == "(":
            stack.append([])
            repeats.append(pending)
            pending = 1
        elif sign == "+":
            if expect_term:
                raise ValueError("a term is missing before '+'")
            expect_term = True
        else:
            if not repeats or expect_term:
                raise ValueError("')' without a term or without '('")
            inner = stack.pop()
            stack[-1].extend(_repeated(inner, repeats.pop()))
        position = match.end()
    if repeats or expect_term or pending != 1:
        raise ValueError("a ')' or a term is missing at the end")
    return tuple(_repeated(stack[0], 1))


def _repeated(names: list[str], times: int) -> list[str]:
    if not 1 <= times * len(names) <= MAX_LAYERS:
        raise ValueError(f"gives {times * len(names)} layers; 1 to {MAX_LAYERS} are possible")
    return names * times
