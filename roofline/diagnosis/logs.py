"""Logs of vLLM and SGLang: periodic statistics as a series, and the lines that say what happened."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median

from roofline.diagnosis.observations import Observations
from roofline.diagnosis.patterns import Series, named
from roofline.errors import InputError

_UNITS = {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 2**10, "MB": 2**20, "GB": 2**30}  # torch writes MiB and GiB
_NUMBER = r"([\d,]+(?:\.\d+)?)"
_VLLM = re.compile(
    rf"generation throughput: {_NUMBER} tokens/s, Running: (\d+) reqs?,(?: Swapped: (\d+) reqs?,)? (?:Waiting|Pending): (\d+) reqs?"
    rf"(?:, (?:GPU )?KV cache usage: {_NUMBER}%)?"
)
_SGLANG = re.compile(
    rf"Decode batch.*?#running-req: (\d+).*?(?:full token|token) usage: {_NUMBER}"
    rf"(?:.*?cuda graph: (\w+))?.*?gen throughput \(token/s\): {_NUMBER}, #queue-req: (\d+)"
)
_HITS = re.compile(rf"(?<!External )[Pp]refix cache hit rate:? (?:GPU: )?{_NUMBER}%")
_OOM = re.compile(rf"Tried to allocate {_NUMBER} ([KMG]iB|[KMG]B).*?of which {_NUMBER} ([KMG]iB|[KMG]B) is free", re.IGNORECASE)
_OOM_SHORT = re.compile(rf"Tried to allocate {_NUMBER} ([KMG]iB|[KMG]B)", re.IGNORECASE)
_PREEMPTED = re.compile(r"is preempted by PreemptionMode|Preempted request|preempted\. Recompute", re.IGNORECASE)
_RETRACTED = re.compile(r"Retract requests.*?#retracted_reqs: (\d+)")
_LONGEST_LINE = 20_000


def _bytes(number: str, unit: str) -> float:
    return float(number.replace(",", "")) * _UNITS[unit.upper()]


def _count(number: str) -> float:
    return float(number.replace(",", ""))


Fact = tuple[str, float | bool]
# pattern → facts of the match; the last line that matches counts
_LINES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], list[Fact]]], ...] = (
    (
        re.compile(rf"max_num_seqs \({_NUMBER}\) exceeds available Mamba cache blocks \({_NUMBER}\)"),
        lambda m: [("max_num_seqs", _count(m[1])), ("state_slots", _count(m[2]))],
    ),
    (re.compile(rf"KV cache size: {_NUMBER} tokens"), lambda m: [("kv_tokens", _count(m[1]))]),
    (re.compile(rf"max_total_num_tokens={_NUMBER}"), lambda m: [("kv_tokens", _count(m[1]))]),
    (re.compile(rf"max_num_seqs['\"]?[=:] ?{_NUMBER}"), lambda m: [("max_num_seqs", _count(m[1]))]),
    (re.compile(rf"max_num_batched_tokens['\"]?[=:] ?{_NUMBER}"), lambda m: [("chunk_tokens", _count(m[1]))]),
    (re.compile(rf"chunked_prefill_size={_NUMBER}"), lambda m: [("chunk_tokens", _count(m[1]))]),
    (re.compile(r"enforce_eager=True|[Cc]ud[a]?graph (?:is )?disabled|disable_cuda_graph=True"), lambda m: [("cuda_graph", False)]),
    (re.compile(rf"Draft acceptance rate: {_NUMBER}%"), lambda m: [("draft_acceptance", _count(m[1]) / 100)]),
    (re.compile(r"enable_prefix_caching=(True|False)"), lambda m: [("prefix_caching", m[1] == "True")]),
    (re.compile(r"tensor_parallel_size=(\d+)|tp_size=(\d+)"), lambda m: [("tp", float(m[1] or m[2]))]),
    (re.compile(rf"Available KV cache memory: {_NUMBER} (GiB)"), lambda m: [("kv_pool_bytes", _bytes(m[1], m[2]))]),
)


@dataclass
class _Reading:
    """What the lines read so far say."""

    origin: str
    series: Series = field(default_factory=Series)
    facts: dict[str, float | bool] = field(default_factory=dict)
    preemptions: float = 0.0

    def line(self, text: str) -> None:
        if match := _VLLM.search(text):
            waiting = int(match[4]) + int(match[3] or 0)
            self.series.add(float(match[2]), float(waiting), _count(match[5]) / 100 if match[5] else None, _count(match[1]))
        elif match := _SGLANG.search(text):
            self.series.add(float(match[1]), float(match[5]), _count(match[2]), _count(match[4]))
            if match[3]:
                self.facts["cuda_graph"] = match[3] == "True"
        if match := _HITS.search(text):
            self.facts["prefix_hit_rate"] = _count(match[1]) / 100
        if match := _RETRACTED.search(text):
            self.preemptions += int(match[1])
        elif _PREEMPTED.search(text):
            self.preemptions += 1
        if match := _OOM.search(text):
            self.facts["oom_requested_bytes"], self.facts["oom_free_bytes"] = _bytes(match[1], match[2]), _bytes(match[3], match[4])
        elif match := _OOM_SHORT.search(text):
            self.facts["oom_requested_bytes"] = _bytes(match[1], match[2])
        for pattern, facts in _LINES:
            if match := pattern.search(text):
                self.facts.update(facts(match))


def read_log(lines: Iterable[str], origin: str) -> Observations:
    """What a log says, line by line. Raises InputError if no line of it is known."""
    reading = _Reading(origin)
    for text in lines:
        reading.line(text[:_LONGEST_LINE])
    seen = Observations(dict(reading.facts), origin)
    if len(reading.series):
        _from_series(reading, seen)
    if reading.preemptions or len(reading.series) > 1:
        seen.add("preemptions", reading.preemptions, f"{origin}: lines that tell of preemption or retraction")
    if not len(seen):
        raise InputError(
            f"{origin}: no line is known: neither statistics of vLLM or SGLang, nor an error of theirs; "
            "statistics are logged every few seconds unless --disable-log-stats was given"
        )
    return seen


def _from_series(reading: _Reading, seen: Observations) -> None:
    """The state in the last quarter of the busy lines, and in the first."""
    busy = reading.series.busy()
    source = f"{reading.origin}: {len(busy)} lines of statistics with work"
    if not len(busy):
        seen.update(Observations({"running": 0.0, "waiting": 0.0}, f"{reading.origin}: no request in any line of statistics"))
        return
    part = max(1, len(busy) // 4)
    for name, values in (("running", busy.running), ("waiting", busy.waiting), ("kv_usage", busy.kv)):
        known = [value for value in values if value is not None]
        if known:
            seen.add(name, median(known[-part:]), source)
            if len(known) > 1:
                seen.add(f"{name}_before", median(known[:part]), source)
    seen.add("generation_tokens_per_s", median(busy.output[-part:]), source)
    if len(busy) >= 4:
        seen.add("generation_tokens_per_s_before", max(median(busy.output[at : at + part]) for at in range(len(busy) - part + 1)), source)
    pattern = named(busy, reading.preemptions)
    if pattern is not None:
        seen.add("pattern", pattern.name, source)
