"""Where observations come from, and the command line: a live page, saved ones, load tests, complaints."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from roofline.diagnosis import sources
from roofline.diagnosis.rank import diagnose
from roofline.diagnosis.results import read_result
from roofline.diagnosis.rules import RULES
from roofline.diagnosis.symptoms import SYMPTOMS
from roofline.errors import InputError, RooflineError
from tests.cli.conftest import Cli

METRICS = Path(__file__).parents[1] / "data" / "metrics"


def pair(name: str) -> list[str]:
    return [str(METRICS / f"vllm_v1_{name}_{i}.prom") for i in (0, 1)]


@pytest.fixture
def server() -> Iterator[str]:
    """A server whose second /metrics page is a minute after its first."""
    pages = iter([Path(path).read_bytes() for path in pair("kv_pressure")])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            if self.path == "/metrics":
                self.wfile.write(next(pages))

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def test_a_url_is_read_twice(server: str) -> None:
    waits: list[float] = []
    seen, _ = sources.observe([server], 7.0, waits.append)
    assert waits == [7.0]
    assert seen.number("preemptions") == 48
    assert diagnose(seen).first.label == "KV"


def test_urls_that_do_not_answer(server: str) -> None:
    with pytest.raises(RooflineError, match="404"):
        sources.observe([f"{server}/other"], 1.0, lambda _: None)
    with pytest.raises(InputError, match="http://HOST"):
        sources.observe(["ftp://host/metrics"], 1.0, lambda _: None)


def test_a_single_page_says_nothing_of_counters() -> None:
    seen, notes = sources.observe(pair("kv_pressure")[1:], None)
    assert "preemptions" not in seen
    assert "ttft_s" not in seen
    assert seen.number("running") == 110
    assert "give two" in notes[0]


def stage(concurrency: int, rate: float, ttft: float, tpot: float, *patterns: str, **more: Any) -> dict[str, Any]:
    times = {
        "ttft_s": {"p50": ttft, "p99": 2 * ttft, "mean": ttft},
        "tpot_s": {"p50": tpot},
        "itl_s": {"mean": tpot, "p50": tpot, "p99": tpot},
    }
    return {
        "title": f"{concurrency} streams", "concurrency": concurrency, "requests_ok": 50, "requests_failed": 0,
        "mean_in_flight": concurrency, "requests_per_s": rate, "output_tokens_per_s": 64 * rate,
        "input_tokens": {"mean": 128}, "output_tokens": {"mean": 64},
        "patterns": [{"name": name, "evidence": ""} for name in patterns or ("steady",)], **times, **more,
    }  # fmt: skip


def test_a_ladder_that_gains_nothing_is_not_batched() -> None:
    result = {"stages": [stage(1, 1.0, 0.1, 0.01), stage(8, 1.1, 6.0, 0.01)], "client": {"trustworthy": True}}
    found = diagnose(read_result(result, "run.json"))
    assert (found.first.label, found.verdict) == ("NB", "cause")


def test_a_ladder_with_the_servers_own_view() -> None:
    server = {"queue_s": {"mean": 0.002, "n": 50}, "preemptions": 0.0, "client_minus_server_s": {"ttft_s": -0.001}}
    result = {"stages": [stage(1, 1.0, 0.1, 0.01), stage(16, 14.0, 0.12, 0.011, server=server)], "client": {"trustworthy": True}}
    found = diagnose(read_result(result, "run.json"))
    assert found.verdict != "cause"
    assert found.first.label == "NONE"


@pytest.mark.parametrize("data", [{}, {"stages": []}, {"stages": [{}]}, {"stages": [{"ttft_s": {}, "requests_ok": 0}]}])
def test_other_json_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="stages"):
        read_result(data, "x.json")


def test_command_answers_first(cli: Cli) -> None:
    done = cli("diagnose", *pair("prefill_bound"), "--interval", "60", columns=80)
    assert done.code == 0
    assert done.out.startswith("Prefill is saturated")
    assert max(map(len, done.out.splitlines())) <= 80


def test_command_as_json_and_csv(cli: Cli) -> None:
    found = cli("diagnose", *pair("queue_slots"), "--json").json
    assert found["verdict"] == "cause"
    assert found["causes"][0]["label"] == "CAP"
    assert {rule.label for rule in RULES} == {cause["label"] for cause in found["causes"]}
    assert sum(cause["confidence"] for cause in found["causes"]) + found["unknown_confidence"] == pytest.approx(1)
    assert found["observations"]["waiting"] == {"value": 180, "unit": "1", "source": "vllm:num_requests_waiting"}
    assert cli("diagnose", *pair("queue_slots"), "--csv").out.startswith("label,confidence,title,supporting,opposing\nCAP,")


def test_the_plan_tells_the_roof_from_overhead(cli: Cli) -> None:
    """14 ms per token of 2 running requests: near the roof of a 8B model on an A100, far from that of a 1B model on an H200."""
    large, small = (
        cli("diagnose", *pair("underload_launch"), "--model", model, "-H", hardware, "--json").json
        for model, hardware in (("llama-3.1-8b", "a100-sxm-80gb"), ("llama-3.2-1b", "h200-sxm"))
    )
    assert (large["verdict"], large["causes"][0]["label"]) == ("healthy", "NONE")
    assert (small["verdict"], small["causes"][0]["label"]) == ("cause", "HOST")
    assert small["observations"]["tpot_over_expected"]["value"] > 2 > large["observations"]["tpot_over_expected"]["value"]
    assert "4 running in place of 2" in small["causes"][0]["predicted"][0]


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (("tpot_s=0.02", "running=1"), "how long requests are (prompt_length and output_length; or kv_usage and kv_tokens)"),
        (("running=1", "prompt_length=100"), "how long requests are (output_length; or kv_usage and kv_tokens)"),
        (("prompt_length=100", "output_length=10"), "not known: how many requests run (running)"),
        (("running=0", "waiting=0"), "no request runs"),
        (("running=4", "kv_usage=0", "kv_tokens=100"), "requests hold no tokens"),
    ],
)
def test_what_a_plan_lacks_is_said(cli: Cli, told: tuple[str, ...], says: str) -> None:
    given = [word for each in told for word in ("--observe", each)]
    (note,) = cli("diagnose", *given, "--model", "llama-3.1-8b", "-H", "h100-sxm", "--json").json["notes"]
    assert note.startswith("the plan was not set beside; ")
    assert says in note
    assert "running" not in note or "running" not in " ".join(told)


def test_a_knob_is_priced(cli: Cli) -> None:
    found = cli("diagnose", *pair("kv_pressure"), "--model", "llama-3.1-8b", "-H", "a100-sxm-80gb", "--json").json
    assert found["causes"][0]["label"] == "KV"
    assert any("sequences of 4,600 tokens" in text for text in found["causes"][0]["predicted"])


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda symptom: symptom.name)
def test_a_symptom_asks_for_what_it_needs(cli: Cli, symptom: Any) -> None:
    found = cli("diagnose", "--symptom", symptom.name, "--json").json
    assert found["verdict"] == "unclear"
    assert found["missing"] == list(symptom.wanted)
    assert [cause["label"] for cause in found["causes"][: len(symptom.labels)]] == [
        rule.label for rule in RULES if rule.label in symptom.labels
    ]


def test_what_is_known_can_be_told(cli: Cli) -> None:
    told = ("--observe", "requests_one_by_one=yes", "--observe", "client_concurrency=32")
    assert cli("diagnose", "--symptom", "one-fast-many-slow", *told, "--json").json["causes"][0]["label"] == "NB"
    assert "kv_usage" in cli("diagnose", "--list-observations").out


def test_a_client_that_failed_its_check_is_said(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"stages": [stage(1, 1, 0.1, 0.01)], "client": {"trustworthy": False}}))
    done = cli("diagnose", file)
    assert done.code == 4
    assert "failed its own check" in done.out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "nothing to go by"),
        (("nowhere.prom",), "no such file"),
        (("--symptom", "slow"), "ttft-high"),
        (("--observe", "speed=3"), "--list-observations"),
        (("--observe", "running"), "NAME=VALUE"),
        (("--observe", "running=many"), "number"),
        (("--observe", "running=-1"), "negative"),
        (("--observe", "cuda_graph=maybe"), "yes or no"),
        (("--observe", "kv_usage=17"), "a share from 0 to 1"),
        (("--symptom", "ttft-high", "--model", "llama-3.1-8b"), "go together"),
    ],
)
def test_wrong_usage(cli: Cli, args: tuple[str, ...], says: str) -> None:
    done = cli("diagnose", *args)
    assert (done.code, done.out) == (2, "")
    assert says in done.err


def test_restarts_and_imbalance_are_said(cli: Cli, tmp_path: Path) -> None:
    for number, tokens in enumerate((900, 100)):
        busy = "".join(f'vllm:num_requests_running{{engine="{i}"}} {n}\n' for i, n in enumerate((40, 2)))
        (tmp_path / f"{number}.prom").write_text(f"{busy}vllm:prompt_tokens_total {tokens}\n")
    notes = cli("diagnose", tmp_path / "0.prom", tmp_path / "1.prom", "--json").json["notes"]
    assert notes[0].startswith("every counter fell between the two pages: the pages are in the wrong order: the earlier one first")
    assert "restarted" in notes[0]
    assert any("1.9 × the mean" in note for note in notes)


def test_some_counters_that_fall_are_a_restart_first(cli: Cli, tmp_path: Path) -> None:
    for number, (prompts, made) in enumerate(((900, 10), (100, 30))):
        counters = f"vllm:prompt_tokens_total {prompts}\nvllm:generation_tokens_total {made}\n"
        (tmp_path / f"{number}.prom").write_text(f"vllm:num_requests_running 4\n{counters}")
    notes = cli("diagnose", tmp_path / "0.prom", tmp_path / "1.prom", "--json").json["notes"]
    assert notes[0].startswith("counters fell between the two pages: an engine was restarted")
    assert "wrong order: the earlier one first" in notes[0]


def test_saved_pages_in_the_wrong_order(cli: Cli) -> None:
    earlier, later = pair("kv_pressure")
    assert "wrong order" not in " ".join(cli("diagnose", earlier, later, "--json").json["notes"])
    assert cli("diagnose", later, earlier, "--json").json["notes"][0].startswith("every counter fell")


IDLE = """\
vllm:num_requests_running 0
vllm:num_requests_waiting 0
vllm:kv_cache_usage_perc 0
vllm:num_preemptions_total 0
vllm:request_success_total {ended}
vllm:generation_tokens_total {made}
vllm:request_queue_time_seconds_sum 1.0
vllm:request_queue_time_seconds_count {ended}
vllm:iteration_tokens_total_sum {made}
vllm:iteration_tokens_total_count {made}
vllm:inter_token_latency_seconds_bucket{{le="0.1"}} {made}
vllm:inter_token_latency_seconds_sum {made}
vllm:inter_token_latency_seconds_count {made}
"""


def idle_pages(folder: Path, ended: int, made: int) -> list[Path]:
    """Two readings with nothing running at either; between them `ended` requests came and went with `made` tokens in all."""
    files = [folder / f"{number}.prom" for number in (0, 1)]
    for file, more in zip(files, (0, 1), strict=True):
        file.write_text(IDLE.format(ended=5 + more * ended, made=50 + more * made))
    return files


def test_no_traffic_is_nothing_to_judge(cli: Cli, tmp_path: Path) -> None:
    files = idle_pages(tmp_path, 0, 0)
    found = cli("diagnose", *files, "--json").json
    assert (found["verdict"], found["causes"][0]["label"]) == ("healthy", "NONE")
    assert found["notes"] == ["no traffic between the two readings: nothing to judge; take both while the load runs"]
    assert not {"queue_s", "step_tokens", "api_gap_s", "stalls_per_request", "itl_s"} & found["observations"].keys()
    page = cli("diagnose", *files).out
    assert page.startswith("No traffic between the two readings: nothing to judge.")
    assert "keeps up" not in page


def test_gauges_of_an_idle_moment_are_pointed_out(cli: Cli, tmp_path: Path) -> None:
    found = cli("diagnose", *idle_pages(tmp_path, 3, 30), "--json").json
    assert found["notes"] == [
        "at both readings nothing ran: gauges (running, waiting, kv_usage) are of an idle moment; save both pages while the load runs"
    ]
    assert found["observations"]["step_tokens"]["value"] == 1


HOST_ALONE = ("--observe", "running=2", "--observe", "cuda_graph=no", "--observe", "tpot_s=0.5")
PLANNED = ("--model", "llama-3.2-1b", "-H", "h100-sxm")
LENGTHS = ("--observe", "prompt_length=100", "--observe", "output_length=20")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ((), "; the plan tells the roof from overhead: give --model NAME -H DEVICE"),
        (PLANNED, "was not set beside: not known: how long requests are"),
        ((*PLANNED, *LENGTHS), ""),
    ],
)
def test_who_gave_a_model_is_not_asked_for_one(cli: Cli, more: tuple[str, ...], says: str) -> None:
    found = cli("diagnose", *HOST_ALONE, *more, "--json").json
    (host,) = (cause for cause in found["causes"] if cause["label"] == "HOST")
    roof, _, rest = host["tell_apart"].partition(" is as slow")
    assert roof == "a large model at its memory roof"
    assert says in rest
    assert bool(rest) == bool(says)
    assert ("give --model" in rest) == (not more)


def test_far_above_the_plan_the_device_is_questioned(cli: Cli) -> None:
    found = cli("diagnose", *HOST_ALONE, *PLANNED, *LENGTHS, "--json").json
    ratio = found["observations"]["tpot_over_expected"]["value"]
    assert ratio > 100
    shown = f"{round(ratio, -1):.0f} ×"
    assert found["notes"] == [f"TPOT is {shown} the plan: is the device or model given the right one?"]
    (host,) = (cause for cause in found["causes"] if cause["label"] == "HOST")
    assert any(each["text"].startswith(f"TPOT is {shown} what kernels") for each in host["evidence_for"])


def test_nothing_that_stands_out_is_no_suspect(cli: Cli) -> None:
    done = cli("diagnose", "--observe", "running=30", "--observe", "waiting=0")
    assert done.out.startswith("Not enough evidence for a cause; nothing stands out (")
    assert "suspect" not in done.out


def test_an_engine_that_stands_still_is_not_healthy(cli: Cli) -> None:
    """The same page twice, with four requests running: no token came, and nobody may call that a server that keeps up."""
    page = Path(__file__).parents[1] / "data/engine_controls/tiny-llama-15m_long-4_0.prom"
    done = cli("diagnose", page, page)
    assert "the engine stands still, or both pages are the same one" in " ".join(done.out.split())
    assert "keeps up" not in done.out
    found = json.loads(cli("diagnose", page, page, "--json").out)
    assert found["verdict"] != "healthy"
    assert any("stands still" in note for note in found["notes"])
