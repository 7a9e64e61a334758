"""Rows in files: one at a time, strict, and whole after a crash."""

from __future__ import annotations

import io
import json
import math
import tracemalloc
from pathlib import Path

import pytest

from roofline.errors import RecordError
from roofline.records import JsonlWriter, Measurement, capture_environment, read_csv, read_jsonl, write_csv


def measurement(*samples: float) -> Measurement:
    return Measurement("gemm", {"m": 1, "n": 4096, "k": 4096}, "h100-sxm", "bf16", samples, method="events-1", environment="abc")


def test_statistics_come_from_the_samples() -> None:
    made = measurement(3.0, 1.0, 2.0, 10.0, 4.0)
    assert (made.median_s, made.minimum_s) == (3.0, 1.0)
    assert made.spread == pytest.approx((4 - 2) / 3)
    assert measurement(1.0, 2.0).spread == 0.0
    with pytest.raises(RecordError, match="samples_s must be one or more times"):
        measurement()
    with pytest.raises(RecordError, match="samples_s"):
        measurement(1.0, 0.0)


def test_a_measurement_survives_the_file(tmp_path: Path) -> None:
    made = measurement(1.0, 2.0)
    with JsonlWriter(tmp_path / "m.jsonl") as writer:
        writer.write(made.to_json())
    (line, row), *rest = read_jsonl(tmp_path / "m.jsonl")
    assert (line, rest) == (1, [])
    assert Measurement.from_json(row) == made
    with pytest.raises(RecordError, match=r"m.jsonl:7: not a measurement"):
        Measurement.from_json(row | {"colour": "red"}, "m.jsonl:7")
    with pytest.raises(RecordError, match="not a measurement"):
        Measurement.from_json({"op": "gemm"})


def test_the_environment_has_an_id_that_load_does_not_change() -> None:
    first, second = capture_environment(), capture_environment()
    assert first.id == second.id
    assert first.id != capture_environment({"driver": "1"}).id
    assert first.cores >= 1
    assert "numpy" in first.software
    json.dumps(first.to_json())


def test_a_cut_line_is_ended_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"a": 1}\n{"a": ')
    with JsonlWriter(path) as writer:
        writer.write({"a": 2, "bad": [math.nan, {"x": math.inf}]})
    with pytest.raises(RecordError, match=r"r.jsonl:2: not JSON"):
        list(read_jsonl(path))
    assert [row for _, row in read_jsonl(path, skip_cut_lines=True)] == [{"a": 1}, {"a": 2, "bad": [None, {"x": None}]}]


@pytest.mark.parametrize("text", ["[1]\n", "3\n"])
def test_lines_that_are_no_objects(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(RecordError, match=r"r.jsonl:1: .* is not an object"):
        list(read_jsonl(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for reader in (read_jsonl, read_csv):
        with pytest.raises(RecordError, match="cannot be read"):
            list(reader(tmp_path / "missing"))
        (tmp_path / "latin").write_bytes(b"\xe9\n")
        with pytest.raises(RecordError, match="not UTF-8"):
            list(reader(tmp_path / "latin"))
    with pytest.raises(RecordError, match="cannot write"):
        JsonlWriter(tmp_path)


def test_csv(tmp_path: Path) -> None:
    out = io.StringIO()
    write_csv(out, ["a", "b"], [{"a": 1.5, "b": None, "c": 3}, {"a": math.nan, "b": "x,y"}])
    assert out.getvalue() == 'a,b\n1.5,\n,"x,y"\n'
    path = tmp_path / "t.csv"
    path.write_text(out.getvalue())
    assert list(read_csv(path, ["a"])) == [(2, {"a": "1.5", "b": ""}), (3, {"a": "", "b": "x,y"})]
    with pytest.raises(RecordError, match=r"t.csv:1: no column z; the header has a, b"):
        list(read_csv(path, ["z"]))
    path.write_text("a,b\n1\n")
    with pytest.raises(RecordError, match=r"t.csv:2: the number of cells"):
        list(read_csv(path))


def test_reading_does_not_keep_the_file(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    with JsonlWriter(path) as writer:
        for number in range(50_000):
            writer.write({"number": number, "text": "x" * 100})
    tracemalloc.start()
    total = sum(row["number"] for _, row in read_jsonl(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 50_000 * 49_999 // 2
    assert peak < 1 << 20 < path.stat().st_size
