"""The `roofline` command: finds the command that was asked for, imports only that one, and turns errors into exit codes."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from roofline import __version__
from roofline.cli.shell import discard, new_app
from roofline.errors import RooflineError

COMMANDS: dict[str, str] = {
    "plan": "Does it fit, how fast is it, what to change.",
    "phases": "Prefill and decode side by side.",
    "ops": "The ledger: every operation with FLOPs, bytes and time.",
    "kv": "KV cache per token and in total, also as MHA, GQA, MQA, MLA.",
    "models": "Known models: list, show, import.",
    "hardware": "Known devices: list, show, detect, compare.",
    "chart": "A figure as PDF, PNG or SVG, with its data as CSV.",
    "simulate": "Requests under load: latencies, queues, highest rate.",
    "sweep": "Many configurations from a file; the Pareto front.",
    "predict": "A time for every row of a table of kernels or serving points.",
    "score": "How far predictions are from the measured rows of a table.",
    "calibrate": "Constants of a device from measured rows.",
    "report": "The whole story as PDF, HTML or Markdown.",
    "bench": "Microbenchmarks of this machine, as records.",
    "validate": "Theory against this machine, with verdicts.",
    "engine": "Run a workload on the reference engine.",
    "serve": "The reference engine behind the OpenAI API, with /metrics.",
    "loadtest": "Load a server: concurrency ladder, knee, service level.",
    "diagnose": "Why is this server slow? Ranked causes with evidence.",
    "doctor": "What is installed, what this machine can do, what is missing.",
    "demo": "A tiny server: its knee, four faults, their diagnosis.",
    "mock": "A streaming server that knows the truth, for testing clients.",
}


class LazyGroup(TyperGroup):
    """Knows each command's one line of help without importing it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] in COMMANDS:  # whose options, unlike the help page, are about to load pydantic
            _skip_plugin_search()
        return super().parse_args(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command as the help page needs it: name and one line."""
        if cmd_name not in COMMANDS:
            return None
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name], rich_markup_mode=None)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that runs: its module is imported here."""
        self.commands = {name: self.get_command(ctx, name) for name in COMMANDS}  # names to suggest after a typing mistake
        name, stub, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if stub is not None and name else stub, rest


def load_command(name: str) -> Any:
    """The command `name` as Typer built it from roofline.cli.<name>."""
    command = typer.main.get_command(import_module(f"roofline.cli.{name}").app)
    command.name = name
    return command


def _skip_plugin_search() -> None:
    """Imports pydantic's search for plugins without importlib.metadata, which takes email, socket and zipfile along.

    The search is switched off (roofline/cli/__init__.py), so it never asks the stand-in. Elsewhere the module is the real one.
    """
    if "importlib.metadata" in sys.modules or os.environ.get("PYDANTIC_DISABLE_PLUGINS") != "__all__":
        return
    stand_in = ModuleType("importlib.metadata")
    stand_in.__dict__["entry_points"] = None
    sys.modules["importlib.metadata"] = stand_in
    try:
        with suppress(ImportError):
            import_module("pydantic.plugin._loader")
    finally:
        del sys.modules["importlib.metadata"]


app = new_app(cls=LazyGroup, add_completion=True, no_args_is_help=True)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"roofline {__version__}")
        raise typer.Exit


def _use_profile_folder(value: Path | None) -> None:
    if value is not None:
        known = os.environ.get("ROOFLINE_PROFILE_PATH")
        os.environ["ROOFLINE_PROFILE_PATH"] = os.pathsep.join([str(value), *([known] if known else [])])


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)] = False,
    profile_dir: Annotated[
        Path | None,
        typer.Option(help="A folder of your own model and hardware YAMLs, searched first.", metavar="DIR", callback=_use_profile_folder),
    ] = None,
) -> None:
    """What can this model do on this hardware, why, and is the machine delivering it?"""


def run(args: list[str] | None = None) -> None:
    """Runs one command and ends the process with its exit code: 0 fine, 1 failure, 2 wrong input, 3 does not fit, 4 untrustworthy."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        app(args, prog_name="roofline")
    except RooflineError as error:
        _end(f"error: {error}", error.exit_code)
    except OSError as error:
        _end(f"error: {error.filename or 'output'}: {error.strerror or error}", 1)
    except MemoryError:
        _end("error: out of memory", 1)
    except SystemExit as end:
        _end("interrupted" if end.code == 130 else "", end.code if isinstance(end.code, int) else 1)


def _end(message: str, code: int) -> None:
    """Flushes what was printed, says `message` on stderr and exits; a reader that went away is no error."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
    except OSError as error:
        discard(sys.stdout)
        message, code = message or f"error: standard output: {error.strerror}", code or 1
    try:
        if message and sys.stderr is not None:
            print(message, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)
    gc.freeze()  # the interpreter's last collections would look at every object once more, for nothing
    sys.exit(code)
