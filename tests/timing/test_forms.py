"""Kernel forms against loops and limits that share no code with them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.errors import InputError
from roofline.timing.correction import basis, log_correction
from roofline.timing.forms import FORMS, DeviceSpec, Key, form
from roofline.timing.forms.moe import SERVED, UNIFORM, rank_load
from roofline.timing.forms.prefill_attention import pairs

SPEC = DeviceSpec("test", "hopper", {"bf16": 1e15, "fp8": 2e15}, 3e12, 132.0, 50e6, 1.8e9, 450e9)
KEYS = {
    "gemm": Key("vllm", "bf16", form="B min"),
    "decode_attention": Key("vllm", kernel="fa3", kv_dtype="bf16"),
    "prefill_attention": Key("vllm", "bf16", "fa3", "bf16"),
    "mla_decode": Key("sglang", kernel="trtllm_mla", kv_dtype="bf16"),
    "mla_prefill": Key("sglang", kernel="trtllm_mla", kv_dtype="bf16"),
    "moe": Key("vllm", "bf16"),
    "collective": Key("nccl", "fp16", "all_reduce"),
}
SHAPES = {
    "gemm": {"m": 64, "n": 4096, "k": 4096},
    "decode_attention": {"batch": 8, "context": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "window": 0},
    "prefill_attention": {
        "batch": 1, "new_tokens": 2048, "past_tokens": 0, "heads": 32, "kv_heads": 8, "head_dim": 128, "window": 0,
    },
    "mla_decode": {"batch": 16, "context": 4096, "heads": 16},
    "mla_prefill": {"batch": 1, "new_tokens": 2048, "heads": 16},
    "moe": {
        "tokens": 256, "hidden": 4096, "intermediate": 1536, "matrices": 3, "top_k": 8, "experts": 128, "tp": 1, "ep": 4, "alpha": 0,
    },
    "collective": {"ranks": 8, "bytes": 1 << 24},
}  # fmt: skip
SIZE = {
    "gemm": "m", "decode_attention": "context", "prefill_attention": "new_tokens", "mla_decode": "context",
    "mla_prefill": "new_tokens", "moe": "tokens", "collective": "bytes",
}  # fmt: skip


def arrays(family: str, **changed: float) -> dict[str, np.ndarray]:
    return {name: np.array([float(value)]) for name, value in {**SHAPES[family], **changed}.items()}


def defaults(family: str) -> dict[str, float]:
    return {c.name: c.start for c in FORMS[family].constants(KEYS[family])}


@pytest.mark.parametrize("family", FORMS)
def test_start_constants_lie_inside_their_ranges(family: str) -> None:
    for constant in FORMS[family].constants(KEYS[family]):
        assert constant.low <= constant.start <= constant.high


@pytest.mark.parametrize("family", FORMS)
def test_more_work_takes_longer_in_the_long_run(family: str) -> None:
    kind, c = FORMS[family], defaults(family)
    size = SHAPES[family][SIZE[family]]
    times = [kind.seconds(arrays(family, **{SIZE[family]: size * s}), KEYS[family], SPEC, c, True)[0] for s in (1, 16, 256)]
    assert times[0] < times[1] < times[2]


@pytest.mark.parametrize("family", FORMS)
def test_hot_bound_is_never_above_the_cold_one(family: str) -> None:
    kind = FORMS[family]
    assert kind.bound(arrays(family), KEYS[family], SPEC, True)[0] <= kind.bound(arrays(family), KEYS[family], SPEC, False)[0]


@pytest.mark.parametrize("family", FORMS)
def test_rows_are_independent(family: str) -> None:
    kind, c, name = FORMS[family], defaults(family), SIZE[family]
    sizes = [SHAPES[family][name] * s for s in (1, 2, 8)]
    together = {n: np.repeat(v, 3) for n, v in arrays(family).items()} | {name: np.array(sizes, dtype=float)}
    alone = [kind.seconds(arrays(family, **{name: s}), KEYS[family], SPEC, c, True)[0] for s in sizes]
    assert kind.seconds(together, KEYS[family], SPEC, c, True) == pytest.approx(alone, rel=1e-12)


def test_gemm_bound_by_hand() -> None:
    m, n, k = 64.0, 4096.0, 4096.0
    cold = FORMS["gemm"].bound(arrays("gemm"), KEYS["gemm"], SPEC, False)[0]
    assert cold == pytest.approx(max(2 * m * n * k / 1e15, (n * k * 2 + m * k * 2 + m * n * 2) / 3e12))


def test_gemm_takes_the_best_candidate_tile() -> None:
    c = defaults("gemm")
    best = math.inf
    m, n, k, sm = 64, 4096, 4096, 132
    for tm, tn in [(64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256), (256, 64), (256, 128)]:
        for split in (1, 2, 4, 8):
            w = math.ceil(m / tm) * math.ceil(n / tn) * split / sm
            per_k = max(2 * tm * tn / (c["ec"] * 1e15 / sm), (tm * 2 + tn * 2) / (c["bsm"] * 3e12 / sm), c["tk_ns"] * 1e-9)
            time = max(1.0, w * (math.ceil(w) / w) ** c["wq"]) * (k / split * per_k + c["ts_us"] * 1e-6)
            if split > 1:
                time += c["tsk_us"] * 1e-6 + 4 * split * m * n / 3e12
            best = min(best, time)
    memory = (n * k * 2 + m * k * 2 + 2 * m * n) / (c["em"] * 3e12)
    expected = c["t0_us"] * 1e-6 + (best ** c["p"] + memory ** c["p"]) ** (1 / c["p"])
    assert FORMS["gemm"].seconds(arrays("gemm"), KEYS["gemm"], SPEC, c, False)[0] == pytest.approx(expected)


@given(new=st.integers(1, 60), past=st.integers(0, 60), window=st.integers(0, 80))
def test_pairs_are_those_of_a_loop(new: int, past: int, window: int) -> None:
    counted = sum(min(past + i + 1, window) if window else past + i + 1 for i in range(new))
    assert pairs(np.array([float(new)]), np.array([float(past)]), np.array([float(window)]))[0] == counted


@given(
    tokens=st.integers(1, 3000),
    top_k=st.sampled_from([1, 4, 8]),
    ep=st.sampled_from([1, 4, 16]),
    alpha=st.sampled_from([1.01, 1.2, UNIFORM, SERVED, 0.0]),
)
def test_the_busiest_rank_gets_at_least_an_even_share(tokens: int, top_k: int, ep: int, alpha: float) -> None:
    routed, active, *padded = rank_load(tokens, top_k, 64, ep, alpha)
    assert routed >= tokens * top_k / ep * (0.6 if alpha < 0 else 0.999)
    assert 1 <= active <= 64 / ep
    assert padded == sorted(padded)
    assert padded[0] >= routed * 0.999 or alpha < 0


def test_power_law_routing_loses_no_token() -> None:
    for tokens in (1, 3, 17, 500):
        assert rank_load(tokens, 8, 64, 1, 1.2)[0] == pytest.approx(tokens * 8)


@pytest.mark.parametrize(("tokens", "top_k", "experts"), [(16, 4, 128), (64, 4, 128), (64, 8, 256)])
def test_real_prompts_read_the_experts_that_one_draw_after_the_other_picks(tokens: int, top_k: int, experts: int) -> None:
    """Every token picks top_k different experts, one after the other, each by its popularity: exp of a standard normal number."""
    rng, distinct = np.random.default_rng(7), []
    for _ in range(60):
        popularity = np.exp(rng.standard_normal(experts))
        picked = [rng.choice(experts, top_k, replace=False, p=popularity / popularity.sum()) for _ in range(tokens)]
        distinct.append(np.unique(picked).size)
    served, uniform = (rank_load(tokens, top_k, experts, 1, alpha)[1] for alpha in (SERVED, UNIFORM))
    assert served == pytest.approx(np.mean(distinct), rel=0.06)
    assert served < 0.9 * uniform


def test_real_prompts_may_pick_every_expert() -> None:
    for top_k in (7, 8):
        routed, active, *_ = rank_load(1000, top_k, 8, 1, SERVED)
        assert routed == pytest.approx(1000 * top_k, rel=0.02)
        assert active == 8


def test_the_residual_table_is_exact_at_its_knots_and_clamped_outside() -> None:
    kind, key = FORMS["gemm"], KEYS["gemm"]
    grid = kind.grid
    assert grid is not None
    percent = list(range(grid.size))
    at = {"m": np.array([2.0**7, 2.0**7]), "n": np.array([2.0**12, 2.0**12]), "k": np.array([2.0**16, 2.0**20])}
    index = (3 * 5 + 2) * 5 + 4  # knots 7 of m, 12 of n, 16 of k
    assert log_correction(kind, at, key, SPEC, percent) == pytest.approx([index / 100, index / 100])
    assert basis(kind, at, key, SPEC).sum(axis=1) == pytest.approx([1.0, 1.0])


def test_unknown_words_are_named() -> None:
    with pytest.raises(InputError, match="known: gemm"):
        form("gemmm")
    with pytest.raises(InputError, match="unknown GEMM dtype 'fp7'"):
        FORMS["gemm"].bound(arrays("gemm"), Key("vllm", "fp7"), SPEC, True)


def test_triton_multiplies_heads_of_the_next_power_of_two() -> None:
    kind, c = FORMS["prefill_attention"], {**defaults("prefill_attention"), "p": 12.0}
    wide = {name: arrays("prefill_attention", head_dim=name, new_tokens=32768) for name in (192, 256)}
    padded, plain = (Key("vllm", "bf16", kernel, "bf16") for kernel in ("vllm_triton_attn", "fa3"))

    def ratio(key: Key) -> float:
        return float(kind.seconds(wide[192], key, SPEC, c, True)[0] / kind.seconds(wide[256], key, SPEC, c, True)[0])

    assert ratio(padded) > 0.98  # queries, keys and values are still those of 192
    assert ratio(plain) < 0.8
