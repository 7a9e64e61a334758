"""Quantities as text and as SI numbers: a strict parser and a formatter with few digits.

Inside the package a number is always in base units (byte, byte/s, FLOP, FLOP/s, second, Hz, watt). Text carries a unit and
exactly one spelling of it: prefixes are case-sensitive, GB is 1e9 bytes, GiB is 2**30, and bits ("Gb", "Gb/s") are refused
because half the field's mistakes are a factor of eight.
"""

from __future__ import annotations

import math
import re

from roofline.errors import UnitError

FAR = 1e9  # rates, seconds and counts that people ask for: beyond it, or below its inverse, they are typing mistakes
_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SMALL = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "": 1.0}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def _spellings() -> dict[str, dict[str, float]]:
    """Kind → accepted unit spelling → factor to the base unit."""
    bytes_ = {f"{p}B": f for p, f in (_DECIMAL | _BINARY).items()}
    flop = {f"{p}FLOP": f for p, f in _DECIMAL.items()}
    return {
        "bytes": bytes_,
        "bandwidth": {f"{u}/s": f for u, f in bytes_.items()},
        "flop": flop,
        "flop_rate": {f"{u}/s": f for u, f in flop.items()} | {f"{p}OP/s": f for p, f in _DECIMAL.items()},
        "time": {f"{p}s": f for p, f in _SMALL.items()} | {"min": 60.0, "h": 3600.0},
        "frequency": {f"{p}Hz": _DECIMAL[p] for p in ("", "k", "M", "G")},
        "power": {"W": 1.0, "kW": 1e3, "mW": 1e-3},
    }


UNITS: dict[str, dict[str, float]] = _spellings()
_NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*(\S.*?)?\s*")


def parse(text: str, kind: str) -> float:
    """The quantity `text` ("3.35 TB/s") as a float in the base unit of `kind` (a key of UNITS).

    Raises UnitError for a missing unit, an unknown prefix, bits in place of bytes, another kind of unit, or a number that
    is not finite and ≥ 0.
    """
    if not isinstance(text, str):
        raise UnitError(f"{text!r} has no unit: write it as text with one, like {_EXAMPLES[kind]!r}")
    match = _NUMBER.fullmatch(text)
    if not match:
        raise UnitError(f"{text!r} is not a number with a unit, like {_EXAMPLES[kind]!r}")
    number, unit = float(match[1]), match[2]
    if unit is None:
        raise UnitError(f"{text!r} has no unit: write for example {_EXAMPLES[kind]!r}")
    factor = UNITS[kind].get(unit)
    if factor is None:
        raise UnitError(f"{text!r}: {_why_not(unit, kind)}")
    value = number * factor
    if not math.isfinite(value) or value < 0:
        raise UnitError(f"{text!r} must be a finite number that is not negative")
    return value


_EXAMPLES = {
    "bytes": "80 GB",
    "bandwidth": "3.35 TB/s",
    "flop": "2 TFLOP",
    "flop_rate": "989 TFLOP/s",
    "time": "50 ms",
    "frequency": "1.83 GHz",
    "power": "700 W",
}


def _why_not(unit: str, kind: str) -> str:
    """What is wrong with a unit, in the words that lead to the right one."""
    if re.fullmatch(r"[kMGTPE]?i?b(it)?s?(/s|ps)?", unit):
        return f"{unit!r} counts bits; write bytes ({_EXAMPLES[kind]!r}), dividing by 8 yourself"
    if any(unit in spellings for spellings in UNITS.values()):
        other = next(k for k, spellings in UNITS.items() if unit in spellings)
        return f"{unit!r} is a unit of {other.replace('_', ' ')}, and {kind.replace('_', ' ')} is needed, like {_EXAMPLES[kind]!r}"
    near = [known for known in UNITS[kind] if known.lower() == unit.lower()]
    if near:
        return f"unknown unit {unit!r}: prefixes are case-sensitive, did you mean {' or '.join(map(repr, near))}?"
    return f"unknown unit {unit!r}; known for {kind.replace('_', ' ')}: {', '.join(sorted(UNITS[kind], key=UNITS[kind].__getitem__))}"


_SYMBOL = {
    "bytes": "B",
    "bandwidth": "B/s",
    "flop": "FLOP",
    "flop_rate": "FLOP/s",
    "time": "s",
    "frequency": "Hz",
    "power": "W",
    "count": "",
    "intensity": "FLOP/B",
    "token_rate": "tok/s",
}


def format(value: float | None, kind: str, *, digits: int = 3, binary: bool = False) -> str:
    """`value` in base units as text with `digits` significant digits and the prefix that keeps 1 ≤ number < 1000.

    binary: bytes as KiB, MiB, GiB. None and NaN become "–" (unknown). What has a unit can be read back by `parse` (no thousands
    separators); digits ≥ 17 gives a text that parses to exactly `value`.
    """
    if value is None or math.isnan(value):
        return "–"
    symbol = _SYMBOL[kind]
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}∞ {symbol}".rstrip()
    if kind == "intensity":
        return f"{significant(value, digits)} {symbol}"
    steps = _prefixes(kind, binary)
    magnitude = abs(value)
    factor, prefix = steps[0] if digits < 17 else (1.0, "")  # the base unit is exact
    for candidate, name in steps:
        exact = digits < 17 or magnitude / candidate * candidate == magnitude
        if exact and float(f"{magnitude / candidate:.{min(max(digits, 1), 17) - 1}e}") >= 1:
            factor, prefix = candidate, name
    if magnitude == 0:
        factor, prefix = 1.0, ""
    number = significant(value / factor, digits)
    if kind in UNITS:
        number = number.replace(",", "")
    return f"{number} {prefix}{symbol}".rstrip() if symbol or prefix else number


def _prefixes(kind: str, binary: bool) -> list[tuple[float, str]]:
    """(factor, prefix) from small to large, only those that `parse` knows for this kind."""
    if kind == "time":
        return [(1e-9, "n"), (1e-6, "µ"), (1e-3, "m"), (1.0, "")]
    if binary and kind == "bytes":
        return [(1.0, ""), *((f, p) for p, f in _BINARY.items())]
    if kind == "token_rate":
        return [(1.0, ""), (1e3, "k"), (1e6, "M")]
    known = UNITS.get(kind)
    return [(f, p) for p, f in _DECIMAL.items() if known is None or p + _SYMBOL[kind] in known]


def significant(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits, never in exponent form between 1e-4 and 1e15; an integer stays one."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "–" if math.isnan(value) else f"{'-' if value < 0 else ''}∞"
    if digits >= 17:
        return repr(value)
    exponent = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    if not -4 <= exponent < 15:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - exponent)
    return f"{round(value, digits - 1 - exponent):,.{decimals}f}"


def plain(value: float, digits: int = 10) -> str:
    """`value` as people type it: at most `digits` significant digits, no zeros at the end, no exponent between 1e-4 and 1e15."""
    exact = float(f"{value:.{digits}g}")
    if exact and not 1e-4 <= abs(exact) < 1e15:
        return f"{exact:g}"
    text = f"{exact:,.{max(0, digits + 4)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 thread", "2 threads", "1,024 threads"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
