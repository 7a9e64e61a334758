"""The file of a sweep: what an interrupted run left is used, what is no record is refused with its line, and nothing else is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roofline.errors import RooflineError
from roofline.planning.sweep_records import open_records

FIGURES = {"ttft_s": 0.1, "tpot_s": 0.01, "requests_per_s": 1.0, "output_tokens_per_s": 9.0, "output_tokens_per_s_per_gpu": 9.0}
RECORD = {"key": "a", "tp": 1, "meets_goodput": True, **FIGURES}
FAILED = {"key": "b", "tp": 3, "error": "heads cannot be split"}


def lines(*rows: object) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def read(path: Path) -> dict[str, dict[str, object]]:
    with open_records(path) as (known, _):
        return known


def test_records_are_found_again_and_added_to(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with open_records(path) as (known, writer):
        assert known == {}
        writer.write(RECORD)
    with open_records(path) as (known, writer):
        assert known == {"a": RECORD}
        writer.write(FAILED | {"note": "a line\u2028separator"})
    assert set(read(path)) == {"a", "b"}


@pytest.mark.parametrize("cut", ['{"key": "b", "tp', '{"k', "{"])
def test_a_record_that_was_cut_off_goes(tmp_path: Path, cut: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(lines(RECORD) + cut)
    assert read(path) == {"a": RECORD}
    assert path.read_text() == lines(RECORD)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"my notes, without an end of line", "its last line is no record"),
        (b'{"mine": 1}\n', ":1: no record of a sweep"),
        (lines(RECORD).encode() + b"5\n", ":2: '5' is not an object"),
        (lines(RECORD).encode() + b"not json\n", ":2: not JSON"),
        (b"[" * 100_000 + b"\n", ":1: not JSON"),
        (b'{"key": "x", "tp": ' + b"9" * 5000 + b"}\n", ":1: not JSON"),
        (b'{"key": "\xff"}\n', "not UTF-8"),
        (lines(RECORD | {"key": [1]}).encode(), ":1: no record of a sweep"),
        (lines(RECORD | {"tpot_s": "x"}).encode(), ":1: no record of a sweep"),
        (lines(RECORD | {"tpot_s": float("nan")}).encode(), ":1: no record of a sweep"),
        (b'{"key": "only"}\n', ":1: no record of a sweep"),
    ],
)
def test_what_is_no_record_is_refused_and_kept(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    with pytest.raises(RooflineError, match=says):
        read(path)
    assert path.read_bytes() == content


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "out.jsonl"):
        with pytest.raises(RooflineError, match=r"plain file|no folder"):
            read(path)


def test_two_sweeps_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with open_records(path) as (_, writer):
        writer.write(RECORD)
        with pytest.raises(RooflineError, match="another sweep"):
            read(path)
    assert read(path) == {"a": RECORD}


def test_a_sweep_that_found_nothing_leaves_no_empty_file(tmp_path: Path) -> None:
    read(tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()
