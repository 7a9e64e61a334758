"""What people complain about: the causes it is known for, and which observations would tell them apart."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.errors import InputError


@dataclass(frozen=True)
class Symptom:
    """A complaint. labels: its known causes, usual ones first. remark: what public cases say about it.
    wanted: observations that tell the causes apart, the most telling first."""

    name: str
    complaint: str
    labels: tuple[str, ...]
    remark: str
    wanted: tuple[str, ...]


SYMPTOMS = (
    Symptom(
        "ttft-high",
        "the first token comes late, the others at their usual pace",
        ("PQ", "CAP", "PFX"),
        "true below saturation; past it, or once prompts share steps with decodes, TPOT rises too",
        ("queue_s", "prefill_s", "waiting", "running", "kv_usage", "prefix_hit_rate", "step_tokens", "chunk_tokens"),
    ),
    Symptom(
        "tpot-jitters",
        "the first token comes in time, the others irregularly",
        ("PI", "KV"),
        "long prefills between decodes and preemption look alike: a preemption counter and KV use tell them apart",
        ("itl_p50_s", "itl_p99_s", "preemptions", "kv_usage", "step_tokens_p99", "chunk_tokens"),
    ),
    Symptom(
        "both-slow",
        "first token and pace are both bad",
        ("KV", "PQ"),
        "a full KV pool alone proves nothing: servers ran evenly at 96 %, and one was saturated at 32 %",
        ("preemptions", "kv_usage", "kv_usage_before", "running", "running_before", "waiting", "waiting_before"),
    ),
    Symptom(
        "long-prompt-fails",
        "long prompts fail, or never start",
        ("ACT", "KV"),
        "activation peak, sampler memory (max_num_seqs × vocabulary × 4 B), multimodal profiles; or a request larger than the pool",
        ("oom_requested_bytes", "oom_free_bytes", "max_num_seqs", "vocab_size", "kv_tokens", "request_tokens", "waits_forever"),
    ),
    Symptom(
        "concurrency-capped",
        "no more requests run although memory is free",
        ("CAP", "FIX", "NB"),
        "in public cases a sequence cap, state slots, the client's pool of connections or a fixed cost; fragmentation in none",
        ("running", "running_before", "waiting", "kv_usage", "max_num_seqs", "state_slots", "client_concurrency"),
    ),
    Symptom(
        "quantised-not-faster",
        "quantised, and no faster",
        ("CB", "KERN"),
        "bound by compute at large batches and in prefill; a bad kernel looks the same. An fp8 KV cache buys capacity, not speed",
        ("speedup_small_batch", "speedup_large_batch", "prefill_speedup", "decode_speedup", "prefill_speedup_second_format"),
    ),
    Symptom(
        "one-fast-many-slow",
        "one request is fast, many are slow",
        ("NB", "CAP", "PQ"),
        "batching is off or capped, or the client sends one request after the other",
        ("batching_gain", "client_concurrency", "running", "waiting", "requests_one_by_one"),
    ),
    Symptom(
        "stalls-after-first-token",
        "the first token is fast, then the stream stops",
        ("KV", "PI"),
        "preemption, or one long prefill with a large chunk",
        ("preemptions", "kv_usage", "stall_s", "chunk_tokens", "smaller_chunk_tokens", "stall_at_smaller_chunk_s"),
    ),
)  # fmt: skip


def symptom(name: str) -> Symptom:
    """By name. Raises InputError that lists the names."""
    for each in SYMPTOMS:
        if each.name == name:
            return each
    raise InputError(f"--symptom {name}: known are {', '.join(each.name for each in SYMPTOMS)}")
