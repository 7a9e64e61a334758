"""What runs out first, and what each knob buys, as data: every figure is another memory plan."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from roofline import units
from roofline.capacity.memory import MemoryPlan
from roofline.capacity.plan import memory_plan
from roofline.errors import ShardError
from roofline.ledger import AS_SHIPPED, SINGLE, Parallel, Precision
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model


@dataclass(frozen=True)
class Gain:
    """What one change buys: tokens of one replica's cache after it, sequences (of `length` tokens) that it can run then, which is what
    memory holds and at most the engine's cap of that row, and the differences to before."""

    knob: str
    change: str
    length: int
    kv_tokens: int
    kv_tokens_gained: int
    sequences: int
    sequences_gained: int
    fits: bool


def first_limit(plan: MemoryPlan, length: int) -> tuple[str, str]:
    """What stops more sequences of `length` tokens: (name, sentence). Names: weights, length, kv, max_num_seqs."""
    if plan.kv.expected <= 0:
        return "weights", f"weights and working memory leave nothing for KV: {units.format(-plan.kv.expected, 'bytes')} too much"
    held = plan.max_sequences(length)
    if held == 0:
        return "length", f"not one sequence of {length:,} tokens fits; the longest that does has {plan.largest_model_len:,}"
    cap = plan.settings.max_num_seqs * plan.parallel.dp
    if cap <= held:
        return "max_num_seqs", f"the cap of {cap:,} running sequences; KV would hold {held:,}"
    return "kv", f"KV memory: {held:,} sequences of {length:,} tokens; the cap is {cap:,}"


def knob_gains(
    model: Model,
    hardware: Hardware,
    parallel: Parallel = SINGLE,
    precision: Precision = AS_SHIPPED,
    *,
    length: int,
    **options: Any,
) -> list[Gain]:
    """What +1 % of memory, fp8 KV, more GPUs, half the length, half the token budget and smaller weights each buy.

    length: tokens of the sequences that are counted. options: those of memory_plan. Knobs that cannot be turned (already
    there, or the model does not divide) are left out.
    """
    before = memory_plan(model, hardware, parallel, precision, **options)
    gains = []
    for knob, change, layout, types, different, counted in _knobs(model, before, parallel, precision, length):
        after = memory_plan(model, hardware, layout, types, **(options | different))
        gains.append(_gain(knob, change, before, after, length, counted))
    return gains


def _gain(knob: str, change: str, before: MemoryPlan, after: MemoryPlan, length: int, counted: int) -> Gain:
    sequences = _runnable(after, counted)
    return Gain(
        knob=knob,
        change=change,
        length=counted,
        kv_tokens=after.kv_tokens_total,
        kv_tokens_gained=after.kv_tokens_total - before.kv_tokens_total,
        sequences=sequences,
        sequences_gained=sequences - _runnable(before, length),
        fits=after.fits,
    )


def _runnable(plan: MemoryPlan, length: int) -> int:
    return min(plan.max_sequences(length), plan.settings.max_num_seqs * plan.parallel.dp)


_Knob = tuple[str, str, Parallel, Precision, dict[str, Any], int]


def _knobs(model: Model, before: MemoryPlan, parallel: Parallel, precision: Precision, length: int) -> Iterator[_Knob]:
    settings = before.settings
    if settings.utilization < 1:
        more = min(1.0, round(settings.utilization + 0.01, 4))
        yield "utilization", f"memory fraction {settings.utilization:g} → {more:g}", parallel, precision, {"utilization": more}, length
    if precision.kv_cache_dtype(model).bits > 8:
        yield "kv_dtype", "fp8 KV cache", parallel, replace(precision, kv="fp8"), {}, length
    for knob, wider in (("tp", _next_tp(model, parallel)), ("dp", _one_more(model, parallel))):
        if wider:
            more = wider.gpus - parallel.gpus
            change = f"{knob} {getattr(parallel, knob)} → {getattr(wider, knob)} (+{more} GPU{'s' if more > 1 else ''})"
            yield knob, change, wider, precision, {}, length
    if length > 1:
        half = max(1, length // 2)
        yield "length", f"sequences of {half:,} tokens", parallel, precision, {}, half
    if settings.max_num_batched_tokens > 512:
        budget = settings.max_num_batched_tokens // 2
        change = f"token budget {settings.max_num_batched_tokens} → {budget}"
        yield "max_num_batched_tokens", change, parallel, precision, {"max_num_batched_tokens": budget}, length
    if settings.max_num_seqs > 1:
        cap = math.ceil(settings.max_num_seqs / 2)
        yield (
            "max_num_seqs",
            f"running sequences at most {settings.max_num_seqs} → {cap}",
            parallel,
            precision,
            {"max_num_seqs": cap},
            length,
        )
    bits = model.weight_dtype("mlp", override=precision.weights).bits
    for smaller, size in (("fp8", 8), ("int4", 4)):
        if bits > size:
            yield "weights", f"{smaller} weights", parallel, replace(precision, weights=smaller), {}, length


def _next_tp(model: Model, parallel: Parallel) -> Parallel | None:
    """Twice the tp, experts spread twice as far, where the model divides (where it does not, it does not over 4 or 8 times either)."""
    return _layout(model, parallel, tp=2 * parallel.tp, ep=2 * parallel.ep if parallel.ep > 1 else 1)


def _one_more(model: Model, parallel: Parallel) -> Parallel | None:
    """One more attention-data-parallel rank; experts stay spread over all ranks where they divide."""
    dp = parallel.dp + 1
    return _layout(model, parallel, dp=dp, ep=parallel.tp * dp if parallel.ep > 1 else 1)


def _layout(model: Model, parallel: Parallel, **changes: int) -> Parallel | None:
    try:
        layout = replace(parallel, **changes)
        layout.check(model)
    except ShardError:
        return None
    return layout
