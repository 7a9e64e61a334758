"""Model profiles on disk: read any form that a model comes in, write the YAML form."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from roofline.errors import ProfileError
from roofline.profiles import yamlfile
from roofline.profiles.model import Model


def load(path: Path | str) -> Model:
    """The model in a YAML profile, a config.json, a folder that holds one, a .safetensors file beside one, or a .gguf file.

    Raises ProfileError (file:line:key) for anything that cannot be used.
    """
    path = Path(path)
    if path.suffix in (".yaml", ".yml"):
        return yamlfile.read(path).validate(Model)
    if not path.exists():
        raise ProfileError("there is no such file or folder", path=path)
    if path.suffix == ".gguf":
        from roofline.profiles import gguf

        return gguf.load(path)
    from roofline.profiles.hf import config

    if path.suffix == ".safetensors":
        if not (path.parent / "config.json").exists():
            raise ProfileError("has no config.json beside it; weights alone do not say what the model computes", path=path)
        path = path.parent
    if path.is_dir() and not (path / "config.json").exists():
        raise ProfileError("is a folder without a config.json; name a model's folder, its config.json or a YAML profile", path=path)
    if path.is_dir() or path.suffix == ".json":
        return config.load(path)
    raise ProfileError("is no YAML profile, config.json, folder with one, .safetensors or .gguf file", path=path)


def dump(model: Model, *, comment: str = "") -> str:
    """The YAML text of a model: what differs from the defaults, one line per part. `load` reads it back as an equal model."""
    data = model.as_yaml_data()
    lines = [f"# {line}" for line in comment.splitlines()]
    for key, value in data.items():
        if key == "layers":
            lines.append("layers:")
            for name, layer in value.items():
                lines.append(f"  {name}:")
                lines += [f"    {part}: {_flow(content)}" for part, content in layer.items()]
        elif key in ("extras", "assumptions"):
            lines.append(f"{key}:")
            lines += [f"  - {_flow(item)}" for item in value]
        else:
            lines.append(f"{key}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    """A value in one line of YAML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{int(value)}" if float(value).is_integer() else repr(value)
    return str(value) if _plain(str(value)) else json.dumps(str(value), ensure_ascii=False)


def _plain(text: str) -> bool:
    """Whether strict YAML reads the text back as itself without quotes, in a flow or at the top."""
    if not text or text != text.strip() or set(text) & set("[]{},:#&*!|>'\"%@`?\n") - set(_ok(text)):
        return False
    try:
        return yamlfile.parse(f"a: [{text}]", Path("-")).data == {"a": [text]}
    except ProfileError:
        return False


def _ok(text: str) -> Iterable[str]:
    """Signs that are safe where they stand: * and ( inside an order."""
    return "*" if not text.startswith("*") else ""
