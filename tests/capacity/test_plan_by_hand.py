"""What is left for KV under each engine's rules, and the limits that follow, each sum on paper."""

from __future__ import annotations

import math
from typing import Any

import pytest

from roofline.capacity import (
    Addition,
    Known,
    LayerKind,
    MemoryPlan,
    Pool,
    Share,
    activation_peak,
    engine_rules,
    memory_plan,
    sglang_fraction,
)
from roofline.capacity.ranges import NOTHING, ByteRange
from roofline.errors import InputError
from roofline.ledger import Parallel, Precision, stage_weights
from roofline.profiles.catalog import load_hardware, load_model
from roofline.profiles.model import MLP, Attention, Extra, GatedDelta, Layer, Model
from tests.capacity.logs import GiB, device

ONE = Parallel()


def _model(order: str, **layers: Layer) -> Model:
    return Model(
        name="m", model_type="t", source="here", hidden_size=12, vocab_size=30, layers=layers, order=order, max_position_embeddings=100
    )


FULL = Layer(mixer=Attention(heads=4, kv_heads=2, head_dim=3))  # 2 heads · (3 + 3) · 2 bytes = 24 a token
LOCAL = Layer(mixer=Attention(heads=4, kv_heads=2, head_dim=3, window=5))
STATE = Layer(mixer=GatedDelta(heads=4, key_heads=2, key_dim=3, value_dim=5))  # 4·3·5·4 = 240 bytes, 32 channels of 2 bytes


@pytest.mark.parametrize(("text", "number"), [("0.11", (0, 11)), ("v0.6.4.post1", (0, 6)), ("12.34", (12, 34))])
def test_versions(text: str, number: tuple[int, int]) -> None:
    assert engine_rules("vllm", text).version == number


def test_engines_that_are_not_known() -> None:
    with pytest.raises(InputError, match="unknown engine 'tgi'; known: vllm, sglang, trtllm, llamacpp, reference, plain"):
        engine_rules("tgi")
    with pytest.raises(InputError, match=r"engine version 'newest' has no number like 0\.11"):
        engine_rules("vllm", "newest")
    assert engine_rules("sglang", "0.5 v0").v0 is False
    assert engine_rules("vllm", "0.8.5 v0").v0 is engine_rules("vllm", "0.7").v0 is True


def _plan(
    engine: str = "vllm", known: Known | None = None, model: Model | None = None, parallel: Parallel = ONE, **options: Any
) -> MemoryPlan:
    return memory_plan(
        model or _model("2*a", a=FULL), device(1e6), parallel, engine=engine, known=known or Known(10_000, 2_000, 500, 300),
        **{"utilization": 0.8, "max_model_len": 40} | options,
    )  # fmt: skip


def test_what_is_left_of_ten_thousand_bytes() -> None:
    """Weights 2,000, activations 500, runtime 300; 48 bytes a token."""
    total = _plan()
    assert (total.total_bytes, total.usable_bytes, total.kv) == (10_000, 8000, ByteRange.exactly(8000 - 2800))
    assert total.pool == Pool(5200.0, (Share(48.0 * 16, 16),), 1)
    assert (total.kv_tokens, total.kv_bytes, total.activation_bytes, total.runtime_bytes) == (6 * 16, 5200, 500, 300)
    assert total.max_sequences() == math.floor((5200 - 768) / (3 * 768)) == 1
    assert (total.largest_model_len, total.fits, total.shortfall_bytes) == (40, True, 0)
    static = _plan("sglang")
    assert (static.usable_bytes, static.kv.expected) == (0.8 * 9700, 0.8 * 9700 - 2000)
    tight = _plan("sglang", utilization=0.99)
    assert (tight.usable_bytes, tight.kv.expected) == (9200, 7200)
    free = _plan("trtllm")
    assert (free.kv.expected, free.usable_bytes) == (0.8 * 7200, 2800 + 0.8 * 7200)
    none = _plan("trtllm", Known(2_000, 2_000, 500, 300))
    assert (none.kv.expected, none.kv_bytes, none.usable_bytes) == (-800, 0, 2000)
    assert _plan("plain", Known(10_000, 2_000)).kv.expected == 6000


def test_what_is_missing() -> None:
    """Forty tokens take three blocks of 768, and one block holds none."""
    small = _plan(known=Known(6_000, 2_000, 500, 300))
    assert small.kv.expected == 2000
    assert small.shortfall_bytes == 4 * 768 - 2000
    assert not small.fits
    assert small.largest_model_len == 16
    assert small.required_tokens == 40
    exact = _plan(known=Known(10_000, 8_000 - 4 * 768 - 800, 500, 300))
    assert (exact.shortfall_bytes, exact.fits, exact.max_sequences()) == (0, True, 1)
    assert _plan("sglang", Known(6_000, 2_000, 500, 300)).shortfall_bytes == 0
    unasked = _plan(known=Known(6_000, 2_000, 500, 300), max_model_len=None)
    assert (unasked.required_tokens, unasked.fits, unasked.settings.max_model_len) == (1, True, 100)
    assert any("one sequence of max_model_len 100 does not fit: set it to 16 or less" in note for note in unasked.assumptions)


def test_a_model_that_caches_nothing() -> None:
    model = _model("2*a", a=Layer(ffn=MLP(intermediate=4)))
    plan = _plan(model=model)
    assert (plan.kv_tokens, plan.max_sequences(), plan.largest_model_len, plan.fits, plan.shortfall_bytes) == (0, 0, 40, True, 0)
    full = _plan(known=Known(3_000, 2_000, 500, 300), model=model)
    assert (full.largest_model_len, full.fits, full.shortfall_bytes) == (0, False, 400)
    assert full.kv_tokens_bounds == (0, 0)
    assert _plan(known=Known(3_500, 2_000, 500, 300), model=model).largest_model_len == 40  # nothing is left, and nothing needed


def test_ends_of_what_is_left() -> None:
    """What is charged at its high end leaves the low end, and the other way round."""
    plan = memory_plan(_model("2*a", a=FULL), device(1e11), utilization=0.5, max_model_len=40)
    visible = 1e11 - 0.45 * GiB
    for kv, activation, runtime in (
        (plan.kv.expected, plan.activation.expected, plan.runtime.expected),
        (plan.kv.low, plan.activation.high, plan.runtime.high),
        (plan.kv.high, plan.activation.low, plan.runtime.low),
    ):
        assert kv == pytest.approx(0.5 * visible - plan.weight_bytes - activation - runtime, rel=1e-12)
    assert plan.kv.low < plan.kv.expected < plan.kv.high
    low, high = plan.max_sequences_range(40)
    assert low == Pool(plan.kv.low, plan.pool.shares, 1).sequences(40)
    assert high == Pool(plan.kv.high, plan.pool.shares, 1).sequences(40)
    notes = "\n".join(plan.assumptions)
    assert f"device memory as marketed: the driver reports a little less: {1e11 / GiB:.2f} GiB" in notes
    assert "the driver keeps 0.45 GiB of that for itself" in notes
    plain = memory_plan(_model("2*a", a=FULL), device(1e11), engine="plain", utilization=0.5)
    assert (plain.usable_bytes, plain.runtime, plain.activation) == (5e10, NOTHING, NOTHING)
    assert not any("the driver keeps" in note for note in plain.assumptions)


def test_windows_under_each_rule() -> None:
    """Four local layers to two full ones: full price 144 bytes a token; exactly, the local ones keep five positions."""
    model = _model("2*a + 4*b", a=FULL, b=LOCAL)
    old, new, exact = _plan(model=model, engine_version="0.8"), _plan(model=model), _plan("llamacpp", model=model)
    assert old.pool.shares == (Share(144.0 * 16, 16),)
    assert new.pool.shares == (Share(48.0 * 16, 16), Share(48.0 * 16, 16, 2, window=5))
    assert exact.pool.shares == (Share(48.0, 1), Share(96.0, 1, window=5))
    assert new.kv_bytes_per_token == 144
    assert new.kv_tokens_bounds == (math.floor(5200 / 2304) * 16, new.pool_windows_exact.tokens_at(40))
    assert new.pool_charged_full.shares == old.pool.shares
    assert (new.kv_tokens, new.printed_tokens) == (2 * 16, new.pool.tokens_at(40, new.settings.max_num_batched_tokens))
    assert exact.printed_tokens == exact.kv_tokens
    assert old.printed_tokens == old.pool.tokens() == 32
    for plan, words in ((old, "charged in full"), (new, "share one page pool by groups of layers"), (exact, "keep only their window")):
        assert any(f"layers with a window: {words} by this engine version" in note for note in plan.assumptions)
    assert not any("layers with a window" in note for note in _plan().assumptions)


def test_states_are_counted_at_the_longest_sequence() -> None:
    """vLLM puts states into pages, before 0.9 too; tokens are those in use when sequences of 40 fill the pool."""
    model = _model("2*a + 2*b", a=FULL, b=STATE)
    state = 240 + 3 * 32 * 2
    for version in ("0.8", "0.33"):
        plan = _plan(model=model, engine_version=version)
        assert plan.pool.shares == (Share(32 * 24.0 * 2, 32), Share(32 * 24.0 * 2, 1, 1, fixed=2))  # 432 bytes: 18 tokens, so 32
        assert plan.kv_tokens == plan.pool.tokens_at(40)
    older = _plan(model=model, engine_version="0.11")
    assert (older.printed_tokens, older.kv_tokens) == (5200 // 1536 // 3 * 32, older.pool.tokens_at(40))
    assert older.printed_tokens != older.kv_tokens
    sglang = _plan("sglang", model=model)
    assert sglang.printed_tokens == sglang.kv_tokens != sglang.pool.tokens()
    off = _plan(model=model, prefix_caching=False, spec_tokens=1)
    assert off.pool.shares[1].fixed == 2
    assert off.pool_windows_exact.shares[1] == Share(2 * (state + 32 * 2), 1, fixed=1)
    assert _plan("sglang", model=model).pool.shares == (Share(48.0, 1), Share(2 * state, 1, fixed=1))
    data = plan.as_dict()
    assert (data["request_fixed_bytes"], data["request_bytes_per_token"]) == (2 * 32 * 48, 48)


def test_stages_and_ranks() -> None:
    """Stage 0 holds the embedding and a loaded part beside the model, the last one the head and additions; the tightest answers."""
    model = _model("3*a", a=FULL).model_copy(
        update={"extras": (Extra(name="tower", bytes=600.0), Extra(name="mtp", bytes=9.0, loaded=False))}
    )
    layout = Parallel(tp=2, pp=2)
    known = Known(memory=10_000, activations=500, runtime=300)
    addition = Addition("draft", 111.0, (LayerKind(1, 12.0), LayerKind(1, 12.0, 5)))
    plan = _plan(known=known, model=model, parallel=layout, additions=(addition,), engine_version="0.33")
    first, last = (stage_weights(model, layout, stage=stage).bytes for stage in (0, 1))
    assert plan.weight_bytes_total == 2 * (first + 300 + last + 111)
    assert plan.stage == 1  # one layer of its own, one more of the draft and a window
    assert plan.weight_bytes == last + 111
    assert plan.kv_bytes_per_token == 3 * 12
    alone = _plan(known=known, model=model, parallel=layout)
    assert (alone.stage, alone.weight_bytes, alone.kv_bytes_per_token) == (0, first + 300, 2 * 12)
    assert any("loaded besides the language model: tower" in note for note in alone.assumptions)
    assert not any("mtp" in note for note in alone.assumptions)
    replicas = _plan(known=known, model=model, parallel=Parallel(tp=2, dp=3))
    assert replicas.weight_bytes_total == 6 * replicas.weight_bytes
    assert (replicas.kv_tokens_total, replicas.max_sequences(5)) == (3 * replicas.kv_tokens, 3 * replicas.pool.sequences(5))
    assert _plan(parallel=Parallel(tp=2, dcp=2)).pool.shares[0].block_tokens == 32


def test_measured_figures() -> None:
    for name, value, message in (
        ("memory", 0.5, "known memory must be finite and not negative, got 0.5"),
        ("runtime", -0.5, "known runtime must be finite"),
        ("weights", math.inf, "known weights must be finite"),
    ):
        with pytest.raises(InputError, match=message):
            Known(**{name: value})
    assert Known(memory=1.0, weights=0.0).weights == 0
    notes = "\n".join(_plan().assumptions)
    assert f"device memory as given: {10_000 / GiB:.2f} GiB" in notes
    assert "vllm 0.33: fraction 0.8 of the memory that CUDA reports" in notes
    assert "limits: max_model_len 40, max_num_batched_tokens" in notes
    assert "estimated" not in notes
    estimated = "\n".join(memory_plan(_model("a", a=FULL), device(1e11), engine_version="0.11").assumptions)
    assert "activation peak estimated: set by logits" in estimated
    assert "CUDA graphs (about 0.0 GiB) come out of the memory outside the fraction" in estimated
    assert "CUDA graphs" not in "\n".join(memory_plan(_model("a", a=FULL), device(1e11)).assumptions)
    assert "sglang: fraction" in "\n".join(memory_plan(_model("a", a=FULL), device(1e11), engine="sglang").assumptions)


def test_memory_shared_with_a_system() -> None:
    """100 GB: the system keeps 6 %, at least 2 GiB, at most 12 %; a fraction below what is left is not touched by it."""
    shared = device(1e11, unified_memory=True)
    model = _model("a", a=FULL)
    plan = memory_plan(model, shared, utilization=1.0)
    assert plan.usable_bytes == pytest.approx(0.94e11)
    for kv, activation, runtime, system in (
        (plan.kv.low, plan.activation.high, plan.runtime.high, 0.12e11),
        (plan.kv.high, plan.activation.low, plan.runtime.low, 2 * GiB),
    ):
        assert kv == pytest.approx(1e11 - system - plan.weight_bytes - activation - runtime, rel=1e-12)
    static = memory_plan(model, shared, engine="sglang", utilization=1.0)
    assert static.usable_bytes == pytest.approx(0.94e11 - static.activation_bytes - static.runtime_bytes)
    free = memory_plan(model, shared, engine="trtllm", utilization=0.5)
    assert free.kv.expected == pytest.approx(0.5 * (0.94e11 - free.activation_bytes - free.runtime_bytes - free.weight_bytes))
    assert any(f"unified memory: {0.06e11 / GiB:.1f} GiB kept for the operating system" in note for note in plan.assumptions)
    assert not any("unified" in note for note in memory_plan(model, shared, known=Known(memory=1e11)).assumptions)
    assert memory_plan(model, shared, known=Known(memory=1e11), utilization=1.0).usable_bytes == 1e11


def test_limits_that_are_given_or_follow_from_others() -> None:
    """Steps need no more tokens than all sequences together have; no more sequences run than a step has tokens."""

    def limits(**options: Any) -> tuple[int, int, int]:
        found = _plan(**{"max_model_len": None} | options).settings
        return found.max_model_len, found.max_num_batched_tokens, found.max_num_seqs

    assert limits() == (100, 2048, 256)
    assert limits(max_model_len=7) == (7, 256 * 7, 256)
    assert limits(max_num_seqs=3) == (100, 300, 3)
    assert limits(max_num_batched_tokens=50) == (100, 50, 50)
    assert limits(max_num_batched_tokens=50, max_num_seqs=80) == (100, 50, 80)
    assert limits(max_num_batched_tokens=5000, max_num_seqs=1) == (100, 5000, 1)
    unknown = _model("a", a=FULL).model_copy(update={"max_position_embeddings": None})
    assert limits(model=unknown) == (4096, 2048, 256)
    for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens"):
        assert limits(**{name: 1})[("max_model_len", "max_num_batched_tokens", "max_num_seqs").index(name)] == 1
        with pytest.raises(InputError, match=f"{name} must be at least 1, got 0"):
            _plan(**{name: 0})
    assert _plan(utilization=1.0).usable_bytes == 10_000
    with pytest.raises(InputError, match="above 0 and at most 1, got 0"):
        _plan(utilization=0)
    assert _plan(utilization=None).settings.utilization == 0.92


@pytest.mark.parametrize(
    ("gib", "chunk", "parallel", "reserved_gib"),
    [
        (16, 1000, Parallel(), (512 + 3072 + 16 + 128) / 1024),  # a small chunk counts as 2,048
        (60, 4096, Parallel(), (512 + 6144 + 512 + 128) / 1024),  # ten GiB are for more than 60
        (61, 2048, Parallel(), 10),
        (30, 2048, Parallel(tp=8, pp=8), (512 + 3072 + 160 + 128 * 64) / 1024),
        (80, 2048, Parallel(tp=4, pp=2), 10),
        (201, 16384, Parallel(tp=4, pp=2), (512 + 24576 + 1024 + 1024) / 1024),
    ],
)
def test_fraction_that_sglang_chooses(gib: float, chunk: int, parallel: Parallel, reserved_gib: float) -> None:
    assert sglang_fraction(gib * GiB, chunk, parallel) == round(1 - reserved_gib / gib, 3)


def test_a_mebibyte_more_in_the_reserve_is_noticed() -> None:
    """512 + 3,072 + 16 + 128 MiB of 4,144.6 leave 0.10052; one more would leave 0.10027, which rounds down."""
    assert sglang_fraction(4144.6 * 2**20, 2048, ONE) == 0.101


def test_a_device_smaller_than_what_sglang_keeps() -> None:
    with pytest.raises(InputError, match=r"SGLang's own reserve \(3.6 GiB\) is more than the device has"):
        sglang_fraction(3 * GiB, 2048, ONE)
    plan = memory_plan(load_model("llama-3.1-8b"), load_hardware("h100-sxm"), engine="sglang")
    assert plan.settings.utilization == sglang_fraction(plan.total_bytes - 0.45 * GiB, 8192, ONE)


def test_a_stage_without_layers_has_its_streams() -> None:
    """Two layers over four stages: the first has none. Two bytes, twelve wide: two streams at least, three expected, four at most."""
    found = activation_peak(
        _model("2*a", a=FULL), tokens=10, rows=1, logit_bytes=NOTHING, parallel=Parallel(pp=4), precision=Precision(), stage=0
    )
    assert (found.layers, found.logits) == (ByteRange(10 * 72.0, 10 * 48.0, 10 * 96.0), NOTHING)
