"""Reading /metrics: counters that fall, several engines, old names, open buckets, missing families, large pages."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path

import pytest

from roofline.diagnosis import families
from roofline.diagnosis.exposition import Histogram
from roofline.diagnosis.observations import Observations
from roofline.errors import InputError

METRICS = Path(__file__).parents[1] / "data" / "metrics"


def seen(before: str, after: str) -> Observations:
    return families.observe(families.read(before.splitlines(), "before"), families.read(after.splitlines(), "after"), 60)


def counter(name: str, value: float, labels: str = 'engine="0",model_name="m"') -> str:
    return f"# TYPE {name} counter\n{name}{{{labels}}} {value}\n"


def test_counters_are_differences() -> None:
    found = seen(counter("vllm:num_preemptions_total", 5), counter("vllm:num_preemptions_total", 17))
    assert found.number("preemptions") == 12


def test_a_counter_that_falls_is_a_restart() -> None:
    found = seen(counter("vllm:prompt_tokens_total", 900), counter("vllm:prompt_tokens_total", 40))
    assert found.number("prompt_tokens") == 40
    assert found.number("engine_restarts") == 1


def test_engines_are_summed_and_their_imbalance_shows() -> None:
    gauges = "".join(f'vllm:num_requests_running{{engine="{i}",model_name="m"}} {n}\n' for i, n in enumerate((30, 10)))
    gauges += "".join(f'vllm:kv_cache_usage_perc{{engine="{i}",model_name="m"}} {n}\n' for i, n in enumerate((0.8, 0.4)))
    found = seen(gauges, gauges)
    assert found.number("running") == 40
    assert found.number("engines") == 2
    assert found.number("engine_imbalance") == 1.5
    assert math.isclose(found.number("kv_usage"), 0.6)


def test_tensor_parallel_ranks_repeat_one_another() -> None:
    page = "".join(f'sglang:num_running_reqs{{tp_rank="{rank}",pp_rank="0",model_name="m"}} 7\n' for rank in range(4))
    assert seen(page, page).number("running") == 7


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("vllm:gpu_cache_usage_perc", "kv_usage"),
        ("sglang:token_usage", "kv_usage"),
        ("trtllm_kv_cache_utilization", "kv_usage"),
        ("trtllm_num_requests_waiting", "waiting"),
    ],
)
def test_old_and_other_names(name: str, fact: str) -> None:
    assert seen(f"{name} 0.5\n", f"{name} 0.5\n").number(fact) == 0.5


def test_old_prefix_counters_make_a_rate() -> None:
    pages = [
        counter("vllm:gpu_prefix_cache_queries_total", q) + counter("vllm:gpu_prefix_cache_hits_total", h) for q, h in ((10, 5), (110, 25))
    ]
    assert seen(*pages).number("prefix_hit_rate") == 0.2


def histogram(counts: dict[str, float], total: float, name: str = "vllm:inter_token_latency_seconds") -> str:
    lines = [f'{name}_bucket{{le="{bound}"}} {count}' for bound, count in counts.items()]
    return "\n".join([f"# TYPE {name} histogram", *lines, f"{name}_sum {total}", f"{name}_count {max(counts.values())}", ""])


def test_quantiles_are_of_the_time_between_the_pages() -> None:
    before = histogram({"0.01": 1000, "0.1": 1000, "+Inf": 1000}, 5.0)
    after = histogram({"0.01": 1000, "0.1": 1100, "+Inf": 1100}, 10.5)
    found = seen(before, after)
    assert math.isclose(found.number("itl_s"), 0.055)
    assert math.isclose(found.number("itl_p50_s"), 0.01 + 0.09 / 2)


def test_the_open_bucket_says_only_above() -> None:
    value, above = Histogram({0.1: 2, 60.0: 10, math.inf: 100}).quantile(0.5)
    assert (value, above) == (60.0, True)
    found = seen(histogram({"0.1": 0, "60": 0, "+Inf": 0}, 0), histogram({"0.1": 2, "60": 10, "+Inf": 100}, 9000))
    fact = next(fact for fact in found if fact.name == "itl_p99_s")
    assert fact.value == 60
    assert "above its last finite bucket" in fact.source


def test_quantile_beside_explicit_samples() -> None:
    samples = [0.003 * i for i in range(1, 400)]
    bounds = [0.1 * i for i in range(1, 14)]
    found = Histogram({bound: float(sum(s <= bound for s in samples)) for bound in (*bounds, math.inf)})
    for share in (0.1, 0.5, 0.9, 0.99):
        assert abs(found.quantile(share)[0] - sorted(samples)[int(share * len(samples))]) < 0.01


def test_a_histogram_whose_name_ends_in_total_and_created_gauges() -> None:
    page = histogram({"16": 5, "+Inf": 10}, 200, "vllm:iteration_tokens_total") + "vllm:iteration_tokens_total_created 1.7e9\n"
    found = seen(histogram({"16": 0, "+Inf": 0}, 0, "vllm:iteration_tokens_total"), page)
    assert found.number("step_tokens") == 20


def test_missing_families_stay_unknown() -> None:
    found = seen("vllm:num_requests_running 3\n", "vllm:num_requests_running 4\n")
    assert found.number("running") == 4
    assert math.isnan(found.number("waiting"))
    assert "prefix_hit_rate" not in found


def test_lines_that_are_no_samples_are_skipped() -> None:
    page = families.read(
        ["vllm:num_requests_running 4 1700000000000", "garbage {", 'vllm:num_requests_waiting{a="x\\"},y"} 2', "vllm:x nope"], "page"
    )
    assert page.unreadable == 2
    assert families.observe(page, page).number("waiting") == 2


@pytest.mark.parametrize(("text", "says"), [("<html>\n", "no line"), ("", "no line"), ("node_load1 0.5\n", "--enable-metrics")])
def test_other_pages_are_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        families.read(text.splitlines(), "page")


def test_ten_megabytes_need_little_memory() -> None:
    def lines() -> list[str]:
        for number in range(110_000):
            yield f'http_request_duration_seconds_bucket{{handler="/v1/chat/completions/{number}",le="0.5",method="POST"}} {number}\n'
        yield "vllm:num_requests_running 9\n"

    assert sum(map(len, lines())) > 10e6
    tracemalloc.start()
    page = families.read(lines(), "large")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert families.observe(page, page).number("running") == 9
    assert peak < 2e6


@pytest.mark.parametrize("name", ["healthy", "queue_slots", "kv_pressure", "prefill_bound", "underload_launch"])
def test_as_the_official_parser_reads_it(name: str) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    text = (METRICS / f"vllm_v1_{name}_1.prom").read_text()
    theirs: dict[str, float] = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            theirs[sample.name] = theirs.get(sample.name, 0.0) + sample.value
    ours = families.read(text.splitlines(), name)
    assert ours.unreadable == 0
    for sample_name, series in ours.values.items():
        assert sum(series.values()) == theirs[sample_name]
    for family_name, series in ours.histograms.items():
        assert sum(h.sum for h in series.values()) == theirs[f"{family_name}_sum"]
        assert sum(h.count for h in series.values()) == theirs[f"{family_name}_count"]
        assert sum(sum(h.buckets.values()) for h in series.values()) == theirs[f"{family_name}_bucket"]
