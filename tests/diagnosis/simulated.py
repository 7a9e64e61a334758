"""Simulated servers as they would look from outside: /metrics pages of vLLM's names, written from a simulation's record.

Shares no code with roofline.diagnosis: names and buckets are typed in here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from roofline.ledger import Parallel
from roofline.profiles.catalog import load_hardware, load_model
from roofline.serving.deployment import Policy, deploy
from roofline.serving.statistics import Result
from roofline.serving.workloads import Workload, closed_loop, fixed_length, lognormal_length, merged, open_loop

LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
GAPS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True)
class Server:
    """A server and its load. load: requests per second (open loop) or, if closed, requests in flight."""

    model: str = "llama-3.1-8b"
    hardware: str = "h100-sxm"
    tp: int = 1
    load: float = 1.0
    closed: bool = False
    prompt: int = 1024
    output: int = 256
    requests: int = 300
    spread: float = 0.0
    kv_blocks: int | None = None
    max_num_seqs: int | None = None
    chunk: int | None = None
    long_prompts: int = 0

    def workload(self) -> Workload:
        """Requests of these lengths; long_prompts: now and then one with so many tokens."""
        lengths = [fixed_length(n) if not self.spread else lognormal_length(n, self.spread, high=8 * n) for n in (self.prompt, self.output)]
        if self.closed:
            return closed_loop(self.requests, int(self.load), *lengths, seed=1)
        usual = open_loop(self.requests, self.load, *lengths, seed=1)
        if not self.long_prompts:
            return usual
        rare = open_loop(max(8, self.requests // 20), self.load / 20, fixed_length(self.long_prompts), fixed_length(64), seed=2)
        return merged({"usual": usual, "rare": rare})

    @cache  # noqa: B019 - a few dozen servers live as long as the tests
    def result(self) -> Result:
        """The simulation."""
        deployment = deploy(
            load_model(self.model), load_hardware(self.hardware), Parallel(tp=self.tp), max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.chunk, policy=Policy(self.kv_blocks),
        )  # fmt: skip
        return deployment.run(self.workload())

    def pages(self) -> tuple[str, str]:
        """Two readings of /metrics, at 40 % and 90 % of the time in which requests arrive."""
        result = self.result()
        end = float(np.nanmax(result.sent_s))
        return page(result, 0.4 * end), page(result, 0.9 * end)

    def satisfied(self) -> float:
        """Share of the requests with a first token within 2 s and no stall: no step of 0.2 s and 10 × the median while they decode."""
        result = self.result()
        log = result.stretches
        step_s = (log[:, 1] - log[:, 0]) / log[:, 2]
        long = log[step_s >= max(0.2, 10 * float(np.median(np.repeat(step_s, log[:, 2].astype(int)))))]
        first = np.array(result.recorder.first_token_s)
        stalled = np.array([bool(((long[:, 0] >= a) & (long[:, 1] <= b)).any()) for a, b in zip(first, result.ended_s, strict=True)])
        return float((result.completed & (result.ttft_s <= 2) & ~stalled).mean())

    def cause(self) -> str:
        """What is the matter, by trying: the one relief after which most of the unsatisfied requests are satisfied; PQ if there is none.

        KV: eight times the pool. CAP: sixteen times the sequences. PI: steps of 512, 1024 or 2048 tokens. NONE: nine in ten are
        satisfied as it is.
        """
        now = self.satisfied()
        if now >= 0.9:
            return "NONE"
        smaller = [replace(self, chunk=chunk, max_num_seqs=self.max_num_seqs or 256) for chunk in (512, 1024, 2048)]
        reliefs = {"PI": max(smaller, key=lambda server: server.satisfied())}
        reliefs["KV"] = replace(self, kv_blocks=8 * (self.kv_blocks or 40_000))
        if self.max_num_seqs:
            reliefs["CAP"] = replace(self, max_num_seqs=16 * self.max_num_seqs)
        then = {label: server.satisfied() for label, server in reliefs.items()}
        best = max(then, key=lambda label: then[label])
        return best if then[best] - now > 0.5 * (1 - now) else "PQ"


def drawn(count: int, seed: int) -> list[Server]:
    """Servers at random: models, lengths, and a load from idle to twice too much, or a pool, a cap or long prompts from harmless to bad."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        model, hardware, tp, power = SIZES[rng.integers(len(SIZES))]
        prompt, output = int(rng.choice([256, 1024, 4096, 8000])), int(rng.choice([16, 128, 256, 1024]))
        kind = ("load", "load", "kv", "cap", "long")[rng.integers(5)]
        rate = power / (prompt + 8 * output) * float(rng.uniform(0.1, 2.0 if kind == "load" else 0.8))
        blocks = int((prompt + output) / 16 * rng.uniform(3, 40)) if kind == "kv" else None
        cap = int(rng.choice([4, 8, 16, 32, 64])) if kind == "cap" else None
        chunk = int(rng.choice([2048, 8192, 16384, 32768]))
        long = int(rng.choice([8000, 16000, 24000])) if kind == "long" else 0
        found.append(Server(model, hardware, tp, rate, False, prompt, output, 400, 0.4, blocks, cap, chunk, long))
    return found


def page(result: Result, now_s: float) -> str:
    """What /metrics would say at a moment of the run."""
    log = result.stretches
    past = log[log[:, 0] <= now_s]
    state = past[-1] if len(past) else np.zeros(9)
    first = np.array(result.recorder.first_token_s)
    started, ended = first <= now_s, result.ended_s <= now_s
    scheduled = np.array(result.recorder.scheduled_s)
    inputs = np.asarray(result.workload.input_tokens)
    step_s, weight = (past[:, 1] - past[:, 0]) / past[:, 2], past[:, 3] * past[:, 2]
    lines = [
        _plain("num_requests_running", "gauge", state[5]),
        _plain("num_requests_waiting", "gauge", state[6]),
        _plain("kv_cache_usage_perc", "gauge", state[7]),
        _plain("num_preemptions_total", "counter", float(np.array(result.recorder.preemptions)[ended].sum())),
        _plain("prompt_tokens_total", "counter", float(inputs[started].sum())),
        _plain("generation_tokens_total", "counter", float(weight.sum())),
        _plain("request_success_total", "counter", float(ended.sum())),
        *_histogram("time_to_first_token_seconds", FIRST, (first - result.sent_s)[started]),
        *_histogram("request_queue_time_seconds", LATENCY, (scheduled - result.sent_s)[started]),
        *_histogram("request_prefill_time_seconds", LATENCY, (first - scheduled)[started]),
        *_histogram("request_time_per_output_token_seconds", GAPS, result.tpot_s[ended & ~np.isnan(result.tpot_s)]),
        *_histogram("inter_token_latency_seconds", GAPS, step_s, weight),
        *_histogram("iteration_tokens_total", TOKENS, past[:, 3] + past[:, 4] / past[:, 2], past[:, 2]),
    ]
    return "\n".join(lines) + "\n"


def _plain(name: str, kind: str, value: float) -> str:
    return f'# TYPE vllm:{name} {kind}\nvllm:{name}{{engine="0",model_name="m"}} {value}'


def _histogram(name: str, bounds: Iterable[float], values: np.ndarray, weights: np.ndarray | None = None) -> Iterator[str]:
    counts = np.ones_like(values) if weights is None else weights
    yield f"# TYPE vllm:{name} histogram"
    for bound in (*bounds, float("inf")):
        label = "+Inf" if bound == float("inf") else str(float(bound))
        yield f'vllm:{name}_bucket{{engine="0",le="{label}",model_name="m"}} {float(counts[values <= bound].sum())}'
    yield f'vllm:{name}_count{{engine="0",model_name="m"}} {float(counts.sum())}'
    yield f'vllm:{name}_sum{{engine="0",model_name="m"}} {float((values * counts).sum())}'


# model, device, ranks, tokens per second that its prefill does, about
SIZES = (("llama-3.1-8b", "h100-sxm", 1, 45e3), ("qwen3-32b", "h100-sxm", 2, 20e3), ("llama-3.1-70b", "h200-sxm", 4, 18e3),
         ("gpt-oss-20b", "a100-sxm-80gb", 1, 20e3))  # fmt: skip

HEALTHY = [
    *(Server(load=n, closed=True) for n in (1, 2, 4, 8, 16, 32, 64)),
    *(Server(load=rate) for rate in (0.5, 1, 2, 4, 8, 12)),
    *(Server(load=rate, prompt=256, output=512, spread=0.5) for rate in (1, 4, 8)),
    *(Server(load=rate, prompt=4096, output=128, spread=0.3) for rate in (0.5, 1, 2)),
    *(Server("qwen3-32b", "h100-sxm", 2, load=rate) for rate in (0.5, 1, 2)),
    *(Server("llama-3.1-70b", "h200-sxm", 4, load=n, closed=True) for n in (1, 8)),
    Server("llama-3.1-70b", "h200-sxm", 4, load=3, spread=0.5),
    *(Server("gpt-oss-20b", "a100-sxm-80gb", load=rate) for rate in (1, 4)),
]
FAULTS = [
    *(
        ("KV", Server(load=n, closed=True, kv_blocks=blocks, output=1024, requests=200))
        for n, blocks in ((32, 1500), (64, 2500), (64, 4000))
    ),
    *(("KV", Server(load=rate, kv_blocks=1200, output=1024, requests=200)) for rate in (4, 8)),
    *(("KV", Server("qwen3-32b", "h100-sxm", 2, load=48, closed=True, kv_blocks=2000, output=1024, requests=150)) for _ in range(1)),
    *(("CAP", Server(load=n, closed=True, max_num_seqs=cap)) for n, cap in ((32, 8), (64, 16), (64, 32), (20, 4))),
    *(("CAP", Server(load=rate, max_num_seqs=cap)) for rate, cap in ((8, 8), (12, 16))),
    *(("PI", Server(load=4, chunk=chunk, long_prompts=long)) for chunk, long in ((16384, 16000), (32768, 30000), (32768, 60000))),
    *(("PI", Server("qwen3-32b", "h100-sxm", 2, load=1, chunk=16384, long_prompts=long)) for long in (16000, 24000)),
    *(("PQ", Server(load=rate, prompt=6000, output=8)) for rate in (10, 14)),
    *(("PQ", Server(load=rate, prompt=12000, output=32, requests=200)) for rate in (4, 6)),
    ("PQ", Server("qwen3-32b", "h100-sxm", 2, load=5, prompt=6000, output=16)),
    ("PQ", Server("llama-3.1-70b", "h200-sxm", 4, load=4, prompt=8000, output=16, requests=200)),
]
