"""JSON files of checkpoints: bounded reading, duplicate keys refused, and the line of any key when an error needs it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roofline.errors import ProfileError

MAX_BYTES = 4 * 2**20  # the largest real config.json (a mixed recipe that lists every expert) has 0.6 MB
Loc = tuple[str | int, ...]
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class JsonFile:
    """A JSON object with its text, so that a place in it can be turned into a line."""

    path: Path
    text: str
    data: dict[str, Any]

    def error(self, message: str, loc: Loc = ()) -> ProfileError:
        """A ProfileError at `loc`; an unknown place counts as its nearest enclosing key."""
        return ProfileError(message, path=self.path, line=_line_of(self.text, loc), key=dotted(loc) or None)


def read(path: Path, *, max_bytes: int = MAX_BYTES) -> JsonFile:
    """The JSON object in `path`. Raises ProfileError with the line for anything else; a file over `max_bytes` is not read."""
    try:
        size = path.stat().st_size
        if path.is_dir():
            raise ProfileError("is a folder; name the config.json in it", path=path)
        if not path.is_file():
            raise ProfileError("is not a regular file", path=path)
        if size > max_bytes:
            raise ProfileError(f"has {size:,} bytes; at most {max_bytes:,} are read: is this the right file?", path=path)
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ProfileError("there is no such file", path=path) from None
    except UnicodeDecodeError as error:
        raise ProfileError("is not UTF-8 text", path=path, line=error.object.count(b"\n", 0, error.start) + 1) from None
    except (OSError, ValueError) as error:
        raise ProfileError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path=path) from None
    return parse(text, path)


def parse(text: str, path: Path) -> JsonFile:
    """The JSON object in `text`; `path` is for messages. Raises ProfileError."""
    if not text.strip():
        raise ProfileError("is empty; a JSON object is needed", path=path)
    twice: list[str] = []
    try:
        data = json.loads(text, object_pairs_hook=_unique(twice))
    except json.JSONDecodeError as error:
        hint = "check this line and the one before it for a missing comma, quote or bracket"
        raise ProfileError(f"is not valid JSON at column {error.colno}: {error.msg}; {hint}", path=path, line=error.lineno) from None
    except (RecursionError, ValueError):
        raise ProfileError("is nested too deeply or has a number with too many digits", path=path) from None
    if not isinstance(data, dict):
        raise ProfileError('must be a JSON object: {"key": value, …}', path=path, line=1)
    if twice:
        places = [m.start() for m in re.finditer(re.escape(json.dumps(twice[0])) + r"\s*:", text)]
        line = text.count("\n", 0, places[-1]) + 1 if places else None
        raise ProfileError("the key appears twice; remove one", path=path, line=line, key=twice[0])
    return JsonFile(path, text, data)


def _unique(twice: list[str]) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice.append(next(name for name in names if names.count(name) > 1))
        return found

    return build


def dotted(loc: Loc) -> str:
    """("text_config", "layer_types", 3) → "text_config.layer_types[3]"."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _line_of(text: str, loc: Loc) -> int | None:
    """1-based line of the key at `loc` in valid JSON, or of the innermost part of it that exists (None: no such key at all)."""
    position, line = _skip(text, 0), None
    for part in loc:
        found = _member(text, position, part)
        if found is None:
            break
        key_at, position = found
        line = text.count("\n", 0, key_at) + 1
    return line


def _member(text: str, position: int, part: str | int) -> tuple[int, int] | None:
    """Where the key or item `part` of the object or array at `position` starts, and where its value does."""
    index, position = 0, _skip(text, position + 1)
    while text[position] not in "}]":
        start = position
        name: Any = index
        if isinstance(part, str):
            name, position = _DECODER.raw_decode(text, position)
            position = _skip(text, _skip(text, position) + 1)
        if name == part:
            return start, position
        _, position = _DECODER.raw_decode(text, position)
        position = _skip(text, position)
        position = _skip(text, position + 1) if text[position] == "," else position
        index += 1
    return None


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position
