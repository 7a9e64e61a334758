"""A trace in sections beside its simulation: statistics over all of them, and the figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roofline.charts.validation import trace
from roofline.errors import InputError, UntrustworthyError
from roofline.records import JsonlWriter
from roofline.report.validation import charts
from roofline.validation import serve, statements
from roofline.validation.compare import assemble
from roofline.validation.predictions import THIS_RUN
from tests.validation.test_compare import folder

PACES = {7: 1.0, 8: 2.0, 9: 9.0}  # of the machine, by section


def row(index: int, slower: float) -> dict[str, Any]:
    """Sent each second, first token after 0.1 s, four more in 0.2 s, all `slower` × as long."""
    sent = float(index)
    times = {"start_s": sent, "first_token_s": sent + 0.1 * slower, "last_token_s": sent + 0.3 * slower}
    return {"index": index, **times, "output_tokens": 5, "first_chunk_tokens": 1}


def served(path: Path, *, later: float = 1.1, others: tuple[float, ...] = (0.0, 0.1, 1.2)) -> Path:
    """Three sections of four requests, served `later` × as slowly as simulated; the last one disturbed."""
    folder(path)
    with JsonlWriter(path / statements.MEASUREMENTS) as writer:
        for (section, pace), share in zip(PACES.items(), others, strict=True):
            edges = {"low": 0.8 * pace, "expected": pace, "high": 1.3 * pace}
            told = [{"basis": THIS_RUN, "edge": edge, **row(i, slower)} for edge, slower in edges.items() for i in range(4)]
            digest = statements.state(path, f"trace {section}", [], lambda: 50.0, simulated=told)
            statements.begin(writer, f"trace {section}", digest, lambda: 51.0)
            for index in range(4):
                writer.write({"kind": "request", "pass": section, **row(index, later * pace)})
            writer.write({"kind": "served", "pass": section, "others": share})
    return path


def test_all_sections_that_nobody_disturbed_are_one_trace(tmp_path: Path) -> None:
    found = assemble(served(tmp_path))
    mean = next(row for row in found.rows if row.target == "trace/ttft/mean")
    assert mean.measured.samples == 8
    assert mean.measured.median_s == pytest.approx(1.1 * 0.15)
    assert [getattr(mean.predictions[THIS_RUN], key) for key in ("low_s", "expected_s", "high_s")] == pytest.approx([0.12, 0.15, 0.195])
    assert mean.error(THIS_RUN) == pytest.approx(1 / 1.1 - 1)
    assert [g.word for g in found.groups if g.group in ("ttft", "tpot")] == ["PASS", "PASS"]


def test_a_trace_that_was_disturbed_throughout_is_judged_by_what_there_is(tmp_path: Path) -> None:
    mean = next(row for row in assemble(served(tmp_path, others=(0.9, 1.0, 1.2))).rows if row.target == "trace/ttft/mean")
    assert mean.measured.samples == 12


def test_a_simulator_that_is_off_by_half_fails_however_the_machine_wanders(tmp_path: Path) -> None:
    found = assemble(served(tmp_path, later=2.0))
    assert [g.word for g in found.groups if g.group in ("ttft", "tpot")] == ["FAIL", "FAIL"]


def test_the_requests_are_resampled() -> None:
    found = serve.measured([row(i, 1.0 + i / 10) for i in range(10)])["trace/ttft/mean"]
    assert found.low_s < found.median_s < found.high_s


def test_the_figure_joins_each_request_to_its_simulation(tmp_path: Path) -> None:
    chart = next(chart for chart in charts(assemble(served(tmp_path)), "x") if chart.kind == "validation-trace")
    assert [r["index"] for r in chart.rows] == list(range(8))
    assert [r["ttft_s"] for r in chart.rows] == pytest.approx([0.11] * 4 + [0.22] * 4)
    assert [r["simulated_ttft_s"] for r in chart.rows] == pytest.approx([0.1] * 4 + [0.2] * 4)
    assert [r["tpot_s"] for r in chart.rows] == pytest.approx([0.055] * 4 + [0.11] * 4)
    assert [r["start_s"] for r in chart.rows][3:5] == pytest.approx([3.0, 3.33])  # the second section after the first
    assert "TTFT within 9.1 % and TPOT within 9.1 %" in chart.title
    with pytest.raises(InputError, match="no request"):
        trace([], "a CPU", "x")


def test_a_simulation_that_was_changed_afterwards_is_refused(tmp_path: Path) -> None:
    path = served(tmp_path) / statements.PREDICTIONS
    path.write_text(path.read_text().replace('"first_token_s":0.1,', '"first_token_s":0.2,'))
    with pytest.raises(UntrustworthyError, match="were changed"):
        assemble(tmp_path)
