"""A stage in the JSON layout of `vllm bench serve`, so that dashboards made for it can read ours.

Source: vllm/benchmarks/serve.py of vLLM 0.33 (times in milliseconds, lists in seconds).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from roofline.loadtest.statistics import Floats, StageData


def vllm_result(data: StageData, *, model: str, endpoint: str, date: str, concurrency: int | None, rate: float | None) -> dict[str, Any]:
    """The keys of a result file. Failed requests are counted and have no entries in the lists; texts are not kept."""
    span = data.duration_s or math.nan
    inputs, outputs = data.tokens["input"], data.tokens["output"]
    total_in, total_out = sum(inputs), sum(outputs)
    gaps = np.array(data.gaps_s, dtype=np.float64)
    cuts = np.cumsum(np.array(data.tokens["chunks"]) - 1)
    result: dict[str, Any] = {
        "date": date,
        "endpoint_type": "openai-chat" if endpoint == "chat" else "openai",
        "backend": "openai-chat" if endpoint == "chat" else "openai",
        "label": None,
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": data.ok + data.failed,
        "request_rate": "inf" if rate is None or math.isinf(rate) else rate,
        "burstiness": 1.0,
        "max_concurrency": concurrency,
        "duration": data.duration_s,
        "completed": data.ok,
        "failed": data.failed,
        "total_input_tokens": total_in,
        "total_output_tokens": total_out,
        "request_throughput": data.ok / span,
        "output_throughput": total_out / span,
        "total_token_throughput": (total_in + total_out) / span,
        "input_lens": list(inputs),
        "output_lens": list(outputs),
        "ttfts": list(data.columns["ttft_s"]),
        "itls": [part.tolist() for part in np.split(gaps, cuts[:-1])] if data.ok else [],
        "start_times": list(data.columns["start_s"]),
        "generated_texts": [],
        "errors": [kind for kind, count in data.errors.items() for _ in range(count)],
    }
    for name, values in (
        ("ttft", data.column("ttft_s")),
        ("tpot", data.column("tpot_s")),
        ("itl", gaps),
        ("e2el", data.column("e2el_s")),
    ):
        result |= _statistics(name, values[~np.isnan(values)] * 1e3)
    return result


def _statistics(name: str, values_ms: Floats) -> dict[str, float]:
    if not len(values_ms):
        values_ms = np.zeros(1)
    shares = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}
    percentiles = {f"{label}_{name}_ms": float(np.percentile(values_ms, share)) for label, share in shares.items()}
    return {
        f"mean_{name}_ms": float(values_ms.mean()),
        f"median_{name}_ms": float(np.median(values_ms)),
        f"std_{name}_ms": float(values_ms.std()),
        **percentiles,
    }
