"""Causes behind a format that is not faster, and a prefix cache that does not help."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.diagnosis.observations import Observations
from roofline.diagnosis.rules.rule import DECISIVE, SOME, STRONG, WEAK, Evidence, Rule
from roofline.units import significant


def _compute_bound(seen: Observations) -> Iterator[Evidence]:
    n = seen.number
    small, large, prefill, decode = n("speedup_small_batch"), n("speedup_large_batch"), n("prefill_speedup"), n("decode_speedup")
    if small > 1 and large <= 1:
        yield Evidence(DECISIVE, f"{significant(small, 2)} × as fast at a small batch, {significant(large, 2)} × at a large one")
    elif large < 1:
        yield Evidence(STRONG, f"{significant(large, 2)} × as fast at a large batch, where the matrices are bound by compute")
    if prefill < 1 < decode:
        yield Evidence(
            STRONG, f"decode {significant(decode, 2)} × as fast, prefill {significant(prefill, 2)} ×: bytes are saved, FLOPs are not"
        )
    if "kernel_speedup" in seen:
        yield Evidence(-STRONG, "a single kernel is slow by itself")
    if n("prefill_speedup_second_format") > 1.1:
        yield Evidence(-STRONG, f"another quantised format makes prefill {significant(n('prefill_speedup_second_format'), 2)} × as fast")


def _kernel(seen: Observations) -> Iterator[Evidence]:
    n = seen.number
    if n("kernel_speedup") < 0.95:
        yield Evidence(DECISIVE, f"the kernel takes {1 / n('kernel_speedup'):.2f} × the time of the usual format's, same shape")
    if n("prefill_speedup") < 0.95 and n("prefill_speedup_second_format") > 1.1:
        yield Evidence(
            DECISIVE,
            f"one format makes prefill {significant(n('prefill_speedup'), 2)} ×, "
            f"another {significant(n('prefill_speedup_second_format'), 2)} × as fast",
        )
    if n("speedup_small_batch") < 0.95:
        yield Evidence(SOME, f"even at a small batch it is {significant(n('speedup_small_batch'), 2)} × as fast")
    if n("tpot_over_expected") > 2 and n("running") > 16:
        yield Evidence(SOME, f"TPOT is {significant(n('tpot_over_expected'), 2)} × the planned one at {n('running'):.0f} running")
    if n("prefill_over_expected") > 2 and n("queue_s") < n("prefill_s"):
        yield Evidence(SOME, f"prefill takes {significant(n('prefill_over_expected'), 2)} × the planned time")


def _prefix(seen: Observations) -> Iterator[Evidence]:
    n = seen.number
    hits = n("prefix_hit_rate")
    if seen.says("prompts_random", value=True) and hits > 0.05:
        yield Evidence(DECISIVE + STRONG, f"{hits:.0%} hits on prompts that share nothing: recomputed preemptions are counted as hits")
    if n("external_tokens_to_load") < 0.05 * n("prompt_length"):
        yield Evidence(
            DECISIVE,
            f"{n('external_tokens_to_load'):.0f} of {n('prompt_length'):.0f} tokens are left to load: the first cache had the rest",
        )
    shared = seen.says("shared_prefix", value=True)
    if shared and hits < 0.1:
        yield Evidence(DECISIVE, f"prompts begin alike, yet {hits:.0%} are found in the cache")
    elif hits > 0.3 and not seen.says("prompts_random", value=True):
        yield Evidence(-STRONG, f"{hits:.0%} of the prompt tokens come from the cache")
    if seen.says("prefix_caching", value=False):
        yield Evidence(STRONG if shared else SOME, "the prefix cache is off")
        if n("prefill_s") > 0.5 * n("ttft_s"):
            yield Evidence(WEAK, f"{n('prefill_s') / n('ttft_s'):.0%} of TTFT is prefill")


RULES = (
    Rule(
        "CB",
        "quantised weights save bytes, and the step is bound by compute",
        _compute_bound,
        "a defective kernel looks the same: compare phases, and a second quantised format",
        "speed over batch, prefill and decode apart; the batch at which decode leaves the memory roof (roofline phases)",
        "a format with a faster multiply (fp8, int8 activations) for prefill and large batches; weight-only for small ones",
    ),
    Rule(
        "KERN",
        "a kernel is slower than the device allows",
        _kernel,
        "compute-bound quantisation slows every such format; a kernel only its own, on one generation of devices",
        "the kernel alone against its roof (roofline bench), another attention or GEMM backend, another version",
        "another backend or version; report it with the shape and the time",
    ),
    Rule(
        "PFX",
        "the prefix cache does not do what it seems to",
        _prefix,
        "hits on random prompts are preemptions, counted twice; no hits on shared ones are block sizes, routing or a cache too small",
        "hits over queries beside preemptions; how many tokens prompts share, in whole blocks",
        "prefix caching on, prompts with the common part first, routing by prefix",
    ),
)
