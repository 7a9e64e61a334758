"""Reading a configuration so that no key can be overlooked: what was asked for is known, and the rest must be accounted for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from roofline.errors import ProfileError
from roofline.profiles.hf.irrelevant import IRRELEVANT
from roofline.profiles.hf.jsonfile import JsonFile, Loc
from roofline.profiles.model import MAX_LAYERS
from roofline.profiles.yamlfile import did_you_mean

_MAX = 2**40  # no count or width of a model comes near; larger numbers are damage


class Keys:
    """One JSON object of a configuration. Every reader method marks its key as used; `finish` refuses what is left.

    A null counts as absent. Defaults that were taken for a geometry are collected in `assumptions`.
    """

    def __init__(self, file: JsonFile, data: Mapping[str, Any], loc: Loc = (), assumptions: list[str] | None = None) -> None:
        self.file, self.data, self.loc = file, data, loc
        self.used: set[str] = set()
        self.assumptions: list[str] = [] if assumptions is None else assumptions

    @property
    def model_type(self) -> str:
        """The value of model_type, "" when there is none."""
        return str(self.data.get("model_type") or "")

    def fail(self, name: str, message: str) -> ProfileError:
        """A ProfileError at the key `name`."""
        return self.file.error(message, (*self.loc, name))

    def has(self, name: str) -> bool:
        """Whether the key is there and not null (it counts as used then)."""
        return self.raw(name) is not None

    def raw(self, name: str) -> Any:
        """The value as it is, None when absent."""
        self.used.add(name)
        return self.data.get(name)

    def first(self, *names: str) -> str:
        """The first of `names` that is there; the first of all when none is. Contradicting synonyms are refused."""
        there = [name for name in names if self.raw(name) is not None]
        for name in there[1:]:
            if self.data[name] != self.data[there[0]]:
                raise self.fail(name, f"is {self.data[name]!r}, but {there[0]} is {self.data[there[0]]!r}; they mean the same")
        return there[0] if there else names[0]

    @overload
    def whole(self, name: str, default: int | None = None, *, minimum: int = 1) -> int: ...
    @overload
    def whole(self, name: str, default: int | None = None, *, minimum: int = 1, optional: bool) -> int | None: ...
    def whole(self, name: str, default: int | None = None, *, minimum: int = 1, optional: bool = False) -> int | None:
        """A whole number ≥ minimum. Missing: `default` (noted as an assumption), None when optional, else ProfileError."""
        value = self.raw(name)
        if value is None:
            if default is None and not optional:
                raise self.fail(name, f"the key {name!r} is missing; a {self.model_type or 'model'} configuration needs it")
            if default is not None:
                self.assume(f"{name} is not given: {default}, the default of {self.model_type}")
            return default
        most = MAX_LAYERS if name.endswith(("layers", "n_layer")) else _MAX
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= most:
            upper = f" and ≤ {most:,}" if isinstance(value, int) and value > most else ""
            raise self.fail(name, f"must be a whole number ≥ {minimum}{upper}, found {_short(value)}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """true or false."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(name, f"must be true or false, found {_short(value)}")
        return value

    def text(self, name: str, default: str | None = None, allowed: Sequence[str] = ()) -> str:
        """A text, one of `allowed` if given."""
        value = self.raw(name)
        value = default if value is None else value
        if value is None:
            raise self.fail(name, f"the key {name!r} is missing")
        if not isinstance(value, str):
            raise self.fail(name, f"must be text, found {_short(value)}")
        if allowed and value not in allowed:
            raise self.fail(name, f"{value!r} is not supported; supported: {', '.join(allowed)}")
        return value

    def expect(self, name: str, *values: Any) -> None:
        """Refuses a key that is there with a value other than those under which the arithmetic is understood."""
        value = self.raw(name)
        if value is not None and value not in values:
            raise self.fail(name, f"{_short(value)} is not supported here; supported: {', '.join(map(repr, values))}")

    def items(self, name: str, length: int | None = None) -> list[Any] | None:
        """A list of `length` items (one per layer), None when absent."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.fail(name, f"must be a list, found {_short(value)}")
        if length is not None and len(value) != length:
            raise self.fail(name, f"has {len(value)} entries and the model {length} layers; give one per layer")
        return value

    def choices(self, name: str, length: int, allowed: Sequence[Any]) -> list[Any] | None:
        """A list with one of `allowed` per layer, None when absent."""
        value = self.items(name, length)
        for i, item in enumerate(value or ()):
            if item not in allowed:
                raise self.file.error(f"{_short(item)} is not supported; supported: {', '.join(map(str, allowed))}", (*self.loc, name, i))
        return value

    def object(self, name: str) -> Keys | None:
        """A nested object as Keys, None when absent."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fail(name, f"must be an object, found {_short(value)}")
        return Keys(self.file, value, (*self.loc, name), self.assumptions)

    def _where(self) -> str:
        return f"a {self.model_type} configuration" if self.model_type else str(self.loc[-1]) if self.loc else "a configuration"

    def assume(self, text: str) -> None:
        """Notes what was assumed."""
        if text not in self.assumptions:
            self.assumptions.append(text)

    def finish(self, irrelevant: Mapping[str, str] = IRRELEVANT) -> None:
        """Refuses the first key that nobody read, that is not null and that the table of irrelevant keys does not have."""
        for name, value in self.data.items():
            if name in self.used or name in irrelevant or value is None:
                continue
            near = did_you_mean(name, sorted(self.used - set(self.data)) or sorted(self.used))
            fix = near or "take it out if the model computes the same without it"
            raise self.fail(name, f"unknown key in {self._where()}; it may change the arithmetic, so it is not ignored; {fix}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
