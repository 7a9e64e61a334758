"""Budget modes, defaults, additions, limits and bad input, against sums written out by hand."""

from __future__ import annotations

import math

import pytest

from roofline.capacity import (
    ENGINES,
    Addition,
    Known,
    LayerKind,
    contiguous,
    draft_layers,
    draft_model,
    engine_rules,
    first_limit,
    knob_gains,
    memory_plan,
    multi_token_prediction,
    paged,
    sglang_fraction,
    token_budget,
)
from roofline.errors import InputError, ShardError
from roofline.ledger import Parallel, Precision, stage_weights
from roofline.profiles.catalog import load_hardware, load_model
from roofline.profiles.model import Extra
from tests.capacity import logs
from tests.capacity.logs import GiB, device

LLAMA, H100 = load_model("llama-3.1-8b"), load_hardware("h100-sxm")
WEIGHTS, PER_TOKEN = 16060522496, 131072
GIVEN = Known(memory=80e9, weights=16e9, activations=2e9, runtime=1e9)


def blocks(kv_bytes: float) -> int:
    return int(kv_bytes // (16 * PER_TOKEN)) * 16


def test_vllm_charges_everything_to_a_fraction_of_the_total() -> None:
    for version, fraction in (("0.11", 0.9), ("0.19", 0.9), ("0.33", 0.92)):
        plan = memory_plan(LLAMA, H100, engine_version=version, known=GIVEN)
        assert plan.usable_bytes == fraction * 80e9
        assert plan.kv_tokens == blocks(fraction * 80e9 - 19e9)
        assert plan.max_sequences(1600) == (plan.kv_tokens // 16 - 1) // 100  # one block is the null block


def test_graphs_come_out_of_the_fraction_since_021() -> None:
    before, after = (memory_plan(LLAMA, H100, engine_version=v, utilization=0.9) for v in ("0.20", "0.21"))
    graphs = after.runtime_bytes - before.runtime_bytes
    assert graphs == pytest.approx(0.25e6 * 32 * 51)  # 51 sizes up to 512
    assert before.activation == after.activation
    assert any("outside the fraction" in note for note in before.assumptions)
    assert after.kv_tokens < before.kv_tokens


def test_sglang_fraction_is_of_weights_and_kv() -> None:
    plan = memory_plan(LLAMA, H100, engine="sglang", utilization=0.8, known=GIVEN)
    assert plan.usable_bytes == 0.8 * (80e9 - 1e9)
    assert plan.kv_tokens == int((0.8 * 79e9 - 16e9) // PER_TOKEN)
    crowded = memory_plan(LLAMA, H100, engine="sglang", utilization=1.0, known=GIVEN)
    assert crowded.usable_bytes == 80e9 - 3e9  # what runs beside the pool must fit too


@pytest.mark.parametrize(
    ("gib", "tp", "reserved_mib"),
    [(15, 1, 512 + 1.5 * 2048 + 2 * 8 + 128), (22, 1, 512 + 1.5 * 4096 + 2 * 24 + 128), (44, 4, 512 + 1.5 * 4096 + 2 * 160 + 512)],
)
def test_sglang_default_fraction(gib: float, tp: int, reserved_mib: float) -> None:
    chunk = 2048 if gib < 20 else 4096
    assert sglang_fraction(gib * GiB, chunk, Parallel(tp=tp)) == round(1 - reserved_mib / 1024 / gib, 3)


def test_sglang_keeps_ten_gib_of_a_large_card() -> None:
    assert sglang_fraction(80 * GiB, 8192, Parallel()) == round(1 - max(10, (512 + 12288 + 512 + 128) / 1024) / 80, 3)
    assert sglang_fraction(100 * GiB, 2048, Parallel()) == 0.9


def test_trtllm_fraction_is_of_what_is_free() -> None:
    plan = memory_plan(LLAMA, H100, engine="trtllm", known=GIVEN)
    assert plan.kv.expected == pytest.approx(0.9 * (80e9 - 19e9))
    assert plan.kv_tokens == int(0.9 * 61e9 // (32 * PER_TOKEN)) * 32


def test_llamacpp_takes_what_is_there() -> None:
    plan = memory_plan(LLAMA, H100, engine="llamacpp", known=GIVEN)
    assert plan.kv_tokens == int(61e9 // PER_TOKEN)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_says_what_its_fraction_means(engine: str) -> None:
    plan = memory_plan(LLAMA, H100, engine=engine)
    assert engine_rules(engine).meaning in "\n".join(plan.assumptions)
    assert plan.fits
    low, high = plan.kv_tokens_range
    assert low <= plan.kv_tokens <= high
    data = plan.as_dict()
    for key in (
        "total_bytes",
        "usable_bytes",
        "weight_bytes",
        "activation_bytes",
        "runtime_bytes",
        "kv_bytes",
        "kv_tokens",
        "max_sequences",
    ):
        assert math.isfinite(data[key])
    assert data["kv_bytes_per_token"] == PER_TOKEN


def test_memory_is_the_drivers_figure_when_known() -> None:
    assert memory_plan(LLAMA, H100).total_bytes == H100.memory_reported_bytes
    marketed = memory_plan(LLAMA, device(80e9))
    assert marketed.total_bytes == 80e9
    assert any("as marketed" in note for note in marketed.assumptions)


def test_default_limits_by_memory() -> None:
    def limits(hardware: str, **options: str) -> tuple[int, int]:
        settings = memory_plan(LLAMA, load_hardware(hardware), **options).settings
        return settings.max_num_batched_tokens, settings.max_num_seqs

    assert limits("h100-sxm") == limits("h200-sxm") == (8192, 1024)
    assert limits("b200-sxm") == limits("mi300x") == (16384, 1024)
    assert limits("a100-sxm-80gb") == limits("rtx-4090") == limits("dgx-spark-gb10") == (2048, 256)
    assert limits("h100-sxm", engine="sglang")[0] == 8192


def test_29k_fails_where_35k_starts() -> None:
    """vLLM's first engine ran a whole prompt in one step unless the context was above 32k (vllm-project/vllm#10517)."""
    known = Known(memory=23.58 * GiB)
    plans = {
        n: memory_plan(LLAMA, device(24e9), engine_version="0.6.4", max_model_len=n, known=known) for n in (20000, 29000, 35000, 45000)
    }
    assert plans[20000].fits
    assert not plans[29000].fits
    assert plans[35000].fits
    assert plans[29000].activation_bytes == pytest.approx(2.9912 * GiB, rel=0.005)  # that log's own figure


def test_activation_of_one_layer_written_out() -> None:
    plan = memory_plan(LLAMA, H100, engine_version="0.6.4", max_num_batched_tokens=1000, max_num_seqs=1, max_model_len=2000)
    assert plan.activation_bytes == 1000 * 2 * (3 * 4096 + 3 * 14336)
    rows = memory_plan(LLAMA, H100, engine_version="0.11", max_num_batched_tokens=1000, max_num_seqs=1000, max_model_len=2000)
    assert rows.activation_bytes == pytest.approx(2000 * 4096 * 2 + 38.3 * 1000 * 128256)
    assert rows.activation_peak.widest == "logits"


def test_tensor_parallel_divides_and_pipelines_take_the_fullest_stage() -> None:
    model = load_model("llama-3.1-70b")
    eight = memory_plan(model, H100, Parallel(tp=8), engine="plain")
    assert eight.kv_bytes_per_token == 80 * 2 * 1 * 128 * 2
    sixteen = memory_plan(model, H100, Parallel(tp=16), engine="plain")
    assert sixteen.kv_bytes_per_token == eight.kv_bytes_per_token  # eight KV heads are replicated
    stages = memory_plan(model, H100, Parallel(pp=3), engine="plain")
    stage_tokens = []
    for stage, layers in enumerate((27, 27, 26)):
        weights = stage_weights(model, parallel=Parallel(pp=3), stage=stage).bytes
        stage_tokens.append(int((0.9 * H100.memory_reported_bytes - weights) // (layers * 2 * 8 * 128 * 2)))
    assert stages.kv_tokens == min(stage_tokens)
    assert stages.weight_bytes_total == stage_weights(model).bytes
    with pytest.raises(ShardError, match="heads"):
        memory_plan(model, H100, Parallel(tp=7))


def test_latents_are_replicated_unless_the_context_is_split() -> None:
    model = load_model("deepseek-v3")
    known = Known(memory=141e9, weights=80e9)
    tp, dcp = (memory_plan(model, H100, p, engine="plain", known=known) for p in (Parallel(tp=8), Parallel(tp=8, dcp=8)))
    assert tp.kv_bytes_per_token == 61 * 576 * 2
    assert dcp.kv_tokens == pytest.approx(8 * tp.kv_tokens, abs=8)
    dp = memory_plan(model, H100, Parallel(dp=8, ep=8), engine="plain", known=known)
    assert dp.kv_tokens_total == 8 * dp.kv_tokens


def test_unified_memory_leaves_room_for_the_system() -> None:
    spark = load_hardware("dgx-spark-gb10")
    plan = memory_plan(LLAMA, spark, utilization=1.0)
    assert plan.usable_bytes == pytest.approx(plan.total_bytes - 0.06 * spark.memory_bytes)
    assert any("operating system" in note for note in plan.assumptions)
    assert memory_plan(LLAMA, spark, utilization=0.5).usable_bytes == 0.5 * plan.total_bytes


def test_metal_recommends_a_working_set() -> None:
    for name, share in (("apple-m4", 2 / 3), ("apple-m2-ultra", 3 / 4)):
        apple = load_hardware(name)
        assert memory_plan(LLAMA, apple, engine="llamacpp").usable_bytes == pytest.approx(share * apple.memory_bytes)


def test_extras_are_loaded_and_mtp_is_an_addition() -> None:
    vision = Extra(name="vision_tower", parameters=10**9, bytes=2e9)
    mtp = Extra(name="mtp", parameters=10**9, bytes=1e9, loaded=False)
    model = LLAMA.model_copy(update={"extras": (vision, mtp)})
    plan = memory_plan(model, H100)
    assert plan.weight_bytes == WEIGHTS + 2e9
    assert any("vision_tower" in note for note in plan.assumptions)
    drafting = memory_plan(model, H100, additions=(multi_token_prediction(model),), spec_tokens=1)
    assert drafting.weight_bytes == WEIGHTS + 3e9
    assert drafting.kv_bytes_per_token == 33 * 4096
    with pytest.raises(InputError, match="no multi-token-prediction"):
        multi_token_prediction(LLAMA)


def test_a_draft_model_brings_weights_and_kv() -> None:
    draft = logs.model("llama32-3b")
    plan = memory_plan(LLAMA, H100, Parallel(tp=2), additions=(draft_model(draft, parallel=Parallel(tp=2)),), spec_tokens=4)
    alone = memory_plan(LLAMA, H100, Parallel(tp=2), spec_tokens=4)
    assert plan.kv_bytes_per_token == PER_TOKEN / 2 + 28 * 2 * 4 * 128 * 2
    assert plan.weight_bytes - alone.weight_bytes == stage_weights(draft, parallel=Parallel(tp=2)).bytes
    head = draft_layers(LLAMA, 1, 5e8)
    assert head == Addition("1 draft layers", 5e8, (LayerKind(1, 4096.0),))


def test_shortfall_says_what_is_missing() -> None:
    small = memory_plan(LLAMA, load_hardware("t4"), engine="plain", max_model_len=1000)
    missing = WEIGHTS + 1000 * PER_TOKEN - 0.9 * load_hardware("t4").memory_reported_bytes
    assert not small.fits
    assert small.shortfall_bytes == pytest.approx(missing)
    assert small.kv_bytes == small.kv_tokens == small.largest_model_len == 0
    assert first_limit(small, 1000)[0] == "weights"


def test_largest_model_len_is_the_last_that_fits() -> None:
    plan = memory_plan(LLAMA, load_hardware("rtx-4090"))
    longest = plan.largest_model_len
    assert plan.max_sequences(longest) == 1
    assert plan.max_sequences(longest + 1) == 0
    assert first_limit(plan, longest + 1)[0] == "length"
    assert any(f"set it to {longest}" in note for note in plan.assumptions)
    low, high = plan.max_sequences_range(1000)
    assert low <= plan.max_sequences(1000) <= high


def test_what_runs_out_first() -> None:
    plan = memory_plan(LLAMA, H100, max_num_seqs=64)
    assert first_limit(plan, 1280)[0] == "max_num_seqs"
    assert first_limit(plan, 16384)[0] == "kv"


def test_what_each_knob_buys() -> None:
    gains = {gain.change: gain for gain in knob_gains(LLAMA, H100, length=1280, engine_version="0.11", known=GIVEN)}
    more = gains["memory fraction 0.9 → 0.91"]
    assert more.kv_tokens_gained == blocks(0.91 * 80e9 - 19e9) - blocks(0.9 * 80e9 - 19e9)
    fp8 = gains["fp8 KV cache"]
    assert fp8.kv_tokens == pytest.approx(2 * (fp8.kv_tokens - fp8.kv_tokens_gained), rel=1e-4)
    half = gains["sequences of 640 tokens"]
    assert (half.kv_tokens_gained, half.length) == (0, 640)
    assert half.sequences_gained > 0
    assert {gain.knob for gain in gains.values()} >= {"utilization", "kv_dtype", "tp", "dp", "length", "max_num_batched_tokens", "weights"}
    estimated = {gain.knob: gain for gain in knob_gains(LLAMA, H100, length=1280)}
    assert all(gain.fits and gain.sequences_gained >= 0 for gain in estimated.values())
    matrices = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert estimated["weights"].kv_tokens_gained * PER_TOKEN == pytest.approx(matrices * (2 - 4.25 / 8), rel=1e-3)
    already = {gain.change for gain in knob_gains(LLAMA, H100, Parallel(), Precision(weights="int4", kv="fp8"), length=1280)}
    assert not already & {"fp8 KV cache", "fp8 weights", "int4 weights"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"utilization": 0.0}, "fraction"),
        ({"utilization": 1.01}, "fraction"),
        ({"utilization": -0.5}, "fraction"),
        ({"utilization": float("nan")}, "fraction"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"max_num_seqs": -1}, "max_num_seqs"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens"),
        ({"spec_tokens": -1}, "speculative"),
        ({"engine": "vlm"}, "known: vllm"),
        ({"engine_version": "latest"}, "version"),
    ],
)
def test_bad_input_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        memory_plan(LLAMA, H100, **options)


def test_bad_amounts_are_named() -> None:
    for make in (
        lambda: Known(memory=0),
        lambda: Known(weights=-1),
        lambda: Known(activations=float("nan")),
        lambda: token_budget(1e9, 0),
        lambda: token_budget(-1, 1),
        lambda: contiguous(100, 101),
        lambda: contiguous(100, 0),
        lambda: paged(0),
        lambda: draft_layers(LLAMA, -1, 0),
        lambda: memory_plan(LLAMA, H100).max_sequences(-1),
        lambda: memory_plan(LLAMA, H100).max_sequences(0),
        lambda: knob_gains(LLAMA, H100, length=0),
        lambda: first_limit(memory_plan(LLAMA, H100), 0),
    ):
        with pytest.raises(InputError):
            make()
