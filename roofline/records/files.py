"""Rows in files: JSON lines and CSV, read and written one row at a time, so that memory does not grow with the file."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from roofline.errors import RecordError


class JsonlWriter:
    """Appends objects to a file, one line each. NaN and infinity become null.

    A line cut short by an earlier crash is ended first, so that what follows stays readable.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            cut = self.path.exists() and not _ends_with_newline(self.path)
            self._file: TextIO = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise RecordError(f"{path}: cannot write: {error.strerror}") from None
        if cut:
            self._file.write("\n")

    def write(self, row: Mapping[str, Any]) -> None:
        """Adds one line; it reaches the disk at the next flush, or when the buffer is full."""
        try:
            text = json.dumps(row, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        except ValueError:
            text = json.dumps(_finite(row), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        self._file.write(text + "\n")

    def flush(self) -> None:
        """Hands what was written to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Flushes and closes."""
        self._file.close()

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(0, 2)
        if file.tell() == 0:
            return True
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def _finite(value: Any) -> Any:
    """`value` with null for what JSON cannot say."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_jsonl(path: Path | str, *, skip_cut_lines: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line that is not blank. Raises RecordError with file:line for anything else.

    skip_cut_lines: leave out lines that are not whole JSON (a process died while it wrote them).
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    if skip_cut_lines:
                        continue
                    reason = getattr(error, "msg", error)
                    raise RecordError(f"{path}:{number}: not JSON ({reason}): one object per line is needed") from None
                if not isinstance(row, dict):
                    raise RecordError(f"{path}:{number}: {line.strip()[:40]!r} is not an object")
                yield number, row
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RecordError(f"{path}: not UTF-8 text") from None


def read_csv(path: Path | str, required: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, row as text by column) of a CSV with a header. Raises RecordError for a missing column or a ragged row."""
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in required if name not in (reader.fieldnames or ())]
            if missing:
                known = ", ".join(reader.fieldnames or ()) or "none"
                raise RecordError(f"{path}:1: no column {', '.join(missing)}; the header has {known}")
            for row in reader:
                if None in row or None in row.values():
                    raise RecordError(f"{path}:{reader.line_num}: the number of cells is not that of the header")
                yield reader.line_num, row
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from None
    except csv.Error as error:
        raise RecordError(f"{path}: not CSV ({error})") from None
    except UnicodeDecodeError:
        raise RecordError(f"{path}: not UTF-8 text") from None


def write_csv(file: TextIO, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a header and the rows; None and NaN become empty cells, keys outside `columns` are left out."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        cells = (row.get(column) for column in columns)
        writer.writerow(["" if cell is None or (isinstance(cell, float) and math.isnan(cell)) else cell for cell in cells])
