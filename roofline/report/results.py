"""Sections for what other commands found: a plan, a simulation, a validation, a load test, read from their JSON documents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roofline import units
from roofline.errors import RecordError, well_formed
from roofline.report.document import Block, Column, Facts, Section, Text, grid


def read_result(path: Path) -> Mapping[str, Any]:
    """One JSON document of a command. Raises RecordError for a file that is none, or of a command without a section."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: is not JSON: {error}") from None
    command = data.get("command") if isinstance(data, dict) else None
    if not isinstance(command, str) or command not in SECTIONS:
        raise RecordError(f"{path}:command: {command!r} has no section in a report; those of {', '.join(SECTIONS)} --json have")
    return dict(data)


def result_sections(results: Sequence[Mapping[str, Any]]) -> list[Section]:
    """A section per document, in the order given. Raises RecordError for one that lacks what its command writes."""
    sections = []
    for result in results:
        with well_formed("the result", f"roofline {result['command']} --json"):
            sections.append(SECTIONS[result["command"]](result))
    return sections


def _plan(result: Mapping[str, Any]) -> Section:
    """The plan of another configuration: whether it fits, its phases, and throughput over batch."""
    memory, device = _mapping(result, "memory"), _mapping(result, "hardware")
    facts = [("model", _mapping(result, "model").get("name")), ("device", f"{device.get('gpus', 1)} × {device.get('name')}")]
    facts += [("fits", result.get("fits")), ("meets its load", result.get("meets_load"))]
    facts += [("left for KV", _bytes(memory.get("kv_bytes_total"))), ("KV tokens", memory.get("kv_tokens"))]
    facts += [("largest batch", result.get("largest_batch")), ("knee", result.get("knee_batch"))]
    rows = [{"batch": row["batch"], "rate": row["output_tokens_per_s"], **row["tpot_s"]} for row in _list(result, "curve")]
    columns = [
        Column("batch", "batch", "integer"), Column("TPOT, bound", "bound", "time"), Column("expected", "expected", "time"),
        Column("from", "low", "time"), Column("to", "high", "time"), Column("output tokens/s", "rate", "token_rate"),
    ]  # fmt: skip
    limits = [f"{limit['text']}." for limit in _list(result, "limits")]
    return Section(_titled("Plan", result), [_facts(facts), grid(columns, rows), Text(limits, bullets=True)])


def _simulation(result: Mapping[str, Any]) -> Section:
    rows = [{"what": name, **result[key]} for key, name in _LATENCIES.items() if isinstance(result.get(key), Mapping)]
    goodput, highest, load = (_mapping(result, key) for key in ("goodput", "max_rate", "load"))
    goals = ", ".join(f"{name} {units.format(level, 'time')}" for name, level in _mapping(goodput, "levels_s").items())
    facts: list[tuple[str, Any]] = [
        ("requests", result.get("requests")), ("rejected", result.get("requests_rejected") or None),
        ("duration", _formatted(result.get("makespan_s"), "time")), ("preemptions", result.get("preemptions")),
        ("output", _formatted(result.get("output_tokens_per_s"), "token_rate")),
        ("prefix hits", _share(result.get("prefix_cache_hit_rate"))),
        ("waited for", result.get("waited_for")), ("most KV in use", _share(load.get("kv_peak"))),
        ("goodput", f"{_share(goodput.get('share'))} of the requests within {goals}" if goals else None),
        ("highest rate", f"{_plain(highest['requests_per_s'])} requests/s" if highest.get("requests_per_s") else None),
    ]  # fmt: skip
    columns = [Column("", "what"), *(Column(name, name, "time") for name in ("mean", "p50", "p90", "p99"))]
    return Section(_titled("Simulation", result), [_facts(facts), grid(columns, rows)])


_LATENCIES = {
    "ttft_s": "time to first token", "tpot_s": "time per output token", "itl_s": "inter-token latency", "e2el_s": "end to end",
    "queue_s": "waiting",
}  # fmt: skip


def _load_test(result: Mapping[str, Any]) -> Section:
    rows: list[dict[str, Any]] = []
    for stage in _list(result, "stages"):
        times = {f"{key}_{p}": _mapping(stage, key).get(p) for key in ("ttft_s", "tpot_s") for p in ("p50", "p99")}
        counts = {name: stage.get(name) for name in ("output_tokens_per_s", "requests_ok", "requests_failed")}
        rows.append({"stage": stage.get("title") or f"{_plain(stage.get('concurrency'))} streams"} | counts | times)
    columns = [
        Column("stage", "stage"), Column("output tokens/s", "output_tokens_per_s", "token_rate"), Column("TTFT p50", "ttft_s_p50", "time"),
        Column("p99", "ttft_s_p99", "time"), Column("TPOT p50", "tpot_s_p50", "time"), Column("p99", "tpot_s_p99", "time"),
        Column("ok", "requests_ok", "integer"), Column("failed", "requests_failed", "integer"),
    ]  # fmt: skip
    blocks: list[Block] = [grid(columns, rows), *_knee(result.get("knee"))]
    client = _mapping(result, "client")
    if client.get("trustworthy") is False:
        reasons = [f"{reason[:1].upper()}{reason[1:].rstrip('.')}." for reason in map(str, client.get("reasons") or [])]
        blocks.append(Text(["The client itself was too slow: these figures cannot be trusted.", *reasons], bullets=bool(reasons)))
    return Section(_titled("Load test", result), blocks)


def _knee(knee: Any) -> list[Block]:
    """The concurrency from which more streams only wait, with its 95 % interval, or why the ladder does not show it."""
    if not isinstance(knee, Mapping):
        return []
    if knee.get("concurrency") is None:
        return [Facts([("knee", str(knee.get("reason") or "not in sight"))])]
    between = f" ({'–'.join(map(_plain, knee['ci']))}, 95 %)" if knee.get("ci") else ""
    return [Facts([("knee", f"{knee['concurrency']:.3g} streams{between}")])]


def _validation(result: Mapping[str, Any]) -> Section:
    """Of a machine, of a table of kernels, or of a load test against its prediction: verdict, groups, and the rows there are."""
    facts = [(name, result.get(name)) for name in ("verdict", "model", "device")]
    facts += [("trust", None if result.get("trustworthy") is not False else "the run cannot be trusted")]
    groups = [{"what": group.get("group") or group.get("op"), **group} for group in _list(result, "groups")]
    rows = [_row(row) for row in _list(result, "rows")]
    measured = "measured_s" if any("measured_s" in row for row in rows) else "measured"
    errors = [Column("error", key, "percent") for key in _ERRORS if any(row.get(key) is not None for row in rows)]
    columns = [
        Column("", "what"), Column("verdict", "verdict"), Column("measured", measured, "time"),
        *(Column(name, f"{name}{measured.removeprefix('measured')}", "time") for name in ("expected", "low", "high")), *errors[:1],
    ]  # fmt: skip
    warnings = [f"{str(text).rstrip('.')}." for text in result.get("warnings") or []]
    blocks: list[Block] = [_facts(facts), *([Text(warnings, bullets=True)] if warnings else [])]
    blocks += [grid(_used(_GROUPS, groups), groups, "Groups")] if groups else []
    blocks += [grid(_used(columns, rows), rows, "Rows")] if rows else []
    return Section(f"Validation: predicted against measured{_of(result)}", blocks)


def _row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """With a name; rates of a load test as text, since their column holds times."""
    if "metric" not in row:
        return {"what": row.get("label") or row.get("op"), **row}
    metric = str(row["metric"])
    name = "output" if metric == "output_tokens_per_s" else metric.removesuffix("_s").upper()
    made = {"what": f"{row.get('stage')}: {name} {row.get('statistic') or ''}", **row}
    if metric.endswith("_per_s"):
        made |= {key: _formatted(row.get(key), "token_rate") for key in ("measured", "expected", "low", "high")}
    return made


_ERRORS = ("shipped_error", "this_run_error", "uncalibrated_error", "error")
_GROUPS = (
    Column("", "what"), Column("verdict", "verdict"), Column("rows", "rows", "integer"), Column("pass", "pass", "integer"),
    Column("fail", "fail", "integer"), Column("ambiguous", "ambiguous", "integer"), Column("median error", "median_error", "percent"),
    Column("uncalibrated", "uncalibrated_median_error", "percent"), Column("shipped", "shipped_median_error", "percent"),
    Column("this run", "this_run_median_error", "percent"), Column("p90 error", "p90_error", "percent"),
    Column("in the interval", "coverage", "percent"), Column("beat the bound", "violations", "integer"), Column("aim", "target", "percent"),
)  # fmt: skip


def _used(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """The columns that any row has something in."""
    return [column for column in columns if any(row.get(column.key) is not None for row in rows)]


def _titled(word: str, result: Mapping[str, Any]) -> str:
    """The kind of section, and what its command was asked about: model and device, or the server."""
    inputs = _mapping(result, "inputs")
    found = [str(inputs[key]) for key in ("model", "hardware", "url") if inputs.get(key)]
    return f"{word}: {' on '.join(found[:2])}" if found else word


def _of(result: Mapping[str, Any]) -> str:
    inputs = _mapping(result, "inputs")
    found = [Path(str(inputs[key])).name for key in ("loadtest", "measurements", "model") if inputs.get(key)]
    return f" ({found[0]})" if found else ""


def _mapping(result: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = result.get(key)
    return found if isinstance(found, Mapping) else {}


def _list(result: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = result.get(key)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def _facts(pairs: Sequence[tuple[str, Any]]) -> Facts:
    """The pairs that have a value, as text."""
    return Facts([(name, _plain(value)) for name, value in pairs if value is not None])


def _formatted(value: Any, kind: str) -> str | None:
    return units.format(value, kind) if isinstance(value, (int, float)) else None


def _bytes(value: Any) -> str | None:
    return units.format(value, "bytes", binary=True) if isinstance(value, (int, float)) else None


def _share(value: Any) -> str | None:
    return f"{units.significant(100 * value)} %" if isinstance(value, (int, float)) else None


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.6g}" if isinstance(value, (int, float)) else str(value)


SECTIONS = {"plan": _plan, "simulate": _simulation, "loadtest": _load_test, "validate": _validation}
