"""A trace beside its simulation: statistics over repeats, and the figure of the repeat in the middle."""

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
from roofline.validation.predictions import THIS_RUN, Prediction
from tests.validation.test_compare import folder


def request(index: int, slower: float, repeat: int) -> dict[str, Any]:
    """Sent each second, first token after 0.1 s, four more in 0.2 s, all `slower` × as long."""
    sent = float(index)
    return {
        "kind": "request", "index": index, "start_s": sent, "first_token_s": sent + 0.1 * slower, "last_token_s": sent + 0.3 * slower,
        "output_tokens": 5, "first_chunk_tokens": 1, "repeat": repeat,
    }  # fmt: skip


def served(path: Path) -> Path:
    """Three repeats of four requests: as simulated, 20 % slower, and disturbed."""
    folder(path)
    rows = [{"index": i, "start_s": float(i), "first_token_s": i + 0.1, "last_token_s": i + 0.3} for i in range(4)]
    with JsonlWriter(path / statements.MEASUREMENTS) as writer:
        for repeat, slower in enumerate((1.0, 1.2, 9.0)):
            stated = [Prediction("trace/ttft/p50", "ttft", THIS_RUN, 0.0, 0.1 + repeat / 100, 0.08, 0.13)]
            digest = statements.state(path, f"trace {repeat}", stated, lambda: 50.0, simulated=rows)
            statements.begin(writer, f"trace {repeat}", digest, lambda: 51.0)
            for index in range(4):
                writer.write(request(index, slower, repeat))
    return path


def test_the_repeat_in_the_middle_is_what_was_measured(tmp_path: Path) -> None:
    found = assemble(served(tmp_path))
    row = next(row for row in found.rows if row.group == "ttft")
    assert row.measured.median_s == pytest.approx(0.12)
    assert row.predictions[THIS_RUN].expected_s == pytest.approx(0.11)  # as stated for this repeat


def test_a_repeat_that_others_disturbed_stands_back(tmp_path: Path) -> None:
    path = served(tmp_path)
    with JsonlWriter(path / statements.MEASUREMENTS) as writer:
        for repeat, others in enumerate((0.0, 0.1, 1.2)):
            writer.write({"kind": "served", "repeat": repeat, "others": others})
    row = next(row for row in assemble(path).rows if row.group == "ttft")
    assert row.measured.median_s == pytest.approx(0.1)
    assert row.predictions[THIS_RUN].expected_s == pytest.approx(0.1)


def test_the_requests_of_a_repeat_are_resampled() -> None:
    found = serve.measured([request(i, 1.0 + i / 10, 0) for i in range(10)])["trace/ttft/mean"]
    assert found.low_s < found.median_s < found.high_s


def test_the_figure_joins_each_request_to_its_simulation(tmp_path: Path) -> None:
    chart = next(chart for chart in charts(assemble(served(tmp_path)), "x") if chart.kind == "validation-trace")
    assert [row["ttft_s"] for row in chart.rows] == pytest.approx([0.12] * 4)
    assert [row["simulated_ttft_s"] for row in chart.rows] == pytest.approx([0.1] * 4)
    assert [row["tpot_s"] for row in chart.rows] == pytest.approx([0.06] * 4)
    assert "TTFT within 17 % and TPOT within 17 %" in chart.title
    with pytest.raises(InputError, match="no request"):
        trace([], "a CPU", "x")


def test_a_simulation_that_was_changed_afterwards_is_refused(tmp_path: Path) -> None:
    path = served(tmp_path) / statements.PREDICTIONS
    path.write_text(path.read_text().replace('"first_token_s":0.1', '"first_token_s":0.2'))
    with pytest.raises(UntrustworthyError, match="were changed"):
        assemble(tmp_path)
