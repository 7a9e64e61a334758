"""What a rule is: a cause with a label, and a function that weighs the observations for and against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from roofline.diagnosis.observations import Observations

DECISIVE, STRONG, SOME, WEAK = 4.0, 2.5, 1.3, 0.6


@dataclass(frozen=True)
class Evidence:
    """One thing that speaks for a cause (weight above 0) or against it (below). weight: in units of log-odds before calibration."""

    weight: float
    text: str


Weigh = Callable[[Observations], Iterator[Evidence]]


@dataclass(frozen=True)
class Rule:
    """A cause. title: what is the matter, as a sentence's subject; apart: what would tell it from causes that look alike;
    check: what to look at next; knob: what to change; by_plan: whether the plan of the model on its device tells it apart."""

    label: str
    title: str
    weigh: Weigh
    apart: str
    check: str
    knob: str
    by_plan: bool = False


def compared(seen: Observations) -> bool:
    """Whether two set-ups were compared with each other: then the question is the difference, not the load."""
    ratios = ("speedup_small_batch", "speedup_large_batch", "prefill_speedup", "decode_speedup", "kernel_speedup", "tp_speedup",
              "tp_prefill_speedup", "speculation_speedup", "batching_gain")  # fmt: skip
    return any(name in seen for name in ratios)


def waits_little(seen: Observations) -> bool:
    """Whether requests start at once: a new one always waits for the step that runs, tens of milliseconds on a busy server."""
    queue = seen.number("queue_s")
    return queue < max(0.1 * seen.number("ttft_s"), 0.1)


def waits_long(seen: Observations) -> bool:
    """Whether most of TTFT is waiting, and long enough to matter."""
    queue = seen.number("queue_s")
    return queue > 0.5 * seen.number("ttft_s") and queue > 0.3


def no_traffic(seen: Observations) -> bool:
    """Whether nothing came, ran, waited, ended or was turned away between two readings."""
    n = seen.number
    nothing = all(n(name) == 0 for name in ("generation_tokens", "running", "waiting", "running_before", "waiting_before"))
    return nothing and not any(n(name) > 0 for name in ("prompt_tokens", "requests_finished", "requests_rejected", "preemptions"))


def stands_still(seen: Observations) -> bool:
    """Whether requests ran at both readings and not one token was computed between them."""
    n = seen.number
    return n("running_before") >= 1 and n("running") >= 1 and n("generation_tokens") == 0 and not n("prompt_tokens") > 0


def idle_at_both_ends(seen: Observations) -> bool:
    """Whether there was traffic between two readings while nothing ran or waited at either."""
    n = seen.number
    idle = all(n(name) == 0 for name in ("running", "waiting", "running_before", "waiting_before"))
    return idle and (n("requests_finished") > 0 or n("generation_tokens") > 0)


def crowds(seen: Observations) -> bool:
    """Whether more requests come than leave, so that ever more run."""
    return seen.number("running") > 1.5 * seen.number("running_before") + 8


def prompt_per_output(seen: Observations) -> float:
    """Prompt tokens for each generated one, from counters or lengths; NaN if unknown."""
    made = seen.number("generation_tokens")
    if made > 0:
        return seen.number("prompt_tokens") / made
    made = seen.number("output_length")
    return seen.number("prompt_length") / made if made > 0 else float("nan")
