"""What people really type and paste: each ends with code 2 and one message that names the place and the fix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import CHECKOUT, Cli
from tests.cli.test_commands import _config

H100 = ("-H", "h100-sxm")


def refused(cli: Cli, *args: str | Path) -> str:
    """The message of a command that must end with code 2, print nothing and show no traceback."""
    done = cli(*args)
    assert done.code == 2, done.err
    assert done.out == ""
    assert "Traceback" not in done.err
    return done.err


def _file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_comma_is_missing(cli: Cli, tmp_path: Path) -> None:
    text = json.dumps(_config(), indent=1).replace('"model_type": "llama",', '"model_type": "llama"')
    message = refused(cli, "plan", _file(tmp_path, "config.json", text), *H100)
    line = next(i for i, each in enumerate(text.splitlines(), 1) if "hidden_size" in each)
    assert f"config.json:{line}: " in message
    assert "comma" in message


def test_a_yaml_bracket_is_missing(cli: Cli, tmp_path: Path) -> None:
    path = _file(tmp_path, "m.yaml", "name: x\nhf_ids: [a, b\nmodel_type: llama\n")
    assert "m.yaml:" in refused(cli, "plan", path, *H100)


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_an_empty_file(cli: Cli, tmp_path: Path, suffix: str) -> None:
    assert "is empty" in refused(cli, "plan", _file(tmp_path, f"m{suffix}", ""), *H100)


def test_a_folder(cli: Cli, tmp_path: Path) -> None:
    assert "config.json" in refused(cli, "plan", tmp_path, *H100)
    assert "folder" in refused(cli, "plan", "llama-3.1-8b", "-H", tmp_path)


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_a_file_of_2_gb_is_not_read(cli: Cli, tmp_path: Path, suffix: str) -> None:
    big = tmp_path / f"big{suffix}"
    with big.open("wb") as file:
        file.truncate(2 * 10**9)
    assert "2,000,000,000 bytes" in refused(cli, "plan", big, *H100)
    assert "bytes" in refused(cli, "plan", "llama-3.1-8b", "-H", big) or suffix == ".json"


def test_kv_heads_that_do_not_divide(cli: Cli, tmp_path: Path) -> None:
    text = json.dumps(_config(num_key_value_heads=3), indent=1)
    message = refused(cli, "plan", _file(tmp_path, "config.json", text), *H100)
    line = next(i for i, each in enumerate(text.splitlines(), 1) if "num_key_value_heads" in each)
    assert f"config.json:{line}:num_key_value_heads" in message


def test_seven_tensor_parallel_ranks(cli: Cli) -> None:
    message = refused(cli, "plan", "llama-3.1-8b", *H100, "--tp", "7")
    assert "heads = 32" in message
    assert "8" in message


@pytest.mark.parametrize("option", ["--isl", "--osl", "--tp", "--concurrency", "--max-model-len", "--users"])
@pytest.mark.parametrize("value", ["-1", "0", "1.5", "many"])
def test_lengths_and_counts_are_positive_integers(cli: Cli, option: str, value: str) -> None:
    assert "Invalid value" in refused(cli, "plan", "llama-3.1-8b", *H100, option, value)


@pytest.mark.parametrize(
    "args", [["--request-rate", "-1"], ["--request-rate", "nan"], ["--price", "0"], ["--think-time", "-1", "--users", "3"]]
)
def test_rates_are_positive(cli: Cli, args: list[str]) -> None:
    assert "must" in refused(cli, "plan", "llama-3.1-8b", *H100, *args)


def test_negative_context(cli: Cli) -> None:
    refused(cli, "ops", "llama-3.1-8b", *H100, "--context", "-5")


def test_an_ambiguous_device_lists_its_candidates(cli: Cli) -> None:
    message = refused(cli, "plan", "llama-3.1-8b", "-H", "h100")
    assert all(name in message for name in ("h100-sxm", "h100-pcie", "h100-nvl"))


@pytest.mark.parametrize(("wrong", "right"), [("llama-3.1-8", "llama-3.1-8b"), ("lama-3.1-8b", "llama-3.1-8b")])
def test_a_mistyped_model_gets_a_suggestion(cli: Cli, wrong: str, right: str) -> None:
    assert right in refused(cli, "plan", wrong, *H100)


def test_bandwidth_in_bits(cli: Cli, tmp_path: Path) -> None:
    text = (CHECKOUT / "hwprofiles/h100-sxm.yaml").read_text().replace('"3.35 TB/s"', '"26800 Gb/s"')
    line = next(i for i, each in enumerate(text.splitlines(), 1) if "Gb/s" in each)
    message = refused(cli, "plan", "llama-3.1-8b", "-H", _file(tmp_path, "mine.yaml", text))
    assert f"mine.yaml:{line}:memory_bandwidth" in message
    assert "bits" in message


def test_two_loads_at_once(cli: Cli) -> None:
    assert "one of" in refused(cli, "plan", "llama-3.1-8b", *H100, "--users", "3", "--concurrency", "4")


@pytest.mark.parametrize("goal", [["tpot"], ["tpot:fast"], ["e2el:5"], ["tpot:0"], ["tpot:5", "tpot:6"]])
def test_service_levels(cli: Cli, goal: list[str]) -> None:
    words = [word for part in goal for word in ("--goodput", part)]
    assert "--goodput" in refused(cli, "plan", "llama-3.1-8b", *H100, *words)


def test_unknown_formats_and_layouts(cli: Cli) -> None:
    assert "known:" in refused(cli, "plan", "llama-3.1-8b", *H100, "--weights", "fp7")
    assert "gqa:N" in refused(cli, "kv", "llama-3.1-8b", "--as", "gqa")
    assert "divide" in refused(cli, "kv", "llama-3.1-8b", "--as", "gqa:3")


def test_experts_of_a_dense_model(cli: Cli) -> None:
    assert "no experts" in refused(cli, "plan", "llama-3.1-8b", *H100, "--tp", "2", "--ep", "2")


def test_windows_line_ends_are_fine(cli: Cli, tmp_path: Path) -> None:
    text = (CHECKOUT / "modelprofiles/llama-3.1-8b.yaml").read_text().replace("\n", "\r\n")
    path = tmp_path / "windows.yaml"
    path.write_bytes(text.encode())
    assert cli("kv", path).code == 0


def test_a_home_folder_that_nobody_has(cli: Cli) -> None:
    assert "home folder '~0'" in refused(cli, "plan", "~0", *H100)
    assert "home folder '~nobody-here'" in refused(cli, "plan", "llama-3.1-8b", "-H", "~nobody-here/x.yaml")


def test_a_named_pipe_is_not_waited_for(cli: Cli, tmp_path: Path) -> None:
    for name in ("m.gguf", "m.yaml", "m.json"):
        os.mkfifo(tmp_path / name)
        assert "not a regular file" in refused(cli, "plan", tmp_path / name, *H100)


def test_more_layers_than_any_model_has(cli: Cli, tmp_path: Path) -> None:
    path = _file(tmp_path, "config.json", json.dumps(_config() | {"num_hidden_layers": 10**9}))
    assert "num_hidden_layers: must be a whole number ≥ 1 and ≤ 4,096" in refused(cli, "plan", path, *H100)


def test_weights_without_a_configuration(cli: Cli, tmp_path: Path) -> None:
    assert "model.safetensors: has no config.json" in refused(cli, "plan", _file(tmp_path, "model.safetensors", ""), *H100)


def test_an_unknown_key_is_told_how_to_go_on(cli: Cli, tmp_path: Path) -> None:
    path = _file(tmp_path, "config.json", json.dumps(_config() | {"frobnicate": 7}))
    assert "frobnicate: unknown key" in (message := refused(cli, "plan", path, *H100))
    assert "take it out if" in message


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_folder_whose_name_the_locale_cannot_read(tmp_path: Path, locale: str) -> None:
    """JSON is UTF-8 whatever the locale, and a byte that is no text at all becomes a mark, not a traceback."""
    folder = os.fsencode(tmp_path) + "/ünï".encode() + b"\xff"
    os.mkdir(folder)
    Path(os.fsdecode(folder + b"/config.json")).write_text(json.dumps(_config()))
    program = [sys.executable, "-c", "from roofline.cli.main import run; run()", "plan", folder, *H100, "--json"]
    environment = os.environ | {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(program, capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"]["name"] == "ünï\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("order", ["999999999*dense", "((32*dense", "0*dense", "4000*(4000*dense)"])
def test_an_order_that_cannot_be_read_has_its_line(cli: Cli, tmp_path: Path, order: str) -> None:
    shipped = (CHECKOUT / "modelprofiles" / "llama-3.1-8b.yaml").read_text()
    path = _file(tmp_path, "m.yaml", shipped.replace("32*dense", order))
    assert f"m.yaml:{shipped.count(chr(10))}:order: " in refused(cli, "plan", path, *H100)


@pytest.mark.parametrize("bandwidth", ["1e-300 B/s", "0 B/s", "0.5 B/s"])
def test_a_device_slower_than_a_byte_per_second(cli: Cli, tmp_path: Path, bandwidth: str) -> None:
    shipped = (CHECKOUT / "hwprofiles" / "h100-sxm.yaml").read_text()
    path = _file(tmp_path, "slow.yaml", shipped.replace("3.35 TB/s", bandwidth))
    assert "memory_bandwidth: Input should be greater than or equal to 1" in refused(cli, "plan", "llama-3.1-8b", "-H", path)


@pytest.mark.parametrize("load", [("--request-rate", "1e300"), ("--request-rate", "1e-300"), ("--users", "1", "--think-time", "1e308")])
def test_loads_beyond_reason(cli: Cli, load: tuple[str, ...]) -> None:
    assert "between" in refused(cli, "plan", "llama-3.1-8b", *H100, *load)
