"""`roofline simulate` and `roofline sweep`: the keys, the exit codes, and what people type wrong."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.test_bad_input import refused

ASK = ("simulate", "llama-3.1-8b", "-H", "h100-sxm")
SMALL = ("--request-rate", "5", "--num-requests", "40", "--isl", "200", "--osl", "20")


def _trace(folder: Path, *rows: str, header: str = "arrival_s,input_tokens,output_tokens") -> Path:
    path = folder / "trace.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_the_contract_of_keys(cli: Cli) -> None:
    done = cli(*ASK, *SMALL, "--goodput", "ttft:500", "tpot:50", "e2el:9000", "--json")
    assert done.code == 0
    assert done.err == ""
    found = done.json
    assert found["requests"] == 40
    for key in ("ttft_s", "tpot_s", "e2el_s"):
        assert set(found[key]) == {"mean", "p50", "p90", "p99"}
    for key in ("makespan_s", "preemptions", "prefix_cache_hit_rate", "output_tokens_per_s", "cpu_s"):
        assert isinstance(found[key], int | float)
    assert found["goodput"]["share"] == 1
    assert found["assumptions"]


def test_a_page_for_people_and_csv(cli: Cli) -> None:
    page = cli(*ASK, *SMALL).out
    assert "TTFT" in page
    assert "requests/s" in page
    rows = list(csv.DictReader(cli(*ASK, *SMALL, "--csv").out.splitlines()))
    assert [row["metric"] for row in rows] == ["TTFT", "queue", "TPOT", "ITL", "E2E"]


def test_the_band_and_the_highest_rate(cli: Cli) -> None:
    found = cli(*ASK, *SMALL, "--band", "--json").json
    low, high = (found["band"][end]["tpot_s"]["mean"] for end in ("low", "high"))
    assert low < found["tpot_s"]["mean"] < high
    rate = cli(*ASK, "--find-max-rate", "--goodput", "tpot:20", "--num-requests", "300", "--json").json["max_rate"]
    assert rate["requests_per_s"] < rate["missed_at_requests_per_s"]
    assert rate["missed_above"] == "tpot"


def test_missed_levels_end_with_3(cli: Cli) -> None:
    assert cli(*ASK, *SMALL, "--goodput", "tpot:1").code == 3
    done = cli(*ASK, "--find-max-rate", "--goodput", "tpot:1", "--num-requests", "20")
    assert done.code == 3
    assert "no number of such replicas" in " ".join(done.out.split())
    assert "hard bound" in done.out
    assert cli("simulate", "llama-3.1-70b", "-H", "h100-sxm", *SMALL).code == 3


@pytest.mark.parametrize(
    "options",
    [
        ("--engine", "sglang"),
        ("--static-batching", "--max-model-len", "1000", "--max-num-seqs", "8"),
        ("--speculative", "3:0.7"),
        ("--speculative", "3:0.7", "--draft", "llama-3.2-1b"),
        ("--disaggregated", "1:2", "--kv-link", "25 GB/s"),
        ("--replicas", "2", "--router", "prefix-aware", "--shared-prefix-len", "100"),
        ("--no-prefix-caching", "--watermark", "0.05", "--kv-blocks", "500"),
    ],
)
def test_every_way_of_serving(cli: Cli, options: tuple[str, ...]) -> None:
    found = cli(*ASK, *SMALL, *options, "--json").json
    assert found["requests_completed"] == 40
    assert found["tpot_s"]["mean"] > 0


def test_a_request_longer_than_the_pool_is_rejected_and_reported(cli: Cli, tmp_path: Path) -> None:
    trace = _trace(tmp_path, "0,100,10", "1,5000,10", "2,100,10")
    done = cli(*ASK, "--trace", trace, "--kv-blocks", "100", "--json")
    assert done.json["requests_completed"] == 2
    assert "pool has 99" in done.json["rejected"]["1"]
    assert "Rejected: request 1" in cli(*ASK, "--trace", trace, "--kv-blocks", "100").out


def test_traffic_classes_on_servers_of_their_own(cli: Cli, tmp_path: Path) -> None:
    """S13: long prompts of a batch class hold nobody up who asks another server."""
    rows = [f"{i / 4},{6000 if i % 2 else 200},40,{'batch' if i % 2 else 'interactive'}" for i in range(80)]
    trace = _trace(tmp_path, *rows, header="arrival_s,input_tokens,output_tokens,class")
    together = cli(*ASK, "--trace", trace, "--speed", "4", "--replicas", "2", "--json").json["classes"]["interactive"]
    apart = cli(*ASK, "--trace", trace, "--speed", "4", "--class-servers", "interactive:1,batch:1", "--json").json
    assert apart["gpus"] == 2
    assert apart["classes"]["interactive"]["requests"] == 40
    assert apart["classes"]["interactive"]["ttft_s"]["p99"] < 0.5 * together["ttft_s"]["p99"]
    assert "without a pool" in refused(cli, *ASK, "--trace", trace, "--class-servers", "batch:1")
    assert "CLASS:SERVERS" in refused(cli, *ASK, "--trace", trace, "--class-servers", "batch")
    assert "no request names its class" in refused(cli, *ASK, "--request-rate", "1", "--class-servers", "batch:1")


def test_what_is_written_beside_the_answer(cli: Cli, tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("state.csv", "requests.csv", "chrome.json", "run.svg")}
    done = cli(*ASK, *SMALL, "--timeline", files["state.csv"], "--requests", files["requests.csv"], "--chart", files["run.svg"])
    assert done.code == 0
    assert len(files["requests.csv"].read_text().splitlines()) == 41
    assert "kv_usage" in files["state.csv"].read_text()
    assert files["run.svg"].read_bytes().startswith(b"<?xml")
    cli(*ASK, *SMALL, "--timeline", files["chrome.json"])
    assert json.loads(files["chrome.json"].read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["1,10,10", "0.5,10,10"], "trace.csv:3:arrival_s"),
        (["0,0,10"], "trace.csv:2:input_tokens"),
        (["0,10,0"], "trace.csv:2:output_tokens"),
        (["-1,10,10"], "trace.csv:2:arrival_s"),
        (["soon,10,10"], "trace.csv:2:arrival_s"),
        ([], "no requests"),
    ],
)
def test_bad_lines_of_a_trace(cli: Cli, tmp_path: Path, rows: list[str], said: str) -> None:
    assert said in refused(cli, *ASK, "--trace", _trace(tmp_path, *rows))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "what load"),
        (("--request-rate", "0"), "above 0"),
        (("--request-rate", "1", "--users", "3"), "request_rate and users"),
        (("--request-rate", "1", "--speculative", "three"), "DRAFTS:ACCEPTANCE"),
        (("--request-rate", "1", "--disaggregated", "1"), "PREFILL:DECODE"),
        (("--request-rate", "1", "--disaggregated", "1:1", "--kv-link", "50"), "unit"),
        (("--request-rate", "1", "--goodput", "ttft"), "ttft:MS"),
        (("--request-rate", "1", "--find-max-rate"), "cannot be given"),
        (("--find-max-rate",), "service level"),
        (("--request-rate", "nan"), "above 0"),
        (("--request-rate", "1", "--attainment", "2"), "--attainment"),
        (("--request-rate", "1", "--length-variation", "nan"), "variation"),
        (("--trace", "nowhere.csv"), "no such file"),
        (("--request-rate", "1", "--shared-prefix-len", "5000"), "longer than the input"),
        (("--request-rate", "1", "--watermark", "2"), "watermark"),
        (("--request-rate", "1", "--engine", "sglang", "--speculative", "3:0.7"), "vLLM's policy"),
    ],
)
def test_wrong_options(cli: Cli, options: tuple[str, ...], said: str) -> None:
    assert said in refused(cli, *ASK, *options)


def test_plan_searches_and_tells_gains(cli: Cli) -> None:
    load = ("--request-rate", "10", "--goodput", "ttft:500", "tpot:30", "--isl", "256", "--osl", "64")
    found = cli("plan", *ASK[1:], *load, "--search", "--speedups", "--json").json
    assert found["search"]["best"]["gpus"] == 1
    assert found["speedups"]["speculation"]["points"][0]["speedup"] > 1
    done = cli("plan", *ASK[1:], "--request-rate", "10", "--goodput", "tpot:1", "--search")
    assert done.code == 3
    assert "hard bound" in done.out
    assert done.out.startswith("The fewest GPUs for the load, simulated\nNo layout meets the load:")  # what was asked comes first
    assert "\nThe layout as given, in closed form: llama-3.1-8b fits on one h100-sxm\n" in done.out


def test_rates_are_said_to_include_filling_up_and_draining(cli: Cli) -> None:
    assert any("fills up and drains" in note for note in cli(*ASK, *SMALL, "--json").json["assumptions"])


def test_a_sweep_from_a_file(cli: Cli, tmp_path: Path) -> None:
    spec = tmp_path / "s.yaml"
    spec.write_text("axes:\n  model: llama-3.1-8b\n  hardware: h100-sxm\n  concurrency: [1, 4]\n  output_len: 16\nnum_requests: 10\n")
    done = cli("sweep", spec, "--backend", "sequential", "--json")
    assert done.json["configurations"] == 2
    assert len(done.json["front"]) == 2
    assert len(list(csv.DictReader(cli("sweep", spec, "--csv").out.splitlines()))) == 2
    spec.write_text("axes:\n  model: llama-3.1-8b\n  hardware: h100-sxm\n  speed: 3\n")
    assert "s.yaml:4:axes.speed" in refused(cli, "sweep", spec)


def test_an_engine_that_stops_is_no_answer(cli: Cli) -> None:
    """Two pools, one place and few blocks: requests that hold KV and those that need it wait for each other."""
    options = "--disaggregated 1:1 --kv-blocks 20 --max-num-seqs 1 --request-rate 40 --num-requests 60 --input-len 60 --output-len 64"
    done = cli("simulate", "llama-3.1-8b", "-H", "h100-sxm", *options.split())
    assert done.code == 3
    assert "requests never end" in done.out
    found = json.loads(cli("simulate", "llama-3.1-8b", "-H", "h100-sxm", *options.split(), "--json").out)
    assert found["meets_goodput"] is False
    assert found["requests_completed"] + found["requests_rejected"] == found["requests"] == 60


def test_a_run_too_short_for_its_rate_says_so(cli: Cli) -> None:
    """Three times what the server carries: every request waits longer than the one before."""
    options = ("-H", "h100-sxm", "--num-requests", "200", "--input-len", "2048", "--output-len", "256")
    assert "This may be no steady state: " in cli("simulate", "llama-3.1-8b", *options, "--request-rate", "100").out
    assert "no steady state" not in cli("simulate", "llama-3.1-8b", *options, "--request-rate", "2").out


def test_everyday_sizes_have_no_exponent(cli: Cli) -> None:
    """Times above a second, rates and levels of thousands: 8.13 s and 8,140, never 8.13e+03."""
    long = ("--isl", "60000", "--osl", "16")
    pages = [
        cli(*ASK, "--request-rate", "20000", "--num-requests", "1200", "--isl", "16", "--osl", "8", "--goodput", "e2el:1500000").out,
        cli("plan", *ASK[1:], *long, "--request-rate", "5", "--price", "12000", "--goodput", "ttft:1500").out,
        cli("plan", *ASK[1:], *long, "--request-rate", "5", "--price", "12000").out,
    ]
    for page in pages:
        assert not re.search(r"\de\+\d", page), page


def test_nothing_served_ends_with_3_and_says_why_first(cli: Cli) -> None:
    done = cli(*ASK, "--concurrency", "2", "--num-requests", "4", "--isl", "200000")
    assert done.code == 3
    assert "Not one request could be served: request 0: 200000 prompt tokens leave no room" in " ".join(done.out.split())
    assert "(and 3 more)." in done.out
    assert "Nobody waited" not in done.out
    assert "p99" not in done.out


def test_the_price_of_a_search_is_the_one_that_was_given(cli: Cli) -> None:
    """llama-3.1-70b does not fit on one H100 as given, so the plan has no cost of its own; the search's has source and date."""
    ask = ("plan", "llama-3.1-70b", "-H", "h100-sxm", "--request-rate", "2", "--goodput", "ttft:2000", "tpot:60", "--search")
    done = cli(*ask, "--price", "100", "--json")
    cost, best = done.json["search"]["cost"], done.json["search"]["best"]
    assert cost["usd_per_hour"] == 100 * best["gpus"]
    assert cost["usd_per_million_output_tokens"] == pytest.approx(100 * best["gpus"] / 3600 / best["output_tokens_per_s"] * 1e6)
    assert (cost["price"]["provider"], done.json["cost"]) == ("--price", None)
    out = " ".join(cli(*ask, "--price", "100").out.split())
    assert "at 100 $ per GPU and hour (--price, as given): " in out
    assert re.search(r"at [\d.]+ \$ per GPU and hour \([^)]*, 20\d\d-\d\d-\d\d\): ", " ".join(cli(*ask).out.split()))


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        (("--trace", "TRACE", "--isl", "9"), "--input-len/--isl", "with --trace"),
        (("--trace", "TRACE", "--length-variation", "1"), "--length-variation", "with --trace"),
        (("--trace", "TRACE", "--class-servers", "a:1", "--replicas", "5"), "--replicas", "with --class-servers"),
        (("--request-rate", "1", "--disaggregated", "1:1", "--replicas", "5"), "--replicas", "with --disaggregated"),
        (("--request-rate", "1", "--kv-link", "50 GB/s"), "--kv-link", "without --disaggregated"),
        (("--request-rate", "1", "--speed", "2"), "--speed", "without --trace"),
        (("--users", "3", "--burstiness", "2"), "--burstiness", "without --request-rate or --find-max-rate"),
        (("--request-rate", "1", "--engine", "sglang", "--watermark", "0.1"), "--watermark", "with --engine sglang"),
        (("--find-max-rate", "--goodput", "tpot:50", "--band"), "--band", "with --find-max-rate"),
    ],
)
def test_an_option_without_effect_is_refused(cli: Cli, tmp_path: Path, options: tuple[str, ...], first: str, second: str) -> None:
    trace = str(_trace(tmp_path, "0,100,10"))
    message = refused(cli, *ASK, *(trace if word == "TRACE" else word for word in options))
    assert f"{first} has no effect {second}" in message


def test_a_trace_is_no_longer_than_it_is(cli: Cli, tmp_path: Path) -> None:
    """60 prompts in 6 s where a server takes about a third of that: only a longer trace, or more of it, can show more."""
    trace = _trace(tmp_path, *(f"{i / 10},16000,20" for i in range(60)))
    whole = " ".join(cli(*ASK, "--trace", trace, "--num-requests", "100").out.split())
    assert "The trace has 60 requests, fewer than --num-requests 100" in whole
    assert "in the last; a longer trace shows whether" in whole
    part = " ".join(cli(*ASK, "--trace", trace, "--num-requests", "50").out.split())
    assert "The trace has" not in part
    assert "in the last; more of the trace (--num-requests) shows whether" in part


def test_a_level_that_no_replica_meets_is_told_by_layout_and_for_whole_requests(cli: Cli, tmp_path: Path) -> None:
    """The figures of a lone request are those of the lengths that are sent: a trace's too."""
    ask = (*ASK, "--find-max-rate", "--num-requests", "50", "--goodput")
    out = " ".join(cli(*ask, "e2el:1000").out.split())
    assert "so no number of such replicas does: end-to-end latency of a lone request is 1.8" in out
    assert "(--tp)" in out
    trace = _trace(tmp_path, *(f"{i},100,11" for i in range(20)))
    out = " ".join(cli(*ASK, "--find-max-rate", "--goodput", "e2el:40", "--trace", trace).out.split())
    assert re.search(r"end-to-end latency of a lone request is (7|8)[\d.]* ms", out)


def test_drafts_that_count_and_requests_in_step_are_explained(cli: Cli) -> None:
    speculating = cli(*ASK, *SMALL, "--speculative", "3:0.7").out
    assert "a draft counts only if all those before it in its step were right" in " ".join(speculating.split())
    loop = (*ASK, "--concurrency", "8", "--num-requests", "40", "--osl", "20", "--json")
    alike = [
        any("--length-variation" in note for note in cli(*loop, *more).json["assumptions"]) for more in ((), ("--length-variation", "0.3"))
    ]
    assert alike == [True, False]


def test_a_search_and_its_closed_form_do_not_contradict_each_other(cli: Cli) -> None:
    ask = ("plan", *ASK[1:], "--request-rate", "5", "--goodput", "ttft:2000", "tpot:50")
    out = " ".join(cli(*ask, "--search").out.split())
    assert "In closed form the load needs 1 GPU, cautious near the most that a replica takes; the search above simulates." in out
    assert "In closed form the load needs 1 GPU." in cli(*ask).out
    missed = " ".join(cli("plan", *ASK[1:], "--goodput", "tpot:4", "--request-rate", "1").out.split())
    assert "No number of such replicas meets the service level: TPOT of a lone request" in missed


def test_servers_that_were_measured_are_named(cli: Cli) -> None:
    ask = ("simulate", "llama-3.1-70b", "-H", "h100-sxm", "--tp", "4", *SMALL, "--json")
    said = [any("was measured serving" in note for note in cli(*ask, *more).json["assumptions"]) for more in (("--weights", "fp8"), ())]
    assert said == [True, False]


def test_users_who_hardly_ask_are_told_from_a_steady_state(cli: Cli) -> None:
    ask = ("--users", "100", "--think-time", "1", "--osl", "8")
    assert "100 users sent 150 requests, fewer than 3 each" in " ".join(cli(*ASK, *ask, "--num-requests", "150").out.split())
    assert "no steady state" not in cli(*ASK, *ask).out


@pytest.mark.parametrize("option", ["--timeline", "--requests", "--chart", "-o"])
def test_places_are_checked_before_the_simulation(option: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roofline.cli.simulate_page.serve", lambda *_, **__: pytest.fail("simulated"))
    done = cli(*ASK, *SMALL, option, str(tmp_path / "nowhere" / "file.svg"))
    assert (done.code, "there is no folder" in done.err) == (2, True)


@pytest.mark.parametrize(
    "options",
    [
        ("--request-rate", "1", "--seed", "-1"), ("--users", "3", "--think-time", "1e300"), ("--request-rate", "1e-300"),
        ("--request-rate", "1", "--shared-prefix-len", "5", "--prefix-groups", "99999999999999999999"),
    ],
)  # fmt: skip
def test_numbers_beyond_any_size_are_refused(options: tuple[str, ...], cli: Cli) -> None:
    assert cli(*ASK, *options).code == 2
