"""Collectives between real processes on one machine."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

import pytest

from microbench import collectives
from roofline.records import Measurement, read_jsonl


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_all_collectives_over_gloo(tmp_path: Path, ranks: int) -> None:
    """Results are checked by every rank before anything is timed; sent bytes are those of a ring."""
    path = tmp_path / "r.jsonl"
    assert collectives.run_ranks("cpu", ranks, path, budget_s=90.0) == ""
    rows = [row for _, row in read_jsonl(path)]
    assert rows[0]["kind"] == "environment"
    found = [Measurement.from_json(row) for row in rows[1:]]
    assert {(m.shape["collective"], m.shape["bytes"]) for m in found} == {
        (name, size) for name in collectives.OPS for size in collectives.SIZES["cpu"]
    }
    for m in found:
        passes = 2 if m.shape["collective"] == "all_reduce" else 1
        assert m.notes["bytes"] == passes * (ranks - 1) / ranks * m.shape["bytes"]
        assert m.shape["ranks"] == ranks
        assert m.shape["backend"] == "gloo"
        assert len(m.samples_s) >= 3
        assert m.environment == rows[0]["id"]


def test_a_failed_start_is_one_line(tmp_path: Path) -> None:
    problem = collectives.run_ranks("cpu", 2, tmp_path / "no" / "r.jsonl", budget_s=60.0)
    assert problem.startswith("collectives of 2 ranks failed: ")
    assert "\n" not in problem


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_ranks_that_do_not_end_are_stopped_and_none_is_left(tmp_path: Path) -> None:
    records = tmp_path / "nobody-reads.jsonl"
    os.mkfifo(records)  # the first rank waits here for ever, however fast the machine is, and the second waits for the first
    assert "longer than their budget" in collectives.run_ranks("cpu", 2, records, budget_s=5.0)
    until = time.monotonic() + 20
    while (left := _processes_with(str(records))) and time.monotonic() < until:
        time.sleep(0.2)
    assert not left


def _processes_with(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if word in line]
