"""Causes that lie in the load: too much of it, a cap on it, or a client that does not bring it."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.diagnosis.observations import Observations
from roofline.diagnosis.rules.rule import DECISIVE, SOME, STRONG, WEAK, Evidence, Rule, crowds, prompt_per_output, waits_little, waits_long
from roofline.units import significant

_PREFILL_HEAVY = 15.0
_LIGHT_STEP = 512
_SAME = 1.1  # growth that is none
_USUAL_CAPS = {1, 2, 4, 8, 16, 32, 48, 64, 96, 100, 128, 160, 192, 200, 256, 320, 384, 512, 768, 1000, 1024, 2048}


def _prefill_queue(seen: Observations) -> Iterator[Evidence]:
    n = seen.number
    waiting, kv, ttft, queue = n("waiting"), n("kv_usage"), n("ttft_s"), n("queue_s")
    if waiting >= 1 and kv < 0.9:
        yield Evidence(SOME, f"{waiting:.0f} requests wait though only {kv:.0%} of the KV pool is in use")
    if waiting > 1.2 * n("waiting_before") + 2:
        yield Evidence(SOME, f"the queue grows, from {n('waiting_before'):.0f} to {waiting:.0f}")
    if crowds(seen):
        yield Evidence(SOME, f"more come than leave: {n('running_before'):.0f} to {n('running'):.0f} run")
    ratio = prompt_per_output(seen)
    if ratio > _PREFILL_HEAVY and not waiting < 1 and not n("step_tokens") < _LIGHT_STEP:
        yield Evidence(STRONG, f"{ratio:.0f} prompt tokens for each generated one: the work is prefill")
    elif ratio < 4 and "queue_s" in seen:
        yield Evidence(-WEAK, f"only {significant(ratio, 2)} prompt tokens for each generated one")
    if n("step_tokens") > 0.8 * n("chunk_tokens"):
        yield Evidence(STRONG, f"steps are full: {n('step_tokens'):.0f} tokens of a budget of {n('chunk_tokens'):.0f}")
    elif n("step_tokens") > 2000:
        yield Evidence(SOME, f"{n('step_tokens'):.0f} tokens in the mean step: steps are mostly prefill")
    elif n("step_tokens") < _LIGHT_STEP:
        yield Evidence(-SOME, f"{n('step_tokens'):.0f} tokens in the mean step: prefill is not what fills it")
    if seen.says("ttft_linear_in_tokens", value=True):
        yield Evidence(STRONG, "TTFT grows in proportion to the prompt tokens in the batch, as compute-bound prefill does")
    if waits_long(seen):
        yield Evidence(SOME, f"{queue / ttft:.0%} of TTFT is waiting")
    if n("ttft_growth") > 3 and n("ttft_growth") > 2 * n("tpot_growth"):
        even = n("tpot_growth") < _SAME
        yield Evidence(
            WEAK if even else SOME, f"with load TTFT grows {significant(n('ttft_growth'), 2)} ×, TPOT {significant(n('tpot_growth'), 2)} ×"
        )
    if seen.text("pattern") in ("queue-grows", "overload"):
        yield Evidence(STRONG, "requests that come later wait longer: more arrives than is served")
    yield from _not_waiting(seen)


def _not_waiting(seen: Observations) -> Iterator[Evidence]:
    """What speaks against any queue but one for KV."""
    n = seen.number
    if n("waiting") < 1 and not crowds(seen):
        yield Evidence(-STRONG, "nobody waits")
    if waits_little(seen) and not crowds(seen):
        yield Evidence(-STRONG, f"waiting is {n('queue_s') / n('ttft_s'):.0%} of TTFT")
    if n("preemptions") > 0.02 * max(1.0, n("requests_finished")):
        yield Evidence(-STRONG, f"{n('preemptions'):.0f} preemptions: it is KV that runs out")
    if n("kv_usage") > 0.95:
        yield Evidence(-SOME, f"the KV pool is {n('kv_usage'):.0%} full")


def _cap(seen: Observations) -> Iterator[Evidence]:
    n = seen.number
    running, waiting, kv = n("running"), n("waiting"), n("kv_usage")
    if n("state_slots") < n("max_num_seqs"):
        yield Evidence(
            DECISIVE + SOME, f"max_num_seqs {n('max_num_seqs'):.0f} is more than the {n('state_slots'):.0f} state slots that there are"
        )
    if n("ttft_growth") > 3 and n("tpot_growth") < _SAME:
        yield Evidence(
            SOME, f"TTFT grows {significant(n('ttft_growth'), 2)} × and TPOT stays: no more run than before, the rest wait for a place"
        )
    if waiting >= 1 and kv < 0.9:
        flat = abs(running - n("running_before")) <= max(1.0, 0.02 * running)
        if running >= n("max_num_seqs"):
            yield Evidence(DECISIVE, f"{running:.0f} run, the cap is {n('max_num_seqs'):.0f}, and {kv:.0%} of KV is in use")
        elif flat and int(running) in _USUAL_CAPS:
            yield Evidence(STRONG, f"exactly {running:.0f} run at both ends, a usual cap, with {waiting:.0f} waiting and KV at {kv:.0%}")
        elif flat:
            yield Evidence(SOME, f"the number that runs stays at {running:.0f} with {waiting:.0f} waiting and KV at {kv:.0%}")
        if running < 0.9 * n("max_num_seqs"):
            yield Evidence(-STRONG, f"{running:.0f} run, fewer than the cap of {n('max_num_seqs'):.0f}")
    if n("client_concurrency") > 1.2 * (running + (0 if waiting != waiting else waiting)) and running >= 2 and not waiting >= 1:
        yield Evidence(STRONG, f"the client means {n('client_concurrency'):.0f} in flight, the server never has more than {running:.0f}")
    if n("queue_s") > 8 * n("prefill_s"):
        yield Evidence(SOME, f"waiting takes {n('queue_s') / n('prefill_s'):.0f} × as long as prefill: it is not prefill that is slow")
    if prompt_per_output(seen) > _PREFILL_HEAVY and not n("step_tokens") < _LIGHT_STEP:
        yield Evidence(-SOME, "the work is mostly prefill")
    if "client_concurrency" not in seen:
        yield from _not_waiting(seen)


def _unbatched(seen: Observations) -> Iterator[Evidence]:
    n = seen.number
    asked, gain = n("client_concurrency"), n("batching_gain")
    if seen.says("requests_one_by_one", value=True):
        yield Evidence(DECISIVE, "requests are seen to run one after the other")
    if asked >= 4 and gain < 1.3:
        yield Evidence(DECISIVE, f"{asked:.0f} streams get {gain:.2f} × the answers of one")
    elif gain > 2:
        yield Evidence(-STRONG, f"{asked:.0f} streams get {significant(gain, 2)} × the answers of one")
    if n("running") <= 1 and asked >= 4:
        yield Evidence(STRONG, f"{n('running'):.0f} runs while the client means {asked:.0f} in flight")
    if n("running") == 1 and n("waiting") >= 1 and n("kv_usage") < 0.9:
        yield Evidence(STRONG, f"one request runs and {n('waiting'):.0f} wait")
    if n("running") >= 2:
        yield Evidence(-STRONG, f"{n('running'):.0f} requests run together")


RULES = (
    Rule(
        "PQ",
        "prefill is saturated: prompts arrive faster than they are computed",
        _prefill_queue,
        "a cap looks alike, but holds the number that runs constant and leaves steps far from their token budget; "
        "KV pressure shows preemptions",
        "prompt tokens per second beside what a prefill costs (roofline phases), and request_queue_time beside request_prefill_time",
        "fewer prompt tokens (prefix cache, shorter prompts), more replicas, a prefill pool of its own; admission control until then",
    ),
    Rule(
        "CAP",
        "a cap that is not KV memory holds the number of requests",
        _cap,
        "at prefill saturation the number that runs varies and steps are full of prompt tokens",
        "the engine's max_num_seqs, its state slots (hybrid models), and the connection pool of the client",
        "raise max_num_seqs (or the client's pool) while KV and the service level allow it; else more replicas",
    ),
    Rule(
        "NB",
        "batching is not in effect: requests run one by one",
        _unbatched,
        "a serial client and a server with one slot look alike: count what is in flight at the server",
        "num_requests_running while the client is at full concurrency; whether the client awaits each answer",
        "an asynchronous client; or the server's number of parallel sequences",
    ),
)
