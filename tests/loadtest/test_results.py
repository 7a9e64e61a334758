"""What results are made into: comparisons, vLLM's layout, the server's own view, timelines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roofline.errors import RecordError
from roofline.loadtest.compare import compare, load_prediction
from roofline.loadtest.server_metrics import beside_client, difference, parse
from roofline.loadtest.timeline import patterns, slices
from roofline.loadtest.vllm_layout import vllm_result
from tests.loadtest.builders import record, stage

SUMMARY = {"p50": 0.1, "p99": 0.2, "mean": 0.1}


def measured(streams: int, tpot: float) -> dict[str, Any]:
    latencies = {"ttft_s": SUMMARY, "tpot_s": SUMMARY | {"p50": tpot}, "e2el_s": SUMMARY}
    return {
        "title": f"{streams} streams", "concurrency": streams, "request_rate": None, "output_tokens_per_s": 90.0,
        "steady_output_tokens_per_s": 100.0, **latencies,
    }  # fmt: skip


def test_a_plan_beside_a_ladder() -> None:
    points = ((1, 0.01), (4, 0.02))
    curve = [{"batch": n, "tpot_s": {"expected": t, "low": 0.8 * t, "high": 1.2 * t}, "output_tokens_per_s": n / t} for n, t in points]
    rows = compare({"command": "plan", "curve": curve}, [measured(1, 0.011), measured(2, 0.03), measured(8, 0.05)])
    tpot = [row for row in rows if row["metric"] == "tpot_s"]
    assert [row["stage"] for row in tpot] == ["1 streams", "2 streams"]  # 8 is outside of the curve
    assert tpot[0]["expected"] == 0.01
    assert tpot[0]["error"] == pytest.approx(0.01 / 0.011 - 1)
    assert tpot[0]["inside"] is True
    assert tpot[1]["expected"] == pytest.approx(0.015)  # half of the way from 1 to 4 in the logarithm
    assert tpot[1]["inside"] is False
    assert {row["metric"] for row in rows} == {"tpot_s", "output_tokens_per_s"}  # the plan says nothing about TTFT


def test_a_simulation_beside_the_stage_of_its_load() -> None:
    simulated = {"command": "simulate", "inputs": {"concurrency": 4}, "ttft_s": SUMMARY, "tpot_s": {"p50": None, "p99": 0.3}}
    rows = compare(simulated, [measured(2, 0.02), measured(4, 0.02)])
    assert {row["stage"] for row in rows} == {"4 streams"}
    assert [(row["metric"], row["statistic"]) for row in rows] == [("ttft_s", "p50"), ("ttft_s", "p99"), ("tpot_s", "p99")]
    assert rows[0]["error"] == 0


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not JSON"), ("[]", "command"), ('{"command": "kv"}', "'kv'"), ('{"command": "plan"}', "curve")]
)
def test_predictions_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=message):
        load_prediction(path)
    with pytest.raises(RecordError, match="cannot be read"):
        load_prediction(tmp_path / "missing.json")


def test_vllms_layout() -> None:
    records = [record(k, start=float(k), ttft=0.1 * (k + 1), gap=0.02, tokens=3 + k) for k in range(3)]
    found = vllm_result(stage([*records, record(9, error="503")]), model="m", endpoint="chat", date="d", concurrency=2, rate=None)
    assert (found["completed"], found["failed"], found["num_prompts"], found["max_concurrency"]) == (3, 1, 4, 2)
    assert found["median_ttft_ms"] == pytest.approx(200)
    assert found["mean_tpot_ms"] == pytest.approx(20)
    assert [len(part) for part in found["itls"]] == [2, 3, 4]
    assert found["output_lens"] == [3, 4, 5]
    assert found["output_throughput"] == pytest.approx(12 / (2 + 0.3 + 0.08))
    wanted = "duration completed total_input_tokens total_output_tokens request_throughput ttfts p99_e2el_ms std_itl_ms"
    assert set(wanted.split()) <= set(found)
    json.dumps(found)


PAGE = """# HELP vllm:time_to_first_token_seconds x
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 3.0
vllm:time_to_first_token_seconds_sum{model_name="m",engine="0"} %s
vllm:time_to_first_token_seconds_count{model_name="m",engine="0"} %s
vllm:generation_tokens_total{model_name="m",engine="0"} 10.0
vllm:generation_tokens_total{model_name="m",engine="1"} 5.0
broken line
vllm:nan NaN
"""


def test_the_servers_own_view() -> None:
    before, after = parse(PAGE % (1.0, 10)), parse(PAGE % (3.0, 20))
    assert before["vllm:generation_tokens_total"] == 15
    server = difference(before, after)
    assert server["ttft_s"] == {"mean": pytest.approx(0.2), "n": 10}
    assert server["output_tokens"] == 0
    client = {"requests_ok": 10, "requests_failed": 0, "ttft_s": {"mean": 0.35}, "e2el_s": {"mean": None}}
    gaps, notes = beside_client(server, client)
    assert gaps == {"ttft_s": pytest.approx(0.15)}
    assert "client sees ttft 150 ms later" in notes[0]
    assert beside_client(server, client | {"ttft_s": {"mean": 0.205}})[1] == []
    assert "others use it too" in beside_client(server, client | {"requests_ok": 5})[1][0]
    assert difference({}, {}) == {}


def test_a_timeline_adds_up() -> None:
    data = stage(record(k, start=0.5 * k, ttft=0.2, gap=0.02, tokens=41) for k in range(40))
    rows = slices(data)
    width = rows[1]["time_s"] - rows[0]["time_s"]
    assert sum(row["in_flight"] for row in rows) * width == pytest.approx(40 * 1.0)
    assert sum(row["output_tokens_per_s"] for row in rows) * width == pytest.approx(40 * 41)
    medians = [row["ttft_s"] for row in rows if row["ttft_s"]]
    assert medians == pytest.approx([0.2] * len(medians))
    assert slices(stage([])) == []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("steady", lambda k: {}),
        ("queue-grows", lambda k: {"ttft": 0.2 + 0.05 * k}),
        ("warms-up", lambda k: {"ttft": 2.0 if k < 12 else 0.2}),
        ("decode-slows", lambda k: {"gap": 0.02 + 0.002 * k}),
    ],
)
def test_patterns(name: str, change: Any) -> None:
    rng = np.random.default_rng(0)
    found = patterns(stage(record(k, start=0.1 * k, **({"ttft": 0.2 * rng.normal(1, 0.05)} | change(k))) for k in range(40)))
    assert [each["name"] for each in found] == [name]


def test_stalls_are_a_pattern() -> None:
    records = [record(k, start=0.1 * k, tokens=20) for k in range(40)]
    records[7].gaps_s[3] = 2.0
    assert [each["name"] for each in patterns(stage(records))] == ["stalls"]
    assert patterns(stage(records[:5])) == []  # too few to name anything
