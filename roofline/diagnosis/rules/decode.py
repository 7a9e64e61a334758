"""Causes of slow or jittery decode: long prefills in between, the host, links between GPUs, drafts."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.diagnosis.observations import Observations
from roofline.diagnosis.rules.rule import DECISIVE, SOME, STRONG, WEAK, Evidence, Rule
from roofline.units import significant

_LARGE_STEP = 2048


def _interference(seen: Observations) -> Iterator[Evidence]:
    n = seen.number
    spread, median, stalls = n("itl_p99_s"), n("itl_p50_s"), n("stalls_per_request")
    if seen.says("decode_stalls_in_prefill", value=True):
        yield Evidence(DECISIVE, "running requests get no tokens while a prompt is computed")
    if n("generation_tokens_per_s_in_prefill") < 0.3 * n("generation_tokens_per_s_before"):
        yield Evidence(
            DECISIVE,
            f"output of the others falls from {n('generation_tokens_per_s_before'):.0f} to "
            f"{significant(n('generation_tokens_per_s_in_prefill'))} tokens/s during a long prefill",
        )
    elif n("generation_tokens_per_s_in_prefill") == 0:
        yield Evidence(DECISIVE, "output of the others stops during a long prefill")
    if n("stall_s") > 1.5 * n("stall_at_smaller_chunk_s") and n("chunk_tokens") > n("smaller_chunk_tokens"):
        yield Evidence(
            DECISIVE,
            f"the longest stall grows with the chunk: {significant(n('stall_at_smaller_chunk_s'))} s at "
            f"{n('smaller_chunk_tokens'):.0f} tokens, "
            f"{significant(n('stall_s'))} s at {n('chunk_tokens'):.0f}",
        )
    if stalls >= 0.1:
        yield Evidence(
            STRONG if stalls >= 0.25 else SOME,
            f"{significant(stalls, 2)} gaps per request that are far above the median of {significant(1e3 * median)} ms",
        )
    if stalls >= 0.1 or (spread > 5 * median and spread > 0.2):
        yield Evidence(WEAK if stalls >= 0.1 else STRONG, f"the p99 of gaps is {significant(spread / median, 2)} × their median")
        tokens = n("step_tokens_p99") if "step_tokens_p99" in seen else n("chunk_tokens")
        if tokens >= _LARGE_STEP:
            yield Evidence(SOME, f"some steps have up to {tokens:.0f} tokens: prefill and decode in one")
        if n("waiting") < 1:
            yield Evidence(WEAK, "nobody waits: it is not load")
    elif spread < 3 * median:
        yield Evidence(-STRONG, f"gaps are even: their p99 is {significant(spread / median, 2)} × their median")
    if n("prompt_length") > 8 * n("chunk_tokens"):
        yield Evidence(WEAK, f"the prompt takes {n('prompt_length') / n('chunk_tokens'):.0f} steps")
    if seen.text("pattern") == "stalls":
        yield Evidence(SOME, "streams stall from time to time")
    if n("preemptions") > 0:
        yield Evidence(-SOME, "there are preemptions, which look the same")


def _host(seen: Observations) -> Iterator[Evidence]:
    n = seen.number
    running, over, itl = n("running"), n("tpot_over_expected"), n("itl_s")
    if seen.says("cuda_graph", value=False):
        yield Evidence(STRONG, "decode runs without captured graphs")
    if over > 1.5 and running <= 16:
        yield Evidence(
            DECISIVE, f"TPOT is {significant(over, 2)} × what kernels and the engine's usual overhead explain, at {running:.0f} running"
        )
    elif over > 2:
        yield Evidence(SOME, f"TPOT is {significant(over, 2)} × the planned one")
    elif over < 1.3:
        yield Evidence(-DECISIVE, f"TPOT is {significant(over, 2)} × the planned one: the roof, no fault")
    elif running <= 4 and itl >= 0.010 and n("waiting") < 1:
        yield Evidence(SOME, f"{running:.0f} running and {significant(1e3 * itl)} ms per token: the step is not filled")
    if n("waiting") >= 1 or n("running") > 64:
        yield Evidence(-SOME, "there is enough work in each step")
    if n("api_gap_s") > max(0.02, 0.3 * n("ttft_s")):
        yield Evidence(STRONG, f"{1e3 * n('api_gap_s'):.0f} ms of TTFT pass before the request is queued: tokeniser or event loop")
    if n("client_gap_s") > max(0.05, 0.3 * n("ttft_s")):
        yield Evidence(STRONG, f"the client sees the first token {1e3 * n('client_gap_s'):.0f} ms later than the server")


def _links(seen: Observations) -> Iterator[Evidence]:
    n = seen.number
    ranks, gain, prefill = n("tp"), n("tp_speedup"), n("tp_prefill_speedup")
    for what, ratio in (("decode", gain), ("prefill", prefill)):
        if ratio < 1:
            yield Evidence(DECISIVE, f"{what} is {significant(ratio, 2)} × as fast with {ranks:.0f} ranks as with fewer")
        elif ratio < 0.6 * ranks:
            yield Evidence(SOME, f"{ranks:.0f} ranks make {what} {significant(ratio, 2)} × as fast")
        elif ratio > 0.75 * ranks:
            yield Evidence(-STRONG, f"{ranks:.0f} ranks make {what} {significant(ratio, 2)} × as fast")
    if n("all_reduce_s") > 100e-6:
        yield Evidence(STRONG, f"one all-reduce takes {1e6 * n('all_reduce_s'):.0f} µs, and there are two in each layer")


def _drafts(seen: Observations) -> Iterator[Evidence]:
    n = seen.number
    gain, accepted = n("speculation_speedup"), n("draft_acceptance")
    if gain < 1.05:
        yield Evidence(DECISIVE, f"with speculation it is {significant(gain, 2)} × as fast as without")
    elif gain > 1.2:
        yield Evidence(-STRONG, f"speculation makes it {significant(gain, 2)} × as fast")
    if accepted < 0.35:
        yield Evidence(STRONG, f"only {accepted:.0%} of the drafted tokens are accepted")
    elif accepted < 0.5:
        yield Evidence(SOME, f"{accepted:.0%} of the drafted tokens are accepted")
    elif accepted >= 0.6:
        yield Evidence(-SOME, f"{accepted:.0%} of the drafted tokens are accepted")


RULES = (
    Rule(
        "PI",
        "prefill interferes with decode: long prompts share steps with running requests",
        _interference,
        "preemption looks the same in the stream: it shows in counters and at a full pool; interference coincides with a long prefill",
        "gaps between tokens beside prompt tokens per step; the same load with half the chunk",
        "a smaller max_num_batched_tokens (smoother gaps, later first tokens), or prefill on servers of its own",
    ),
    Rule(
        "HOST",
        "host or launch overhead: the device waits for the CPU between steps, or the step is hardly filled",
        _host,
        "a large model at its memory roof is as slow",
        "whether graphs are captured; CPU use of the engine process",
        "graph capture, asynchronous scheduling, a faster or less shared CPU; more concurrency fills the step",
        by_plan=True,
    ),
    Rule(
        "COMM",
        "communication between tensor-parallel ranks takes the gain",
        _links,
        "too little work per rank looks alike: compare a larger batch, where a slow link stays slow in prefill as well",
        "time of an all-reduce of batch × hidden size on this link (roofline bench collective); the link between the GPUs",
        "replicas in place of tensor parallelism, pipeline stages over slow links, NVLink in place of PCIe",
    ),
    Rule(
        "SPEC",
        "speculation costs more than it brings",
        _drafts,
        "at a large batch spare compute is gone whatever the acceptance; at batch 1 it is the acceptance",
        "accepted over drafted tokens, by position; speed with and without at one stream and at full load",
        "fewer drafted tokens; none above the batch where the gain is gone",
    ),
)
