"""Where an answer goes: text for people, one JSON document, or CSV; to standard output or to a file, whole or not at all."""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import typer

from roofline.cli import jsonout, render
from roofline.cli.shell import discard
from roofline.errors import InputError, RooflineError


@dataclass(frozen=True)
class Answer:
    """What a command found. data: the keys of its JSON document; table: what --csv prints; blocks: the page for people."""

    command: str
    inputs: Mapping[str, Any]
    data: Mapping[str, Any]
    table: render.Table
    blocks: Sequence[render.Block]
    assumptions: Sequence[str] = ()
    exit_code: int = 0


def emit(answer: Answer, *, as_json: bool = False, as_csv: bool = False, path: Path | None = None) -> None:
    """Prints or writes `answer` in the form that was asked for (a file's ending .json or .csv asks as well), then exits with its code."""
    if as_json and as_csv:
        raise InputError("give --json or --csv, not both")
    if path is not None and not as_csv and not as_json:
        as_json, as_csv = path.suffix == ".json", path.suffix == ".csv"
    if as_json:
        text = jsonout.document(answer.command, answer.inputs, answer.data, answer.assumptions)
    elif as_csv:
        text = csv_text(answer.table)
    else:
        text = _page(answer, None if path is not None else sys.stdout)
    text = readable(text)
    if path is None:
        print_text(text, utf8=as_json or as_csv)
    else:
        write_atomically(path, text)
    if answer.exit_code:
        raise typer.Exit(answer.exit_code)


def readable(text: str) -> str:
    """`text` with the bytes of file names that the locale could not read taken as UTF-8, or as � where they are not that either."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def csv_text(table: render.Table) -> str:
    """The table with its columns' keys as header and numbers in base units."""
    keys = [*(column.key for column in table.columns), *table.more]
    out = io.StringIO()
    writer = csv.DictWriter(out, keys, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in table.rows:
        writer.writerow({key: jsonout.plain(row.get(key)) for key in keys})
    return out.getvalue()


def check_target(path: Path | None) -> None:
    """Refuses a file that cannot be written, before the work whose result it would get is done."""
    if path is None:
        return
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give a file name")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise InputError(f"{path}: cannot write: there is no folder {path.parent}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InputError(f"{path}: cannot write: permission denied")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes `content` beside `path` and renames it there: a reader, a full disk or Ctrl-C never leaves half a file."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    target = path.resolve()
    if target.is_dir():
        raise InputError(f"{path}: is a folder; give a file name")
    if not target.parent.is_dir():
        raise InputError(f"{path}: cannot write: there is no folder {path.parent}")
    name = ""
    try:
        if target.exists() and not target.is_file():  # /dev/stdout, a named pipe: nothing to rename onto
            target.write_bytes(data)
            return
        with tempfile.NamedTemporaryFile("wb", dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            name = file.name
            file.write(data)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        os.chmod(name, mode)
        os.replace(name, target)
        name = ""
    except OSError as error:
        raise RooflineError(f"{path}: cannot write: {error.strerror or error}") from None
    finally:
        if name:
            Path(name).unlink(missing_ok=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _page(answer: Answer, stream: TextIO | None) -> str:
    """The page at the width of the output: a terminal's own, READING_WIDTH in a file or pipe, COLUMNS before both."""
    width = shutil.get_terminal_size((render.READING_WIDTH, 24)).columns
    if stream is None:
        return render.page(answer.blocks, width, render.Ink())
    narrow = "utf" not in (stream.encoding or "ascii").lower()
    return render.page(answer.blocks, max(width, 40), render.Ink.of(stream), ascii_only=narrow)


def print_text(text: str, *, utf8: bool) -> None:
    """Prints to standard output; a reader that went away has seen enough. utf8: whatever the locale says, as JSON must be."""
    if sys.stdout is None:
        raise RooflineError("standard output is closed; use -o FILE")
    if utf8 and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
