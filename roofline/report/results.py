"""Sections for what other commands found: a simulation, a validation, a load test, read from their JSON documents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roofline.errors import RecordError
from roofline.report.document import Block, Column, Facts, Section, Text, grid


def read_result(path: Path) -> Mapping[str, Any]:
    """One JSON document of a command. Raises RecordError for a file that is none, or of a command without a section."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{path}: cannot read: {error.strerror or error}") from None
    except ValueError as error:
        raise RecordError(f"{path}: is not JSON: {error}") from None
    command = data.get("command") if isinstance(data, dict) else None
    if command not in SECTIONS:
        raise RecordError(f"{path}:command: {command!r} has no section in a report; those of {', '.join(SECTIONS)} --json have")
    return dict(data)


def result_sections(results: Sequence[Mapping[str, Any]]) -> list[Section]:
    """A section per document, in the order given."""
    return [SECTIONS[result["command"]](result) for result in results]


def _simulation(result: Mapping[str, Any]) -> Section:
    rows = [{"what": name, **result[key]} for key, name in _LATENCIES.items() if isinstance(result.get(key), Mapping)]
    facts = _facts(result, ("requests", "makespan_s", "output_tokens_per_s", "preemptions", "prefix_cache_hit_rate"))
    return Section("Simulation", [facts, _percentiles(rows)])


_LATENCIES = {"ttft_s": "time to first token", "tpot_s": "time per output token", "itl_s": "inter-token latency", "e2el_s": "end to end"}


def _load_test(result: Mapping[str, Any]) -> Section:
    stages = [stage for stage in result.get("stages", []) if isinstance(stage, Mapping)]
    rows: list[dict[str, Any]] = []
    for stage in stages:
        times = {f"{key}_{p}": _within(stage, key).get(p) for key in ("ttft_s", "tpot_s") for p in ("p50", "p99")}
        counts = {name: stage.get(name) for name in ("concurrency", "output_tokens_per_s", "requests_ok", "requests_failed")}
        rows.append(counts | times)
    columns = [
        Column("concurrency", "concurrency", "integer"), Column("output tokens/s", "output_tokens_per_s", "token_rate"),
        Column("TTFT p50", "ttft_s_p50", "time"),
        Column("p99", "ttft_s_p99", "time"), Column("TPOT p50", "tpot_s_p50", "time"), Column("p99", "tpot_s_p99", "time"),
        Column("ok", "requests_ok", "integer"), Column("failed", "requests_failed", "integer"),
    ]  # fmt: skip
    blocks: list[Block] = [grid(columns, rows), *_knee(result.get("knee"))]
    client = result.get("client")
    if isinstance(client, Mapping) and client.get("trustworthy") is False:
        blocks.append(Text(["The client itself was too slow: these figures cannot be trusted."]))
    return Section("Load test", blocks)


def _knee(knee: Any) -> list[Block]:
    """The concurrency from which more streams only wait, with its 95 % interval, or why the ladder does not show it."""
    if not isinstance(knee, Mapping):
        return []
    if knee.get("concurrency") is None:
        return [Facts([("knee", str(knee.get("reason") or "not in sight"))])]
    between = f" ({'–'.join(map(_plain, knee['ci']))}, 95 %)" if knee.get("ci") else ""
    return [Facts([("knee", f"{knee['concurrency']:.3g} streams{between}")])]


def _validation(result: Mapping[str, Any]) -> Section:
    rows = [row for row in result.get("rows", []) if isinstance(row, Mapping)]
    keys = list(dict.fromkeys(key for row in rows for key in row))[:8]
    columns = [Column(key, key, "time" if key.endswith("_s") else "text") for key in keys]
    shown = [
        {key: value if isinstance(value, (int, float)) and key.endswith("_s") else str(value) for key, value in row.items()} for row in rows
    ]
    return Section("Validation: predicted against measured", [_facts(result, ("verdict", "device", "health")), grid(columns, shown)])


def _within(stage: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = stage.get(key)
    return found if isinstance(found, Mapping) else {}


def _percentiles(rows: Sequence[dict[str, Any]]) -> Block:
    return grid([Column("", "what"), *(Column(name, name, "time") for name in ("mean", "p50", "p90", "p99"))], rows)


def _facts(result: Mapping[str, Any], keys: Sequence[str]) -> Facts:
    """What the document has of these keys, as text."""
    return Facts([(key.replace("_", " "), _plain(result[key])) for key in keys if result.get(key) is not None])


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(each)}" for key, each in value.items())
    return f"{value:,.6g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


SECTIONS = {"simulate": _simulation, "loadtest": _load_test, "validate": _validation}
