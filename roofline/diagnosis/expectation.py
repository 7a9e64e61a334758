"""What the plan of a model on a device says beside the observations: is this pace the roof, and what would a knob buy?"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

from roofline import units
from roofline.batch import Batch
from roofline.capacity import knob_gains
from roofline.diagnosis.observations import Observations
from roofline.phases import Phase, Setup, batch_curve, phase

_MOST_GAINS = 2


@dataclass(frozen=True)
class Expectation:
    """The plan at the observed load. decode: a step of the running requests; prefill: one prompt, less what the cache had."""

    setup: Setup
    batch: int
    context: int
    decode: Phase
    prefill: Phase | None
    assumptions: tuple[str, ...]


def expect(setup: Setup, seen: Observations) -> Expectation | None:
    """The plan at the observed number of requests and context; None if either is unknown."""
    n = seen.number
    running, notes = n("running"), []
    if isnan(running):
        running = n("client_concurrency")
        notes.append("as many requests run as the client keeps in flight")
    context = n("prompt_length") + n("output_length") / 2
    held = n("kv_usage") * n("kv_tokens") / running if running else float("nan")
    if isnan(context):
        context = held
        notes.append("contexts are the KV in use over the running requests")
    if isnan(running) or isnan(context) or running < 1 or context < 1:
        return None
    batch = round(running)
    decode = phase(setup, "decode", batch=batch, new_tokens=1, past=round(context))
    prompt = n("prompt_length") * (1 - (0 if isnan(n("prefix_hit_rate")) else n("prefix_hit_rate")))
    prefill = None if isnan(prompt) else phase(setup, "prefill", batch=1, new_tokens=max(1, round(prompt)), past=0)
    return Expectation(setup, batch, round(context), decode, prefill, (*notes, *decode.assumptions))


def lacking(seen: Observations) -> str:
    """Why there is no plan at what was observed: what is not known, by the names of observations; or that nothing runs."""
    n, missing = seen.number, []
    if isnan(n("running")) and isnan(n("client_concurrency")):
        missing.append("how many requests run (running)")
    elif (n("client_concurrency") if isnan(n("running")) else n("running")) < 1:
        return "no request runs"
    lengths = [name for name in ("prompt_length", "output_length") if isnan(n(name))]
    if lengths and (isnan(n("kv_usage")) or isnan(n("kv_tokens"))):
        missing.append(f"how long requests are ({' and '.join(lengths)}; or kv_usage and kv_tokens)")
    return f"not known: {', '.join(missing)}" if missing else "requests hold no tokens"


def beside(expected: Expectation, seen: Observations) -> Observations:
    """The plan as facts: expected and bound TPOT, and how far the observed times are from them."""
    found = Observations()
    source = f"plan of {expected.setup.model.name} on {expected.setup.hardware.id}, {expected.batch} × {expected.context} tokens"
    found.add("expected_tpot_s", float(expected.decode.time.expected_s), source)
    found.add("bound_tpot_s", float(expected.decode.time.bound_s), source)
    measured = [seen.number(name) for name in ("tpot_s", "itl_p50_s", "itl_s") if name in seen]
    if measured:
        found.add("tpot_over_expected", measured[0] / float(expected.decode.time.expected_s), source)
    if expected.prefill is not None:
        found.add("prefill_over_expected", seen.number("prefill_s") / float(expected.prefill.time.expected_s), source)
    return found


def gains(label: str, expected: Expectation, seen: Observations) -> list[str]:
    """What the knob of a cause is predicted to buy, in sentences; nothing for causes that the plan does not price."""
    known = {"KV": _of_memory, "CAP": _of_more_sequences, "HOST": _of_more_sequences, "NB": _of_more_sequences, "PQ": _of_prompts,
             "PI": _of_chunk}  # fmt: skip
    return known[label](expected, seen) if label in known else []


def _of_memory(expected: Expectation, seen: Observations) -> list[str]:
    setup, length = (
        expected.setup,
        max(1, round(seen.number("prompt_length") + seen.number("output_length")))
        if ("prompt_length" in seen and "output_length" in seen)
        else expected.context,
    )
    found = knob_gains(setup.model, setup.hardware, setup.parallel, setup.precision, length=length, engine=setup.engine)
    best = sorted((gain for gain in found if gain.sequences_gained > 0), key=lambda gain: -gain.sequences_gained)[:_MOST_GAINS]
    return [f"{gain.change}: {gain.sequences_gained:+,} sequences of {length:,} tokens (to {gain.sequences:,})" for gain in best]


def _of_more_sequences(expected: Expectation, seen: Observations) -> list[str]:
    batch = expected.batch
    curve = batch_curve(expected.setup, expected.context, [batch, 2 * batch])
    now, then = (float(rate) for rate in curve.tokens_per_s)
    pace = [float(value) for value in curve.tpot.expected_s]  # type: ignore[union-attr]
    return [
        f"{2 * batch} running in place of {batch}: {then / now:.2f} × the output tokens per second, "
        f"TPOT {_time(pace[0])} → {_time(pace[1])} (expected, decode alone)"
    ]


def _of_prompts(expected: Expectation, seen: Observations) -> list[str]:
    if expected.prefill is None:
        return []
    each = float(expected.prefill.time.expected_s)
    return [
        f"a prompt of {expected.prefill.new_tokens:,} computed tokens costs {_time(each)}: at most {1 / each:.3g} requests/s per replica; "
        "half of it from the prefix cache about doubles that"
    ]


def _of_chunk(expected: Expectation, seen: Observations) -> list[str]:
    chunk = seen.number("chunk_tokens")
    if isnan(chunk):
        chunk = seen.number("step_tokens_p99")
    if isnan(chunk) or chunk <= 2 * expected.batch:
        return []
    times = [_mixed_step(expected, round(size)) for size in (chunk, chunk / 2)]
    return [
        f"steps of {chunk / 2:,.0f} tokens in place of {chunk:,.0f}: the longest gap from {_time(times[0])} to {_time(times[1])} (expected)"
    ]


def _mixed_step(expected: Expectation, tokens: int) -> float:
    """Expected seconds of a step with all decodes and a chunk that fills it up to `tokens`."""
    decodes = expected.batch
    mixed = Batch.of([*([1] * decodes), tokens - decodes], [*([expected.context] * decodes), 0])
    return float(expected.setup.price(mixed).estimate.expected_s)


def _time(seconds: float) -> str:
    return units.format(seconds, "time")
