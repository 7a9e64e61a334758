"""Quantities: what is accepted, what is refused and with which words, and that text and number round-trip."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline import units
from roofline.errors import UnitError

KINDS = sorted(units.UNITS)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3.35 TB/s", "bandwidth", 3.35e12),
        ("3350 GB/s", "bandwidth", 3350e9),
        ("80 GB", "bytes", 80e9),
        ("80 GiB", "bytes", 80 * 2**30),
        ("81559MiB", "bytes", 81559 * 2**20),
        ("989.4 TFLOP/s", "flop_rate", 989.4e12),
        ("1978.9 TOP/s", "flop_rate", 1978.9e12),
        ("1830 MHz", "frequency", 1.83e9),
        ("700 W", "power", 700.0),
        ("50 ms", "time", 0.05),
        ("4.8e3 GB/s", "bandwidth", 4.8e12),
        ("0 B", "bytes", 0.0),
        ("4.3 µs", "time", 4.3e-6),
        ("4.3 us", "time", 4.3e-6),
    ],
)
def test_known_quantities(text: str, kind: str, value: float) -> None:
    assert units.parse(text, kind) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("3350 Gb/s", "bandwidth", "bits"),
        ("26.8 Tbps", "bandwidth", "bits"),
        ("400 Gbit/s", "bandwidth", "bits"),
        ("80 Gb", "bytes", "bits"),
        ("3.35 tb/s", "bandwidth", "case-sensitive"),
        ("80 gb", "bytes", "case-sensitive"),
        ("80 KB", "bytes", "did you mean 'kB'"),
        ("80", "bytes", "no unit"),
        ("GB", "bytes", "not a number"),
        ("", "bytes", "not a number"),
        ("80 XB", "bytes", "unknown unit"),
        ("80 GB", "bandwidth", "is a unit of bytes"),
        ("3 GB/s", "bytes", "is a unit of bandwidth"),
        ("-1 GB", "bytes", "not negative"),
        ("1e400 GB", "bytes", "finite"),
        ("nan GB", "bytes", "not a number"),
        ("3,35 TB/s", "bandwidth", "unknown unit"),
        ("1,000 GB", "bytes", "unknown unit"),
        ("٣ GB", "bytes", "not a number"),
    ],
)
def test_refused_with_the_reason(text: str, kind: str, words: str) -> None:
    with pytest.raises(UnitError, match=words):
        units.parse(text, kind)


@pytest.mark.parametrize("value", [80, 80.0, None, True, ["80 GB"]])
def test_a_number_without_text_is_refused(value: object) -> None:
    with pytest.raises(UnitError, match="has no unit"):
        units.parse(value, "bytes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (3.35e12, "bandwidth", "3.35 TB/s"),
        (16.06e9, "bytes", "16.1 GB"),
        (999.96e9, "bytes", "1.00 TB"),
        (0.0072368, "time", "7.24 ms"),
        (0.0, "bytes", "0 B"),
        (295.3, "intensity", "295 FLOP/B"),
        (None, "bytes", "–"),
        (math.nan, "bytes", "–"),
        (math.inf, "time", "∞ s"),
        (1.83e9, "frequency", "1.83 GHz"),
        (700.0, "power", "700 W"),
        (1234.0, "token_rate", "1.23 ktok/s"),
        (4000.0, "time", "4000 s"),
    ],
)
def test_formatting(value: float | None, kind: str, text: str) -> None:
    assert units.format(value, kind) == text


def test_binary_prefixes() -> None:
    assert units.format(80 * 2**30, "bytes", binary=True) == "80.0 GiB"
    assert units.format(1023 * 2**30, "bytes", binary=True, digits=4) == "1023 GiB"


@given(st.sampled_from(KINDS), st.floats(min_value=0, max_value=1e25, allow_subnormal=False))
def test_many_digits_round_trip_exactly(kind: str, value: float) -> None:
    assert units.parse(units.format(value, kind, digits=17), kind) == value


@given(st.sampled_from(KINDS), st.floats(min_value=1e-9, max_value=1e21), st.integers(1, 8), st.booleans())
def test_few_digits_round_trip_to_those_digits(kind: str, value: float, digits: int, binary: bool) -> None:
    back = units.parse(units.format(value, kind, digits=digits, binary=binary), kind)
    assert back == pytest.approx(value, rel=0.5001 * 10 ** (1 - digits) + 1e-12)


@given(st.sampled_from(KINDS), st.text(max_size=12))
def test_any_text_parses_or_raises_a_unit_error(kind: str, text: str) -> None:
    try:
        value = units.parse(text, kind)
    except UnitError:
        return
    assert math.isfinite(value)
    assert value >= 0


@given(st.sampled_from(KINDS), st.data())
def test_every_accepted_unit_has_one_meaning(kind: str, data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from(sorted(units.UNITS[kind])))
    assert units.parse(f"2 {unit}", kind) == 2 * units.UNITS[kind][unit]


@given(st.floats(min_value=1e-6, max_value=1e14), st.integers(1, 6))
def test_significant_keeps_that_many_digits(value: float, digits: int) -> None:
    assert float(units.significant(value, digits).replace(",", "")) == pytest.approx(value, rel=0.5001 * 10 ** (1 - digits))


@pytest.mark.parametrize(("value", "text"), [(float("inf"), "∞"), (float("-inf"), "-∞"), (float("nan"), "–")])
def test_significant_of_what_is_no_number(value: float, text: str) -> None:
    assert units.significant(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(4.0, "4"), (0.1 * 1e3, "100"), (9000.5, "9,000.5"), (1e6, "1,000,000"), (0.00025, "0.00025"), (0.0, "0"), (1e16, "1e+16")],
)
def test_plain_is_as_typed(value: float, text: str) -> None:
    assert units.plain(value) == text
    assert units.plain(1234.567, 4) == "1,235"


def test_a_count_with_its_noun() -> None:
    assert [units.counted(n, "thread") for n in (0, 1, 2, 1024)] == ["0 threads", "1 thread", "2 threads", "1,024 threads"]
