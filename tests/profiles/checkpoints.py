"""Writes safetensors files as each quantisation recipe stores them: real headers, sparse data."""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WIDTH = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "U8": 1, "I8": 1, "I32": 4, "I64": 8}


@dataclass
class Files:
    """Tensors of a checkpoint; small: bytes of those that a configuration alone does not tell (scales per tensor, indices)."""

    tensors: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    small: int = 0

    def add(self, name: str, dtype: str, *shape: int, small: bool = False) -> None:
        self.tensors[name] = (dtype, list(shape))
        if small:
            self.small += math.prod(shape) * WIDTH[dtype]

    @property
    def total(self) -> int:
        return sum(math.prod(shape) * WIDTH[dtype] for dtype, shape in self.tensors.values())

    def write(self, folder: Path, config: dict[str, Any], shards: int = 2) -> None:
        """config.json and `shards` files with an index."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        names, weight_map = list(self.tensors), {}
        for shard in range(shards):
            file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
            header, offset = {"__metadata__": {"format": "pt"}}, 0
            for name in names[shard::shards]:
                dtype, shape = self.tensors[name]
                size = math.prod(shape) * WIDTH[dtype]
                header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}  # type: ignore[assignment]
                offset, weight_map[name] = offset + size, file
            raw = json.dumps(header).encode()
            with (folder / file).open("wb") as stream:
                stream.write(struct.pack("<Q", len(raw)) + raw)
            os.truncate(folder / file, 8 + len(raw) + offset)
        index = {"metadata": {"total_size": self.total}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def linear(files: Files, name: str, n: int, k: int, recipe: str) -> None:
    """One linear layer (n outputs, k inputs) as `recipe` stores it."""
    if recipe == "plain":
        files.add(f"{name}.weight", "BF16", n, k)
    elif recipe == "fp8_block":
        files.add(f"{name}.weight", "F8_E4M3", n, k)
        files.add(f"{name}.weight_scale_inv", "F32", math.ceil(n / 128), math.ceil(k / 128))
    elif recipe == "fp8_static":
        files.add(f"{name}.weight", "F8_E4M3", n, k)
        files.add(f"{name}.weight_scale", "F32", small=True)
        files.add(f"{name}.input_scale", "F32", small=True)
    elif recipe == "awq":
        files.add(f"{name}.qweight", "I32", k, n // 8)
        files.add(f"{name}.qzeros", "I32", k // 128, n // 8)
        files.add(f"{name}.scales", "F16", k // 128, n)
    elif recipe == "gptq":
        files.add(f"{name}.qweight", "I32", k // 8, n)
        files.add(f"{name}.qzeros", "I32", k // 128, n // 8)
        files.add(f"{name}.scales", "F16", k // 128, n)
        files.add(f"{name}.g_idx", "I32", k, small=True)
    elif recipe == "packed":
        files.add(f"{name}.weight_packed", "I32", n, k // 8)
        files.add(f"{name}.weight_scale", "BF16", n, k // 32)
        files.add(f"{name}.weight_shape", "I64", 2, small=True)
    elif recipe == "nvfp4":
        files.add(f"{name}.weight", "U8", n, k // 2)
        files.add(f"{name}.weight_scale", "F8_E4M3", n, k // 16)
        files.add(f"{name}.weight_scale_2", "F32", small=True)
        files.add(f"{name}.input_scale", "F32", small=True)
    else:
        raise ValueError(recipe)


def llama(recipe: str, config: dict[str, Any], *, plain_layers: tuple[int, ...] = (), kv_scales: bool = False) -> Files:
    """A dense model of Llama's shape, every linear layer but the head in `recipe`."""
    files = Files()
    h, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    width = h // config["num_attention_heads"]
    kv = config["num_key_value_heads"] * width
    files.add("model.embed_tokens.weight", "BF16", vocab, h)
    for i in range(config["num_hidden_layers"]):
        how, prefix = "plain" if i in plain_layers else recipe, f"model.layers.{i}."
        for name, n, k in (("q_proj", h, h), ("k_proj", kv, h), ("v_proj", kv, h), ("o_proj", h, h)):
            linear(files, f"{prefix}self_attn.{name}", n, k, how)
        for name, n, k in (("gate_proj", inner, h), ("up_proj", inner, h), ("down_proj", h, inner)):
            linear(files, f"{prefix}mlp.{name}", n, k, how)
        for name in ("input_layernorm", "post_attention_layernorm"):
            files.add(f"{prefix}{name}.weight", "BF16", h)
        if kv_scales:
            files.add(f"{prefix}self_attn.k_proj.k_scale", "F32", small=True)
            files.add(f"{prefix}self_attn.v_proj.v_scale", "F32", small=True)
    files.add("model.norm.weight", "BF16", h)
    files.add("lm_head.weight", "BF16", vocab, h)
    return files
