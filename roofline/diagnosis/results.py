"""The result of `roofline loadtest --json` as observations: the highest load, beside the lowest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from roofline.diagnosis.observations import Observations
from roofline.errors import InputError

_TELLING = ("stalls", "queue-grows", "decode-slows", "warms-up", "decode-speeds-up", "steady")


def read_result(data: Mapping[str, Any], origin: str) -> Observations:
    """What a load test says. Raises InputError if it is not one, or if nothing was answered."""
    stages = data.get("stages")
    if not isinstance(stages, list) or not stages or not all(isinstance(stage, Mapping) and "ttft_s" in stage for stage in stages):
        raise InputError(f"{origin}: stages: not a result of `roofline loadtest --json`")
    answered = [stage for stage in stages if stage.get("requests_ok")]
    if not answered:
        raise InputError(f"{origin}: stages: no request was answered; the errors there say why")
    last = max(answered, key=lambda stage: (_number(stage, "mean_in_flight"), _number(stage, "requests_per_s")))
    seen = _of_stage(last, f"{origin}, {last.get('title', 'stage')}")
    first = min(answered, key=lambda stage: _number(stage, "mean_in_flight"))
    if first is not last:
        between = f"{origin}, {first.get('title', 'lowest')} and {last.get('title', 'highest')}"
        for name in ("ttft", "tpot"):
            base = _number(first, f"{name}_s", "p50")
            if base > 0:
                seen.add(f"{name}_growth", _number(last, f"{name}_s", "p50") / base, between)
        if first.get("concurrency") == 1 and last.get("concurrency"):
            seen.add("batching_gain", _number(last, "requests_per_s") / _number(first, "requests_per_s"), between)
    client = data.get("client")
    trust = client.get("trustworthy") if isinstance(client, Mapping) else None
    if isinstance(trust, bool):
        seen.add("client_trustworthy", trust, f"{origin}, client")
    return seen


def _of_stage(stage: Mapping[str, Any], origin: str) -> Observations:
    seen = Observations()
    paths = {
        "ttft_s": ("ttft_s", "p50"), "ttft_p99_s": ("ttft_s", "p99"), "tpot_s": ("tpot_s", "p50"), "itl_s": ("itl_s", "mean"),
        "itl_p50_s": ("itl_s", "p50"), "itl_p99_s": ("itl_s", "p99"), "generation_tokens_per_s": ("output_tokens_per_s",),
        "prompt_length": ("input_tokens", "mean"), "output_length": ("output_tokens", "mean"), "client_concurrency": ("concurrency",),
        "requests_finished": ("requests_ok",), "requests_rejected": ("requests_failed",),
        "queue_s": ("server", "queue_s", "mean"), "preemptions": ("server", "preemptions"),
        "client_gap_s": ("server", "client_minus_server_s", "ttft_s"),
    }  # fmt: skip
    for name, path in paths.items():
        value = _number(stage, *path)
        if not (name == "client_gap_s" and value < 0):
            seen.add(name, value, origin)
    names = {pattern.get("name") for pattern in stage.get("patterns", []) if isinstance(pattern, Mapping)}
    seen.add("pattern", next((name for name in _TELLING if name in names), None), origin)
    return seen


def _number(data: Any, *path: str) -> float:
    """The number at a path of keys; NaN if there is none."""
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return float(data) if isinstance(data, int | float) and not isinstance(data, bool) else math.nan
