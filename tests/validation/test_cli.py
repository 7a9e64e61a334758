"""`roofline validate` end to end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, cli, process  # noqa: F401  a fixture
from tests.validation.test_tables import table


def test_a_table_is_judged_and_its_rows_are_written(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    done = cli("validate", "--measurements", table(tmp_path / "rows.csv", 1.0), "-o", tmp_path / "out", "--json")
    assert done.code == 0
    assert (done.json["command"], done.json["verdict"], done.json["groups"][0]["rows"]) == ("validate", "PASS", 12)
    assert (tmp_path / "out" / "rows.csv").read_text().count("\n") == 13
    assert cli("validate", "--measurements", table(tmp_path / "slow.csv", 3.0)).code == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "name a MODEL"),
        (("tiny-llama-15m", "--measurements", "x.csv"), "not both"),
        (("--measurements", "nowhere.csv"), "nowhere.csv"),
        (("no-such-model",), "no-such-model"),
        (("tiny-llama-15m", "--budget", "soon"), "soon"),
        (("tiny-llama-15m", "--device", "cpu", "--budget", "10s"), "at least 45 s"),
        (("tiny-llama-15m", "--device", "cpu", "--cpu-time", "--threads", "2"), "--threads 1"),
        (("llama-3.1-405b", "--device", "cpu", "-o", "{folder}/out"), "GB are free"),
        (("tiny-llama-15m", "--device", "cpu", "-o", "{folder}/file"), "the folder cannot be made"),
        (("--loadtest", "x.json"), "go together"),
    ],
)
def test_wrong_usage_names_the_fix(cli: Cli, tmp_path: Path, args: tuple[str, ...], words: str) -> None:  # noqa: F811
    (tmp_path / "file").write_text("")
    done = cli("validate", *(arg.format(folder=tmp_path) for arg in args))
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err
    assert not list(tmp_path.glob("out/*.jsonl"))


@pytest.mark.slow
def test_a_run_that_is_interrupted_keeps_its_records(tmp_path: Path) -> None:
    code = "from roofline.cli.main import run; run()"
    args = [sys.executable, "-c", code, "validate", "tiny-llama-15m", "--device", "cpu", "--budget", "60s", "-o", str(tmp_path / "out")]
    with subprocess.Popen(args, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as child:
        assert child.stderr is not None
        said = [child.stderr.readline()]
        while said[-1] and "roofs and" not in said[-1]:
            said.append(child.stderr.readline())
        time.sleep(2.0)
        child.send_signal(signal.SIGINT)
        rest = child.stderr.read()
    assert child.returncode == 130, said
    assert "the same command starts again" in rest
    assert "Traceback" not in rest
    assert (tmp_path / "out" / "measurements.jsonl").stat().st_size > 0


@pytest.mark.slow
def test_a_small_model_on_this_cpu(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--budget", "60s", "--threads", "1", "--cpu-time", "-o", str(tmp_path), "--json")
    done = process("validate", "tiny-llama-15m", *options, timeout=600)
    assert done.returncode in (0, 1, 4), done.stderr
    found = json.loads(done.stdout)
    assert {"kernels 1", "steps 1"} <= set(found["predictions_stated_first"])
    assert {"gemm", "attention", "decode", "prefill"} <= {group["group"] for group in found["groups"]}
    for name in ("README.md", "report.html", "report.pdf", "predictions.jsonl", "measurements.jsonl", "run.json"):
        assert (tmp_path / name).is_file()
    run = json.loads((tmp_path / "run.json").read_text())
    assert not set(run["fitted"]) & set(run["judged"])
