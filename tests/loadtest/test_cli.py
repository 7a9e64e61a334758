"""`roofline loadtest` as a person or a script meets it: output, exit codes, messages."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from roofline.cli import main
from tests.loadtest.conftest import CHECKOUT, PROGRAM, Mock, start_mock

LITTLE = ("--ladder", "2", "--requests-per-stage", "6", "--input-len", "8", "--output-len", "6", "--warmup", "2")
TRUSTED_OR_BUSY = (0, 4)
"""A test machine may be busy; whether the client says so is tested in test_selfcheck.py."""


def run(*args: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT), "COLUMNS": "120"} | (env or {})
    return subprocess.run(
        [*PROGRAM, "loadtest", *map(str, args)], capture_output=True, text=True, env=environment, check=False, timeout=120
    )


def model(**options: Any) -> str:
    return "mock?" + "&".join(f"{key}={value}" for key, value in ({"ttft_ms": 20, "itl_ms": 2} | options).items())


def test_json_is_the_contract(mock: Mock, tmp_path: Path) -> None:
    done = run(mock.url, "--model", model(), *LITTLE, "--json", "--goodput", "ttft:9000", "tpot:9000", "--vllm-json", tmp_path / "v.json")
    assert done.returncode in TRUSTED_OR_BUSY, done.stderr
    found = json.loads(done.stdout)
    assert (found["schema_version"], found["command"]) == (1, "loadtest")
    stage = found["stages"][0]
    assert (stage["concurrency"], stage["requests_ok"], stage["requests_failed"], stage["errors"]) == (2, 6, 0, {})
    for metric in ("ttft_s", "tpot_s", "itl_s"):
        assert 0 <= stage[metric]["p50"] <= stage[metric]["p99"] > 0
    assert stage["output_tokens_per_s"] > 0
    assert {"event_loop_lag_s", "send_delay_s", "trustworthy"} <= set(found["client"])
    assert found["knee"]["slo_capacity"] == 2
    assert stage["goodput"]["attainment"] == 1
    assert "ttft" in found["definitions"]
    assert stage["server"]["client_minus_server_s"]["ttft_s"] < 1
    assert json.loads((tmp_path / "v.json").read_text())["completed"] == 6
    assert re.fullmatch(r"2 streams: 6/6 requests, [\d,]+ tok/s, \d+ s\n", done.stderr)


def test_progress_goes_to_standard_error_unless_quiet(mock: Mock, tmp_path: Path) -> None:
    loud, quiet = (
        run(mock.url, "--model", model(), "--ladder", "1,2", "--requests-per-stage", "2", "--json", "-o", tmp_path / "run.json", *more)
        for more in ((), ("--quiet",))
    )
    assert [line.split(":")[0] for line in loud.stderr.splitlines()] == ["1 stream", "2 streams"]
    assert loud.stdout == quiet.stdout == quiet.stderr == ""
    assert len(json.loads((tmp_path / "run.json").read_text())["stages"]) == 2


def test_a_page_for_people_and_csv(mock: Mock) -> None:
    page = run(mock.url, "--model", model(), *LITTLE)
    assert page.returncode in TRUSTED_OR_BUSY
    assert "TTFT p50 ms" in page.stdout
    assert "2 streams" in page.stdout
    assert "event loop" in page.stdout
    table = run(mock.url + "/v1", "--model", model(), *LITTLE, "--csv")
    head, row = table.stdout.splitlines()
    assert dict(zip(head.split(","), row.split(","), strict=True))["requests_ok"] == "6"


@pytest.mark.parametrize(
    ("options", "args", "code", "text"),
    [
        ({"err_every": 3}, (), 1, "× 503"),
        ({"err_every": 3}, ("--max-error-rate", "0.5"), 0, "× 503"),
        ({"sse_error_every": 2}, ("--max-error-rate", "0.1"), 1, "error event in stream"),
        ({"cut_every": 2}, (), 1, "connection closed mid-stream"),
        ({}, ("--goodput", "ttft:0.001"), 3, "service level met"),
    ],
)
def test_exit_codes(mock: Mock, options: dict[str, Any], args: tuple[str, ...], code: int, text: str) -> None:
    mock.reset()
    done = run(mock.url, "--model", model(**options), *LITTLE, *args)
    assert done.returncode == code or (done.returncode == 4 and code in (0, 3))
    assert text in done.stdout


def test_a_length_that_is_not_kept_fails(mock: Mock) -> None:
    done = run(mock.url, "--model", model(), *LITTLE, "--extra-body", '{"ignore_eos": false, "min_tokens": 0, "max_tokens": 3}')
    assert done.returncode == 1
    assert "another length than requested (3.0 for 6.0" in done.stdout


def test_a_plan_beside_it(mock: Mock, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    estimate = {"bound": 0.001, "expected": 0.002, "low": 0.0001, "high": 1.0}
    plan.write_text(json.dumps({"command": "plan", "curve": [{"batch": 2, "tpot_s": estimate, "output_tokens_per_s": 500}]}))
    done = run(mock.url, "--model", model(), *LITTLE, "--compare", plan, "--json")
    rows = json.loads(done.stdout)["comparison"]
    assert [row["metric"] for row in rows] == ["tpot_s", "output_tokens_per_s"]
    assert rows[0]["inside"] is True


def test_keys_come_from_the_environment_and_stay_there(tmp_path: Path) -> None:
    process, server = start_mock("--api-key", "s3cret-key", "--ttft-ms", "5", "--itl-ms", "1")
    files = ("--records", tmp_path / "r.jsonl", "--vllm-json", tmp_path / "v.json", "-o", tmp_path / "o.json")
    try:
        done = run(server.url, *LITTLE, *files, "--api-key-env", "MY_KEY", env={"MY_KEY": "s3cret-key"})
        assert done.returncode in TRUSTED_OR_BUSY, done.stderr
        refused = run(server.url, "--model", "mock", *LITTLE, env={"OPENAI_API_KEY": "s3cret-wrong"})
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert refused.returncode == 2
    assert "wants another API key" in refused.stderr
    written = "".join(path.read_text() for path in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 3
    assert "s3cret" not in written + done.stdout + done.stderr + refused.stdout + refused.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--ladder", "1,x"), "--ladder 1,x: whole numbers"),
        (("--request-rate", "fast"), "--request-rate fast"),
        (("--ladder", "1", "--request-rate", "2"), "one of --ladder, --request-rate and --trace"),
        (("--goodput", "ttft:soon"), "--goodput ttft:soon"),
        (("--goodput", "speed:1"), "--goodput speed:1"),
        (("--extra-body", "[]"), "--extra-body"),
        (("--resume",), "--resume goes with --records"),
        (("--compare", "missing.json"), "missing.json: cannot be read"),
        (("--dataset", "missing.jsonl"), "missing.jsonl: cannot be read"),
        (("--trace", "missing.csv"), "missing.csv: there is no such file"),
        (("-o", "no/such/folder.json"), "there is no folder no/such"),
        (("--vllm-json", "."), ".: is a folder"),
    ],
)
def test_wrong_usage_is_one_line(capsys: pytest.CaptureFixture[str], args: tuple[str, ...], message: str) -> None:
    with pytest.raises(SystemExit) as end:
        main.run(["loadtest", "http://127.0.0.1:9", *args])
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main.run(["loadtest", "http://127.0.0.1:9", "--model", "m"])
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (1, "")
    assert "no server at http://127.0.0.1:9: connection refused" in err


def test_a_path_that_is_none_of_the_api(mock: Mock) -> None:
    done = run(f"{mock.url}/other", *LITTLE)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{mock.url}/other/models names no model (HTTP 404): check the path of the URL" in done.stderr


def test_a_seed_below_zero_is_refused(mock: Mock) -> None:
    done = run(mock.url, *LITTLE, "--seed", "-1")
    assert done.returncode == 2
    assert "--seed" in done.stderr
    assert "Traceback" not in done.stderr


def test_starting_needs_no_heavy_package() -> None:
    code = (
        "import sys\nfrom roofline.cli import loadtest, mock\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'aiohttp', 'matplotlib', 'pandas', 'scipy', 'rich'}))"
    )
    done = subprocess.run([*PROGRAM[:2], code], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
