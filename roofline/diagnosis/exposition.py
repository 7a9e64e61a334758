"""Prometheus text exposition, read for the families that a diagnosis knows: bounded memory, and the difference of two scrapes."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from roofline.errors import InputError

LARGEST_BYTES = 64 << 20
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")

Engine = tuple[str, str]


@dataclass
class Histogram:
    """One engine's histogram: cumulated counts by upper bound, sum, count."""

    buckets: dict[float, float] = field(default_factory=dict)
    sum: float = 0.0
    count: float = 0.0

    @property
    def mean(self) -> float:
        """NaN of nothing."""
        return self.sum / self.count if self.count > 0 else math.nan

    def quantile(self, share: float) -> tuple[float, bool]:
        """(value, whether it is only known to lie above it): linear within a bucket; in the last bucket its lower bound; NaN of nothing."""
        bounds = sorted(self.buckets)
        total = max(self.buckets.values(), default=0.0)
        if total <= 0:
            return math.nan, False
        below, low = 0.0, 0.0
        for bound in bounds:
            upto = self.buckets[bound]
            if upto >= share * total and upto > below:
                if math.isinf(bound):
                    return low, True
                return low + (bound - low) * (share * total - below) / (upto - below), False
            below, low = max(below, upto), bound if math.isfinite(bound) else low
        return low, True

    def above(self, limit: float) -> float:
        """Samples that are surely above `limit`: those in buckets that begin there or later."""
        total = max(self.buckets.values(), default=0.0)
        return total - min((count for bound, count in self.buckets.items() if bound >= limit), default=total)

    def plus(self, other: Histogram) -> Histogram:
        """Both together; where bounds differ only the common ones stay."""
        if not self.buckets or not other.buckets:
            buckets = self.buckets or other.buckets
        else:
            buckets = {bound: self.buckets[bound] + other.buckets[bound] for bound in self.buckets.keys() & other.buckets.keys()}
        return Histogram(dict(buckets), self.sum + other.sum, self.count + other.count)


@dataclass
class Scrape:
    """One reading of /metrics, only of the families asked for.

    values: sample name → engine → value, summed over other labels. histograms: family → engine → Histogram. labels: of info
    families (value 1), the labels of the first engine. lines, unreadable: how many there were.
    """

    origin: str
    values: dict[str, dict[Engine, float]] = field(default_factory=dict)
    histograms: dict[str, dict[Engine, Histogram]] = field(default_factory=dict)
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    lines: int = 0
    unreadable: int = 0

    @property
    def known(self) -> bool:
        """Whether any family that was asked for is there."""
        return bool(self.values or self.histograms)


def parse(lines: Iterable[str], origin: str, *, plain: Collection[str], histograms: Collection[str], infos: Collection[str] = ()) -> Scrape:
    """Reads an exposition line by line. plain: names of gauges and counters as sampled; histograms, infos: names of families.

    Tensor- and pipeline-parallel ranks other than 0 repeat rank 0 and are left out. A line that is not a sample is counted and
    skipped. Raises InputError if nothing in it is a sample at all.
    """
    parts = {f"{name}{suffix}": (name, suffix) for name in histograms for suffix in ("_bucket", "_sum", "_count")}
    found = Scrape(origin)
    readable = 0
    for line in lines:
        found.lines += 1
        line = line.strip()
        if not line or line[0] == "#":
            continue
        match = _SAMPLE.match(line)
        value = _number(match[3]) if match else None
        if match is None or value is None:
            found.unreadable += 1
            continue
        readable += 1
        name = match[1]
        if name not in parts and name not in plain and name not in infos:
            continue
        labels = _labels(match[2] or "")
        if any(labels.get(rank, "0") not in ("0", "") for rank in _RANKS):
            continue
        _store(found, name, labels, value, parts, infos)
    if not readable:
        raise InputError(f"{origin}: no line of it is a Prometheus sample; save the page with: curl -s http://HOST:PORT/metrics")
    return found


def _store(
    found: Scrape, name: str, labels: dict[str, str], value: float, parts: dict[str, tuple[str, str]], infos: Collection[str]
) -> None:
    engine = (labels.get("model_name", labels.get("model", "")), labels.get("engine", labels.get("dp_rank", "")))
    if name in infos:
        found.labels.setdefault(name, labels)
    elif name not in parts:
        if math.isfinite(value):
            series = found.values.setdefault(name, {})
            series[engine] = series.get(engine, 0.0) + value
    elif math.isfinite(value):
        family, suffix = parts[name]
        histogram = found.histograms.setdefault(family, {}).setdefault(engine, Histogram())
        if suffix == "_bucket":
            bound = _number(labels.get("le", ""))
            if bound is not None:
                histogram.buckets[bound] = histogram.buckets.get(bound, 0.0) + value
        elif suffix == "_sum":
            histogram.sum += value
        else:
            histogram.count += value


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _labels(text: str) -> dict[str, str]:
    return {match[1]: re.sub(r'\\[\\"n]', lambda m: _ESCAPED[m[0]], match[2]) for match in _LABEL.finditer(text)}


@dataclass(frozen=True)
class Window:
    """What happened between two scrapes. resets: series that fell, whose later value is then the increase; rises: counters
    and histograms that rose."""

    before: Scrape
    after: Scrape
    resets: int
    rises: int
    increases: dict[str, float]
    histograms: dict[str, Histogram]

    def gauge(self, name: str, *, first: bool = False) -> dict[Engine, float]:
        """A gauge by engine, at the end or at the beginning; empty if the family is missing."""
        return (self.before if first else self.after).values.get(name, {})


def difference(before: Scrape, after: Scrape) -> Window:
    """Increases of every plain sample and histogram, summed over engines. An engine that is new counts from zero."""
    resets, rises, increases = 0, 0, {}
    for name, series in after.values.items():
        total = 0.0
        for engine, value in series.items():
            past = before.values.get(name, {}).get(engine, 0.0)
            fell = value < past
            resets += fell and name.endswith("_total")
            rises += value > past and name.endswith("_total")
            total += value if fell else value - past
        increases[name] = total
    histograms = {}
    for family, members in after.histograms.items():
        whole = Histogram()
        for engine, histogram in members.items():
            past_histogram = before.histograms.get(family, {}).get(engine, Histogram())
            fell = histogram.count < past_histogram.count
            resets += fell
            rises += histogram.count > past_histogram.count
            whole = whole.plus(histogram if fell else _minus(histogram, past_histogram))
        histograms[family] = whole
    return Window(before, after, resets, rises, increases, histograms)


def _minus(after: Histogram, before: Histogram) -> Histogram:
    buckets = {bound: max(0.0, count - before.buckets.get(bound, 0.0)) for bound, count in after.buckets.items()}
    return Histogram(buckets, after.sum - before.sum, after.count - before.count)
