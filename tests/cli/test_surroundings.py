"""What surrounds a command: line ends, names of paths, homes, widths, locales, pipes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import CHECKOUT, PROGRAM, Cli, process
from tests.cli.test_commands import _config

SIMULATION = ("simulate", "llama-3.1-8b", "-H", "h100-sxm", "--request-rate", "4", "--num-requests", "20")
TRACE = "arrival_s,input_tokens,output_tokens\n0,100,20\n1.5,200,30\n"


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A folder with a space, an umlaut and Chinese in its name."""
    folder = tmp_path / "a földer 模型"
    folder.mkdir()
    return folder


def test_paths_with_spaces_and_other_scripts(cli: Cli, strange: Path) -> None:
    (strange / "config.json").write_text(json.dumps(_config()), encoding="utf-8")
    (strange / "my device.yaml").write_text((CHECKOUT / "hwprofiles" / "h100-sxm.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    (strange / "tr ace.csv").write_text(TRACE, encoding="utf-8")
    device = strange / "my device.yaml"
    assert cli("plan", strange, "-H", device, "-o", strange / "plän.json").code == 0
    assert json.loads((strange / "plän.json").read_text(encoding="utf-8"))["fits"]
    assert cli("simulate", strange, "-H", device, "--trace", strange / "tr ace.csv", "--requests", strange / "r s.csv").code == 0
    assert (strange / "r s.csv").is_file()
    assert cli("chart", "kv", strange, "-o", strange / "fig ür.svg").code == 0
    assert (strange / "fig ür.csv").is_file()


def _windows(path: Path, text: str) -> Path:
    path.write_bytes(text.replace("\r\n", "\n").replace("\n", "\r\n").encode())
    return path


def test_windows_line_ends_everywhere(cli: Cli, tmp_path: Path) -> None:
    config = _windows(tmp_path / "config.json", json.dumps(_config(), indent=1))
    device = _windows(tmp_path / "device.yaml", (CHECKOUT / "hwprofiles/l40s.yaml").read_text(encoding="utf-8"))
    assert cli("plan", config, "-H", device).code == 0
    rows = [{"arrival_s": i, "input_tokens": 64, "output_tokens": 8} for i in range(3)]
    for trace in (
        _windows(tmp_path / "t.csv", TRACE),
        _windows(tmp_path / "t.jsonl", "\n".join(map(json.dumps, rows)) + "\n"),
    ):
        assert cli("simulate", config, "-H", device, "--trace", trace).code == 0
    table = _windows(tmp_path / "k.csv", (CHECKOUT / "tests/data/kernels/gemm_h100_trtllm_fp8_fit.csv").read_text(encoding="utf-8"))
    assert cli("predict", table, "-o", tmp_path / "p.csv").code == 0
    pages = [
        _windows(tmp_path / f"{i}.prom", (CHECKOUT / f"tests/data/metrics/vllm_v1_kv_pressure_{i}.prom").read_text(encoding="utf-8"))
        for i in (0, 1)
    ]
    plain = cli("diagnose", *(CHECKOUT / f"tests/data/metrics/vllm_v1_kv_pressure_{i}.prom" for i in (0, 1)), "--json").json
    assert cli("diagnose", *pages, "--json").json["causes"][0]["label"] == plain["causes"][0]["label"]


@pytest.mark.parametrize("columns", [60, 200])
@pytest.mark.parametrize("args", [("doctor",), ("diagnose", "--symptom", "ttft-high"), SIMULATION], ids=lambda args: args[0])
def test_narrow_and_wide_terminals(cli: Cli, args: tuple[str, ...], columns: int) -> None:
    done = cli(*args, columns=columns)
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= columns
    assert "\x1b" not in done.out


@pytest.mark.parametrize("args", [("doctor",), SIMULATION, ("hardware", "detect")], ids=lambda args: args[0])
def test_a_home_that_cannot_be_written_and_the_plainest_locale(args: tuple[str, ...]) -> None:
    env = {"HOME": os.devnull, "XDG_CACHE_HOME": os.devnull, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = process(*args, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


@pytest.mark.parametrize("args", [("ops", "llama-3.1-8b", "-H", "h100-sxm"), ("hardware", "list"), ("doctor",)], ids=lambda args: args[0])
def test_the_output_is_cut_by_head(args: tuple[str, ...]) -> None:
    script = 'set -o pipefail; "$@" | head -1'
    done = subprocess.run(["bash", "-c", script, "sh", *PROGRAM, *args], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_leaves_no_half_file() -> None:
    done = process("plan", "llama-3.1-8b", "-H", "h100-sxm", "-o", "/dev/full")
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
