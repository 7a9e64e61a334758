"""Attention: prefill over lengths, decode over contiguous and paged caches, and the naive form that stores its scores."""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from microbench.device import DTYPES, Device, attention_backends
from microbench.measure import Case, Trial
from microbench.ops import Heads, Kept, attention_ops, relative_error
from roofline.batch import Batch
from roofline.ledger import Op

BLOCK = 16  # tokens of a page
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 3e-3}


def prefill(
    batch: int, tokens: int, of: Heads, dtype: str, *, kernel: str = "flash", causal: bool = True, cold: bool = True, op: Op | None = None
) -> Case:
    """`tokens` prompt tokens of each sequence attend to each other. kernel: the backend of scaled_dot_product_attention."""
    shape: dict[str, int | str] = {"batch": batch, "new_tokens": tokens, "past_tokens": 0, **of.shape, "window": 0, "kernel": kernel}
    if not causal:
        shape["causal"] = 0
    (counted,) = [op] if op else attention_ops(Batch.prefill(batch, tokens), of, dtype, causal=causal)

    def build(d: Device) -> Trial:
        attention_backends(kernel)  # its context manager would cost microseconds in each call
        q = d.take(DTYPES[dtype], batch, of.heads, tokens, of.head_dim)
        k, v = (d.take(DTYPES[dtype], batch, of.kv_heads, tokens, of.head_dim) for _ in range(2))
        return _trial(q, k, v, causal)

    return Case("prefill_attention", shape, dtype, cold, counted, build, TOLERANCE[dtype])


def decode(batch: int, context: int, of: Heads, dtype: str, *, paged: bool = False, cold: bool = True, op: Op | None = None) -> Case:
    """One new token of each sequence attends to `context` cached positions and itself.

    paged: the cache lies in blocks of 16 tokens in random order; they are gathered and then attended to, as a CPU engine does
    it. The bytes counted are those of the attention, not of the gathered copy.
    """
    kernel = "paged_gather" if paged else "flash"
    shape: dict[str, int | str] = {"batch": batch, "context": context, **of.shape, "window": 0, "kv_dtype": dtype, "kernel": kernel}
    (counted,) = [op] if op else attention_ops(Batch.decode(batch, context), of, dtype)
    length = context + 1

    def build(d: Device) -> Trial:
        attention_backends("flash")
        q = d.take(DTYPES[dtype], batch, of.heads, 1, of.head_dim)
        if not paged:
            k, v = (d.take(DTYPES[dtype], batch, of.kv_heads, length, of.head_dim) for _ in range(2))
            return _trial(q, k, v, causal=False)
        pages = -(-length // BLOCK)
        keys, values = (d.take(DTYPES[dtype], batch * pages, BLOCK, of.kv_heads, of.head_dim) for _ in range(2))
        return _paged_trial(q, keys, values, torch.randperm(batch * pages).to(d.kind), length)

    return Case("decode_attention", shape, dtype, cold, counted, build, TOLERANCE[dtype])


def naive(batch: int, tokens: int, of: Heads, dtype: str, *, cold: bool = True) -> Case:
    """Three kernels with the scores in memory between them, the full square of pairs: what flash attention avoids.

    As many KV heads as heads.
    """
    shape: dict[str, int | str] = {"batch": batch, "new_tokens": tokens, **of.shape, "causal": 0}
    ops = attention_ops(Batch.prefill(batch, tokens), of, dtype, causal=False, naive=True)

    def build(d: Device) -> Trial:
        q, k, v = (d.take(DTYPES[dtype], batch, of.heads, tokens, of.head_dim) for _ in range(3))
        scores, weights = (d.output(q.dtype, batch, of.heads, tokens, tokens) for _ in range(2))
        out, scaled = torch.ones_like(q), q * of.head_dim**-0.5

        def call() -> None:
            torch.matmul(scaled, k.transpose(-1, -2), out=scores)
            torch.softmax(scores, -1, out=weights)
            torch.matmul(weights, v, out=out)

        return Trial(call, (scaled, k, scores, weights, v), (scores, weights, out), lambda: _sampled_error(out, q, k, v, causal=False))

    return Case("naive_attention", shape, dtype, cold, reduce(_sum, ops), build, 2 * TOLERANCE[dtype])


def _sum(a: Op, b: Op) -> Op:
    kinds = ("flops_each", "kv_read_bytes_each", "kv_write_bytes_each", "activation_bytes_each")
    return replace(a, name="naive_attention", **{kind: getattr(a, kind) + getattr(b, kind) for kind in kinds})


def _trial(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Trial:
    call = Kept(partial(sdpa, q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]))
    return Trial(call, (q, k, v), (), lambda: _sampled_error(call.result, q, k, v, causal))


def _paged_trial(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor, length: int) -> Trial:
    batch, grouped = len(q), q.shape[1] != keys.shape[2]

    def gathered(pool: torch.Tensor) -> torch.Tensor:  # (batch · pages, block, kv_heads, d) → (batch, kv_heads, length, d)
        return pool.index_select(0, table).view(batch, -1, *pool.shape[2:])[:, :length].transpose(1, 2)

    call = Kept(lambda: sdpa(q, gathered(keys), gathered(values), enable_gqa=grouped))
    return Trial(call, (q, keys, values), (), lambda: _sampled_error(call.result, q, gathered(keys), gathered(values), causal=False))


def _sampled_error(out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> float:
    """Error of the last head of the last sequence on up to about 16 query rows, against explicit float64 attention."""
    if not bool(torch.isfinite(out).all()):
        return float("nan")
    rows = torch.arange(0, q.shape[2], max(1, q.shape[2] // 16), device=q.device)
    scores = q[-1, -1, rows].double() @ k[-1, -1].double().t() / q.shape[-1] ** 0.5
    if causal:
        scores[torch.arange(k.shape[2], device=q.device)[None] > rows[:, None]] = float("-inf")
    return relative_error(out[-1, -1, rows], scores.softmax(-1) @ v[-1, -1].double())
