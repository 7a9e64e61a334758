"""What every command group shares: how its Typer app is made, options that take several words, streams that break."""

from __future__ import annotations

import os
import re
from typing import Any, TextIO

import typer
from typer.core import TyperCommand

_GOAL = re.compile(r"(ttft|tpot|itl|e2el):\S+")


def new_app(**settings: Any) -> typer.Typer:
    """A Typer app whose help is plain text: quick to print, and the same in a pipe as on a terminal."""
    defaults: dict[str, Any] = {
        "add_completion": False,
        "rich_markup_mode": None,
        "pretty_exceptions_enable": False,
        "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 110},
    }
    return typer.Typer(**(defaults | settings))


class GoodputCommand(TyperCommand):
    """A command with `--goodput ttft:500 tpot:50`: one option, several words, as in vLLM's benchmark."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, repeat_option(args, "--goodput"))


def repeat_option(args: list[str], option: str) -> list[str]:
    """["--goodput", "ttft:500", "tpot:50"] → ["--goodput", "ttft:500", "--goodput", "tpot:50"]; other words stay as they are."""
    result: list[str] = []
    inside = False
    for index, word in enumerate(args):
        goal = _GOAL.fullmatch(word) is not None
        if inside and goal and args[index - 1] != option:
            result.append(option)
        inside = word == option or (inside and goal)
        result.append(word)
    return result


def discard(stream: TextIO) -> None:
    """Points a broken stream at nothing, so that the interpreter's own last flush is quiet."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)
