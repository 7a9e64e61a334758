"""/metrics with vLLM's names, types, labels and buckets, so that whatever reads a vLLM server reads this one.

Source of names and buckets: vLLM 0.33.0, vllm/v1/metrics/loggers.py. A family is left out where the engine has nothing to say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCY_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_PARAMS_N = (1, 2, 5, 10, 20)
REASONS = ("stop", "length", "abort")


@dataclass
class Life:
    """When things happened to a request, in seconds of one clock. arrival: at the HTTP server; queued: in the engine's queue;
    scheduled: first step with it; first, last: its tokens. tokens: generated so far."""

    arrival_s: float
    prompt_tokens: int
    max_tokens: int
    n: int
    queued_s: float = math.nan
    scheduled_s: float = math.nan
    first_s: float = math.nan
    last_s: float = math.nan
    tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True)
class CacheConfig:
    """The KV pool, as vllm:cache_config_info tells it."""

    block_size: int
    num_gpu_blocks: int
    cache_dtype: str
    enable_prefix_caching: bool


class Metrics:
    """What one engine counted since it began. Each method is called by the thread that it says; `page` by any."""

    def __init__(self, model: str, cache: CacheConfig, max_model_len: int) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model, "engine": "0"}
        self._caching = cache.enable_prefix_caching
        lengths = _one_two_five(max_model_len)
        self.running = self._gauge("num_requests_running", "Number of requests in model execution batches.")
        self.waiting = self._gauge("num_requests_waiting", "Number of requests waiting to be processed.")
        self.kv_usage = self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        self._queries = self._counter("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.")
        self._hits = self._counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.")
        self._preemptions = self._counter("num_preemptions", "Cumulative number of preemption from the engine.")
        self._prompt = self._counter("prompt_tokens", "Number of prefill tokens processed.")
        self._cached = self._counter("prompt_tokens_cached", "Number of cached prompt tokens (local + external).")
        self._generated = self._counter("generation_tokens", "Number of generation tokens processed.")
        self._success = self._labelled("request_success", "Count of successfully processed requests.", "finished_reason")
        self._rejected = self._labelled("admission_rejections", "Admission attempts rejected by a queue limit, by reason.", "reason")
        self._step_tokens = self._histogram("iteration_tokens_total", "Histogram of number of tokens per engine_step.", _STEP_TOKENS)
        self._prompts = self._histogram("request_prompt_tokens", "Number of prefill tokens processed.", lengths)
        self._outputs = self._histogram("request_generation_tokens", "Number of generation tokens processed.", lengths)
        self._computed = self._histogram(
            "request_prefill_kv_computed_tokens", "New KV tokens computed during prefill (excluding cached tokens).", lengths
        )
        self._params_n = self._histogram("request_params_n", "Histogram of the n request parameter.", _PARAMS_N)
        self._params_max = self._histogram("request_params_max_tokens", "Histogram of the max_tokens request parameter.", lengths)
        self._longest = self._histogram("request_max_num_generation_tokens", "Maximum number of requested generation tokens.", lengths)
        self._ttft = self._histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.", _TTFT_S)
        self._itl = self._histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _TOKEN_S)
        self._tpot = self._histogram("request_time_per_output_token_seconds", "Time per output token of each request.", _TOKEN_S)
        self._e2e = self._histogram("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _LATENCY_S)
        self._queue = self._histogram("request_queue_time_seconds", "Time spent in WAITING phase for request.", _LATENCY_S)
        self._inference = self._histogram("request_inference_time_seconds", "Time spent in RUNNING phase for request.", _LATENCY_S)
        self._prefill = self._histogram("request_prefill_time_seconds", "Time spent in PREFILL phase for request.", _LATENCY_S)
        self._decode = self._histogram("request_decode_time_seconds", "Time spent in DECODE phase for request.", _LATENCY_S)
        for reason in REASONS:
            self._success.labels(**self._labels, finished_reason=reason)
        self._tell_cache(cache)

    def _tell_cache(self, cache: CacheConfig) -> None:
        labels = {"engine": "0"} | {name: str(getattr(cache, name)) for name in cache.__dataclass_fields__}
        name, about = "vllm:cache_config_info", "Information of the LLMEngine CacheConfig"
        Gauge(name, about, list(labels), registry=self.registry).labels(**labels).set(1)

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(f"vllm:{name}", about, list(self._labels), registry=self.registry).labels(**self._labels)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(f"vllm:{name}", about, list(self._labels), registry=self.registry).labels(**self._labels)

    def _labelled(self, name: str, about: str, label: str) -> Counter:
        return Counter(f"vllm:{name}", about, [*self._labels, label], registry=self.registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"vllm:{name}", about, list(self._labels), registry=self.registry, buckets=buckets).labels(**self._labels)

    def gauges(self, running: int, waiting: int, kv_usage: float) -> None:
        """The engine's state after a step (engine's thread)."""
        self.running.set(running)
        self.waiting.set(waiting)
        self.kv_usage.set(kv_usage)

    def stepped(self, tokens: int, preempted: int) -> None:
        """One forward pass over so many tokens (engine's thread)."""
        self._step_tokens.observe(tokens)
        self._preemptions.inc(preempted)

    def emitted(self, life: Life, tokens: int, now_s: float) -> None:
        """A step gave a request new tokens; brings its life up to date (engine's thread)."""
        if life.tokens:
            self._itl.observe(now_s - life.last_s)
        else:
            life.first_s = now_s
            self._ttft.observe(now_s - life.arrival_s)
            self._prompt.inc(life.prompt_tokens)
            self._cached.inc(life.cached_tokens)
            if self._caching:
                self._queries.inc(life.prompt_tokens)
                self._hits.inc(life.cached_tokens)
        life.last_s = now_s
        life.tokens += tokens
        self._generated.inc(tokens)

    def ended(self, life: Life, reason: str, now_s: float) -> None:
        """A request left; one that was aborted is only counted (engine's thread)."""
        self._success.labels(**self._labels, finished_reason=reason).inc()
        if reason == "abort":
            return
        self._prompts.observe(life.prompt_tokens)
        self._outputs.observe(life.tokens)
        self._computed.observe(life.prompt_tokens - life.cached_tokens)
        self._params_n.observe(life.n)
        self._params_max.observe(life.max_tokens)
        self._longest.observe(life.max_tokens)
        self._e2e.observe(now_s - life.arrival_s)
        self._queue.observe(life.scheduled_s - life.queued_s)
        self._prefill.observe(life.first_s - life.scheduled_s)
        self._decode.observe(life.last_s - life.first_s)
        self._inference.observe(life.last_s - life.scheduled_s)
        self._tpot.observe((life.last_s - life.first_s) / (life.tokens - 1) if life.tokens > 1 else 0.0)

    def rejected(self, reason: str) -> None:
        """A request was turned away before it reached the engine (event loop)."""
        self._rejected.labels(**self._labels, reason=reason).inc()

    def page(self) -> bytes:
        """The exposition."""
        return bytes(generate_latest(self.registry))


def _one_two_five(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, … up to `largest`."""
    exponents = range(len(str(largest)))
    return tuple(step * 10**exponent for exponent in exponents for step in (1, 2, 5) if step * 10**exponent <= largest)
