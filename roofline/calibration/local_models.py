"""What a batch-1 row does not say of its model: layers, active share, and what its attention reads, by the model's name.

Facts are those of the published configurations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from roofline.timing.forms.base import Array


@dataclass(frozen=True)
class LocalModel:
    """layers; active: share of the weights that one token reads; kv_heads_width: KV heads × head width of a layer; window: positions
    that the share `windowed` of the layers sees at most."""

    layers: int = 32
    active: float = 1.0
    kv_width: int = 1024
    window: float = np.inf
    windowed: float = 0.0

    def kv_bytes(self, context: float) -> float:
        """Bytes of a 16-bit cache that one token reads after `context` others: K and V of what each layer sees."""
        seen = (1 - self.windowed) * context + self.windowed * min(context, self.window)
        return 4.0 * self.kv_width * self.layers * seen


_MODELS = (  # the first pattern in a name decides
    (r"gpt-oss-20b", LocalModel(24, 3.6 / 20.9, 512, 128, 0.5)),
    (r"gpt-oss-120b", LocalModel(36, 5.1 / 116.8, 512, 128, 0.5)),
    (r"30b-a3b", LocalModel(48, 3.3 / 30.5, 512)),
    (r"235b", LocalModel(94, 22 / 235, 512)),
    (r"scout", LocalModel(48, 17 / 109, 1024, 8192, 0.75)),
    (r"hunyuan-a13b", LocalModel(32, 13 / 80.4)),
    (r"dots", LocalModel(62, 14 / 142.8, 4096)),
    (r"glm-4.5-air", LocalModel(46, 12 / 110)),
    (r"mixtral-8x7b", LocalModel(32, 12.9 / 46.7)),
    (r"405b", LocalModel(126)),
    (r"70b", LocalModel(80)),
    (r"34b", LocalModel(48)),
    (r"qwen3-32b", LocalModel(64)),
    (r"gemma-3-27b", LocalModel(62, 1.0, 2048, 1024, 5 / 6)),
    (r"gemma-3-4b", LocalModel(34, 1.0, 1024, 1024, 5 / 6)),
    (r"mistral-small", LocalModel(40)),
    (r"30b", LocalModel(60, 1.0, 6656)),
    (r"13b", LocalModel(40, 1.0, 5120)),
    (r"qwen3-4b", LocalModel(36)),
    (r"qwen2.5-coder-7b", LocalModel(28, 1.0, 512)),
    (r"llama-2-7b|llama-7b", LocalModel(32, 1.0, 4096)),
)
_USUAL = LocalModel()  # 32 layers, 8 KV heads of 128, all weights: most models of 7 or 8 billion


def local_model(name: str) -> LocalModel:
    """The facts of a model by its name as tables spell it; those of a usual small model for an unknown one."""
    lower = name.lower()
    return next((model for pattern, model in _MODELS if re.search(pattern, lower)), _USUAL)


def kv_bytes(models: Iterable[LocalModel], context: Array) -> Array:
    """kv_bytes of each model at its context."""
    return np.array([model.kv_bytes(float(tokens)) for model, tokens in zip(models, context, strict=True)])
