"""Each command end to end: the keys that other programs rely on, and figures that can be checked by hand."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from roofline.cli.main import COMMANDS
from tests.cli.conftest import Cli

PLAN = ("plan", "llama-3.1-8b", "-H", "h100-sxm")
ESTIMATE = {"bound", "expected", "low", "high"}

# Llama-3.1-8B by hand: vocabulary, width, layers, KV width, feed-forward width.
V, H, L, KV, F = 128256, 4096, 32, 1024, 14336
PARAMETERS = 2 * V * H + L * (2 * H * H + 2 * H * KV + 3 * H * F + 2 * H) + H
KV_PER_TOKEN = 2 * L * KV * 2


def assert_estimate(value: dict[str, float]) -> None:
    assert set(value) == ESTIMATE
    assert 0 < value["bound"] <= value["low"] <= value["expected"] <= value["high"]


@pytest.mark.parametrize(
    "args",
    [
        PLAN,
        ("phases", *PLAN[1:]),
        ("ops", *PLAN[1:]),
        ("kv", "llama-3.1-8b"),
        ("models", "list"),
        ("models", "show", "llama-3.1-8b"),
        ("hardware", "list"),
        ("hardware", "show", "h100-sxm"),
        ("hardware", "compare", "h100-sxm", "mi300x"),
        ("hardware", "detect"),
    ],
)
def test_json_csv_and_files(cli: Cli, tmp_path: Path, args: tuple[str, ...]) -> None:
    document = cli(*args, "--json")
    assert document.code == 0
    assert document.err == ""
    keys = list(document.json)
    assert keys[:3] == ["schema_version", "command", "inputs"]
    assert keys[-1] == "assumptions"
    assert all(isinstance(text, str) for text in document.json["assumptions"])
    assert args[0] in COMMANDS
    rows = list(csv.DictReader(io.StringIO(cli(*args, "--csv").out)))
    assert rows
    for suffix, expected in ((".json", document.out), (".csv", cli(*args, "--csv").out)):
        file = tmp_path / f"a b é{suffix}"
        assert cli(*args, "-o", file).out == ""
        assert file.read_text() == expected
    assert {file.name for file in tmp_path.iterdir()} == {"a b é.json", "a b é.csv"}


def test_json_and_csv_exclude_each_other(cli: Cli) -> None:
    assert cli(*PLAN, "--json", "--csv").code == 2


def test_a_failed_write_leaves_the_old_file(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text("old")
    done = cli("kv", "no-such-model", "-o", file)
    assert done.code == 2
    assert file.read_text() == "old"
    missing = cli("kv", "llama-3.1-8b", "-o", tmp_path / "no" / "plan.json")
    assert missing.code == 2
    assert "there is no folder" in missing.err
    assert cli("kv", "llama-3.1-8b", "-o", tmp_path).code == 2


def test_plan_keys(cli: Cli) -> None:
    plan = cli(*PLAN, "--json").json
    assert plan["model"]["parameters"] == PARAMETERS
    assert plan["model"]["weight_bytes"] == 2 * PARAMETERS
    memory = plan["memory"]
    for key in ("total_bytes", "usable_bytes", "weight_bytes", "activation_bytes", "runtime_bytes", "kv_bytes"):
        assert memory[key] > 0
    assert memory["kv_bytes_per_token"] == KV_PER_TOKEN
    assert memory["max_sequences"] == memory["kv_tokens"] // (1024 + 256)
    for phase in ("prefill", "decode"):
        assert plan[phase]["intensity"] == pytest.approx(plan[phase]["flops"] / plan[phase]["bytes"])
        assert_estimate(plan[phase]["time_s"])
    assert plan["decode"]["batch"] == 1
    assert plan["decode"]["context"] == 1024 + 128
    assert plan["fits"] is True
    assert all(set(limit) >= {"name", "text"} for limit in plan["limits"])
    batches = [point["batch"] for point in plan["curve"]]
    assert batches[:4] == [1, 2, 4, 8]
    assert batches[-1] == memory["max_sequences"]
    for point in plan["curve"]:
        assert_estimate(point["tpot_s"])
        assert point["fits"] is True
        assert point["output_tokens_per_s"] == pytest.approx(point["batch"] / point["tpot_s"]["expected"])


def test_plan_csv_is_the_curve(cli: Cli) -> None:
    rows = list(csv.DictReader(io.StringIO(cli(*PLAN, "--csv").out)))
    curve = cli(*PLAN, "--json").json["curve"]
    assert list(rows[0]) == ["batch", "tpot_s_bound", "tpot_s_expected", "output_tokens_per_s", "tpot_s_low", "tpot_s_high", "fits"]
    assert [float(row["tpot_s_high"]) for row in rows] == [point["tpot_s"]["high"] for point in curve]


def test_plain_budget_by_hand(cli: Cli) -> None:
    plan = cli(*PLAN, "--engine", "plain", "--gpu-memory-utilization", "0.9", "--json").json
    free = 0.9 * plan["memory"]["total_bytes"] - 2 * PARAMETERS
    assert plan["memory"]["kv_tokens"] == int(free // KV_PER_TOKEN)
    assert plan["memory"]["activation_bytes"] == plan["memory"]["runtime_bytes"] == 0


def test_decode_by_hand(cli: Cli) -> None:
    decode = cli(*PLAN, "--json").json["decode"]
    assert decode["weight_bytes"] == 2 * (PARAMETERS - V * H - 2 * L * H - H)  # no embedding table, no norms
    assert decode["kv_read_bytes"] == 1152 * KV_PER_TOKEN
    assert decode["time_s"]["bound"] == pytest.approx(decode["bytes"] / 3.35e12)


def test_a_model_that_does_not_fit_ends_with_3(cli: Cli) -> None:
    done = cli("plan", "llama-3.1-70b", "-H", "h100-sxm", "--json")
    assert done.code == 3
    assert done.json["fits"] is False
    assert done.json["limits"][0]["name"] == "kv"
    assert not any(point["fits"] for point in done.json["curve"])
    page = cli("plan", "llama-3.1-70b", "-H", "h100-sxm")
    assert page.code == 3
    assert page.out.startswith("llama-3.1-70b does not fit on one h100-sxm\n")


def test_the_headline_says_up_to_which_length_it_fits(cli: Cli) -> None:
    """A 4090 holds the weights of an 8B model and thousands of tokens, but not one sequence of the length that the model allows."""
    done = cli("plan", "llama-3.1-8b", "-H", "rtx-4090")
    longest = cli("plan", "llama-3.1-8b", "-H", "rtx-4090", "--json").json["memory"]["largest_model_len"]
    assert 1280 < longest < 131072
    assert done.out.startswith(f"llama-3.1-8b fits on one rtx-4090 with max_model_len ≤ {longest:,}\n")
    assert cli("plan", "llama-3.1-8b", "-H", "rtx-4090", "--max-model-len", longest).out.startswith("llama-3.1-8b fits on one rtx-4090\n")


def test_a_comparison_has_names_for_people_and_keys_for_programs(cli: Cli) -> None:
    page = cli("hardware", "compare", "h100-sxm", "b200-sxm").out
    assert re.search(r"^memory bandwidth +3\.350 TB/s +[78]\.\d+ TB/s$", page, re.MULTILINE)
    assert re.search(r"^dense peak, BF16 +989\.4 TFLOP/s ", page, re.MULTILINE)
    assert "_" not in page
    assert "peaks.bf16" in cli("hardware", "compare", "h100-sxm", "b200-sxm", "--csv").out


@pytest.mark.parametrize("name", ["./nowhere", "some/where", "/no/where/model.safetensors", "./model.gguf"])
def test_a_path_that_is_not_there_is_called_so(cli: Cli, name: str) -> None:
    done = cli("plan", name, "-H", "h100-sxm")
    assert done.code == 2
    assert "there is no such file or folder" in done.err


def test_a_missed_service_level_ends_with_3(cli: Cli) -> None:
    met = cli(*PLAN, "--concurrency", "8", "--goodput", "ttft:500", "tpot:50", "--json")
    assert met.code == 0
    assert met.json["inputs"]["ttft_s"] == 0.5
    assert met.json["inputs"]["tpot_s"] == 0.05
    missed = cli(*PLAN, "--goodput", "tpot:1", "--json")
    assert missed.code == 3
    assert missed.json["fits"] is True
    assert missed.json["meets_load"] is False


def test_a_load_gets_its_gpus_and_cost(cli: Cli) -> None:
    one = cli(*PLAN, "--request-rate", "2", "--price", "3", "--json").json
    many = cli(*PLAN, "--request-rate", "200", "--price", "3", "--json").json
    assert one["need"]["gpus"] == 1
    assert many["need"]["gpus"] > 4
    assert many["cost"]["usd_per_hour"] == 3 * many["need"]["gpus"]
    people = cli(*PLAN, "--users", "100", "--think-time", "10")
    assert "in flight" in people.out


def test_a_plan_page_answers_first(cli: Cli) -> None:
    page = cli(*PLAN).out
    order = [
        "fits on one h100-sxm",
        "It holds",
        "Memory of one GPU",
        "The two phases",
        "Decode over batch",
        "What limits",
        "What each",
        "Assumed",
    ]
    places = [page.index(text) for text in order]
    assert places == sorted(places)


def test_a_plan_can_draw_its_curve(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "curve.svg"
    done = cli(*PLAN, "--tp", "2", "--chart", file)
    assert done.code == 0
    assert "It holds" in done.out
    assert "<svg" in file.read_text()
    assert (tmp_path / "curve.csv").is_file()
    assert cli(*PLAN, "--chart", tmp_path / "curve.gif").code == 2


def test_fp8_without_a_unit_is_said_and_priced_as_16_bit(cli: Cli) -> None:
    args = ("plan", "llama-3.1-8b", "-H", "a100-sxm-80gb", "--isl", "4096", "--json")
    plain, fp8 = cli(*args).json, cli(*args, "--weights", "fp8").json
    assert any("no fp8 unit" in text for text in fp8["assumptions"])
    assert fp8["prefill"]["time_s"]["bound"] == pytest.approx(plain["prefill"]["time_s"]["bound"])  # compute: not faster
    assert fp8["decode"]["time_s"]["bound"] < 0.6 * plain["decode"]["time_s"]["bound"]  # bytes: half


def test_ops_keys_and_sums(cli: Cli) -> None:
    found = cli("ops", "llama-3.1-8b", "-H", "h100-sxm", "--phase", "prefill", "--batch", "2", "--context", "2048", "--json").json
    ops = {op["name"]: op for op in found["ops"]}
    wanted = (
        "name kind count m n k flops weight_bytes kv_bytes activation_bytes intensity limited_by bound_s expected_s formula "
        "flops_each bound_s_each expected_s_each"
    )
    assert all(set(op) >= set(wanted.split()) for op in found["ops"])
    tokens = 2 * 2048
    assert ops["q_proj"]["flops"] == 32 * 2 * tokens * H * H
    assert ops["attention"]["flops"] == 32 * 4 * 32 * 128 * 2 * (2048 * 2049 // 2)
    assert ops["q_proj"]["flops_each"] * ops["q_proj"]["count"] == ops["q_proj"]["flops"]
    assert {op["limited_by"] for op in found["ops"]} <= {"compute", "memory", "launch", "link"}
    assert found["totals"]["flops"] == sum(op["flops"] for op in found["ops"])
    assert all(op["bound_s"] <= op["expected_s"] for op in found["ops"])


def test_ops_full_square(cli: Cli) -> None:
    args = ("ops", "llama-3.1-8b", "-H", "h100-sxm", "--phase", "prefill", "--context", "1000", "--json")
    attention = [next(op for op in cli(*args, *more).json["ops"] if op["name"] == "attention") for more in ((), ("--full-attention",))]
    assert attention[1]["flops"] / attention[0]["flops"] == pytest.approx(1000**2 / (1000 * 1001 / 2))


def test_kv_by_hand(cli: Cli) -> None:
    rows = cli("kv", "llama-2-7b", "llama-3.1-8b", "--tokens", "2048", "--as", "mha,gqa:8,mqa", "--json").json["models"]
    by_layout = {(row["model"], row["layout"]): row for row in rows}
    assert by_layout["llama-2-7b", "as shipped"]["kv_bytes_per_token"] == 524288
    assert by_layout["llama-3.1-8b", "as shipped"]["kv_bytes_per_token"] == 131072
    assert by_layout["llama-3.1-8b", "mha"]["kv_bytes_per_token"] == 524288
    assert by_layout["llama-2-7b", "gqa:8"]["kv_bytes_per_token"] == 131072
    assert by_layout["llama-3.1-8b", "mqa"]["kv_bytes_per_token"] == 16384
    assert by_layout["llama-2-7b", "as shipped"]["kv_bytes_stored"] == 2**30


def test_kv_heads_replicate_and_mla_is_on_every_rank(cli: Cli) -> None:
    rows = cli("kv", "llama-3.1-8b", "deepseek-v3", "--tp", "16", "--json").json["models"]
    assert rows[0]["kv_bytes_per_token"] == 2 * 32 * 1 * 128 * 2
    assert rows[0]["kv_bytes_stored_all_ranks"] == 2 * rows[0]["kv_bytes_stored"] * 8
    assert rows[1]["kv_bytes_per_token"] == 61 * (512 + 64) * 2


def test_kv_as_mla(cli: Cli) -> None:
    row = cli("kv", "llama-3.1-8b", "--as", "mla", "--json").json["models"][1]
    assert row["kv_bytes_per_token"] == 32 * (4 * 128 + 64) * 2


def test_phases_batching_gain(cli: Cli) -> None:
    found = cli("phases", "llama-3.1-8b", "-H", "h100-sxm", "--isl", "2048", "--batch", "16", "--json").json
    by_phase = {(p["phase"], p["batch"]): p for p in found["phases"]}
    assert by_phase["decode", 16]["batching_gain"] > 10 > 2 > by_phase["prefill", 16]["batching_gain"] >= 1
    assert by_phase["decode", 1]["limited_by"] == "memory"
    assert by_phase["prefill", 1]["limited_by"] == "compute"
    assert by_phase["decode", 16]["weight_bytes"] == by_phase["decode", 1]["weight_bytes"]
    for row in found["phases"]:
        assert_estimate(row["time_s"])


def test_models_show_keys(cli: Cli) -> None:
    found = cli("models", "show", "meta-llama/Llama-3.1-8B", "--json").json
    assert (found["parameters"], found["weight_bytes"], found["kv_bytes_per_token"]) == (PARAMETERS, 2 * PARAMETERS, KV_PER_TOKEN)


def _config(**changes: Any) -> dict[str, Any]:
    plain = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16",
        "tie_word_embeddings": False, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "hidden_act": "silu",
    }  # fmt: skip
    return plain | changes


def test_models_import_writes_a_profile_that_loads(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "My Model é"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(_config()))
    profile = tmp_path / "mine.yaml"
    assert cli("models", "import", folder, "--name", "mine", "-o", profile).code == 0
    shown = cli("models", "show", profile, "--json").json
    assert (shown["model"], shown["parameters"]) == ("mine", PARAMETERS)
    assert cli("plan", folder, "-H", "h100-sxm", "--json").json["model"]["parameters"] == PARAMETERS


def test_a_folder_of_own_profiles(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFLINE_PROFILE_PATH", "")
    (tmp_path / "config.json").write_text(json.dumps(_config()))
    cli("models", "import", tmp_path, "--name", "mine", "-o", tmp_path / "mine.yaml")
    assert cli("--profile-dir", tmp_path, "kv", "mine").code == 0
    monkeypatch.setenv("ROOFLINE_PROFILE_PATH", "")
    assert cli("kv", "mine").code == 2


def test_hardware_show_has_sources(cli: Cli) -> None:
    facts = {fact["key"]: fact for fact in cli("hardware", "show", "h100-sxm", "--json").json["facts"]}
    assert facts["memory_bandwidth"]["value"] == 3.35e12
    assert facts["memory_bandwidth"]["source"]
    assert facts["peaks.bf16"]["value"] == 989.4e12


def test_hardware_list_filters(cli: Cli) -> None:
    ids = [row["id"] for row in cli("hardware", "list", "hopper", "--json").json["hardware"]]
    assert "h100-sxm" in ids
    assert "a100-sxm-80gb" not in ids


def test_a_layout_without_a_name_is_refused(cli: Cli) -> None:
    for layouts in (",", "mha,,mqa"):
        done = cli("kv", "llama-3.1-8b", "--as", layouts)
        assert (done.code, "unknown attention layout ''" in done.err) == (2, True)


def test_a_hybrid_says_what_a_sequence_takes(cli: Cli) -> None:
    """48 states of 3,207,168 bytes and 16 layers of 4,096 bytes per token: the page shows both, not one slope."""
    page = " ".join(cli("plan", "qwen3.5-27b", "-H", "h200-sxm").out.split())
    assert "a long sequence takes 294 MiB whatever its length and 64.0 KiB per token, one of 1,280 tokens takes" in page
    assert "whatever its length" not in cli("plan", "llama-3.1-8b", "-H", "h200-sxm").out


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        (("--max-model-len", "10000000"), "start with --max-model-len 455376 or less"),
        (("--isl", "1000000"), "Sequences of at most 131,072 tokens fit"),
    ],
)
def test_too_long_a_sequence_is_told_what_fits(cli: Cli, options: tuple[str, ...], fix: str) -> None:
    done = cli("plan", "llama-3.1-8b", "-H", "h100-sxm", *options)
    page = " ".join(done.out.split())
    assert done.code == 3
    assert fix in page
    assert "No single change" not in page
    assert "nothing is left" not in page


def test_sequences_beyond_the_engines_limit_are_pointed_out(cli: Cli) -> None:
    """OPT has 2,048 positions: 4,256 tokens fit in memory and are refused all the same."""
    said = "4,256 tokens are longer than max_model_len 2,048"
    assert said in " ".join(cli("plan", "opt-6.7b", "-H", "h100-sxm", "--isl", "4000").out.split())
    document = json.loads(cli("plan", "opt-6.7b", "-H", "h100-sxm", "--isl", "4000", "--json").out)
    assert any(said in text for text in document["assumptions"])
    assert "max_model_len 2,048" not in cli("plan", "opt-6.7b", "-H", "h100-sxm").out
