"""Serving rows: measured points that were never fitted, limits of the closed form, errors that name their column."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from roofline.batch import Batch
from roofline.ledger import Conventions, Parallel, Precision, build_ledger
from roofline.profiles.calibration import shipped
from roofline.profiles.catalog import load_hardware, load_model
from roofline.serving.passes import KNOTS, Passes, price_passes
from roofline.serving.points import Stack, choose, predict_points
from roofline.serving.published import arguments
from roofline.serving.recipes import as_served, family, precision_of
from roofline.serving.steady import Asked, Constants, Loads, loads, mean_waits, settle, steady
from roofline.timing.calibrated import as_run, op_times
from tests.serving.shared import DATA, needs_shared

SAMPLE = Path(__file__).parents[1] / "data" / "serving" / "points.csv"
NONE = {
    "fixed_s": 0.0, "decode_scale": 1.0, "expert_scale": 1.0, "prompt_scale": 1.0, "per_layer_rank_s": 0.0, "per_layer_s": 0.0,
    "per_sequence_s": 0.0, "first_s": 0.0, "first_steps": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def sample() -> pd.DataFrame:
    return pd.read_csv(SAMPLE)


@pytest.fixture(scope="module")
def predicted(sample: pd.DataFrame) -> pd.DataFrame:
    return predict_points(sample)


def load(clients: float = 8.0, capacity: float = 1e9, rounds: float = 10.0, engine: str = "vllm") -> Loads:
    """A made-up device: a decode step of 10 ms + 0.1 ms a sequence, a prompt of 50 ms."""
    step = 10e-3 + 1e-4 * KNOTS
    passes = Passes(step, 0.2 * step, step + 50e-3, 50e-3, step / 2, 25e-3, 32, 1, 1, 16e9, (1e6, 2e6), 80e9)
    return replace(loads([Asked(engine, passes, passes, clients, 1000.0, 100.0, rounds)]), capacity=np.array([capacity]))


def test_points_that_were_never_fitted(sample: pd.DataFrame, predicted: pd.DataFrame) -> None:
    """A guard against breakage; the acceptance figures stand in reports/accuracy/serving.md."""
    assert (predicted["error"] == "").all()
    together = (sample["mode"] == "agg").to_numpy()
    error = np.abs(predicted["tpot_s_expected"] / (sample["tpot_ms"] / 1e3) - 1)[together]
    assert error.median() < 0.12
    assert error.quantile(0.9) < 0.45


def test_numbers_are_in_order(predicted: pd.DataFrame) -> None:
    for measure in ("ttft_s", "tpot_s"):
        bound, expected, low, high = (predicted[f"{measure}_{n}"] for n in ("bound", "expected", "low", "high"))
        assert ((bound <= low) & (low <= expected) & (expected <= high)).all()
    low, expected, high, most = (predicted[f"output_tokens_per_s_{n}"] for n in ("low", "expected", "high", "bound"))
    assert ((low <= expected) & (expected <= high) & (high <= most)).all()


def test_one_client_waits_for_nobody() -> None:
    state, ttft = settle(load(clients=1.0), Constants.stacked([NONE]))
    assert state.tpot_s[0] == pytest.approx(10.1e-3)
    assert ttft[0] == pytest.approx(50e-3 + 10.1e-3)


@pytest.mark.parametrize("clients", [2.0, 8.0, 64.0])
def test_littles_law_holds(clients: float) -> None:
    case = load(clients)
    state = steady(case, Constants.stacked([NONE]), 0.0, turns=200)
    first = state.prompt_s + state.step_s
    assert state.running[0] == pytest.approx(clients * 100 * state.tpot_s[0] / (first[0] + 100 * state.tpot_s[0]), rel=1e-6)


@pytest.mark.parametrize("clients", [16, 64])
@pytest.mark.parametrize("least_s", [0.0, 0.2])
def test_prompts_of_one_step_share_its_pass(clients: int, least_s: float) -> None:
    """Against a loop over steps: 16 tokens a request on average, and a pass with prompts takes least_s or more whatever their number."""
    case = replace(load(float(clients), rounds=1e9), output_len=np.array([16.0]))
    state = steady(case, Constants.stacked([NONE | {"per_layer_s": least_s / 32}]), turns=100)
    rng, seconds, tokens = np.random.default_rng(0), 0.0, 0
    left, new = np.zeros(clients, dtype=int), np.ones(clients, dtype=bool)
    for _ in range(4000):
        step = 10e-3 + 1e-4 * (~new).sum()
        took = (least_s**4 + (step + 50e-3 * new.sum()) ** 4) ** 0.25 if new.any() else step
        seconds, tokens = seconds + took * (~new).sum(), tokens + (~new).sum()
        left[~new] -= 1
        left[new] = rng.integers(4, 29, new.sum()) - 1
        new = left == 0
    assert state.tpot_s[0] == pytest.approx(seconds / tokens, rel=0.1)


def test_experts_have_a_scale_of_their_own() -> None:
    """A fifth of the made-up step is experts'."""
    state = steady(load(clients=1.0), Constants.stacked([NONE | {"expert_scale": 0.5}]))
    assert state.step_s[0] == pytest.approx(10.1e-3 * 0.9)


def test_speculation_divides_the_step_by_what_it_emits() -> None:
    case = replace(load(clients=1.0), emitted=np.array([2.0]), delay_steps=np.array([5.0]))
    state, ttft = settle(case, Constants.stacked([NONE]))
    assert state.tpot_s[0] == pytest.approx(10.1e-3 / 2)
    assert ttft[0] == pytest.approx(50e-3 + 6 * 10.1e-3)  # a delay is counted in steps, whatever they emit


def test_drafts_make_tokens_cheaper_at_low_load(sample: pd.DataFrame) -> None:
    row = sample[(sample["mode"] == "agg") & sample["model"].str.contains("Llama")].head(1)
    table = pd.concat([row.assign(concurrency=2), row.assign(concurrency=2, speculative_tokens=3, acceptance=0.8)], ignore_index=True)
    plain, drafted = predict_points(table)["tpot_s_expected"]
    assert plain / 2.95 < drafted < 0.75 * plain


def test_arguments_of_published_sweeps() -> None:
    row = {
        "origin": "inferencex_m03", "model": "Qwen/Qwen3.5-397B-A17B", "hardware": "b200-sxm", "software_version": "0.5.9",
        "precision": "fp8", "tp": 4.0, "ep": 1.0, "concurrency": 16.0, "isl": 1024, "osl": 1024,
    }  # fmt: skip
    assert arguments(row, "sglang") == {"receive_interval": 30, "speculative_tokens": 3}
    assert arguments(row | {"ep": 4.0, "concurrency": 8.0}, "sglang") == {"receive_interval": 10}
    assert arguments(row | {"origin": "gap_analysis"}, "sglang") == {}
    llama = row | {"model": "meta-llama/Llama-3.1-70B", "tp": 2.0}
    assert arguments(llama, "trtllm") == {"batch_wait_steps": 20}
    assert arguments(llama | {"tp": 8.0}, "trtllm") == arguments(llama | {"osl": 8192}, "trtllm") == {}


@pytest.mark.parametrize(("engine", "later_s"), [("trtllm", 9.9e-6), ("vllm", 0.0)])
def test_static_scales_cost_tensorrt_llm_no_kernel(engine: str, later_s: float) -> None:
    """On an H100 its FP8 products were measured 9.9 µs later than 16-bit ones (t0_us 11.56 and 2.07 at 1.8 GHz); 4 a layer are left."""
    model, device, parallel, precision = load_model("llama-3.1-70b-fp8"), load_hardware("h100-sxm"), Parallel(tp=4), Precision(kv="fp8")
    served = price_passes(model, device, engine, parallel, precision, 1024.0, 1024.0).decode_s
    batch = Batch.decode(KNOTS, 1024.0 + 512.0)
    ledger = as_run(build_ledger(model, batch, parallel=parallel, precision=precision, conventions=Conventions(elementwise=True)))
    fused = {"all_reduce": "trtllm"}
    measured = sum(op.count * np.asarray(op_times(op, device, fused.get(op.name, engine)).expected_s) for op in ledger)
    assert measured - served == pytest.approx(4 * 80 * later_s, rel=0.02, abs=1e-9)


def test_integer_experts_are_priced_by_a_measured_kernel() -> None:
    model, device = load_model("kimi-k2.5"), load_hardware("h200-sxm")
    ledger = as_run(build_ledger(model, Batch.decode(8.0, 1024.0), parallel=Parallel(tp=8)))
    used = [name for op in ledger if op.kind == "moe" for name in op_times(op, device, "vllm").used]
    assert used
    assert all("w4a16_mxfp4" in name for name in used)


def test_memory_caps_the_running_batch_and_the_rest_waits() -> None:
    constants = Constants.stacked([NONE])
    free, ttft = settle(load(64.0), constants)
    held, late = settle(load(64.0, capacity=16.0), constants)
    assert held.running[0] <= 16 < free.running[0]
    assert late[0] > 3 * ttft[0]


def test_a_single_burst_waits_half_its_length() -> None:
    """N prompts one after the other: the i-th waits i − 1 of them."""
    case = load(16.0, rounds=1.0, engine="sglang")
    constants = Constants.stacked([NONE])
    assert mean_waits(case, steady(case, constants), constants)[0] == pytest.approx(np.mean(range(16)) * 50e-3)


def test_short_prompts_of_a_burst_share_passes() -> None:
    """Eight prompts of 1,024 tokens fill a pass of 8,192; work and host take 0.4 s each of it, (0.4⁴ + 0.4⁴)^¼ s together."""
    case = replace(load(16.0, rounds=1.0, engine="sglang"), input_len=np.array([1024.0]))
    constants = Constants.stacked([NONE | {"per_layer_s": 0.4 / 32}])
    each = 0.4 * 2**0.25 / 8
    assert mean_waits(case, steady(case, constants), constants)[0] == pytest.approx(np.mean(range(16)) * each)


@pytest.mark.parametrize("clients", [2, 3, 4, 6, 8, 16])
def test_long_prompts_halt_the_decoding_of_the_others(clients: int) -> None:
    """Against a loop over passes: prompts of 32,768 tokens go through in four of 0.3 s, first come, first served; 100 tokens each."""
    case = load(float(clients), rounds=60.0)
    case = replace(case, input_len=np.array([32768.0]), mixed_s=case.decode_s + 1.2, prompt_s=np.array([1.2]))
    state, ttft = settle(case, Constants.stacked([NONE]))
    rng, now, seconds, tokens, first = np.random.default_rng(0), 0.0, 0.0, 0, list[float]()
    queue, left = [(0.0, 4)] * clients, list[int]()
    for _ in range(40_000):
        took = 10e-3 + 1e-4 * len(left) + (0.3 if queue else 0.0)
        now, seconds, tokens = now + took, seconds + took * len(left), tokens + len(left)
        left = [one - 1 for one in left]
        if queue:
            sent, passes = queue.pop(0)
            if passes > 1:
                queue.insert(0, (sent, passes - 1))
            else:
                first.append(now - sent)
                left.append(int(rng.integers(80, 121)))
        queue += [(now, 4)] * left.count(0)
        left = [one for one in left if one]
    late = first[len(first) // 4 :]
    assert state.tpot_s[0] == pytest.approx(seconds / tokens, rel=0.15)
    assert ttft[0] == pytest.approx(np.mean(late), rel=0.25)


def test_the_nearest_constants_are_taken() -> None:
    stack = Stack("vllm", "h100-sxm", "llama-3.1-70b", "dense", "fp8")
    assert choose(stack)[0] == "model"
    assert choose(replace(stack, version="never seen"))[0] == "model"
    assert choose(replace(stack, hardware="another"))[0] == choose(replace(stack, precision="int4"))[0] == "sibling"
    assert choose(replace(stack, model="another"))[0] == "engine"
    assert choose(replace(stack, model="another", apart=True))[1].software == "vllm disaggregated"


def test_constants_are_physical() -> None:
    for block in shipped("serving"):
        assert min(block.constants.values()) >= 0
        assert all(low <= 0.05 and high >= -0.05 for low, high in block.interval_log_quantiles.values())


def test_checkpoints_are_served_as_their_recipes_say() -> None:
    assert as_served("gpt-oss-120b", "nvfp4", "nvfp4").name == "gpt-oss-120b"
    assert as_served("gpt-oss-120b", "", "", fp4_unit=True).weight_dtype("experts").name == "w4a8_mxfp4"
    assert as_served("deepseek-v3", "fp8", "fp8").weight_dtype("experts").name == "fp8_block"
    assert as_served("deepseek-r1", "nvfp4", "nvfp4").name == "deepseek-v3.1-nvfp4"
    assert as_served("kimi-k2.5", "nvfp4", "nvfp4").name == "kimi-k2.5-nvfp4"
    assert as_served("kimi-k2.5", "w4a16", "w4a16").name == "kimi-k2.5"
    assert as_served("llama-3.1-8b", "fp8_block", "").weight_dtype("mlp").name == "fp8_block"
    assert [family(load_model(n)) for n in ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "qwen3.5-397b-a17b")] == [
        "dense",
        "moe",
        "mla",
        "hybrid",
    ]
    assert precision_of({"gemm_dtype": "fp8", "software": "vllm"}).kv == "fp8"
    assert precision_of({"gemm_dtype": "fp8", "software": "sglang"}).kv is None
    assert precision_of({"gemm_dtype": "w4a16", "software": "vllm"}).kv is None
    assert precision_of({"gemm_dtype": "w4a16", "software": "vllm", "kv_dtype": "fp8"}).kv == "fp8"


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("model", "nobody/knows", "nobody/knows"), ("hardware", "", "hardware"), ("software", "x", "software"), ("isl", np.nan, "isl"),
        ("concurrency", 0, "concurrency"), ("tp", 1.5, "tp"), ("tp", 7, "7"),
        ("tp", "four", "tp: must be a whole number"), ("speculative_tokens", np.inf, "speculative_tokens"),
        ("speculative_tokens", 0.5, "speculative_tokens"), ("receive_interval", 1e300, "receive_interval"),
        ("max_num_seqs", 0, "max_num_seqs"),
        ("isl", 200_000, "isl: 200,000 tokens are more than the"),
    ],
)  # fmt: skip
def test_a_bad_row_gets_an_error_and_the_others_come(sample: pd.DataFrame, column: str, value: object, words: str) -> None:
    table = sample[sample["mode"] == "agg"].head(2).astype(object)
    if column not in table:
        table[column] = np.nan
    table.loc[table.index[0], column] = value
    found = predict_points(table)
    assert words in found["error"].iloc[0]
    assert np.isnan(found["tpot_s_expected"].iloc[0])
    assert found["tpot_s_expected"].iloc[1] > 0


def test_what_no_gpu_holds_is_refused() -> None:
    table = pd.DataFrame([{"model": "deepseek-v3", "hardware": "h100-sxm", "software": "vllm", "isl": 1024, "osl": 64, "concurrency": 1}])
    assert "tp: does not fit" in predict_points(table)["error"].iloc[0]


def test_numbers_of_any_size_take_no_longer() -> None:
    row = {"model": "llama-3.1-8b", "hardware": "h100-sxm", "software": "vllm", "isl": 1024, "osl": 64, "concurrency": 16}
    sides = {f"{side}_{name}": 1 for side in ("prefill", "decode") for name in ("tp_size", "attention_dp_size", "moe_ep_size", "pp_size")}
    apart = {"mode": "disagg", "prefill_num_workers": 10**9, "decode_num_workers": 1}
    found = predict_points(pd.DataFrame([row | {"num_requests": 10**12}, row | sides | apart]))
    assert (found["error"] == "").all()
    assert (found["ttft_s_expected"] > 0).all()


def test_a_single_token_takes_the_time_to_the_first() -> None:
    row = {"model": "llama-3.1-8b", "hardware": "h100-sxm", "software": "vllm", "isl": 64, "osl": 1, "concurrency": 1}
    found = predict_points(pd.DataFrame([row])).iloc[0]
    assert found["output_tokens_per_s_bound"] == pytest.approx(1 / found["ttft_s_bound"])


@needs_shared
@pytest.mark.slow
def test_acceptance_of_the_mla_rows() -> None:
    table = pd.read_csv(DATA / "serving" / "silicon_points.csv")
    table = table[(table["split"] == "dev") & table["suspect"].isna() & (table["mode"] == "agg")]
    table = table[table["model"].str.contains("DeepSeek|Kimi")]
    error = np.abs(predict_points(table)["tpot_s_expected"] / (table["tpot_ms"] / 1e3) - 1)
    assert error.median() <= 0.10
    assert error.quantile(0.9) <= 0.26
