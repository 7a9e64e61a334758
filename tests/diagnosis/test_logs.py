"""Log lines of vLLM and SGLang."""

from __future__ import annotations

import pytest

from roofline.diagnosis.logs import read_log
from roofline.diagnosis.rank import diagnose
from roofline.errors import InputError

VLLM = (
    "(APIServer pid=1) INFO 11-02 10:00:{s:02d} [loggers.py:127] Engine 000: Avg prompt throughput: 24000.1 tokens/s, "
    "Avg generation throughput: {gen} tokens/s, Running: {run} reqs, Waiting: {wait} reqs, GPU KV cache usage: {kv}%, "
    "Prefix cache hit rate: 12.5%"
)
SGLANG = (
    "[2026-02-11 10:00:{s:02d}] Decode batch. #running-req: {run}, #token: 90000, token usage: {kv}, cuda graph: True, "
    "gen throughput (token/s): {gen}, #queue-req: {wait}"
)


def test_vllm_statistics() -> None:
    found = read_log([VLLM.format(s=i, gen=239.5, run=8, wait=i, kv=95.8) for i in range(8)], "log")
    assert found.number("running") == 8
    assert found.number("waiting") == 6.5
    assert found.number("kv_usage") == pytest.approx(0.958)
    assert found.number("generation_tokens_per_s") == 239.5
    assert found.number("prefix_hit_rate") == 0.125
    assert found.number("preemptions") == 0


def test_an_overload_is_named() -> None:
    found = read_log([VLLM.format(s=i, gen=900, run=256, wait=12 * i, kv=55) for i in range(12)], "log")
    assert found.text("pattern") == "overload"
    assert diagnose(found).first.label in ("CAP", "PQ")


def test_sglang_retraction_and_collapse() -> None:
    good = [SGLANG.format(s=i, gen=429, run=4, wait=0, kv=0.8) for i in range(10)]
    bad = [SGLANG.format(s=i, gen=25, run=3, wait=3, kv=1.0) for i in range(10, 30)]
    retracted = "KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 900"
    found = read_log([*good, retracted, *bad], "log")
    assert found.number("preemptions") == 2
    assert found.number("generation_tokens_per_s_before") == 429
    assert found.text("pattern") == "collapse"
    assert diagnose(found).first.label == "KV"


def test_old_vllm_lines() -> None:
    line = (
        "INFO metrics.py:455] Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 30.0 tokens/s, Running: 5 reqs, "
        "Swapped: 1 reqs, Pending: 2 reqs, GPU KV cache usage: 99.0%, CPU KV cache usage: 0.0%."
    )
    warning = (
        "WARNING scheduler.py:1754] Sequence group 7 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache"
    )
    found = read_log([line, warning, line], "log")
    assert (found.number("running"), found.number("waiting"), found.number("preemptions")) == (5, 3, 1)


def test_out_of_memory() -> None:
    line = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 446.00 MiB. GPU 0 has a total capacity of 22.03 GiB of which "
        "361.00 MiB is free."
    )
    found = read_log(["engine args: max_num_seqs=768, max_num_batched_tokens=8192, enforce_eager=True", line], "log")
    assert found.number("oom_requested_bytes") == 446 * 2**20
    assert found.number("oom_free_bytes") == 361 * 2**20
    assert found.number("max_num_seqs") == 768
    assert found.number("chunk_tokens") == 8192
    assert found.says("cuda_graph", value=False)
    assert diagnose(found).first.label == "ACT"


def test_a_request_longer_than_a_line_is_cut() -> None:
    assert read_log(["x" * 10_000_000, "GPU KV cache size: 8,209 tokens"], "log").number("kv_tokens") == 8209


def test_other_text_is_refused() -> None:
    with pytest.raises(InputError, match="no line is known"):
        read_log(["hello", "world"], "notes.txt")
