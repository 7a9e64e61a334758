"""What a checkpoint's files say they hold: safetensors headers, read without the weights and without trusting a length."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from roofline.errors import ProfileError
from roofline.profiles.hf import jsonfile
from roofline.profiles.hf.draft import Draft
from roofline.profiles.hf.tensornames import role_of

MAX_HEADER = 64 * 2**20  # the largest real one (a shard of a 1T model) has 3 MB
MAX_INDEX = 64 * 2**20
INDEX = "model.safetensors.index.json"

_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6,
    "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """One stored tensor. bytes: of its data in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


def read_header(path: Path) -> list[Tensor]:
    """The tensors of one safetensors file. Reads the header only, at most 64 MiB of it, whatever length it claims.

    Raises ProfileError for a header that does not fit the file, is not JSON, or contradicts itself.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            start = stream.read(8)
            if len(start) < 8:
                raise ProfileError("is too short for a safetensors file", path=path)
            (length,) = struct.unpack("<Q", start)
            if length > size - 8:
                raise ProfileError(f"claims a header of {length:,} bytes, but the file has {size:,}: it is cut short or damaged", path=path)
            if length > MAX_HEADER:
                raise ProfileError(f"has a header of {length:,} bytes; at most {MAX_HEADER:,} are read", path=path)
            raw = stream.read(length)
    except OSError as error:
        raise ProfileError(f"cannot be read: {error.strerror or error}", path=path) from None
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        raise ProfileError("has a header that is not valid JSON: it is damaged or no safetensors file", path=path) from None
    if not isinstance(data, dict):
        raise ProfileError("has a header that is not a JSON object", path=path)
    room = size - 8 - length
    return [_tensor(path, name, entry, room) for name, entry in data.items() if name != "__metadata__"]


def _tensor(path: Path, name: str, entry: object, room: int) -> Tensor:
    def fail(message: str) -> ProfileError:
        return ProfileError(message, path=path, key=name)

    if not isinstance(entry, Mapping):
        raise fail("must be an object with dtype, shape and data_offsets")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise fail(f"has the unknown dtype {dtype!r}; known: {', '.join(_BITS)}")
    if not _whole_numbers(shape) or not _whole_numbers(offsets) or len(offsets) != 2:
        raise fail("shape and data_offsets must be lists of whole numbers")
    begin, end = offsets
    if not begin <= end <= room:
        raise fail(f"its data_offsets {begin:,}–{end:,} are outside of the {room:,} bytes of data in the file")
    if math.ceil(math.prod(shape) * _BITS[dtype] / 8) != end - begin:
        raise fail(f"{dtype} of shape {list(shape)} does not have the {end - begin:,} bytes that its data_offsets give")
    return Tensor(name, dtype, tuple(shape), end - begin)


def _whole_numbers(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 2**62 for x in value)


def checkpoint(folder: Path) -> list[Tensor]:
    """All tensors of the safetensors files in a folder; [] when there are none, or when files of the index are missing."""
    index = folder / INDEX
    if index.is_file():
        file = jsonfile.read(index, max_bytes=MAX_INDEX)
        names = file.data.get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) and Path(name).name == name for name in names.values()):
            raise file.error("must give the file name of each tensor", ("weight_map",))
        files = [folder / name for name in dict.fromkeys(names.values())]
        if not all(path.is_file() for path in files):
            return []
    else:
        files = sorted(folder.glob("*.safetensors"))
    tensors = [tensor for path in files for tensor in read_header(path)]
    names_seen = {tensor.name for tensor in tensors}
    if len(names_seen) < len(tensors):
        raise ProfileError("several safetensors files hold the same tensor; give a folder with one copy of the checkpoint", path=folder)
    return tensors


def bytes_by_role(tensors: Iterable[Tensor], draft: Draft) -> tuple[dict[str, float], float]:
    """Bytes of the text model by the ledger's roles, and the bytes of everything else (vision towers, MTP)."""
    layer = re.compile(re.escape(draft.prefix) + r"(\d+)\.(.+)")
    modules = [(re.compile(re.escape(path).replace(r"\*", r"\d+") + r"(?:\..+|_.+)?"), name) for name, path in draft.modules.items()]
    outer = {path: name for name, path in draft.outer_modules.items()}
    roots = {draft.prefix.split(".layers.")[0], draft.prefix.removesuffix(".").rpartition(".")[0]}
    roles: dict[str, float] = {}
    rest = 0.0
    for tensor in tensors:
        match, module = layer.fullmatch(tensor.name), tensor.name.rpartition(".")[0]
        if match and int(match[1]) < len(draft.layers):
            named = next((name for pattern, name in modules if pattern.fullmatch(match[2])), None)
            role = "norm" if named is None else role_of(named, draft.layers[int(match[1])][1])
        elif module in outer:
            tied = outer[module] == "lm_head" and draft.outer["tie_word_embeddings"]
            role = "" if tied else "embedding" if outer[module] == "embed_tokens" else "lm_head"
        elif not match and module.rpartition(".")[0] in roots:
            role = "norm"  # the final norm and its like, beside the layers
        else:
            role = ""
        if role:
            roles[role] = roles.get(role, 0.0) + tensor.bytes
        else:
            rest += tensor.bytes
    return roles, rest
