"""Strict YAML for profiles: what is read is exactly what is written, and every error names file, line and key.

Stricter than PyYAML on purpose: duplicate keys, anchors and aliases, tags, and the words that YAML 1.1 turns into booleans
(yes, no, on, off) are refused; 1e3 is a number; a date stays text.
"""

from __future__ import annotations

import difflib
import math
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from roofline.errors import InputError, ProfileError

_Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MAX_BYTES = 4 * 2**20  # the largest shipped profile is a hundredth of this; a checkpoint given by mistake is refused unread
MAX_DEPTH = 50
Loc = tuple[str | int, ...]
ModelT = TypeVar("ModelT", bound=BaseModel)

_NULL = {"", "~", "null"}
_BOOL = {"true": True, "false": False}
_AMBIGUOUS = {"yes", "no", "on", "off", "y", "n"}
_TAGS = {"map", "seq", "str", "int", "float", "bool", "null", "timestamp"}
_INT = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?\.(inf|nan)", re.IGNORECASE)


@dataclass(frozen=True)
class Document:
    """One YAML mapping as plain Python values, with the line of every key and item. lines: place in `data` → 1-based line."""

    path: Path
    data: dict[str, Any]
    lines: Mapping[Loc, int]

    def error(self, message: str, loc: Loc = ()) -> ProfileError:
        """A ProfileError at `loc`, or at its nearest enclosing key that the file has."""
        known: Loc = ()
        for part in loc:
            # pydantic puts the tags of unions into a place; they are not in the file
            if (*known, part) in self.lines:
                known = (*known, part)
        return ProfileError(message, path=self.path, line=self.lines.get(known), key=_dotted(known) or None)

    def validate(self, model: type[ModelT], context: dict[str, Any] | None = None) -> ModelT:
        """`data` as `model`. Raises ProfileError for the first thing that is wrong and lists up to four more."""
        try:
            return model.model_validate(self.data, context=context)
        except ValidationError as error:
            errors = error.errors(include_url=False)
        found = [self.error(_explain(e["type"], e["msg"], e["loc"], e["input"], model), e["loc"]) for e in errors]
        found.sort(key=lambda error: error.line is None)  # an unknown key with its line tells more than the key it was meant to be
        first, others = found[0], found[1:5]
        more = "".join(f"\n  also {e}" for e in others) + (f"\n  and {len(found) - 5} more" if len(found) > 5 else "")
        raise ProfileError(first.message + more, path=first.path, line=first.line, key=first.key)


def read(path: Path | str) -> Document:
    """The YAML mapping in the file `path`. Raises ProfileError for whatever is not a small, plain, strict YAML mapping."""
    path = Path(path)
    return parse(read_text(path), path)


def read_text(path: Path | str) -> str:
    """The UTF-8 text of a regular file of at most 4 MiB; its size is looked at before its content. Raises ProfileError."""
    path = Path(path)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ProfileError("is a folder; name a YAML file in it", path=path)
        if not stat.S_ISREG(status.st_mode):
            raise ProfileError("is not a regular file; name a YAML file", path=path)
        if status.st_size > MAX_BYTES:
            raise ProfileError(f"has {status.st_size:,} bytes; a profile has at most {MAX_BYTES:,}: is this the right file?", path=path)
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ProfileError("there is no such file", path=path) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        raise ProfileError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path=path) from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ProfileError("is not UTF-8 text: a profile is a YAML text file", path=path, line=line) from None


def parse(text: str, path: Path) -> Document:
    """The YAML mapping in `text`, as `read` does; `path` is for messages."""
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" at column {mark.column + 1}" if mark else ""
        reason = f"{error.context or ''} {error.problem or ''}".strip()
        hint = "check this line and the one before it for a missing comma, colon, quote or indentation"
        raise ProfileError(f"is not valid YAML{place}: {reason}; {hint}", path=path, line=mark.line + 1 if mark else None) from None
    except yaml.YAMLError as error:
        raise ProfileError(f"is not valid YAML: {str(error).splitlines()[0]}", path=path) from None
    except (RecursionError, ValueError):
        raise ProfileError("is not a profile: its values are nested too deeply or are malformed", path=path) from None
    if node is None:
        raise ProfileError("is empty; a profile is a YAML mapping of keys to values", path=path)
    if not isinstance(node, yaml.MappingNode):
        raise ProfileError("must be a mapping of keys to values (key: value)", path=path, line=node.start_mark.line + 1)
    builder = _Builder(path)
    data: dict[str, Any] = builder.value(node, ())
    return Document(path, data, builder.lines)


class _Builder:
    """Turns nodes into plain values and remembers the line of each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: set[int] = set()
        self.lines: dict[Loc, int] = {}

    def fail(self, message: str, node: yaml.Node, loc: Loc) -> ProfileError:
        return ProfileError(message, path=self.path, line=node.start_mark.line + 1, key=_dotted(loc) or None)

    def value(self, node: yaml.Node, loc: Loc) -> Any:
        if id(node) in self.seen:
            message = "anchors and aliases (&name, *name) are not supported; write the value out"
            raise ProfileError(
                message, path=self.path, line=self.lines.get(loc), key=_dotted(loc) or None
            )  # the node has its anchor's line
        self.seen.add(id(node))
        if len(loc) > MAX_DEPTH:
            raise self.fail("values are nested too deeply", node, loc[:3])
        if node.tag.removeprefix("tag:yaml.org,2002:") not in _TAGS:
            raise self.fail(f"the tag {node.tag} is not supported; remove it", node, loc)
        if isinstance(node, yaml.MappingNode):
            return dict(self.items(node, loc))
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, loc)
        return [self.item(child, (*loc, i)) for i, child in enumerate(node.value)]

    def item(self, node: yaml.Node, loc: Loc) -> Any:
        self.lines[loc] = node.start_mark.line + 1
        return self.value(node, loc)

    def items(self, node: yaml.MappingNode, loc: Loc) -> Iterator[tuple[str, Any]]:
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.value == "<<":
                raise self.fail("a key must be plain text", key_node, loc)
            key = str(key_node.value)
            place = (*loc, key)
            if place in self.lines:
                raise self.fail(f"the key appears twice (first on line {self.lines[place]}); remove one", key_node, place)
            self.lines[place] = key_node.start_mark.line + 1
            yield key, self.value(value_node, place)

    def scalar(self, node: yaml.ScalarNode, loc: Loc) -> Any:
        text = str(node.value)
        if node.style:  # the C loader says "" for plain text, the Python loader None
            return text
        lower = text.lower()
        if lower in _NULL:
            return None
        if lower in _BOOL:
            return _BOOL[lower]
        if lower in _AMBIGUOUS:
            raise self.fail(f'{text!r} may mean true or false or text; write true or false, or quote it: "{text}"', node, loc)
        if _INT.fullmatch(text):
            if len(text) > 30:
                raise self.fail("the number has too many digits", node, loc)
            return int(text)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if math.isfinite(number):
                return number
        if _NOT_FINITE.fullmatch(text) or _FLOAT.fullmatch(text):
            raise self.fail(f"{text!r} is not a finite number", node, loc)
        return text


def _dotted(loc: Loc) -> str:
    """("peaks", "fp8", 0) → "peaks.fp8[0]"."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _explain(kind: str, message: str, loc: Loc, value: Any, model: type[BaseModel]) -> str:
    """A validation error of pydantic in words that lead to the fix."""
    if kind == "extra_forbidden":
        known = sorted(_known_keys(model, loc[:-1]))
        return f"unknown key {str(loc[-1])!r}; {nearest(str(loc[-1]), known)}"
    if kind == "missing":
        return f"the key {str(loc[-1])!r} is missing"
    shown = repr(value)
    text = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if kind in ("value_error", "assertion_error") or isinstance(value, dict) or len(shown) > 60:
        return text
    return f"{text}, found {shown}"


def nearest(name: str, known: list[str], limit: int = 12) -> str:
    """ "did you mean …?" for the closest of `known`, or the list of them when none is close."""
    return did_you_mean(name, known) or f"known: {', '.join(known[:limit])}{', …' if len(known) > limit else ''}"


def did_you_mean(name: str, known: list[str]) -> str:
    """The question for the closest of `known`; "" when none is close."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else ""


def _known_keys(model: type[BaseModel], loc: Loc) -> set[str]:
    """Field names that are allowed at `loc` in `model`, through lists, optionals and unions."""
    models = {model}
    for part in loc:
        inner = {found for m in models if part in m.model_fields for found in _models_in(m.model_fields[str(part)].annotation)}
        models = inner or models  # an index or the tag of a union: stay
    return {field.alias or name for m in models for name, field in m.model_fields.items()}


def _models_in(annotation: Any) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return {found for argument in get_args(annotation) for found in _models_in(argument)}


def as_value_error(error: InputError) -> ValueError:
    """An InputError raised inside a pydantic validator, as the ValueError that pydantic gives a place to."""
    return ValueError(str(error))
