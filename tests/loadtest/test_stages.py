"""Open loops, several processes, calibration of words, interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.loadtest.conftest import CHECKOUT, PROGRAM, Mock, start_mock

QUICK = "mock?ttft_ms=20&itl_ms=2"


def test_an_open_loop_keeps_its_times(mock: Mock) -> None:
    outcome = mock.run(ladder=(), rates=(40.0,), requests_per_stage=40)
    stage = outcome.stages[0]
    due = stage.stage.workload.arrival_s
    sent = np.sort([each["t0"] for each in mock.truth()])
    assert np.allclose(sent - sent[0], due - due[0], atol=0.1)
    assert outcome.to_json()["stages"][0]["request_rate"] == 40.0


def test_an_open_loop_can_be_capped(mock: Mock) -> None:
    outcome = mock.run(ladder=(), rates=(1000.0,), requests_per_stage=20, max_concurrency=3)
    assert max(outcome.stages[0].data.in_flight) == 3
    assert mock.get("/mock/truth")["max_active"] <= 3
    assert any("the load was not the one asked for" in reason for reason in outcome.reasons)


def test_a_trace(mock: Mock, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,10,3\n0.1,20,4\n0.2,30,5\n")
    mock.run(ladder=(), trace=path, requests_per_stage=None)
    assert [(each["n_in"], each["n_out"]) for each in mock.truth()] == [(10, 3), (20, 4), (30, 5)]


def test_two_processes_are_merged(mock: Mock) -> None:
    outcome = mock.run(ladder=(4,), requests_per_stage=17, processes=2)
    stage = outcome.stages[0]
    assert (stage.processes, stage.data.ok) == (2, 17)
    assert sorted(stage.data.index) == list(range(17))
    assert len(stage.load.lag_s) > 0
    truth = {each["hdr_id"]: each for each in mock.truth()}
    assert len(truth) == 17


def test_prompts_have_the_length_that_was_asked_for(mock: Mock) -> None:
    outcome = mock.run({"prompt_overhead": 11}, input_tokens=40, warmup=3)
    found = outcome.to_json()["stages"][0]
    assert found["input_tokens"] == {"requested_mean": 40, "mean": 40, "total": 320}
    assert any("11 + 1 tokens per word" in note for note in outcome.notes)


def test_a_data_set(mock: Mock, tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"prompt": "one two three", "output_tokens": 2}\n{"messages": [{"role": "user", "content": "four"}]}\n')
    mock.run(dataset=path, ladder=(1,), requests_per_stage=4, output_tokens=5)
    assert [(each["n_in"], each["n_out"]) for each in mock.truth()] == [(3, 2), (1, 5)] * 2


@pytest.mark.parametrize("more", [(), ("--processes", "2")], ids=["one", "two"])
def test_ctrl_c_keeps_what_is_done(tmp_path: Path, more: tuple[str, ...]) -> None:
    server, mock = start_mock("--ttft-ms", "20", "--itl-ms", "2")
    path = tmp_path / "records.jsonl"
    command = [*PROGRAM, "loadtest", mock.url, "--ladder", "2,2", "--requests-per-stage", "2000", "--output-len", "8", "--json"]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    client = subprocess.Popen(
        [*command, "--records", str(path), *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        for _ in range(600):
            if path.exists() and path.read_text().count('"measured"') >= 20:
                break
            with pytest.raises(subprocess.TimeoutExpired):
                client.wait(0.05)
        client.send_signal(signal.SIGINT)
        out, err = client.communicate(timeout=30)
    finally:
        server.terminate()
        server.communicate(timeout=20)
    assert client.returncode == 130, err
    found = json.loads(out)
    assert found["interrupted"] is True
    assert found["stages"][0]["complete"] is False
    assert 16 <= found["stages"][0]["requests_ok"] == path.read_text().count('"measured"')
    assert "Traceback" not in err
