"""The command as a process: start-up, streams, exit codes, terminals."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from roofline.cli import main, shell
from roofline.errors import DoesNotFitError, InputError, RooflineError, UntrustworthyError
from tests.cli.conftest import CHECKOUT, PROGRAM, Cli, process

HEAVY = {"torch", "matplotlib", "pandas", "scipy", "aiohttp", "transformers", "rich", "email"}
PLAN = ("plan", "llama-3.1-8b", "-H", "h100-sxm")


@pytest.mark.parametrize(
    "args", [["--help"], ["plan", "--help"], [*PLAN], ["ops", *PLAN[1:]], ["kv", "llama-3.1-8b"], ["hardware", "list"]]
)
def test_heavy_modules_stay_out(args: list[str]) -> None:
    code = (
        "import sys\nfrom roofline.cli.main import run\n"
        f"try: run({args!r})\nexcept SystemExit: pass\n"
        "print('LOADED', *sorted({name.split('.')[0] for name in sys.modules}))"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    loaded = set(out.splitlines()[-1].split()[1:])
    assert "typer" in loaded
    assert not loaded & HEAVY


def test_what_pydantic_is_spared_is_there_for_others() -> None:
    code = f"from roofline.cli.main import run\ntry: run({[*PLAN]!r})\nexcept SystemExit: pass\n"
    code += "import importlib.metadata, pydantic.plugin._loader as search\nprint(importlib.metadata.version('numpy'), search.get_plugins())"
    out = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == f"{np.__version__} ()"


def test_help_imports_no_command() -> None:
    code = "import sys\nfrom roofline.cli.main import run\ntry: run(['--help'])\nexcept SystemExit: pass\nprint(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    loaded = set(out.splitlines()[-1].split())
    assert not loaded & {f"roofline.cli.{name}" for name in main.COMMANDS}
    assert "numpy" not in loaded


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc")
def test_plan_stays_small() -> None:
    code = f"from roofline.cli.main import run\ntry: run({[*PLAN]!r})\nexcept SystemExit: pass\nprint(open('/proc/self/status').read())"
    out = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    assert int(re.findall(r"VmHWM:\s+(\d+) kB", out)[0]) * 1024 <= 120e6


def test_every_command_has_help_that_fits(cli: Cli) -> None:
    top = cli("--help", columns=80)
    assert top.code == 0
    for name, line in main.COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(line)}$", top.out, re.MULTILINE)
        assert cli(name, "--help").code == 0


def test_version(cli: Cli) -> None:
    assert re.fullmatch(r"roofline \d+\.\d+\.\d+\n", cli("--version").out)


def test_a_mistyped_command_gets_a_suggestion(cli: Cli) -> None:
    done = cli("paln")
    assert done.code == 2
    assert "'plan'" in done.err
    assert done.out == ""


@pytest.mark.parametrize(("error", "code"), [(RooflineError, 1), (InputError, 2), (DoesNotFitError, 3), (UntrustworthyError, 4)])
def test_expected_errors_become_exit_codes(cli: Cli, monkeypatch: pytest.MonkeyPatch, error: type[RooflineError], code: int) -> None:
    def fail(*args: object) -> None:
        raise error("what happened: and the fix")

    monkeypatch.setattr("roofline.cli.kv.load_model", fail)
    done = cli("kv", "llama-3.1-8b")
    assert (done.code, done.out, done.err) == (code, "", "error: what happened: and the fix\n")


def test_ctrl_c_ends_with_a_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("roofline.cli.kv.load_model", interrupt)
    done = cli("kv", "llama-3.1-8b")
    assert (done.code, done.out, done.err) == (130, "", "interrupted\n")


def test_a_bug_is_not_hidden(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roofline.cli.kv.load_model", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main.run(["kv", "llama-3.1-8b"])


def test_a_reader_that_goes_away_is_no_error() -> None:
    with subprocess.Popen(
        [*PROGRAM, "ops", *PLAN[1:], "--json"], cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == ""
        assert child.wait(60) == 0


def test_closed_standard_output_is_said() -> None:
    script = f'exec "$@" >&-; # {PROGRAM[0]}'
    done = subprocess.run(
        ["bash", "-c", script, "sh", *PROGRAM, "kv", "llama-3.1-8b"], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "error: standard output is closed; use -o FILE\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_full_disk_is_said(form: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = process("kv", "llama-3.1-8b", *form, stdout=full)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith("No space left on device\n")
    assert len(done.stderr.splitlines()) == 1


def test_a_plain_locale_gets_plain_characters() -> None:
    done = process(*PLAN, env={"PYTHONIOENCODING": "ascii", "COLUMNS": "80"})
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "?" not in re.sub(r"[^\n]*: [a-z ]*\?", "", done.stdout)


def test_json_is_utf8_whatever_the_locale() -> None:
    done = process("ops", *PLAN[1:], "--json", env={"PYTHONIOENCODING": "ascii"}, text=False)
    assert "·" in json.loads(done.stdout.decode())["ops"][0]["formula"]


def _on_a_terminal(*args: str, env: dict[str, str]) -> str:
    """What the command prints on a pseudo-terminal."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen([*PROGRAM, *args], cwd=CHECKOUT, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm"} | env)
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
    except OSError:  # the other side closed: Linux reports it as an error
        pass
    finally:
        os.close(ours)
    assert child.wait(60) == 0
    return seen.decode()


def test_colours_only_on_a_terminal_that_wants_them(cli: Cli) -> None:
    assert "\x1b[" in _on_a_terminal(*PLAN, env={"NO_COLOR": ""})
    assert "\x1b[" not in _on_a_terminal(*PLAN, env={"NO_COLOR": "1"})
    assert "\x1b[" not in cli(*PLAN).out


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
@pytest.mark.parametrize(
    "args", [PLAN, ("phases", *PLAN[1:]), ("ops", *PLAN[1:]), ("kv", "llama-3.1-8b", "--as", "mha,mqa,mla"), ("hardware", "list")]
)
def test_pages_fit_the_terminal(cli: Cli, args: tuple[str, ...], columns: int) -> None:
    done = cli(*args, columns=columns)
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= columns


def test_shell_completion_knows_the_commands() -> None:
    done = process(env={"_ROOFLINE_COMPLETE": "complete_bash", "COMP_WORDS": "roofline p", "COMP_CWORD": "1"})
    assert done.stdout.split() == ["plan", "phases", "predict"]


def test_one_option_takes_several_words() -> None:
    words = ["plan", "m", "--goodput", "ttft:500", "tpot:50", "--json"]
    assert shell.repeat_option(words, "--goodput") == ["plan", "m", "--goodput", "ttft:500", "--goodput", "tpot:50", "--json"]
    assert shell.repeat_option(["--goodput", "ttft:1", "x", "tpot:2"], "--goodput") == ["--goodput", "ttft:1", "x", "tpot:2"]


def test_sigint_in_a_real_process() -> None:
    code = "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background has it ignored
    code += "import roofline.cli.kv as kv\nkv.load_model = lambda name: os.kill(os.getpid(), signal.SIGINT)\n"
    code += "from roofline.cli.main import run; run(['kv', 'llama-3.1-8b'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode in (130, -signal.SIGINT)
    assert done.stderr == "interrupted\n"
