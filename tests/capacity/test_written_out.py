"""Defaults at their boundaries and sums of memory items, each written out from the engines' sources or by hand."""

from __future__ import annotations

import pytest

from roofline.capacity import engine_rules, first_limit, knob_gains, memory_plan
from roofline.capacity.activations import activation_peak, layer_width
from roofline.capacity.ranges import ByteRange
from roofline.capacity.runtime import cuda_graphs, driver_reserve, graph_sizes, non_torch, system_reserve
from roofline.capacity.settings import Settings, resolve_settings, sampled_rows, sglang_chunk, sglang_graph_batch
from roofline.ledger import Parallel, Precision
from roofline.profiles.catalog import load_hardware, load_model
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import MLA, MLP, Attention, Layer, MoE

GiB = 2**30
ONE = Parallel()
LLAMA, H100 = load_model("llama-3.1-8b"), load_hardware("h100-sxm")


def _device(memory: float, *, vendor: str = "NVIDIA", unified: bool = False, name: str = "other") -> Hardware:
    return H100.model_copy(update={"memory_bytes": memory, "vendor": vendor, "unified_memory": unified, "id": name})


@pytest.mark.parametrize(
    ("seqs", "budget", "drafts", "count"),
    [
        (1, 8192, 0, 2),  # 1, 2
        (2, 8192, 0, 3),  # 1, 2, 4
        (8, 8192, 0, 5),  # … 8, 16
        (8, 8192, 1, 7),  # … to 32
        (128, 8192, 0, 3 + 31 + 1),  # … 8 to 248 in steps of 8, and 256
        (1024, 8192, 0, 51),  # … and 272 to 512 in steps of 16: the 51 sizes of start-up logs
        (1024, 64, 0, 3 + 8),
    ],
)
def test_sizes_that_vllm_captures(seqs: int, budget: int, drafts: int, count: int) -> None:
    assert graph_sizes(engine_rules("vllm"), Settings(4096, budget, seqs, 0.9), 80 * GiB, ONE, drafts) == count


@pytest.mark.parametrize(("gib", "tp", "count"), [(24, 1, 6), (80, 1, 35), (80, 4, 51), (10, 1, 4)])
def test_sizes_that_sglang_captures(gib: int, tp: int, count: int) -> None:
    assert graph_sizes(engine_rules("sglang"), Settings(4096, 8192, 2048, 0.9), gib * GiB, Parallel(tp=tp)) == count


def test_graph_memory_is_per_size_and_layer_of_the_fullest_stage() -> None:
    settings = Settings(4096, 8192, 8, 0.9)
    for parallel, layers in ((ONE, 32), (Parallel(pp=3), 11)):
        found = cuda_graphs(engine_rules("vllm"), LLAMA, settings, 80 * GiB, parallel)
        assert (found.expected, found.low, found.high) == pytest.approx((0.25e6 * layers * 5, 0.1e6 * layers * 5, 0.5e6 * layers * 5))
    for name in ("llamacpp", "plain"):
        assert cuda_graphs(engine_rules(name), LLAMA, settings, 80 * GiB, ONE).high == 0


def test_what_the_driver_keeps() -> None:
    assert driver_reserve(_device(80e9)) == driver_reserve(_device(20e9 + 1)) == 0.45 * GiB
    assert driver_reserve(_device(16e9)) == driver_reserve(_device(20e9)) == 0.26 * GiB
    assert driver_reserve(_device(80e9, vendor="AMD")) == driver_reserve(_device(80e9, unified=True)) == 0


@pytest.mark.parametrize(
    ("memory", "vendor", "expected", "low", "high"),
    [
        (128e9, "NVIDIA", 0.06 * 128e9, 2 * GiB, 0.12 * 128e9),
        (24e9, "NVIDIA", 2 * GiB, 2 * GiB, 0.12 * 24e9),
        (3e9, "NVIDIA", 1.5e9, 1.5e9, 1.5e9),
        (36 * GiB, "Apple", 12 * GiB, 2 * GiB, 12 * GiB),
        (64 * GiB, "Apple", 16 * GiB, 2 * GiB, 16 * GiB),
        (3 * GiB, "Apple", 1 * GiB, 1 * GiB, 1 * GiB),
    ],
)
def test_what_the_system_keeps_of_unified_memory(memory: float, vendor: str, expected: float, low: float, high: float) -> None:
    found = system_reserve(_device(memory, vendor=vendor, unified=True))
    assert (found.expected, found.low, found.high) == pytest.approx((expected, low, high))
    assert system_reserve(_device(memory, vendor=vendor)).high == 0


def test_context_and_communication() -> None:
    one, several = non_torch(ONE), non_torch(Parallel(tp=2))
    assert (one.expected, one.low, one.high) == pytest.approx((0.15 * GiB, 0.02 * GiB, 0.6 * GiB))
    assert (several.expected, several.low, several.high) == pytest.approx((0.55 * GiB, 0.17 * GiB, 2.2 * GiB))
    assert non_torch(Parallel(pp=2)) == non_torch(Parallel(dp=2)) == several


@pytest.mark.parametrize(
    ("engine", "version", "gib", "length", "tokens", "sequences"),
    [
        ("vllm", "0.11", 69.9, 8192, 2048, 256), ("vllm", "0.11", 70, 8192, 8192, 1024), ("vllm", "0.11", 159.9, 8192, 8192, 1024),
        ("vllm", "0.11", 160, 8192, 16384, 1024), ("vllm", "0.6.4", 80, 32768, 32768, 256), ("vllm", "0.6.4", 80, 32769, 2048, 256),
        ("vllm", "0.6.4", 80, 1000, 2048, 256), ("sglang", None, 19.9, 8192, 2048, 2048), ("sglang", None, 20, 8192, 4096, 2048),
        ("sglang", None, 60, 8192, 8192, 2048), ("sglang", None, 160, 8192, 16384, 2048), ("trtllm", None, 80, 8192, 8192, 2048),
        ("llamacpp", None, 80, 8192, 512, 4), ("reference", None, 80, 8192, 2048, 256), ("plain", None, 80, 8192, 2048, 256),
    ],
)  # fmt: skip
def test_limits_of_each_engine(engine: str, version: str | None, gib: float, length: int, tokens: int, sequences: int) -> None:
    device = _device(gib * GiB)
    found = resolve_settings(engine_rules(engine, version), LLAMA, device, gib * GiB, ONE, max_model_len=length, utilization=0.9)
    assert (found.max_num_batched_tokens, found.max_num_seqs) == (tokens, sequences)


def test_small_and_special_devices() -> None:
    for device in (_device(80 * GiB, name="a100-sxm-80gb"), _device(128 * GiB, unified=True)):
        found = memory_plan(LLAMA, device, max_model_len=8192).settings
        assert (found.max_num_batched_tokens, found.max_num_seqs) == (2048, 256)


@pytest.mark.parametrize(("gib", "chunk"), [(19, 2048), (20, 4096), (59, 4096), (60, 8192), (159, 8192), (160, 16384)])
def test_sglang_chunks(gib: int, chunk: int) -> None:
    assert sglang_chunk(gib * GiB) == chunk


@pytest.mark.parametrize(
    ("gib", "few", "many"), [(19, 8, 8), (20, 24, 80), (34, 24, 80), (35, 32, 160), (59, 32, 160), (60, 256, 512), (160, 512, 512)]
)
def test_sglang_graph_batches(gib: int, few: int, many: int) -> None:
    assert [sglang_graph_batch(gib * GiB, tp) for tp in (1, 3, 4, 8)] == [few, few, many, many]


def test_rows_whose_logits_are_alive() -> None:
    def rows(engine: str, seqs: int, budget: int, drafts: int = 0) -> int:
        return sampled_rows(engine_rules(engine), Settings(4096, budget, seqs, 0.9), 80 * GiB, ONE, drafts)

    assert (rows("vllm", 100, 8192), rows("vllm", 100, 8192, 3), rows("vllm", 100, 64)) == (100, 400, 64)
    assert (rows("llamacpp", 4, 512), rows("sglang", 2048, 8192), rows("sglang", 100, 8192)) == (512, 256, 100)


def test_engines_by_version() -> None:
    def of(version: str) -> tuple[object, ...]:
        rules = engine_rules("vllm", version)
        return rules.utilization, rules.graphs_charged, rules.prints_concurrency, rules.windows, rules.v0, rules.logit_bytes.expected

    assert of("0.7.3") == (0.9, False, False, "full", True, 38.3)
    assert of("0.8.5") == (0.9, False, False, "full", False, 38.3)
    assert of("0.8.5 (V0)") == (0.9, False, False, "full", True, 38.3)
    assert of("0.9.0") == of("0.19.1") == (0.9, False, False, "grouped", False, 38.3)
    assert of("0.20.0") == (0.92, False, False, "grouped", False, 14.0)
    assert of("0.21.0") == of("0.33") == (0.92, True, True, "grouped", False, 14.0)
    assert engine_rules("vllm").version == (0, 33)
    assert engine_rules("sglang").version == (999, 0)
    sorting, plain = engine_rules("vllm", "0.11").logit_bytes, engine_rules("vllm").logit_bytes
    assert (sorting.low, sorting.high, plain.low, plain.high) == (14.0, 46.0, 6.0, 38.3)


@pytest.mark.parametrize(
    ("engine", "fraction", "share", "block", "windows", "logits", "graphs", "null"),
    [
        ("vllm", "total", 0.92, 16, "grouped", (14.0, 6.0, 38.3), True, 1),
        ("sglang", "static", None, 1, "full", (14.0, 6.0, 38.3), False, 0),
        ("trtllm", "free", 0.9, 32, "exact", (6.0, 4.0, 14.0), True, 0),
        ("llamacpp", "total", 1.0, 1, "exact", (4.0, 4.0, 8.0), False, 0),
        ("reference", "total", 0.9, 16, "full", (10.0, 6.0, 14.0), True, 1),
        ("plain", "total", 0.9, 1, "full", (14.0, 6.0, 38.3), False, 0),
    ],
)
def test_rules_of_each_engine(
    engine: str, fraction: str, share: float, block: int, windows: str, logits: tuple[float, ...], graphs: bool, null: int
) -> None:
    rules = engine_rules(engine)
    assert (rules.fraction, rules.utilization, rules.block_tokens, rules.windows) == (fraction, share, block, windows)
    assert (rules.logit_bytes.expected, rules.logit_bytes.low, rules.logit_bytes.high) == logits
    assert (rules.graphs_charged, rules.null_blocks, rules.estimates) == (graphs, null, engine != "plain")
    assert not rules.v0


def test_widths_of_attention() -> None:
    grouped = Layer(mixer=Attention(heads=8, kv_heads=4, head_dim=16), ffn=None)
    for tp in (1, 2):
        q, kv = 8 * 16 // tp, 4 * 16 // tp
        assert layer_width(grouped, 100, Parallel(tp=tp)).expected == q + 2 * kv + q
    latent = MLA(heads=8, q_lora_rank=24, kv_lora_rank=32, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=12)
    for tp in (1, 2):
        per_head = 2 * (10 + 6) + 10 + 3 * 12
        assert layer_width(Layer(mixer=latent, ffn=None), 100, Parallel(tp=tp)).expected == 8 // tp * per_head + (32 + 6) + 24
    direct = latent.model_copy(update={"q_lora_rank": None})
    assert layer_width(Layer(mixer=direct, ffn=None), 100, ONE).expected == 8 * (2 * (10 + 6) + 10 + 3 * 12) + (32 + 6)


def test_widths_of_feed_forward_parts() -> None:
    for gated, copies in ((True, 3), (False, 2)):
        assert layer_width(Layer(mixer=None, ffn=MLP(intermediate=64, gated=gated)), 100, Parallel(tp=2)).expected == 32 * copies
    experts = MoE(experts=8, top_k=2, intermediate=40, shared_intermediate=20)
    shared, routed = 20 * 3 + 100, 2 * (40 * 3 + 100)
    alone = layer_width(Layer(mixer=None, ffn=experts), 100, ONE)
    assert (alone.expected, alone.low, alone.high) == (shared + routed, shared + routed, shared + routed)
    spread = layer_width(Layer(mixer=None, ffn=experts), 100, Parallel(dp=4, ep=4))
    assert (spread.expected, spread.low, spread.high) == (shared + routed, shared + routed, shared + 4 * routed)
    plain = MoE(experts=8, top_k=2, intermediate=40, gated=False)
    assert layer_width(Layer(mixer=None, ffn=plain), 100, ONE).expected == 2 * (40 * 2 + 100)


def test_the_peak_is_of_layers_or_of_logits() -> None:
    given = {"model": LLAMA, "tokens": 1000, "parallel": ONE, "precision": Precision(), "logit_bytes": ByteRange(14.0, 6.0, 38.3)}
    few = activation_peak(rows=1, **given)
    stream, wide = 4096 * 2, 3 * 14336 * 2
    assert few.layers.expected == 1000 * (3 * stream + wide)
    assert few.layers.low == pytest.approx(1000 * (2 * stream + 0.6 * wide))
    assert few.layers.high == pytest.approx(1000 * (4 * stream + 1.25 * wide))
    assert few.logits.expected == 1001 * stream + 14.0 * 128256
    assert few.widest == "layers"
    assert few.total.high == pytest.approx(few.layers.high + 0.3 * GiB)
    many = activation_peak(rows=1000, **given)
    assert many.widest == "logits"
    assert many.total.expected == 2000 * stream + 14.0 * 1000 * 128256
    first = activation_peak(rows=1000, stage=0, **given | {"parallel": Parallel(pp=2)})
    assert first.logits.high == 0
    assert activation_peak(rows=1000, stage=1, **given | {"parallel": Parallel(pp=2)}).logits == many.logits


def test_totals_are_over_all_gpus() -> None:
    plan = memory_plan(LLAMA, H100, Parallel(tp=2, dp=2))
    assert plan.kv_bytes_total == 4 * plan.kv_bytes
    assert plan.weight_bytes_total == pytest.approx(4 * plan.weight_bytes)
    assert plan.kv_tokens_total == 2 * plan.kv_tokens
    low, high = plan.kv_tokens_range
    assert low < plan.kv_tokens < high
    data = plan.as_dict()
    assert (data["kv_bytes_low"], data["kv_bytes_high"]) == (plan.kv.low, plan.kv.high)
    assert (data["activation_bytes_low"], data["activation_bytes_high"]) == (plan.activation.low, plan.activation.high)
    assert (data["runtime_bytes_low"], data["runtime_bytes_high"]) == (plan.runtime.low, plan.runtime.high)
    assert data["request_bytes_per_token"] == 2 * 32 * 4 * 128 * 2


def test_knobs_at_their_ends() -> None:
    def knobs(precision: Precision = Precision(), length: int = 1280, **options: object) -> set[str]:  # noqa: B008 - frozen
        return {gain.knob + (gain.change.split()[0] if gain.knob == "weights" else "") for gain in
                knob_gains(LLAMA, H100, ONE, precision, length=length, **options)}  # fmt: skip

    assert "utilization" not in knobs(utilization=1.0)
    assert "utilization" in knobs(utilization=0.995)
    assert "max_num_batched_tokens" not in knobs(max_num_batched_tokens=512)
    assert "max_num_batched_tokens" in knobs(max_num_batched_tokens=513)
    assert "max_num_seqs" not in knobs(max_num_seqs=1)
    assert "max_num_seqs" in knobs(max_num_seqs=2)
    assert "length" not in knobs(length=1)
    assert "length" in knobs(length=2)
    assert {"weightsfp8", "weightsint4"} <= knobs()
    assert {knob for knob in knobs(Precision(weights="int8")) if knob.startswith("weights")} == {"weightsint4"}
    assert "kv_dtype" not in knobs(Precision(kv="fp8"))


def test_the_cap_binds_when_it_is_not_above_what_fits() -> None:
    held = memory_plan(LLAMA, H100, max_num_seqs=1000).max_sequences(2048)
    assert first_limit(memory_plan(LLAMA, H100, max_num_seqs=100), 2048)[0] == "max_num_seqs"
    assert held > 100
    assert first_limit(memory_plan(LLAMA, load_hardware("rtx-4090")), 60_000)[0] == "length"
    assert first_limit(memory_plan(load_model("llama-3.1-70b"), H100), 1)[0] == "weights"
