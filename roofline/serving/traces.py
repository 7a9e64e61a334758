"""Recorded workloads: Azure's and BurstGPT's CSV, Mooncake's JSONL, and our own CSV or JSONL. Strict: a bad row stops with its line."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from roofline.errors import RecordError
from roofline.records import read_jsonl
from roofline.serving.workloads import Segment, Workload, shared_id

MOONCAKE_BLOCK = 512
MOST_TOKENS = 1 << 40
LATEST_S = 1e11  # three thousand years: beyond it a time is a typing mistake
Row = tuple[int, dict[str, Any]]


class _Columns:
    """Collects requests row by row and refuses the bad ones."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.arrival: list[float] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.segments: list[tuple[Segment, ...]] = []
        self.classes: list[str] = []

    def fail(self, line: int, key: str, what: str) -> RecordError:
        return RecordError(f"{self.path}:{line}:{key}: {what}")

    def add(self, line: int, arrival: float, inputs: int, outputs: int, keys: Sequence[str]) -> None:
        """keys: names of the three columns, for messages."""
        if not abs(arrival) <= LATEST_S:
            raise self.fail(line, keys[0], f"{arrival} is not a time")
        if self.arrival and arrival < self.arrival[-1]:
            raise self.fail(line, keys[0], f"{arrival} s comes before the row above ({self.arrival[-1]} s): sort the trace by time")
        for key, tokens in ((keys[1], inputs), (keys[2], outputs)):
            if tokens < 1:
                raise self.fail(line, key, f"{tokens} tokens: lengths must be at least 1; remove the row or correct it")
        self.arrival.append(arrival)
        self.inputs.append(inputs)
        self.outputs.append(outputs)

    def workload(self, *, from_first: bool) -> Workload:
        """from_first: time runs from the first request (else it is given from the start)."""
        if not self.arrival:
            raise RecordError(f"{self.path}: no requests in the file")
        arrival = np.array(self.arrival)
        return Workload(
            arrival - arrival[0] if from_first else arrival,
            np.array(self.inputs, dtype=np.int64),
            np.array(self.outputs, dtype=np.int64),
            segments=self.segments or None,
            classes=self.classes or None,
            name=self.path.name,
        )


def load_trace(path: str | Path) -> Workload:
    """Reads a trace whose format shows in its columns. Raises RecordError (file:line:key and the fix).

    Azure: TIMESTAMP, ContextTokens, GeneratedTokens. BurstGPT: Timestamp (s), Request tokens, Response tokens (failed rows, with 0
    response tokens, are left out, as its authors do). Mooncake: timestamp (ms), input_length, output_length, hash_ids (512 tokens
    each). Own: arrival_s, input_tokens, output_tokens, and optionally hash_ids (of hash_block_tokens tokens, 512 unless given),
    prefix_id (equal ids share their prompts' first prefix_tokens tokens, or whole prompts as far as both go), class.
    """
    path = Path(path)
    if not path.is_file():
        raise RecordError(f"{path}: is no plain file" if path.exists() else f"{path}: there is no such file")
    rows = read_jsonl(path) if path.suffix in (".jsonl", ".json") else _csv_rows(path)
    first = next(rows, None)
    if first is None:
        raise RecordError(f"{path}: no requests in the file")
    readers: dict[str, Callable[[_Columns, int, dict[str, Any]], None]] = {
        "TIMESTAMP": _azure, "Timestamp": _burstgpt, "timestamp": _mooncake, "arrival_s": _own,
    }  # fmt: skip
    kind = next((key for key in readers if key in first[1]), None)
    if kind is None:
        raise RecordError(f"{path}:{first[0]}: columns {', '.join(first[1])}: none of {', '.join(readers)} tells the kind of trace")
    columns = _Columns(path)
    readers[kind](columns, *first)
    for line, row in rows:
        readers[kind](columns, line, row)
    return columns.workload(from_first=kind != "arrival_s")


def _csv_rows(path: Path) -> Iterator[Row]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            for row in reader:
                if None in row:
                    raise RecordError(f"{path}:{reader.line_num}: more cells than the header has columns")
                yield reader.line_num, row
    except (csv.Error, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: not CSV in UTF-8 ({error})") from None


def _value(columns: _Columns, line: int, row: dict[str, Any], key: str) -> Any:
    value = row.get(key)
    if value is None or value == "":
        raise columns.fail(line, key, "missing")
    return value


def _number(columns: _Columns, line: int, row: dict[str, Any], key: str) -> float:
    value = _value(columns, line, row, key)
    try:
        if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
            raise ValueError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise columns.fail(line, key, f"{str(value)[:40]!r} is not a number") from None


def _count(columns: _Columns, line: int, row: dict[str, Any], key: str) -> int:
    number = _number(columns, line, row, key)
    if not abs(number) <= MOST_TOKENS or number != int(number):
        raise columns.fail(line, key, f"{number} is not a whole number of tokens up to {MOST_TOKENS:,}")
    return int(number)


def _azure(columns: _Columns, line: int, row: dict[str, Any]) -> None:
    keys = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    text = str(_value(columns, line, row, keys[0]))
    try:
        read = datetime.fromisoformat(text)
        moment = (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise columns.fail(line, keys[0], f"{text!r} is not a time like 2023-11-16 18:15:46.680590") from None
    columns.add(line, moment, _count(columns, line, row, keys[1]), _count(columns, line, row, keys[2]), keys)


def _burstgpt(columns: _Columns, line: int, row: dict[str, Any]) -> None:
    keys = ("Timestamp", "Request tokens", "Response tokens")
    outputs = _count(columns, line, row, keys[2])
    if outputs:
        columns.add(line, _number(columns, line, row, keys[0]), _count(columns, line, row, keys[1]), outputs, keys)


def _mooncake(columns: _Columns, line: int, row: dict[str, Any]) -> None:
    keys = ("timestamp", "input_length", "output_length")
    inputs = _count(columns, line, row, keys[1])
    columns.add(line, _number(columns, line, row, keys[0]) / 1e3, inputs, _count(columns, line, row, keys[2]), keys)
    columns.segments.append(_hashed(columns, line, _value(columns, line, row, "hash_ids"), inputs, MOONCAKE_BLOCK))


def _own(columns: _Columns, line: int, row: dict[str, Any]) -> None:
    keys = ("arrival_s", "input_tokens", "output_tokens")
    arrival, inputs = _number(columns, line, row, keys[0]), _count(columns, line, row, keys[1])
    if arrival < 0:
        raise columns.fail(line, keys[0], f"{arrival} s is negative: times count from the start")
    columns.add(line, arrival, inputs, _count(columns, line, row, keys[2]), keys)
    columns.segments.append(_shared(columns, line, row, inputs))
    name = row.get("class")
    if name not in (None, ""):
        if not isinstance(name, str | int) or isinstance(name, bool):
            raise columns.fail(line, "class", f"{str(name)[:40]!r} is no name")
        columns.classes.append(str(name))
    if len(columns.classes) not in (0, len(columns.arrival)):
        raise columns.fail(line, "class", "some rows have a class and some have none: give every row one")


def _shared(columns: _Columns, line: int, row: dict[str, Any], inputs: int) -> tuple[Segment, ...]:
    hash_ids, prefix = row.get("hash_ids"), row.get("prefix_id")
    if hash_ids not in (None, ""):
        if prefix not in (None, ""):
            raise columns.fail(line, "prefix_id", "hash_ids and prefix_id exclude each other")
        size = _count(columns, line, row, "hash_block_tokens") if row.get("hash_block_tokens") not in (None, "") else MOONCAKE_BLOCK
        if size < 1:
            raise columns.fail(line, "hash_block_tokens", f"{size}: a block has at least one token")
        return _hashed(columns, line, hash_ids, inputs, size)
    if prefix in (None, ""):
        return ()
    tokens = _count(columns, line, row, "prefix_tokens") if row.get("prefix_tokens") not in (None, "") else inputs
    if not 1 <= tokens <= inputs:
        raise columns.fail(line, "prefix_tokens", f"{tokens} of {inputs} input tokens: 1 ≤ prefix_tokens ≤ input_tokens")
    return ((tokens, shared_id(_prefix_number(str(prefix)))),)


def _prefix_number(name: str) -> int:
    """A number for a name; names and hash ids live apart (ids are small, this one is not)."""
    return (1 << 62) + int.from_bytes(name.encode(), "big") if name else 0


def _hashed(columns: _Columns, line: int, value: Any, inputs: int, size: int) -> tuple[Segment, ...]:
    """Segments of a prompt whose blocks of `size` tokens have these ids; an id stands for a block and all before it."""
    if isinstance(value, str):
        value = value.replace("[", " ").replace("]", " ").replace(",", " ").replace(";", " ").split()
    try:
        if not isinstance(value, list) or any(isinstance(entry, bool) or int(entry) != float(entry) for entry in value):
            raise TypeError
        ids = [int(entry) for entry in value]
    except (TypeError, ValueError, OverflowError):
        raise columns.fail(line, "hash_ids", f"{value!r} is not a list of whole numbers") from None
    if len(ids) != -(-inputs // size) or any(identity < 0 for identity in ids):
        raise columns.fail(line, "hash_ids", f"{len(ids)} ids for {inputs} tokens: {-(-inputs // size)} of {size} tokens are needed, ≥ 0")
    return tuple((min((at + 1) * size, inputs), shared_id(identity)) for at, identity in enumerate(ids))
