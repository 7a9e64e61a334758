"""The file of a sweep: one JSON line per configuration, appended to as results come, read again by the run that resumes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from roofline.errors import InputError, RecordError
from roofline.records.files import JsonlWriter, read_jsonl

_BEGINS = b'{"key":'
_FIGURES = ("ttft_s", "tpot_s", "requests_per_s", "output_tokens_per_s", "output_tokens_per_s_per_gpu")


@contextmanager
def open_records(path: Path) -> Iterator[tuple[dict[str, dict[str, Any]], JsonlWriter]]:
    """(records of an earlier run by key, a writer that adds to them) while no other sweep uses the file.

    A record that an interrupted write left without its end is taken away. Raises InputError for a place that cannot be written
    and where another sweep is at work, RecordError with file and line for what is no record of a sweep.
    """
    _check_place(path)
    new = not path.exists()
    with path.open("ab+") as file:
        _lock(file, path)
        try:
            _drop_cut_line(path)
            known = {record["key"]: record for record in _read(path)}
            with JsonlWriter(path) as writer:
                yield known, writer
        finally:
            if new and not path.stat().st_size:
                path.unlink()


def _check_place(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is no plain file; give a file name with --records")
    if not path.resolve().parent.is_dir():
        raise InputError(f"{path}: cannot write: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.resolve().parent, os.W_OK):
        raise InputError(f"{path}: cannot write: permission denied")


def _lock(file: IO[bytes], path: Path) -> None:
    """Held until the file is closed, also by a crash; where the system has no such locks two sweeps do the work twice."""
    with suppress(ImportError):
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{path}: another sweep is writing to it; wait for it, or give another file with --records") from None


def _drop_cut_line(path: Path) -> None:
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    cut = content[whole:]
    if not (cut.startswith(_BEGINS) or _BEGINS.startswith(cut)):
        raise RecordError(f"{path}: its last line is no record of a sweep; give another file with --records")
    if cut:
        os.truncate(path, whole)


def _read(path: Path) -> Iterator[dict[str, Any]]:
    for number, row in read_jsonl(path):
        if not _is_record(row):
            raise RecordError(f"{path}:{number}: no record of a sweep; remove the line, or give another file with --records")
        yield row


def _is_record(row: Mapping[str, Any]) -> bool:
    if not isinstance(row.get("key"), str):
        return False
    if isinstance(row.get("error"), str) and row["error"]:
        return True
    return isinstance(row.get("meets_goodput"), bool) and all(name in row and _is_figure(row[name]) for name in _FIGURES)


def _is_figure(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value))
