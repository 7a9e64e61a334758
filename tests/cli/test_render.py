"""Text for people: formats, alignment, widths."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from roofline.cli import jsonout, output
from roofline.cli.render import Bar, Column, Heading, Ink, Paragraph, Table, page
from roofline.timing.estimate import Estimate

PLAIN = Ink()
COLUMNS = [Column("name", "name"), Column("size", "size", "memory"), Column("time", "time", "time", unit="ms", drop=1)]
ROWS = [{"name": "a", "size": 2**30, "time": 0.0123456}, {"name": "long one", "size": None, "time": None}]


def test_numbers_stand_right_and_text_left() -> None:
    assert list(Table(COLUMNS, ROWS).lines(80, PLAIN)) == [
        "name          size  time ms",
        "a         1.00 GiB     12.3",
        "long one         –        –",
    ]


def test_a_narrow_output_says_what_it_leaves_out() -> None:
    lines = list(Table(COLUMNS, ROWS).lines(20, PLAIN))
    assert lines[0] == "name          size"
    assert " ".join(lines[3:]).startswith("(not shown at this width: time ms")


def test_nothing_is_cut_without_a_word() -> None:
    assert list(Table(COLUMNS, ROWS).lines(5, PLAIN))[1] == "a         1.00 GiB"


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("percent", 0.0123, "1.23 %"),
        ("percent", 0.00002, "<0.1 %"),
        ("percent", 0, "0 %"),
        ("parameters", 8.03e9, "8.03 B"),
        ("percent", 1, "100 %"),
        ("integer", 16384.0, "16,384"),
        ("number", 0.9995, "1.00"),
        ("bytes", 8.0303e9, "8.03 GB"),
        ("text", None, ""),
        ("integer", None, "–"),
    ],
)
def test_cells(kind: str, value: object, text: str) -> None:
    assert Column("x", "x", kind).cell(value) == text


def test_long_text_is_cut_visibly() -> None:
    assert Column("x", "x", most=5).cell("123456") == "1234…"


@pytest.mark.parametrize("parts", [(25.0, 50.0), (0.0, 100.0), (100.0, 0.0), (33.0, 33.0)])
def test_a_bar_is_drawn_to_scale(parts: tuple[float, float]) -> None:
    bar = Bar([("one", parts[0], "red"), ("two", parts[1], "")], 100.0)
    first = next(bar.lines(100, PLAIN))
    assert (first.count("█"), first.count("▓"), len(first)) == (parts[0], parts[1], 100)


def test_a_bar_that_overflows_stays_inside() -> None:
    assert len(next(Bar([("one", 300.0, "")], 100.0).lines(60, PLAIN))) == 60


def test_paragraphs_wrap_and_hang() -> None:
    assert list(Paragraph("aa bb cc", bullet="·").lines(7, PLAIN)) == ["· aa bb", "  cc"]


def test_a_page_in_ascii() -> None:
    text = page([Heading("5 µs × 2"), Bar([("a", 1.0, "")], 2.0)], 40, PLAIN, ascii_only=True)
    assert text.isascii()
    assert text.startswith("5 us x 2\n####")


def test_ink() -> None:
    assert Ink(colour=True)("x", "bold") == "\x1b[1mx\x1b[0m"
    assert Ink(colour=True)("x", "") == Ink()("x", "bold") == "x"


def test_json_has_no_nan_and_whole_numbers() -> None:
    text = jsonout.document("c", {"a": np.int64(3)}, {"x": math.nan, "y": np.array([1.0, 2.5]), "t": Estimate(1.0, 2.0, 1.5, 3.0)}, ["n"])
    assert json.loads(text) == {
        "schema_version": 1,
        "command": "c",
        "inputs": {"a": 3},
        "x": None,
        "y": [1, 2.5],
        "t": {"bound": 1, "expected": 2, "low": 1.5, "high": 3},
        "assumptions": ["n"],
    }
    assert '"a": 3\n' in text


def test_csv_has_base_units() -> None:
    assert output.csv_text(Table(COLUMNS, ROWS)) == "name,size,time\na,1073741824,0.0123456\nlong one,,\n"
