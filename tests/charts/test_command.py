"""`roofline chart` as a user meets it: what it writes, what it refuses, what it leaves behind when it fails."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from roofline.charts import KINDS
from roofline.charts.save import write_all
from roofline.errors import InputError, RooflineError
from tests.cli.conftest import Cli, process

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize("suffix", ["pdf", "png", "svg", "SVG"])
def test_it_writes_the_figure_and_its_data(suffix: str, cli: Cli, tmp_path: Path) -> None:
    done = cli("chart", "kv", "llama-2-7b", "-o", tmp_path / f"kv.{suffix}")
    assert done.code == 0, done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([f"kv.{suffix}", "kv.csv"])
    assert str(tmp_path / f"kv.{suffix}") in done.out.replace("\n", "")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("error",)])
def test_every_kind_takes_a_device_and_tp(kind: str, cli: Cli) -> None:
    done = cli("chart", kind, "llama-3.1-8b", "-H", "h100-sxm", "--tp", "2", "--json")
    assert done.code == 0, done.err
    assert done.json["rows"]
    assert done.json["title"]
    assert {"schema_version", "command", "inputs", "assumptions"} <= set(done.json)


def test_csv_goes_to_standard_output_without_a_file(cli: Cli) -> None:
    assert cli("chart", "batch", "llama-2-7b", "-H", "a100-sxm-80gb", "--csv").out.startswith("batch,context,")


def test_one_command_from_a_config_of_your_own(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    done = cli("chart", "roofline", tmp_path, "-H", "rtx-4090", "-o", tmp_path / "mine.pdf")
    assert done.code == 0, done.err
    assert (tmp_path / "mine.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense", "llama-2-7b", "-o", "{}/x.pdf"], "known: roofline, "),
        (["roofline", "llama-2-7b", "-o", "{}/x.pdf"], "add -H"),
        (["roofline", "llama-2-7b", "-H", "a100-sxm-80gb", "-o", "{}/x.jpeg"], ".pdf, .png, .svg"),
        (["roofline", "llama-2-7b", "-H", "a100-sxm-80gb", "-o", "{}/x"], "no suffix"),
        (["roofline", "llama-2-7b", "-H", "a100-sxm-80gb", "-o", "{}/none/x.pdf"], "cannot write"),
        (["roofline", "llama-2-7b", "-H", "a100-sxm-80gb", "-o", "{}/folder.pdf"], "is a folder"),
        (["roofline", "-H", "a100-sxm-80gb", "-o", "{}/x.pdf"], "needs a MODEL"),
        (["roofline", "llama-2-7b", "-H", "a100-sxm-80gb"], "where to?"),
        (["error", "-o", "{}/x.pdf"], "--table"),
        (["error", "--table", "{}/absent.csv", "-o", "{}/x.pdf"], "cannot be read"),
        (["error", "--table", "{}/empty.csv", "-o", "{}/x.pdf"], "no rows"),
        (["error", "--table", "{}/bad.csv", "-o", "{}/x.pdf"], "bad.csv:3:expected_s"),
        (["error", "--table", "{}/unpredicted.csv", "-o", "{}/x.pdf"], "roofline predict"),
        (["gemm-curve", "llama-2-7b", "-H", "a100-sxm-80gb", "--table", "{}/bad.csv", "-o", "{}/x.pdf"], "'m' is missing"),
        (["roofline", "llama-2-7b", "-H", "a100-sxm-80gb", "--table", "{}/binary.csv", "-o", "{}/x.pdf"], "not CSV"),
        (["batch", "llama-2-7b", "-H", "a100-sxm-80gb", "--tp", "3", "-o", "{}/x.pdf"], "tp"),
    ],
)
def test_what_it_refuses_and_that_nothing_is_left(arguments: list[str], says: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "folder.pdf").mkdir()
    (tmp_path / "empty.csv").write_text("op,seconds,expected_s\n")
    (tmp_path / "bad.csv").write_text("op,seconds,expected_s\ngemm,1e-3,1e-3\ngemm,1e-3,fast\n")
    (tmp_path / "unpredicted.csv").write_text("op,seconds\ngemm,1e-3\n")
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)))
    before = sorted(tmp_path.iterdir())
    done = cli("chart", *(word.format(tmp_path) for word in arguments))
    assert done.code in (1, 2)
    assert says in done.err
    assert "Traceback" not in done.err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes anywhere")
def test_an_unwritable_folder(cli: Cli, tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    done = cli("chart", "kv", "llama-2-7b", "-o", tmp_path / "x.pdf")
    tmp_path.chmod(0o755)
    assert (done.code, list(tmp_path.iterdir())) == (1, [])


def test_a_failure_between_the_two_files_leaves_the_old_ones(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x.csv").mkdir()
    (tmp_path / "x.svg").write_text("old")
    done = cli("chart", "kv", "llama-2-7b", "-o", tmp_path / "x.svg")
    assert done.code == 2
    assert (tmp_path / "x.svg").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.csv", "x.svg"]


def test_the_data_never_replaces_the_table_that_the_figure_is_made_of(cli: Cli, tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    table.write_text("op,seconds,expected_s\ngemm,1e-3,1.1e-3\n")
    done = cli("chart", "error", "--table", table, "-o", tmp_path / "mine.svg")
    assert done.code == 2
    assert "would replace" in done.err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["op,seconds,expected_s\ngemm,1e-3,1.1e-3\n"]


@pytest.mark.parametrize("stop", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_full_disk_or_ctrl_c_while_writing_leaves_nothing(
    stop: BaseException, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third file cannot be written whole, then the second, then the first: neither files nor the folder made for them stay."""
    writes = iter(range(after + 1))
    make = tempfile.NamedTemporaryFile

    def failing(*arguments: Any, **options: Any) -> Any:
        file = make(*arguments, **options)
        if next(writes) == after:
            file.write(b"half")
            monkeypatch.setattr(file, "write", lambda content: (_ for _ in ()).throw(stop))
        return file

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", failing)
    folder = tmp_path / "figures"
    with pytest.raises((RooflineError, KeyboardInterrupt)):
        write_all({folder / "a.svg": b"a", folder / "b.svg": b"b", tmp_path / "c.md": b"c"}, folder)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_there_stays(tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    folder.mkdir()
    with pytest.raises(InputError, match="is a folder"):
        write_all({folder / "a.svg": b"a", tmp_path: b"c"}, folder)
    assert list(tmp_path.rglob("*")) == [folder]


def test_a_file_keeps_the_permissions_that_it_had(tmp_path: Path) -> None:
    (tmp_path / "a.svg").write_text("old")
    (tmp_path / "a.svg").chmod(0o600)
    write_all({tmp_path / "a.svg": b"new"})
    assert ((tmp_path / "a.svg").read_bytes(), (tmp_path / "a.svg").stat().st_mode & 0o777) == (b"new", 0o600)


def test_no_home_no_cache_no_display_and_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    """A home that nothing can be written to, another folder, time zone and hash seed."""
    outputs = []
    for index, extra in enumerate(({}, {"HOME": os.devnull, "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7", "MPLCONFIGDIR": os.devnull})):
        (folder := tmp_path / str(index)).mkdir()
        environment = {"DISPLAY": "", "MPLBACKEND": "TkAgg", "XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": "", **extra}
        done = process("chart", "roofline", "llama-2-7b", "-H", "a100-sxm-80gb", "-o", "figure.pdf", env=environment, cwd=folder)
        assert (done.returncode, done.stderr) == (0, "")
        outputs.append([(folder / name).read_bytes() for name in ("figure.pdf", "figure.csv")])
    assert outputs[0] == outputs[1]


def test_help_names_every_kind(cli: Cli) -> None:
    text = " ".join(cli("chart", "--help").out.split())
    assert all(f"{kind} (" in text for kind in KINDS)


def test_charts_are_not_imported_by_other_commands() -> None:
    code = "import sys; from roofline.cli.main import run\ntry: run(['kv', 'llama-2-7b'])\n"
    code += "finally: print('matplotlib' in sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith("False")


def test_a_second_device_is_drawn_or_refused(cli: Cli, tmp_path: Path) -> None:
    both = ["-H", "a100-sxm-80gb", "-H", "h100-sxm"]
    refused = cli("chart", "batch", "llama-3.1-8b", *both, "-o", str(tmp_path / "x.svg"))
    assert refused.code == 2
    assert "one device, not a100-sxm-80gb, h100-sxm" in refused.err
    assert not list(tmp_path.iterdir())
    drawn = cli("chart", "budget", "llama-3.1-8b", *both, "-o", str(tmp_path / "x.svg"))
    assert drawn.code == 0
    assert "h100-sxm" in (tmp_path / "x.csv").read_text(encoding="utf-8")
