"""Mixture of experts of one rank: who gets how many tokens, then two grouped GEMMs over the experts that got any."""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from roofline.errors import InputError
from roofline.timing.forms.base import (
    Array,
    Constant,
    Constants,
    DeviceSpec,
    Form,
    Key,
    Shape,
    bands_of,
    beyond_cache,
    pnorm,
    waves,
)

UNIFORM = -1.0  # `alpha` of independent uniform routing; 0 = balanced, > 0 = power law with that exponent
SERVED = -2.0  # `alpha` of real prompts: independent, to experts of unequal popularity
WEIGHTS = {  # bytes per weight, peak used, bytes per activation
    "bf16": (2.0, "bf16", 2.0),
    "fp16": (2.0, "bf16", 2.0),
    "fp8": (1.0, "fp8", 1.0),
    "fp8_block": (1.0 + 4 / 128**2, "fp8", 1.0),
    "nvfp4": (0.5625, "fp4", 0.5625),
    "w8a16": (1.0, "bf16", 2.0),
    "w4a16": (0.53125, "bf16", 2.0),
    "w4a16_mxfp4": (0.53125, "bf16", 2.0),
    "w4a8_mxfp4": (0.53125, "fp8", 1.0),
    "w4afp8": (0.53125, "fp8", 1.0),
}
_TILES = (8.0, 16.0, 32.0, 64.0, 128.0)
_WIDTH = 128.0
_DRAWS = 8
_HALVINGS = 80
# Standard deviation of the log of an expert's popularity under real prompts: measured routers are not uniform, and served models of
# the fit rows, configurations left out in turn, are off by 5.0 % with 1 and by 5.9 % with 0, where every expert is as popular.
_POPULARITY = 1.0
_MOST_EXPERTS = 1 << 16  # their loads are drawn one by one


def formats(dtype: str) -> tuple[float, str, float]:
    """(bytes per weight, peak used, bytes per activation) of an MoE dtype. Raises InputError with the known names."""
    found = WEIGHTS.get(dtype)
    if found is None:
        raise InputError(f"unknown MoE dtype {dtype!r}; known: {', '.join(WEIGHTS)}")
    return found


def _expert_loads(tokens: int, top_k: int, experts: int, alpha: float) -> Array:
    """Tokens of each expert, shape (draws, experts), in random order so that ranks see different shares."""
    rng = np.random.default_rng(experts)
    routed = tokens * top_k
    if alpha == 0.0:
        return np.full((1, experts), routed / experts)
    if alpha == SERVED:
        return np.stack([rng.binomial(tokens, rng.permutation(_chances(top_k, experts))) for _ in range(_DRAWS)]).astype(np.float64)
    if alpha < 0.0:
        return rng.binomial(tokens, top_k / experts, size=(_DRAWS, experts)).astype(np.float64)
    low, high = (1.0, 0.8 * tokens) if routed > experts else (0.01, 2.0)
    alpha = alpha if alpha != 1.0 else 1.0 + 1e-6  # where the formula has a hole and the routing none
    u = (np.arange(experts) + 0.5) / experts
    x = ((high ** (1.0 - alpha) - low ** (1.0 - alpha)) * u + low ** (1.0 - alpha)) ** (1.0 / (1.0 - alpha))
    share = _rounded(np.minimum(x / x.sum() * routed, tokens), routed)
    return np.stack([rng.permutation(share) for _ in range(_DRAWS)])


@lru_cache(maxsize=256)
def _chances(top_k: int, experts: int) -> Array:
    """Chance that a token picks each expert, least popular first: 1 − exp(−c·w) for log-normal w, with c such that top_k are picked."""
    if top_k >= experts:
        return np.ones(experts)
    weights = np.exp(_POPULARITY * np.array([NormalDist().inv_cdf((i + 0.5) / experts) for i in range(experts)]))
    low, high = 0.0, float(experts) / float(weights[0])  # the least popular expert picked almost for sure
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if -np.expm1(-middle * weights).sum() < top_k else (low, middle)
    return np.asarray(-np.expm1(-high * weights))


def _rounded(share: Array, total: int) -> Array:
    """Whole tokens that still add up to `total`: what rounding lost goes, or is taken, one by one from the busiest expert on."""
    whole = np.rint(share)
    order = np.argsort(-share, kind="stable")
    missing = int(total - whole.sum())
    if missing < 0:
        order = order[whole[order] > 0][::-1]
    each, rest = divmod(abs(missing), len(order))
    whole[order] += np.sign(missing) * each
    whole[order[:rest]] += np.sign(missing)
    return np.asarray(np.maximum(whole, 0.0))


@lru_cache(maxsize=1 << 17)
def rank_load(tokens: int, top_k: int, experts: int, ep: int, alpha: float) -> tuple[float, ...]:
    """(routed tokens, experts with any token, padded tokens at each of 5 tile heights) of the busiest of `ep` ranks.

    Averaged over a few fixed draws; balanced routing gives min(experts, tokens·top_k) experts one share each.
    """
    loads = _expert_loads(tokens, top_k, experts, alpha)
    local = max(1, experts // ep)
    ranks = loads[:, : local * (experts // local)].reshape(loads.shape[0], -1, local)
    busiest = ranks.sum(axis=2).argmax(axis=1)
    mine = ranks[np.arange(loads.shape[0]), busiest]
    routed = float(mine.sum(axis=1).mean())
    if alpha == 0.0:
        mine = np.maximum(np.ceil(mine), 1.0) * (np.arange(local) < max(1.0, np.ceil(tokens * top_k / experts * local)))
    active = float((mine > 0).sum(axis=1).mean())
    padded = [float((np.ceil(mine / t) * t).sum(axis=1).mean()) for t in _TILES]
    return (max(routed, 1.0), max(active, 1.0), *padded)


def prepare(shape: Shape) -> Shape:
    """The shape with a column `loads` (rows, 7), so that many evaluations of the same rows route their tokens once."""
    return {**shape, "loads": loads(shape).T}


def loads(shape: Shape) -> Array:
    """rank_load of every row, shape (7, rows); rows with the same routing are computed once."""
    if "loads" in shape:
        return shape["loads"].T
    columns = [shape[name].astype(np.float64) for name in ("tokens", "top_k", "experts", "ep", "alpha")]
    known, index = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    table = np.array([rank_load(int(t), int(k), int(e), int(ep), float(a)) for t, k, e, ep, a in known])
    return np.asarray(table[index.reshape(-1)].T)


def _constants(key: Key) -> tuple[Constant, ...]:
    formats(key.dtype)
    return (
        Constant("ec", 0.5, 0.03, 1.5),
        Constant("em", 0.85, 0.1, 1.5),
        Constant("t0_us", 26.0, 2.0, 150.0),
        Constant("p", 2.0, 1.0, 8.0),
        Constant("wq", 0.2, 0.0, 1.2, log=False),
        Constant("bsm", 4.0, 0.3, 20.0),
        Constant("ts_us", 1.0, 0.02, 20.0),
        Constant("hot", 1.2, 1.0, 8.0),
        Constant("ca_ns", 0.1, 0.001, 10.0),
        Constant("cs_ns", 0.05, 0.001, 10.0),
        Constant("cb", 2.0, 0.1, 10.0),
        Constant("cd", 2.0, 0.01, 20.0),
    )


def _grouped_gemms(shape: Shape, padded: Array, key: Key, spec: DeviceSpec, c: Constants) -> Array:
    """Time of both grouped GEMMs at the best tile height of 16 … 128 tokens, s; tiles are 128 columns wide."""
    weight_bytes, compute, activation_bytes = formats(key.dtype)
    hidden, inner = shape["hidden"], shape["intermediate"] / shape["tp"]
    up = (shape["matrices"] - 1.0) * inner
    sm = spec.sm_count
    rate, feed = c["ec"] * spec.peak(compute) / sm, c["bsm"] * spec.bandwidth / sm
    best: Array = np.full(hidden.shape, np.inf)
    for height, rows in zip(_TILES[1:], padded[1:], strict=True):
        per_k = max(2.0 * height * _WIDTH / rate, (height * activation_bytes + _WIDTH * weight_bytes) / feed)
        time: Array = np.zeros(hidden.shape)
        for n, k in ((up, hidden), (hidden, inner)):
            time += waves(rows / height * np.ceil(n / _WIDTH) / sm, c["wq"]) * (k * per_k + c["ts_us"] * 1e-6)
        best = np.minimum(best, time)
    return best


def seconds(shape: Shape, key: Key, spec: DeviceSpec, c: Constants, hot: bool = True) -> Array:
    """Expected time of the routed experts of the busiest rank, s: permute, both grouped GEMMs, activation, finalise. No router.

    shape: tokens (all ranks'), hidden, intermediate, matrices (3 gated, 2 plain), top_k, experts, tp, ep,
    alpha (routing: 0 balanced, −1 uniform, −2 as real prompts, else power law with that exponent).
    """
    hidden, inner, tokens = shape["hidden"], shape["intermediate"] / shape["tp"], shape["tokens"]
    routed, active, *padded = loads(shape)
    compute = _grouped_gemms(shape, np.asarray(padded), key, spec, c)
    weights: Array = shape["matrices"] * hidden * inner * active * formats(key.dtype)[0]
    if hot and spec.l2_bytes:
        hit = np.clip(1.0 - (weights / spec.l2_bytes - 0.15) / 0.25, 0.0, 1.0)
        weights = weights * (1.0 - hit + hit / c["hot"])
    gemms = pnorm(compute, weights / (c["em"] * spec.bandwidth), c["p"])
    moved = c["cd"] * 4.0 * tokens * hidden + c["cb"] * 2.0 * routed * (2.0 * hidden + 3.0 * inner)
    sorting = c["ca_ns"] * 1e-9 * routed + c["cs_ns"] * 1e-9 * tokens * shape["top_k"]
    return np.asarray(c["t0_us"] * 1e-6 + gemms + sorting + moved / spec.bandwidth)


def bound(shape: Shape, key: Key, spec: DeviceSpec, hot: bool) -> Array:
    """Hard bound, s: an even share of the FLOPs / dense peak, and the fewest experts that any routing reads / bandwidth."""
    weight_bytes, compute, _ = formats(key.dtype)
    inner = shape["intermediate"] / shape["tp"]
    expert = shape["matrices"] * shape["hidden"] * inner
    flops = 2.0 * expert * shape["tokens"] * shape["top_k"] / shape["ep"]
    moved = expert * np.maximum(1.0, shape["top_k"] / shape["ep"]) * weight_bytes
    return np.maximum(flops / spec.peak(compute), beyond_cache(moved, spec, hot) / spec.bandwidth)


def _impossible(shape: Shape) -> dict[str, NDArray[np.bool_]]:
    return {
        "top_k: is more than experts": shape["top_k"] > shape["experts"],
        "ep: is more than experts": shape["ep"] > shape["experts"],
        f"experts: must be at most {_MOST_EXPERTS:,}": shape["experts"] > _MOST_EXPERTS,
    }


def _band(shape: Shape, key: Key) -> NDArray[np.int64]:
    return bands_of(shape["tokens"], (16.0, 256.0, 2048.0))


MOE = Form(
    family="moe",
    columns=("tokens", "hidden", "intermediate", "matrices", "top_k", "experts", "tp", "ep", "alpha"),
    keys=("software", "dtype"),
    constants=_constants,
    seconds=seconds,
    bound=bound,
    band=_band,
    bands=("T<=16", "T<=256", "T<=2048", "T>2048"),
    site=("hidden", "intermediate", "top_k", "experts"),
    prepare=prepare,
    impossible=_impossible,
)
