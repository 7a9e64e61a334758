"""Which families of which server mean what, and what a pair of scrapes says in the words of a diagnosis.

Names: vLLM 0.33 and older, SGLang 0.5, TensorRT-LLM. Of several names for one thing, the first that the server has is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from roofline.diagnosis.exposition import Engine, Histogram, Scrape, Window, difference, parse
from roofline.diagnosis.observations import Observations
from roofline.errors import InputError

GAUGES = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs", "trtllm_num_requests_running"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "trtllm_num_requests_waiting"),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:full_token_usage", "sglang:token_usage",
                 "trtllm_kv_cache_utilization"),
    "kv_tokens": ("sglang:max_total_num_tokens",),
    "cuda_graph": ("sglang:is_cuda_graph",),
}  # fmt: skip
COUNTERS = {
    "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions", "sglang:num_retracted_requests_total"),
    "requests_finished": ("vllm:request_success_total", "sglang:num_requests_total", "trtllm_request_success_total"),
    "requests_rejected": ("vllm:admission_rejections_total", "sglang:num_aborted_requests_total", "trtllm_request_error_total"),
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "trtllm_prompt_tokens_total"),
    "generation_tokens": ("vllm:generation_tokens_total", "sglang:generation_tokens_total", "trtllm_generation_tokens_total"),
    "hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "sglang:cached_tokens_total",
             "trtllm_prompt_cached_tokens_total"),
    "queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total", "sglang:prompt_tokens_total",
                "trtllm_prompt_tokens_total"),
    "drafted": ("vllm:spec_decode_num_draft_tokens_total",),
    "accepted": ("vllm:spec_decode_num_accepted_tokens_total",),
}  # fmt: skip
HISTOGRAMS = {
    "ttft": ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds", "trtllm_time_to_first_token_seconds"),
    "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds", "sglang:inter_token_latency_seconds",
            "sglang:time_per_output_token_seconds"),
    "tpot": ("vllm:request_time_per_output_token_seconds", "sglang:request_time_per_output_token_seconds",
             "trtllm_time_per_output_token_seconds"),
    "queue": ("vllm:request_queue_time_seconds", "sglang:queue_time_seconds", "trtllm_request_queue_time_seconds"),
    "prefill": ("vllm:request_prefill_time_seconds", "trtllm_request_prefill_time_seconds"),
    "step_tokens": ("vllm:iteration_tokens_total",),
}  # fmt: skip
_STALL_S, _STALL_MEDIANS = 0.2, 5.0
CONFIG = "vllm:cache_config_info"
_PLAIN = {name for names in (*GAUGES.values(), *COUNTERS.values()) for name in names}
_FAMILIES = {name for names in HISTOGRAMS.values() for name in names}


def read(lines: Iterable[str], origin: str) -> Scrape:
    """The families above, of one exposition. Raises InputError if it has none of them."""
    found = parse(lines, origin, plain=_PLAIN, histograms=_FAMILIES, infos=(CONFIG,))
    if not found.known:
        raise InputError(
            f"{origin}: a Prometheus page, but without the families of vLLM, SGLang or TensorRT-LLM "
            "(SGLang needs --enable-metrics; under Triton or Dynamo take the engine's own port)"
        )
    return found


def observe(before: Scrape, after: Scrape, interval_s: float | None = None) -> Observations:
    """What two scrapes of one server say, the earlier one first. interval_s: the time between them, if known."""
    window = difference(before, after)
    seen = Observations(source=after.origin)
    _state(window, seen)
    _counts(window, seen, interval_s)
    _times(window, seen)
    config = after.labels.get(CONFIG, {})
    if config.get("num_gpu_blocks", "").isdigit() and config.get("block_size", "").isdigit():
        engines = max(1, len(window.gauge(GAUGES["running"][0])))
        seen.add("kv_tokens", float(int(config["num_gpu_blocks"]) * int(config["block_size"]) * engines), CONFIG)
    if config.get("enable_prefix_caching") in ("True", "False"):
        seen.add("prefix_caching", config["enable_prefix_caching"] == "True", CONFIG)
    if window.resets:
        seen.add("engine_restarts", float(window.resets), "counters that fell")
        seen.add("all_counters_fell", window.rises == 0, "counters that fell and rose")
    return seen


def _present(names: Iterable[str], scrape_values: Iterable[str]) -> str:
    there = set(scrape_values)
    return next((name for name in names if name in there), "")


def _state(window: Window, seen: Observations) -> None:
    """Gauges at both ends: requests are summed over engines, shares averaged."""
    busy: dict[Engine, float] = {}
    for key, names in GAUGES.items():
        name = _present(names, window.after.values)
        if not name:
            continue
        now, past = window.gauge(name), window.gauge(name, first=True)
        if key == "cuda_graph":
            seen.add(key, max(now.values()) > 0, name)
            continue
        share = key == "kv_usage"
        seen.add(key, _whole(now, share), name)
        if key != "kv_tokens" and past:
            seen.add(f"{key}_before", _whole(past, share), name)
        if key in ("running", "waiting"):
            for engine, value in now.items():
                busy[engine] = busy.get(engine, 0.0) + value
    if busy:
        seen.add("engines", float(len(busy)), "labels")
    if len(busy) > 1 and sum(busy.values()) > 0:
        seen.add("engine_imbalance", max(busy.values()) * len(busy) / sum(busy.values()), "requests by engine")


def _whole(series: dict[Engine, float], share: bool) -> float:
    total = max(0.0, sum(series.values()))
    return total / len(series) if share else total


def _counts(window: Window, seen: Observations, interval_s: float | None) -> None:
    """Increases of counters, and the ratios that are made of them."""
    found = {}
    for key, names in COUNTERS.items():
        name = _present(names, window.increases)
        if name:
            found[key] = window.increases[name]
            if key not in ("hits", "queries", "drafted", "accepted"):
                seen.add(key, found[key], name)
    if found.get("queries", 0) > 0 and "hits" in found:
        seen.add("prefix_hit_rate", min(1.0, found["hits"] / found["queries"]), "prefix-cache counters")
    if found.get("drafted", 0) > 0 and "accepted" in found:
        seen.add("draft_acceptance", min(1.0, found["accepted"] / found["drafted"]), "speculation counters")
    ended = found.get("requests_finished", 0)
    if ended > 0:
        for key, name in (("prompt_length", "prompt_tokens"), ("output_length", "generation_tokens")):
            if name in found:
                seen.add(key, found[name] / ended, f"{name} per finished request")
    if interval_s:
        seen.add("interval_s", interval_s, "between the scrapes")
        if "generation_tokens" in found:
            seen.add("generation_tokens_per_s", found["generation_tokens"] / interval_s, "counter over the interval")


def _times(window: Window, seen: Observations) -> None:
    """Means and quantiles of what was observed between the scrapes, never of the server's whole life."""
    means = {}
    for key, names in HISTOGRAMS.items():
        name = _present(names, window.histograms)
        if not name:
            continue
        histogram = window.histograms[name]
        means[key] = histogram.mean
        seen.add("step_tokens" if key == "step_tokens" else f"{key}_s", _not_below_zero(histogram.mean), name)
        for percentile, fact in ((50, "itl_p50_s"), (99, "itl_p99_s"), (99, "ttft_p99_s"), (99, "step_tokens_p99")):
            if fact.startswith(f"{key}_p"):
                seen.add(fact, *_quantile(histogram, percentile, name))
        if key == "itl" and histogram.count > 0:
            stall_s = max(_STALL_S, _STALL_MEDIANS * histogram.quantile(0.5)[0])
            seen.add("stalls_per_request", histogram.above(stall_s) / max(1.0, seen.number("requests_finished")), name)
    ttft, queue, prefill = (means.get(key, math.nan) for key in ("ttft", "queue", "prefill"))
    seen.add("api_gap_s", _not_below_zero(round(ttft - queue - prefill, 6)), "TTFT − queue − prefill")


def _not_below_zero(value: float) -> float:
    """NaN, the mean of nothing, stays NaN: max(0, NaN) would make it 0."""
    return value if math.isnan(value) else max(0.0, value)


def _quantile(histogram: Histogram, percentile: int, name: str) -> tuple[float, str]:
    value, above = histogram.quantile(percentile / 100)
    return value, f"{name}, above its last finite bucket" if above else name
