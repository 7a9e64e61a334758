"""Causes that lie in memory: the KV pool, the activation peak, a fixed cost of each request."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.diagnosis.observations import Observations
from roofline.diagnosis.rules.rule import DECISIVE, SOME, STRONG, Evidence, Rule
from roofline.units import significant

_LOGIT_BYTES = 4
_MiB = 2**20


def _kv(seen: Observations) -> Iterator[Evidence]:
    n = seen.number
    kv, running, waiting, lost = n("kv_usage"), n("running"), n("waiting"), n("preemptions")
    if lost > 0:
        share = lost / max(1.0, n("requests_finished"))
        weight = SOME if share <= 0.02 else STRONG if share <= 0.15 else DECISIVE
        yield Evidence(weight, f"{lost:.0f} preemptions" + _of(n("requests_finished"), "finished requests"))
    elif lost == 0:
        yield Evidence(-SOME, "no preemption")
    if kv > 0.95 and waiting >= 1:
        yield Evidence(STRONG, f"the KV pool is {kv:.0%} full and {waiting:.0f} requests wait")
    elif kv >= 0.9 and (running < n("running_before") or waiting > n("waiting_before")):
        yield Evidence(SOME, f"KV at {kv:.0%} while fewer run or more wait than before")
    if kv >= 0.9 and n("generation_tokens_per_s") < 0.6 * n("generation_tokens_per_s_before"):
        fall = f"{n('generation_tokens_per_s_before'):.0f} to {n('generation_tokens_per_s'):.0f} tokens/s"
        yield Evidence(STRONG, f"output fell from {fall} with KV at {kv:.0%}")
    overbooked = running > 0 and kv - n("kv_usage_before") > 0.25 and kv / running * (running + waiting) > 1.2
    if kv < 0.85 and not overbooked:
        yield Evidence(-STRONG, f"KV at {kv:.0%}")
    if overbooked:
        yield Evidence(
            STRONG + SOME, f"KV rises fast ({n('kv_usage_before'):.0%} to {kv:.0%}); the {waiting:.0f} that wait will not fit beside it"
        )
    if n("request_tokens") > n("kv_tokens"):
        yield Evidence(DECISIVE, f"the request needs {n('request_tokens'):.0f} tokens, the pool has {n('kv_tokens'):.0f}")
    if seen.text("pattern") == "kv-pressure":
        yield Evidence(SOME, "requests lose their KV to others again and again")
    if seen.text("pattern") == "collapse":
        yield Evidence(STRONG, "output breaks down and stays down while requests wait")


def _of(count: float, what: str) -> str:
    return f" in {count:.0f} {what}" if count > 0 else ""


def _activation(seen: Observations) -> Iterator[Evidence]:
    n = seen.number
    wanted, free = n("oom_requested_bytes"), n("oom_free_bytes")
    if wanted > free:
        yield Evidence(STRONG, f"an allocation of {wanted / _MiB:.0f} MiB failed with {free / _MiB:.0f} MiB free")
    elif wanted > 0:
        yield Evidence(SOME, f"an allocation of {wanted / _MiB:.0f} MiB failed")
    logits = n("max_num_seqs") * n("vocab_size") * _LOGIT_BYTES
    if abs(wanted - logits) < 0.05 * logits:
        yield Evidence(STRONG, f"it is the sampler's: max_num_seqs × vocabulary × {_LOGIT_BYTES} B = {logits / _MiB:.0f} MiB")
    if seen.says("oom_in_long_prefill", value=True):
        yield Evidence(STRONG, "memory ran out in a long prefill, after a start-up that went well")
    if n("activation_bytes") > n("kv_pool_bytes"):
        yield Evidence(
            STRONG,
            f"start-up set {significant(n('activation_bytes') / 2**30)} GiB aside for activations "
            f"and {significant(n('kv_pool_bytes') / 2**30)} for KV",
        )
    if n("activation_bytes_limited") < 0.7 * n("activation_bytes"):
        yield Evidence(
            STRONG, f"with inputs limited it is {significant(n('activation_bytes_limited') / 2**30)} GiB: the profile of the worst case"
        )


def _fixed(seen: Observations) -> Iterator[Evidence]:
    n = seen.number
    if not n("running") > 0:
        return
    each, asked = n("kv_usage") * n("kv_tokens") / n("running"), n("prompt_length") + n("output_length")
    if each > 3 * asked and n("kv_usage") > 0.8:
        yield Evidence(STRONG, f"each running request holds {each:.0f} tokens of the pool and has at most {asked:.0f}")
        if n("waiting") >= 1:
            yield Evidence(SOME, f"{n('waiting'):.0f} requests wait for it")
    elif each < 2 * asked:
        yield Evidence(-SOME, "requests hold about as much KV as they have tokens")


RULES = (
    Rule(
        "KV",
        "the KV pool is too small for what is admitted: requests lose their KV and are computed again",
        _kv,
        "a full pool alone proves nothing; it is preemptions, or a queue that grows while fewer run, that do",
        "preemption counters over a minute, and running and waiting beside KV use",
        "more KV tokens (fp8 KV, more memory share, more GPUs), or fewer sequences (max_num_seqs, admission on the full length)",
    ),
    Rule(
        "ACT",
        "activation memory: a peak that start-up did not profile, or one that it profiled too large",
        _activation,
        "a pool that is too large for the device fails in any prefill; a sampler's buffer only at many sequences",
        "the size that failed against max_num_seqs × vocabulary × 4 B; whether it fails only with long prompts",
        "smaller max_num_batched_tokens, max_num_seqs or multimodal limits; a lower memory share leaves headroom",
    ),
    Rule(
        "FIX",
        "a fixed cost of each request takes the KV pool",
        _fixed,
        "long contexts of earlier turns look alike: compare with the prompt lengths that the server counts",
        "KV use with one idle-length request running",
        "fewer sequences; smaller blocks or state per request",
    ),
)
