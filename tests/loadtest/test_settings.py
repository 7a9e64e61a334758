"""What a load test may be asked, and the stages that come of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roofline.errors import InputError
from roofline.loadtest.settings import Settings, stages

URL = "http://localhost:1"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "one of --ladder, --request-rate and --trace"),
        ({"ladder": (1,), "rates": (1.0,)}, "not ladder and rates"),
        ({"ladder": (0, 1)}, "--ladder: streams"),
        ({"rates": (0.0,)}, "--request-rate"),
        ({"rates": (1.0,), "burstiness": 0.0}, "--burstiness"),
        ({"ladder": (1,), "shared_prefix_tokens": 200, "input_tokens": 100}, "--shared-prefix-len 200: at most"),
        ({"ladder": (1,), "endpoint": "embeddings"}, "--endpoint embeddings"),
        ({"ladder": (1,), "levels_s": {"itl": 0.05}}, "--goodput itl:50"),
        ({"ladder": (1,), "levels_s": {"ttft": -1.0}}, "--goodput ttft"),
    ],
)
def test_what_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Settings(URL, "m", **settings)


def test_a_ladder() -> None:
    made = stages(Settings(URL, ladder=(1, 16), input_tokens=10, output_tokens=5), None)
    assert [(each.concurrency, len(each.workload), each.first_number) for each in made] == [(1, 32, 0), (16, 64, 32)]
    assert set(made[1].workload.input_tokens) == {10}
    assert [each.title for each in made] == ["1 stream", "16 streams"]


def test_rates_are_poisson_unless_told() -> None:
    def gaps(**settings: Any) -> Any:
        made = stages(Settings(URL, rates=(50.0,), requests_per_stage=20_000, **settings), None)[0]
        return np.diff(made.workload.arrival_s)

    assert gaps().mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps().std() == pytest.approx(1 / 50, rel=0.05)  # exponential: deviation = mean
    assert gaps(burstiness=4.0).std() == pytest.approx(1 / 50 / 2, rel=0.05)  # gamma of shape 4
    assert np.array_equal(gaps(), gaps())
    assert not np.array_equal(gaps(), gaps(seed=1))
    at_once = stages(Settings(URL, rates=(math.inf,)), None)[0]
    assert set(at_once.workload.arrival_s) == {0.0}


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0.5,10,3\n1.5,20,4\n4.0,30,5\n")
    made = stages(Settings(URL, trace=path, speed=2.0), None)[0].workload
    assert list(made.arrival_s) == [0.25, 0.75, 2.0]
    assert list(made.output_tokens) == [3, 4, 5]


def test_processes_by_need_and_cores() -> None:
    ladder = stages(Settings(URL, ladder=(8, 600, 3000)), None)
    assert [each.processes(0, 16) for each in ladder] == [1, 2, 6]
    assert [each.processes(0, 2) for each in ladder] == [1, 1, 1]
    assert [each.processes(4, 1) for each in ladder] == [4, 4, 4]
    rates = stages(Settings(URL, rates=(10.0, 1000.0), output_tokens=100), None)
    assert [each.processes(0, 16) for each in rates] == [1, 5]


def test_settings_as_json_hold_no_folders(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    text = json.dumps(Settings(URL, trace=path).to_json())
    assert "trace.csv" in text
    assert str(tmp_path) not in text
