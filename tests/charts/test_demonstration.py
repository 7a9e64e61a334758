"""The figure of `roofline demo`: marks where the numbers say, whatever was found, and no text on another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from roofline.charts import style
from roofline.charts.demonstration import GAUGES, demonstration, gauges_of
from roofline.charts.save import draw, image
from roofline.errors import InputError
from tests.charts.test_figures import overlapping, texts_on_paper

RUN: dict[str, Any] = json.loads((Path(__file__).parents[2] / "docs" / "img" / "demo.json").read_text())


def changed(cases: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The published run with other values. cases: those of every fault."""
    healthy, *faults = RUN["cases"]
    return RUN | changes | {"cases": [healthy, *(fault | (cases or {}) for fault in faults)]}


WRONG = {"label": "HOST", "right": False, "confidence": 0.999, "verdict": "cause", "expected": "PFX"}
RUNS = {
    "published": RUN,
    "no knee": changed(knee={"concurrency": None, "ci": None, "reason": "climb higher"}),
    "knee at the first rung": changed(knee=RUN["knee"] | {"concurrency": 1.0, "ci": [1, 2]}),
    "knee at the last rung": changed(knee=RUN["knee"] | {"concurrency": 32.0, "ci": [16, 32]}),
    "every diagnosis wrong": changed(cases=WRONG),
    "nothing observed": changed(cases={"observations": {}}),
    "a long name": changed(device="A processor with a name that no one would ever print on one line of a label " * 3),
}


@pytest.mark.parametrize("found", RUNS.values(), ids=RUNS)
def test_no_text_leaves_the_paper_or_meets_another(found: dict[str, Any]) -> None:
    assert overlapping(texts_on_paper(demonstration(found))) == []


def test_marks_stand_where_the_numbers_say() -> None:
    figure, chart = Figure(figsize=(style.WIDTH, style.HEIGHT)), demonstration(RUN)
    with style.applied():
        draw(chart, figure)
    lines = {line.get_gid(): line for line in figure.findobj(lambda artist: artist.get_gid()) if hasattr(line, "get_xdata")}
    assert list(lines["throughput"].get_xdata()) == [rung["concurrency"] for rung in RUN["ladder"]]
    assert list(lines["throughput"].get_ydata()) == [rung["output_tokens_per_s"] for rung in RUN["ladder"]]
    assert list(lines["ttft"].get_ydata()) == pytest.approx([1e3 * rung["ttft_p99_s"] for rung in RUN["ladder"]])
    assert list(lines["knee"].get_xdata()) == [RUN["knee"]["concurrency"]] * 2
    pools = [case["observations"]["kv_usage"] for case in RUN["cases"]]
    for place, pool in enumerate(pools[1:]):
        for kind, value in (("healthy", pools[0]), ("broken", pool)):
            assert lines[f"kv_usage:{kind}:{place}"].get_xdata()[0] == pytest.approx(value / max(pools))


def test_gauges_that_are_ratios() -> None:
    seen = gauges_of({"preemptions": 12, "interval_s": 4.0, "itl_p50_s": 0.02, "itl_p99_s": 0.1, "running": 3})
    assert (seen["preemptions_per_s"], seen["itl_p99_over_p50"], seen["running"]) == (3.0, 5.0, 3)
    assert gauges_of({}) == dict.fromkeys(GAUGES)


def test_the_finding_counts_what_was_right() -> None:
    assert demonstration(changed(cases=WRONG)).title.endswith(f"puts 0 of {len(RUN['cases']) - 1} faults first")


def test_the_data_and_the_bytes_are_the_same_again() -> None:
    chart = demonstration(RUN)
    assert all(list(row) == ["server", "streams", "quantity", "unit", "value"] for row in chart.rows)
    assert image(chart, "svg") == image(demonstration(RUN), "svg")


@pytest.mark.parametrize("found", [{}, {"cases": []}, RUN | {"ladder": [{"concurrency": 1}]}])
def test_other_documents_are_refused(found: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="roofline demo --json"):
        demonstration(found)
