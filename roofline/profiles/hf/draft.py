"""From layers read one by one to a Model: equal layers get one name, and the stack becomes a short text."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from roofline.profiles.hf.jsonfile import JsonFile
from roofline.profiles.hf.keys import Keys
from roofline.profiles.model import Extra, Layer, Model


@dataclass
class ExtraDraft:
    """A part beside the decoder stack. layers: as in Draft.layers; parameters, bytes: what it has beside them.

    prefix: module path of its layers; None: they count on after the decoder's.
    """

    name: str
    layers: list[tuple[str, Layer]] = field(default_factory=list)
    parameters: int = 0
    bytes: float = 0.0
    loaded: bool = True
    note: str = ""
    prefix: str | None = None


@dataclass
class Draft:
    """A model as a configuration describes it.

    layers: (kind, layer) from first to last; outer: further fields of Model. modules: tensor name of the ledger → module path
    in the checkpoint, below `prefix`{layer number}. outer_modules: the same for embedding and head. recipe: a
    quantization_config that the family found in an inner object. fixed: formats that a recipe leaves as they are, by tensor
    name (None: not quantised).
    """

    layers: list[tuple[str, Layer]]
    outer: dict[str, Any]
    extras: list[ExtraDraft] = field(default_factory=list)
    prefix: str = "model.layers."
    modules: dict[str, str] = field(default_factory=dict)
    recipe: Keys | None = None
    fixed: dict[str, str | None] = field(default_factory=dict)
    outer_modules: dict[str, str] = field(default_factory=lambda: {"embed_tokens": "model.embed_tokens", "lm_head": "lm_head"})


def assemble(draft: Draft, file: JsonFile, name: str, model_type: str, assumptions: Sequence[str]) -> Model:
    """The Model of a draft. Raises ProfileError for a geometry that contradicts itself."""
    named = _names(draft.layers + [layer for extra in draft.extras for layer in extra.layers])
    order = compress([named[_key(layer)] for layer in draft.layers])
    extras = [
        Extra(
            name=extra.name,
            order=compress([named[_key(layer)] for layer in extra.layers]) if extra.layers else "",
            parameters=extra.parameters,
            bytes=extra.bytes,
            loaded=extra.loaded,
            note=extra.note,
        )
        for extra in draft.extras
    ]
    layers = {label: layer for (kind, layer) in draft.layers for label in [named[_key((kind, layer))]]}
    layers |= {named[_key(pair)]: pair[1] for extra in draft.extras for pair in extra.layers}
    fields = {"name": name, "model_type": model_type, "layers": layers, "order": order, "extras": extras, "assumptions": tuple(assumptions)}
    try:
        return Model(**{**fields, "source": f"config.json of {name}", **draft.outer})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise file.error(first["msg"].removeprefix("Value error, ")) from None


def _key(pair: tuple[str, Layer]) -> str:
    return pair[0] + pair[1].model_dump_json()


def _names(layers: list[tuple[str, Layer]]) -> dict[str, str]:
    """A name for every different layer: its kind, numbered when several differ (moe, moe_2)."""
    found: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for pair in layers:
        if (key := _key(pair)) not in found:
            seen[pair[0]] += 1
            found[key] = pair[0] if seen[pair[0]] == 1 else f"{pair[0]}_{seen[pair[0]]}"
    return found


def compress(names: Sequence[str]) -> str:
    """A short text of the form "3*dense + 9*(5*local + global)" that expands to `names`: the shortest found by periods."""
    return _compressed(tuple(names))


@lru_cache(maxsize=4096)
def _compressed(names: tuple[str, ...]) -> str:
    best = _runs(names)
    for start in range(min(len(names), 6)):
        for period in range(2, min((len(names) - start) // 2, 24) + 1):
            block = names[start : start + period]
            times = 1
            while names[start + times * period : start + (times + 1) * period] == block:
                times += 1
            if times > 1 and len(set(block)) > 1:
                rest = names[start + times * period :]
                parts = [_runs(names[:start]), f"{times}*({_runs(block)})", _compressed(rest) if rest else ""]
                best = min(best, " + ".join(part for part in parts if part), key=len)
    return best


def _runs(names: Sequence[str]) -> str:
    runs: list[tuple[str, int]] = []
    for name in names:
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + 1)
        else:
            runs.append((name, 1))
    return " + ".join(name if n == 1 else f"{n}*{name}" for name, n in runs)


def model_name(path: Path) -> str:
    """A name for a model read from a folder: the folder's, as hub caches and checkouts call it."""
    name = os.fsencode((path.parent if path.suffix == ".json" else path).resolve().name)
    return name.decode("utf-8", "replace").replace("--", "/")  # whatever the locale made of the bytes
