"""The cause that is none: the server does what it can, and there is nothing to repair."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.diagnosis.observations import Observations
from roofline.diagnosis.rules.rule import (
    DECISIVE,
    SOME,
    STRONG,
    WEAK,
    Evidence,
    Rule,
    compared,
    crowds,
    no_traffic,
    stands_still,
    waits_little,
    waits_long,
)
from roofline.units import significant


def _healthy(seen: Observations) -> Iterator[Evidence]:
    n = seen.number
    running, waiting, lost = n("running"), n("waiting"), n("preemptions")
    if running == 0 and waiting == 0:
        what = "no traffic between the two readings" if no_traffic(seen) else "nothing runs and nothing waits: the client is the limit"
        yield Evidence(STRONG, what)
    if stands_still(seen):
        yield Evidence(-DECISIVE, f"{running:.0f} run, and not one token came between the two readings")
    if waiting <= max(1.0, 0.05 * running):
        yield Evidence(SOME, f"{waiting:.0f} wait beside {running:.0f} that run")
    elif waiting > 0.1 * running:
        yield Evidence(-STRONG, f"{waiting:.0f} wait beside {running:.0f} that run")
    if lost == 0 and n("kv_usage") < 0.95:
        yield Evidence(WEAK, f"no preemption, KV at {n('kv_usage'):.0%}")
    elif lost > 0:
        yield Evidence(-STRONG, f"{lost:.0f} preemptions")
    if crowds(seen):
        yield Evidence(-STRONG, f"more come than leave: {n('running_before'):.0f} to {running:.0f} run")
    if waits_little(seen):
        yield Evidence(SOME, f"waiting is {n('queue_s') / n('ttft_s'):.0%} of TTFT")
    elif waits_long(seen):
        yield Evidence(-STRONG, f"waiting is {n('queue_s') / n('ttft_s'):.0%} of TTFT")
    if n("stalls_per_request") < 0.1:
        yield Evidence(WEAK, "streams do not stall")
    elif n("stalls_per_request") >= 0.1:
        yield Evidence(
            -STRONG if n("stalls_per_request") >= 0.25 else -SOME, f"{significant(n('stalls_per_request'), 2)} stalls in each request"
        )
    if n("tpot_over_expected") < 1.3:
        yield Evidence(STRONG, f"TPOT is {significant(n('tpot_over_expected'), 2)} × the planned one")
    elif n("tpot_over_expected") > 1.5:
        yield Evidence(-STRONG, f"TPOT is {significant(n('tpot_over_expected'), 2)} × the planned one")
    if n("running") <= 4 and n("itl_s") >= 0.010 and "tpot_over_expected" not in seen:
        yield Evidence(-STRONG - SOME, "the step is hardly filled, and without a plan nobody knows whether its time is the roof")
    if seen.text("pattern") == "steady":
        yield Evidence(WEAK, "TTFT and TPOT stay where they began")
    if "oom_requested_bytes" in seen or seen.says("waits_forever", value=True):
        yield Evidence(-DECISIVE, "there was an error")
    if seen.says("prefix_caching", value=False) and n("prefill_s") > 0.5 * n("ttft_s"):
        yield Evidence(-STRONG, "TTFT is mostly prefill, with the prefix cache off")
    if compared(seen):
        yield Evidence(-SOME, "a comparison is being asked about")


RULES = (
    Rule(
        "NONE",
        "nothing stands out: the server keeps up with this load",
        _healthy,
        "a complaint of users that the server does not see lies before it: gateway, network, client",
        "what users see beside this: roofline loadtest URL",
        "none; roofline plan says what more hardware or another configuration would bring",
    ),
)
