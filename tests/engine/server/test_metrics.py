"""/metrics is what a vLLM server shows: names, types and labels; counters only rise; the diagnosis reads it."""

from __future__ import annotations

import asyncio
import itertools
import math
import re

from prometheus_client.parser import text_string_to_metric_families

from roofline.diagnosis import families
from roofline.scheduling import VllmConfig
from tests.engine import tiny
from tests.engine.server.serving import model, serving

# family and type as vLLM 0.33.0 exposes them (counters without _total, as prometheus_client's parser names them)
VLLM = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:cache_config_info": "gauge",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:num_preemptions": "counter",
    "vllm:prompt_tokens": "counter",
    "vllm:prompt_tokens_cached": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:request_success": "counter",
    "vllm:admission_rejections": "counter",
    "vllm:iteration_tokens_total": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "vllm:request_max_num_generation_tokens": "histogram",
    "vllm:request_params_n": "histogram",
    "vllm:request_params_max_tokens": "histogram",
    "vllm:request_prefill_kv_computed_tokens": "histogram",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:request_time_per_output_token_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_decode_time_seconds": "histogram",
    "vllm:request_inference_time_seconds": "histogram",
}
TTFT = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560, math.inf]
E2E = [0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680, math.inf]


def samples(page: str) -> dict[str, float]:
    """Value of each sample that may only rise, by name and labels."""
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(page)
        if family.type in ("counter", "histogram")
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


async def pages() -> list[str]:
    """Before, between and after requests on a pool so small that some are preempted."""
    found = []
    async with serving(model(num_blocks=66, config=VllmConfig(max_num_batched_tokens=32, max_num_seqs=8))) as client:
        shared = tiny.prompt(1, 20)
        for round_ in range(3):
            found.append((await client.page("/metrics"))[1])
            bodies = [{"prompt": shared + tiny.prompt(9 * round_ + i, 5 + i), "max_tokens": 60, "temperature": 0} for i in range(6)]
            await asyncio.gather(*(client.stream(body) for body in bodies))
        await client.idle()
        found.append((await client.page("/metrics"))[1])
    return found


def test_metrics() -> None:
    *_, last = found = asyncio.run(pages())
    kinds = {family.name: family.type for family in text_string_to_metric_families(last) if not family.name.endswith("_created")}
    assert kinds == VLLM
    for before, after in itertools.pairwise(found):
        earlier, later = samples(before), samples(after)
        assert earlier.keys() <= later.keys()
        assert [name for name, value in earlier.items() if later[name] < value] == []

    def value(name: str) -> float:
        return sum(number for sample, number in samples(last).items() if sample.startswith(f"{name}["))

    lengths = [25 + i for i in range(6)] * 3
    assert value("vllm:request_success_total") == value("vllm:e2e_request_latency_seconds_count") == 18
    assert value("vllm:prompt_tokens_total") == value("vllm:request_prompt_tokens_sum") == sum(lengths)
    assert value("vllm:generation_tokens_total") == value("vllm:request_generation_tokens_sum") == 18 * 60
    assert value("vllm:time_to_first_token_seconds_count") == 18
    assert value("vllm:inter_token_latency_seconds_count") == 18 * 59
    assert value("vllm:prefix_cache_queries_total") == sum(lengths)
    assert 0 < value("vllm:prefix_cache_hits_total") == value("vllm:prompt_tokens_cached_total") < sum(lengths)
    assert value("vllm:num_preemptions_total") > 0
    parts = sum(value(f"vllm:request_{name}_time_seconds_sum") for name in ("queue", "prefill", "decode"))
    assert 0 < parts <= value("vllm:e2e_request_latency_seconds_sum")


def test_lint() -> None:
    page = asyncio.run(pages())[-1]
    for name in VLLM:
        assert len(re.findall(rf"^# HELP {name}(?:_total)? \S", page, re.MULTILINE)) == 1, name
    for line in page.splitlines():
        if line.startswith("vllm:") and not line.startswith("vllm:cache_config_info"):
            assert 'engine="0"' in line
            assert 'model_name="tiny"' in line

    def bounds(family: str) -> list[float]:
        return [float(bound) for bound in re.findall(rf'^{family}_bucket{{engine="0",le="([^"]+)"', page, re.MULTILINE)]

    assert bounds("vllm:time_to_first_token_seconds") == TTFT
    assert bounds("vllm:e2e_request_latency_seconds") == bounds("vllm:request_queue_time_seconds") == E2E
    assert (
        'vllm:cache_config_info{block_size="4",cache_dtype="fp64",enable_prefix_caching="True",engine="0",num_gpu_blocks="66"} 1.0' in page
    )


def test_the_diagnosis_reads_it() -> None:
    first, *_, last = asyncio.run(pages())
    seen = families.observe(families.read(first.splitlines(), "before"), families.read(last.splitlines(), "after"), 1.0)
    assert seen.number("requests_finished") == 18
    assert seen.number("kv_tokens") == 66 * 4
    assert seen.number("preemptions") > 0
    assert seen.number("prompt_length") == 27.5
    for name in ("ttft_s", "tpot_s", "itl_s", "queue_s", "prefill_s", "step_tokens", "prefix_hit_rate"):
        assert seen.number(name) >= 0
