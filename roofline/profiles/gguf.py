"""GGUF files: the header of one file gives geometry and the true bytes of each tensor; weights and vocabularies are skipped."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from roofline.errors import ProfileError
from roofline.profiles.hf import config, jsonfile
from roofline.profiles.model import Model

MAX_HEADER = 256 * 2**20  # vocabularies of 262,144 words with scores and merges have 20 MB
_MAX_TENSORS, _MAX_KEYS, _MAX_TEXT = 200_000, 100_000, 2**20

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# type number: (name, elements per block, bytes per block), from ggml's table of types
TYPES: dict[int, tuple[str, int, int]] = {
    0: ("f32", 1, 4), 1: ("f16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20), 6: ("q5_0", 32, 22), 7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34), 9: ("q8_1", 32, 36), 10: ("q2_k", 256, 84), 11: ("q3_k", 256, 110), 12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176), 14: ("q6_k", 256, 210), 15: ("q8_k", 256, 292), 16: ("iq2_xxs", 256, 66), 17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98), 19: ("iq1_s", 256, 50), 20: ("iq4_nl", 32, 18), 21: ("iq3_s", 256, 110), 22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136), 24: ("i8", 1, 1), 25: ("i16", 1, 2), 26: ("i32", 1, 4), 27: ("i64", 1, 8), 28: ("f64", 1, 8),
    29: ("iq1_m", 256, 56), 30: ("bf16", 1, 2), 34: ("tq1_0", 256, 54), 35: ("tq2_0", 256, 66), 39: ("mxfp4", 32, 17),
}  # fmt: skip


@dataclass(frozen=True)
class GgufTensor:
    """One tensor: its ggml type, elements and bytes."""

    name: str
    type: str
    elements: int
    bytes: int


@dataclass
class _Header:
    keys: dict[str, Any] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)  # of arrays, whose items are skipped
    tensors: list[GgufTensor] = field(default_factory=list)


class _Reader:
    """Reads numbers and texts up to a limit; whatever is cut short or absurd raises ProfileError."""

    def __init__(self, stream: BinaryIO, path: Path, size: int) -> None:
        self.stream, self.path, self.left = stream, path, min(size, MAX_HEADER)

    def fail(self, message: str) -> ProfileError:
        return ProfileError(f"{message} (at byte {self.stream.tell():,})", path=self.path)

    def take(self, count: int) -> bytes:
        self.spend(count)
        data = self.stream.read(count)
        if len(data) < count:
            raise self.fail("the file is cut short")
        return data

    def spend(self, count: int) -> None:
        if count > self.left:
            raise self.fail(f"the header claims {count:,} more bytes than the file has or than are read ({MAX_HEADER:,})")
        self.left -= count

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        length = self.number("Q")
        if length > _MAX_TEXT:
            raise self.fail(f"a text of {length:,} bytes in the header")
        return self.take(length).decode("utf-8", errors="replace")

    def skip(self, count: int) -> None:
        self.spend(count)
        self.stream.seek(count, 1)


def read_header(path: Path) -> _Header:
    """Keys and tensors of a GGUF file, in bounded memory. Raises ProfileError."""
    try:
        size = path.stat().st_size
        if not path.is_file():  # opening a named pipe would wait for its writer
            raise ProfileError("is not a regular file; name a .gguf file", path=path)
        with path.open("rb") as stream:
            reader = _Reader(stream, path, size)
            if reader.take(4) != b"GGUF":
                raise ProfileError("is no GGUF file (it does not start with GGUF)", path=path)
            version = reader.number("I")
            if version not in (2, 3):
                raise ProfileError(f"is GGUF version {version}; supported: 2 and 3 (little-endian)", path=path)
            tensors, keys = reader.number("Q"), reader.number("Q")
            if tensors > _MAX_TENSORS or keys > _MAX_KEYS:
                raise ProfileError(f"claims {tensors:,} tensors and {keys:,} keys: it is damaged", path=path)
            header = _Header()
            for _ in range(keys):
                name = reader.text()
                header.keys[name] = _value(reader, reader.number("I"), header, name)
            for _ in range(tensors):
                header.tensors.append(_tensor(reader))
    except OSError as error:
        raise ProfileError(f"cannot be read: {error.strerror or error}", path=path) from None
    if sum(tensor.bytes for tensor in header.tensors) > size:
        raise ProfileError("is cut short: its tensors need more bytes than the file has", path=path)
    return header


def _value(reader: _Reader, kind: int, header: _Header, name: str, depth: int = 0) -> Any:
    if kind in _SCALARS:
        return reader.number(_SCALARS[kind])
    if kind == _STRING:
        return reader.text()
    if kind != _ARRAY or depth > 2:
        raise reader.fail(f"the key {name!r} has the unknown type {kind}")
    inner, count = reader.number("I"), reader.number("Q")
    header.lengths[name] = count
    if inner in _SCALARS:
        width = struct.calcsize("<" + _SCALARS[inner])
        if count <= 4096:
            return [reader.number(_SCALARS[inner]) for _ in range(count)]
        reader.skip(width * count)
        return None
    if count > 2**24:
        raise reader.fail(f"the key {name!r} claims {count:,} items")
    for _ in range(count):
        if inner == _STRING:
            reader.skip(reader.number("Q"))
        else:
            _value(reader, inner, header, name, depth + 1)
    return None


def _tensor(reader: _Reader) -> GgufTensor:
    name, dimensions = reader.text(), reader.number("I")
    if dimensions > 8:
        raise reader.fail(f"the tensor {name!r} claims {dimensions} dimensions")
    shape = [reader.number("Q") for _ in range(dimensions)]
    kind = reader.number("I")
    reader.number("Q")  # where its data starts
    if kind not in TYPES:
        raise reader.fail(f"the tensor {name!r} has the unknown type {kind}; known: {', '.join(t[0] for t in TYPES.values())}")
    label, block, size = TYPES[kind]
    elements = math.prod(shape)
    if shape and shape[0] % block:
        raise reader.fail(f"the tensor {name!r} has rows of {shape[0]} elements, but {label} stores blocks of {block}")
    return GgufTensor(name, label, elements, elements // block * size)


_ROLES = (
    ("_exps.", "experts"), ("_shexp.", "shared_experts"), ("ffn_gate_inp", "router"), ("_norm", "norm"), ("exp_probs_b", "router_bias"),
    ("attn_", "attention"), ("ffn_", "mlp"),
)  # fmt: skip


def role(name: str) -> str:
    """The ledger's role of a GGUF tensor."""
    if name.startswith("token_embd."):
        return "embedding"
    if name.startswith("output."):
        return "lm_head"
    return next((found for part, found in _ROLES if part in name), "norm")


def _common(get: Callable[..., Any], header: _Header) -> dict[str, Any]:
    vocab = get("vocab_size", None) or header.lengths.get("tokenizer.ggml.tokens")
    return {
        "num_hidden_layers": get("block_count"),
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "head_dim": get("attention.key_length", None),
        "max_position_embeddings": get("context_length", None),
        "vocab_size": vocab,
        "tie_word_embeddings": not any(tensor.name == "output.weight" for tensor in header.tensors),
        "torch_dtype": "bfloat16",
    }


def _dense(model_type: str) -> Callable[[Callable[..., Any], _Header], dict[str, Any]]:
    return lambda get, header: _common(get, header) | {"model_type": model_type}


def _llama(get: Callable[..., Any], header: _Header) -> dict[str, Any]:
    """Llama, and Mixtral, which GGUF calls llama too."""
    found = _common(get, header) | {"model_type": "llama"}
    if experts := get("expert_count", None):
        found |= {"model_type": "mixtral", "num_local_experts": experts, "num_experts_per_tok": get("expert_used_count")}
    return found


def _qwen3moe(get: Callable[..., Any], header: _Header) -> dict[str, Any]:
    return _common(get, header) | {
        "model_type": "qwen3_moe",
        "num_experts": get("expert_count"),
        "num_experts_per_tok": get("expert_used_count"),
        "moe_intermediate_size": get("expert_feed_forward_length"),
        "decoder_sparse_step": 1,
    }


def _windowed(model_type: str) -> Callable[[Callable[..., Any], _Header], dict[str, Any]]:
    return lambda get, header: _common(get, header) | {"model_type": model_type, "sliding_window": get("attention.sliding_window")}


_ARCHITECTURES: dict[str, Callable[[Callable[..., Any], _Header], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _dense("qwen2"),
    "qwen3": _dense("qwen3"),
    "qwen3moe": _qwen3moe,
    "gemma": _dense("gemma"),
    "gemma2": _windowed("gemma2"),
    "gemma3": _windowed("gemma3_text"),
    "phi3": _dense("phi3"),
}


def load(path: Path) -> Model:
    """The model of a GGUF file: geometry from its keys, bytes from its tensors (K-quants at their true bits).

    Raises ProfileError for a file that is damaged, split into parts, or of an architecture that is not supported.
    """
    header = read_header(path)
    architecture = header.keys.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise ProfileError(
            f"has the architecture {architecture!r}; supported: {', '.join(_ARCHITECTURES)}", path=path, key="general.architecture"
        )
    if (parts := header.keys.get("split.count", 0)) > 1:
        raise ProfileError(f"is one of {parts} parts; join them with llama-gguf-split --merge", path=path, key="split.count")

    def get(name: str, *default: Any) -> Any:
        value = header.keys.get(f"{architecture}.{name}", *default)
        if value is None and not default:
            raise ProfileError("the key is missing", path=path, key=f"{architecture}.{name}")
        return value

    facts = _ARCHITECTURES[architecture](get, header)
    text = json.dumps({key: value for key, value in facts.items() if value is not None})
    model = config.read(jsonfile.parse(text, path), str(header.keys.get("general.name") or path.stem))
    return _with_types(model, header, path)


def _with_types(model: Model, header: _Header, path: Path) -> Model:
    """The model with the mean bits of each role and the exact bytes of the file."""
    elements: dict[str, int] = {}
    stored: dict[str, float] = {}
    for tensor in header.tensors:
        elements[role(tensor.name)] = elements.get(role(tensor.name), 0) + tensor.elements
        stored[role(tensor.name)] = stored.get(role(tensor.name), 0.0) + tensor.bytes
    weights = {name: f"w{8 * stored[name] / count!r}" for name, count in elements.items() if count}
    update = {"weights": weights, "checkpoint_bytes": stored, "source": f"header of {path.name}"}
    return model.model_copy(update=update)
