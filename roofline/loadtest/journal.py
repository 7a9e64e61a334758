"""Every request on disk as it ends, and the way back: which stages of an interrupted run are complete.

Lines: one `loadtest` (settings), then per stage `stage_start`, `request`…, `stage_end`. A stage without its end is run again;
the requests of its first attempt stay in the file and are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roofline.errors import InputError, RecordError, well_formed
from roofline.loadtest.statistics import StageData
from roofline.records import JsonlWriter, RequestRecord, read_jsonl

_MAY_DIFFER = ("processes", "levels_s", "timeout_s", "url")


@dataclass
class Past:
    """What a journal holds: run's id and origin, settings, warm-up records, and by number the complete stages with their ends."""

    run_id: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    warmup: StageData = field(default_factory=StageData)
    data: dict[int, StageData] = field(default_factory=dict)
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)


def read_journal(path: Path) -> Past:
    """Reads a journal, one line at a time. Raises RecordError with file:line for lines that are none of its kinds."""
    past, open_stage = Past(), StageData()
    for line, row in read_jsonl(path, skip_cut_lines=True):
        kind = row.get("kind")
        with well_formed(f"{path}:{line}", "roofline loadtest --records"):
            if kind == "loadtest":
                past.run_id, past.settings = str(row.get("run_id")), dict(row.get("settings") or {})
            elif kind == "stage_start":
                open_stage = StageData()
            elif kind == "request":
                record = RequestRecord.from_json(row, f"{path}:{line}")
                (past.warmup if record.phase == "warmup" else open_stage).add(record)
            elif kind == "stage_end":
                past.data[row["stage"]], past.ends[row["stage"]] = open_stage, row
            elif kind != "environment":
                raise RecordError(f"{path}:{line}:kind: {kind!r} is not a line of a load test's records")
    if not past.run_id:
        raise RecordError(f"{path}: not the records of a load test (no line of kind loadtest)")
    return past


def resumed(path: Path, settings: dict[str, Any]) -> Past:
    """The journal at `path`, if it belongs to the same settings. Raises InputError that names the first difference."""
    past = read_journal(path)
    for key, value in settings.items():
        if key not in _MAY_DIFFER and past.settings.get(key) != value and not (key == "model" and value is None):
            was = past.settings.get(key)
            raise InputError(f"{path}: was written with {key} {was!r}, now it is {value!r}: give the same options or another file")
    return past


class Journal:
    """Writes the lines; without a path it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._writer = JsonlWriter(path) if path is not None else None

    def write(self, kind: str, **values: Any) -> None:
        """A line of this kind, on disk at once."""
        if self._writer is not None:
            self._writer.write({"kind": kind, **values})
            self._writer.flush()

    def request(self, record: RequestRecord) -> None:
        """A request's line; on disk at the next `flush`."""
        if self._writer is not None:
            self._writer.write(record.to_json())

    def flush(self) -> None:
        """Hands what was written to the operating system."""
        if self._writer is not None:
            self._writer.flush()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()
