"""What a stage's requests say: latencies by exact definition, throughput, failures, service levels, and what to be warned of."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.records import RequestRecord

Floats = NDArray[np.float64]
Z95 = 1.959964
DEFINITIONS = {
    "ttft": "first content or reasoning token − start of the request (a chunk with a role or an empty text is no token)",
    "tpot": "(last token − first token) / (tokens − tokens that came with the first, in its chunk or packet), per request",
    "itl": "gaps between chunks with text, pooled over all requests",
    "e2el": "last token − start of the request",
    "start": "when the request was handed to an open connection; connecting is reported as connect_s",
    "percentiles": "linear between order statistics; the intervals (95 %) are those of order statistics, null where n is too small",
}
_COLUMNS = ("start_s", "ttft_s", "answer_s", "tpot_s", "e2el_s", "end_s", "send_delay_s", "connect_s")


class StageData:
    """The records of one stage as columns; 4 bytes per gap between tokens, the rest per request."""

    def __init__(self) -> None:
        self.columns = {name: array("d") for name in _COLUMNS}
        self.index = array("q")
        self.in_flight = array("q")
        self.tokens = {name: array("q") for name in ("input", "requested_input", "output", "requested_output", "chunks")}
        self.gaps_s = array("f")
        self.errors: Counter[str] = Counter()
        self.details: dict[str, str] = {}
        self.sources: Counter[str] = Counter()
        self.output_tokens = 0
        self.first_s, self.last_s = math.inf, -math.inf

    def add(self, record: RequestRecord) -> None:
        """Counts one request in."""
        if record.start_s == record.start_s:
            self.first_s = min(self.first_s, record.start_s)
        self.last_s = max(self.last_s, record.end_s)
        if record.error:
            self.errors[record.error] += 1
            self.details.setdefault(record.error, record.detail)
            return
        answer = record.first_answer_s - record.start_s
        values = (record.start_s, record.ttft_s, answer, record.tpot_s, record.e2el_s, record.end_s, record.send_delay_s, record.connect_s)
        for name, value in zip(_COLUMNS, values, strict=True):
            self.columns[name].append(value)
        self.index.append(record.index)
        self.in_flight.append(record.in_flight)
        counts = (record.input_tokens, record.requested_input_tokens, record.output_tokens, record.requested_output_tokens, record.chunks)
        for name, count in zip(self.tokens, counts, strict=True):
            self.tokens[name].append(count)
        self.output_tokens += record.output_tokens
        self.gaps_s.extend(record.gaps_s)
        self.sources[record.tokens_source] += 1

    def column(self, name: str) -> Floats:
        """Of the good requests."""
        return np.array(self.columns[name])

    @property
    def ok(self) -> int:
        """Requests answered to the end."""
        return len(self.index)

    @property
    def failed(self) -> int:
        """Requests that were not."""
        return self.errors.total()

    @property
    def total(self) -> int:
        """Good and failed requests."""
        return self.ok + self.failed

    @property
    def duration_s(self) -> float:
        """From the first start to the last end."""
        return max(self.last_s - self.first_s, 0.0) if self.ok else 0.0

    def steady(self, concurrency: int) -> NDArray[np.bool_]:
        """Which good requests of a closed loop began after the first wave; all of them if less than a whole wave did."""
        index = np.array(self.index)
        after = index >= concurrency
        return after if after.any() and self.total >= 2 * concurrency else np.ones(len(index), dtype=bool)

    def mismatched(self) -> int:
        """Good requests whose output the server or a tokenizer counted differently from what was asked for."""
        if set(self.sources) <= {"chunks"}:
            return 0
        return int((np.array(self.tokens["output"]) != np.array(self.tokens["requested_output"])).sum())


def summary(values: Floats, *, tail: bool = False) -> dict[str, Any]:
    """n, mean, standard deviation, min, p50 … p99, max in the unit of `values`, and 95 % intervals of p50 and p99.

    NaNs are left out; everything is null for nothing. tail: p99.9 too.
    """
    values = np.sort(values[~np.isnan(values)])
    n = len(values)
    shares = [50.0, 90.0, 95.0, 99.0, *([99.9] if tail else [])]
    names = ["p50", "p90", "p95", "p99", *(["p999"] if tail else [])]
    if not n:
        return {"n": 0, "mean": None, "std": None, "min": None, **dict.fromkeys(names), "max": None, "p50_ci": None, "p99_ci": None}
    return {
        "n": n,
        "mean": float(values.mean()),
        "std": float(values.std(ddof=1)) if n > 1 else 0.0,
        "min": float(values[0]),
        **dict(zip(names, (float(q) for q in np.percentile(values, shares)), strict=True)),
        "max": float(values[-1]),
        "p50_ci": quantile_interval(values, 0.5),
        "p99_ci": quantile_interval(values, 0.99),
    }


def quantile_interval(ordered: Floats, share: float) -> list[float | None]:
    """95 % interval of a quantile without assuming a distribution; an end that n cannot tell is None.

    Source: order statistics; the number of samples below the quantile is binomial(n, share), here by its normal approximation.
    """
    n = len(ordered)
    middle, half = n * share, Z95 * math.sqrt(n * share * (1 - share))
    low, high = math.floor(middle - half) - 1, math.ceil(middle + half)
    return [float(ordered[low]) if low >= 0 else None, float(ordered[high]) if high < n else None]


def wilson(hits: int, n: int) -> tuple[float, float]:
    """95 % interval of a share. Source: Wilson 1927."""
    if n == 0:
        return 0.0, 1.0
    share, z2 = hits / n, Z95**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def met(data: StageData, levels: Mapping[str, float]) -> int:
    """Good requests within every service level; levels: upper limits in seconds by ttft, tpot, e2el. One token has no tpot to miss."""
    good = np.ones(data.ok, dtype=bool)
    for name, limit in levels.items():
        good &= ~(data.column(f"{name}_s") > limit)
    return int(good.sum())


def describe(data: StageData, concurrency: int | None, levels: Mapping[str, float]) -> dict[str, Any]:
    """The stage's numbers under the keys of results, SI units."""
    span = data.duration_s or math.nan
    e2el = data.column("e2el_s")
    outputs, inputs = np.array(data.tokens["output"]), np.array(data.tokens["input"])
    result: dict[str, Any] = {
        "requests_ok": data.ok,
        "requests_failed": data.failed,
        "errors": dict(data.errors),
        "error_details": data.details,
        "duration_s": data.duration_s,
        "ttft_s": summary(data.column("ttft_s")),
        "tpot_s": summary(data.column("tpot_s")),
        "itl_s": summary(np.array(data.gaps_s, dtype=np.float64), tail=True),
        "e2el_s": summary(e2el),
        "connect_s": summary(data.column("connect_s")),
        "requests_per_s": data.ok / span,
        "output_tokens_per_s": float(outputs.sum()) / span,
        "total_tokens_per_s": float(outputs.sum() + inputs.sum()) / span,
        "input_tokens": _lengths(data, "requested_input", "input"),
        "output_tokens": _lengths(data, "requested_output", "output") | {"mismatched": data.mismatched()},
        "tokens_source": dict(data.sources),
        "chunks": int(np.sum(data.tokens["chunks"])),
        "mean_in_flight": float(e2el.sum()) / span if data.ok else 0.0,
    }
    if concurrency and data.ok and data.total >= concurrency:
        mean = float(e2el[data.steady(concurrency)].mean())
        result["steady_requests_per_s"] = concurrency / mean
        result["steady_output_tokens_per_s"] = concurrency / mean * float(outputs.mean())
    answer = data.column("answer_s")
    if len(answer) and not np.allclose(answer, data.column("ttft_s"), equal_nan=True):
        result["ttft_answer_s"] = summary(answer)
    if levels:
        hits, total = met(data, levels), data.total
        low, high = wilson(hits, total)
        result["goodput"] = {
            "levels_s": dict(levels),
            "met": hits,
            "attainment": hits / total if total else None,
            "attainment_ci": [low, high],
            "requests_per_s": hits / span,
        }
    result["warnings"] = warnings(data)
    if concurrency and data.total < concurrency:
        result["warnings"].append(f"{data.total} requests are fewer than {concurrency} streams: the load was lower; --requests-per-stage")
    return result


def _lengths(data: StageData, requested: str, got: str) -> dict[str, Any]:
    """Requested and received tokens: total and mean. input tokens of 0 mean that the server did not say."""
    asked, came = np.array(data.tokens[requested]), np.array(data.tokens[got])
    if not data.ok:
        return {"requested_mean": None, "mean": None, "total": 0}
    return {"requested_mean": float(asked.mean()), "mean": float(came.mean()), "total": int(came.sum())}


def warnings(data: StageData) -> list[str]:
    """What a reader of the numbers should know."""
    notes = []
    gaps = np.array(data.gaps_s)
    if len(gaps) and (gaps < 1e-3).mean() > 0.5:
        share = 100 * float((gaps < 1e-3).mean())
        notes.append(
            f"{share:.0f} % of the gaps are under 1 ms: the stream is batched by the server or a proxy; "
            "ITL is not decode time and TTFT is late"
        )
    chunks, tokens = int(np.sum(data.tokens["chunks"])), int(np.sum(data.tokens["output"]))
    if "chunks" in data.sources:
        notes.append("the server gave no usage: each chunk is taken as one token")
    elif chunks and abs(tokens / chunks - 1) > 0.02:
        notes.append(f"a chunk carries {tokens / chunks:.2f} tokens on average: ITL is from chunk to chunk, TPOT per token")
    wrong = data.mismatched()
    if wrong:
        asked, got = np.mean(data.tokens["requested_output"]), np.mean(data.tokens["output"])
        notes.append(f"{wrong} of {data.ok} answers have another length than requested ({got:.1f} for {asked:.1f} tokens on average)")
    counted, said = np.array(data.tokens["input"]), np.array(data.tokens["requested_input"])
    told = (counted > 0) & (said > 0)
    if told.any() and (counted[told] != said[told]).mean() > 0.01:
        asked, got = said[told].mean(), counted[told].mean()
        notes.append(f"prompts have {got:.1f} tokens by the server's count where {asked:.1f} were asked for")
    return notes
