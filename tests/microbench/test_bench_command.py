"""`roofline bench` as a process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = "from roofline.cli.main import run; run()"


def roofline(*args: str, cwd: Path, prelude: str = "") -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {prelude}{RUN}"
    return subprocess.run([sys.executable, "-c", code, *args], cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("command", [["bench", "launch"], ["bench"], ["hardware", "detect", "--measure"]])
def test_without_torch_there_is_one_line_with_the_install_command(tmp_path: Path, command: list[str]) -> None:
    ended = roofline(*command, cwd=tmp_path, prelude="sys.modules['torch'] = None; ")
    assert ended.returncode == 2
    assert len(ended.stderr.strip().splitlines()) == 1
    assert "needs torch, which is not installed: pip install 'roofline[gpu]'" in ended.stderr
    assert ended.stdout == ""


def test_without_cuda_the_message_says_what_to_do(tmp_path: Path) -> None:
    ended = roofline("bench", "launch", "--device", "cuda", cwd=tmp_path, prelude="import torch; torch.cuda.is_available = lambda: False; ")
    assert ended.returncode == 2
    assert "--device cpu" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_dry_run_prints_the_plan_and_measures_nothing(tmp_path: Path) -> None:
    ended = roofline("bench", "all", "--device", "cpu", "--dry-run", cwd=tmp_path)
    assert ended.returncode == 0
    assert "cases" in ended.stderr
    assert "60.0 s" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_small_bench_end_to_end_and_continued(tmp_path: Path) -> None:
    args = ("bench", "launch", "--device", "cpu", "--threads", "1", "--budget", "20s", "--records", "r.jsonl", "--json")
    first = roofline(*args, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    document = json.loads(first.stdout)
    assert document["command"] == "bench"
    assert document["rows"][0]["op"] == "launch"
    assert document["rows"][0]["low_s"] <= document["rows"][0]["median_s"] <= document["rows"][0]["high_s"]
    again = roofline(*args, cwd=tmp_path)
    assert "continued, 1 cases are there" in again.stderr
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["kind"] for line in lines].count("environment") == 2
    measured = [line["notes"] for line in lines if line["kind"] == "measurement"]
    assert sum("sentinel" in notes for notes in measured) == 2 * 7
    visits = [notes["visit"] for notes in measured if "sentinel" not in notes]
    assert visits == list(range(1, len(visits) + 1))  # a slow machine leaves no time for the third, and it is made up for
    assert 1 <= len(visits) <= 3


def test_shapes_of_a_model_are_measured(tmp_path: Path) -> None:
    ended = roofline(
        "bench",
        "--model",
        "tiny-llama-15m",
        "--device",
        "cpu",
        "--threads",
        "1",
        "--context",
        "32",
        "--budget",
        "20s",
        "--csv",
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    assert "decode_attention" in ended.stdout
    assert "gemm" in ended.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["bench", "nothing"], "nothing"),
        (["bench", "--budget", "60 parsecs"], "parsecs"),
        (["bench", "launch", "--device", "cpu", "--threads", "2", "--cpu-time"], "--threads 1"),
        (["bench", "--model", "no-such-model", "--device", "cpu"], "no-such-model"),
        (["bench", "launch", "--records", "."], ".: is a folder"),
        (["bench", "launch", "--records", "no/such.jsonl"], "there is no folder no"),
        (["bench", "launch", "--records", "/dev/full"], "/dev/full: records are read back"),
        (["bench", "launch", "--table", "no/such.csv"], "there is no folder no"),
        (["bench", "launch", "--device", "cpu", "-H", "h200-sxm"], "h200-sxm is a GPU"),
    ],
)
def test_wrong_input_ends_with_2_and_says_why(tmp_path: Path, args: list[str], message: str) -> None:
    ended = roofline(*args, cwd=tmp_path)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_budget_that_is_too_short_is_said_to_be(tmp_path: Path) -> None:
    ended = roofline("bench", "launch", "--device", "cpu", "--threads", "1", "--budget", "10ms", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "where the budget was 10.0 ms" in ended.stdout


def test_measuring_never_imports_predicting() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import microbench.collectives, microbench.summary, microbench.cases.standard, "
        "microbench.cases.model; print([m for m in sys.modules if m.startswith(('roofline.timing', 'roofline.phases'))])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.strip() == "[]"
