"""Closed form of a server under a closed loop: running batch, time per token and time to the first token, many rows at once."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from roofline.serving.passes import KNOTS, Passes
from roofline.timing.forms.base import pnorm

Float = NDArray[np.float64]
_LOG_KNOTS = np.log2(KNOTS)
_MOST_SAVED = 0.8  # as in a single step: fitted constants take off at most a fifth of the kernels
_HOST_OVERLAP = 4.0  # exponent of the soft maximum of a pass with a prompt and the least time that its host needs
_RESERVED = {"trtllm": 1.0, "sglang": 0.8}  # share of the output that a request reserves on admission; others 0.5
_USABLE, _RUNTIME_BYTES = 0.92, 3e9  # of device memory, and what is no weights and no KV
_STEP_TOKENS = 8192.0  # token budget of a step while a burst is prefilled
_MOST_CLIENTS = 400.0  # simulated one by one
_MOST_ROUNDS = 64.0  # by then the burst at the start hardly counts
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class Constants:
    """What an engine adds to kernels; an array has one entry per row.

    step_s: a + per_layer_rank_s · layers · log2(ranks) + decode_scale · (kernels without routed experts) + expert_scale · (those of
    routed experts) + per_sequence_s · sequences. Experts have a scale of their own because kernels of their shapes were seldom measured,
    and models differ in how evenly they route. prompt_scale: of prompt kernels. per_layer_s: the least a pass
    with a prompt takes per layer. first_s + first_steps · steps: what comes on top of queue and prefill before the first token.
    """

    fixed_s: Float
    decode_scale: Float
    expert_scale: Float
    prompt_scale: Float
    per_layer_rank_s: Float
    per_layer_s: Float
    per_sequence_s: Float
    first_s: Float
    first_steps: Float

    @classmethod
    def stacked(cls, sets: Sequence[dict[str, float]]) -> Constants:
        """One entry per set of constants by name."""
        return cls(**{field.name: np.array([one[field.name] for one in sets]) for field in fields(cls)})


@dataclass(frozen=True)
class Loads:
    """Rows as arrays. sequences: closed-loop requests of one decode rank. output_len: mean tokens. input_len: mean prompt tokens.

    capacity: sequences that one rank holds. emitted: tokens of a sequence per decode step. delay_steps: decode steps that a request
    waits before the scheduler looks at it. workers: prompts processed at once, as prompt passes side by side, seen by `burst`
    requests. rounds: requests measured, in multiples of the concurrency. alone: prompts stop decoding (SGLang) instead of sharing
    its steps. apart: prompts run on other devices.
    """

    sequences: Float
    burst: Float
    input_len: Float
    output_len: Float
    capacity: Float
    rounds: Float
    emitted: Float
    delay_steps: Float
    workers: NDArray[np.int64]
    alone: NDArray[np.bool_]
    apart: NDArray[np.bool_]
    decode_s: Float
    experts_s: Float
    mixed_s: Float
    prompt_s: Float
    decode_bound_s: Float
    prompt_bound_s: Float
    layers: Float
    log_ranks: Float
    prompt_log_ranks: Float

    def rows(self, where: NDArray[np.bool_] | NDArray[np.int64]) -> Loads:
        """Some of the rows."""
        return replace(self, **{field.name: getattr(self, field.name)[where] for field in fields(self)})


@dataclass(frozen=True)
class Steady:
    """running: sequences of a rank that decode. step_s: a decode step alone; prompt_s: what a prompt takes or adds."""

    running: Float
    step_s: Float
    prompt_s: Float
    tpot_s: Float


@dataclass(frozen=True)
class Asked:
    """One row before pricing: who runs decode and prompts, and the load. workers: (prompt, decode) of a disaggregated deployment.

    emitted: tokens of a sequence per decode step, above 1 with speculation. delay_steps: as in Loads.
    """

    engine: str
    decode: Passes
    prompt: Passes
    concurrency: float
    input_len: float
    output_len: float
    rounds: float
    workers: tuple[int, int] | None = None
    max_sequences: float = np.inf
    emitted: float = 1.0
    delay_steps: float = 0.0


def loads(rows: Sequence[Asked]) -> Loads:
    """The rows as arrays."""
    ranks = [row.decode.dp * (row.workers[1] if row.workers else 1) for row in rows]
    sequences = np.array([max(row.concurrency / n, 1.0) for row, n in zip(rows, ranks, strict=True)])
    apart = np.array([row.workers is not None for row in rows])
    return Loads(
        sequences=sequences, burst=np.where(apart, [row.concurrency for row in rows], sequences),
        input_len=np.array([row.input_len for row in rows]), output_len=np.array([row.output_len for row in rows]),
        capacity=np.array([_capacity(row) for row in rows]), rounds=np.array([row.rounds for row in rows]),
        emitted=np.array([row.emitted for row in rows]), delay_steps=np.array([row.delay_steps for row in rows]),
        workers=np.array([row.workers[0] * row.prompt.dp if row.workers else 1 for row in rows]),
        alone=np.array([row.engine == "sglang" for row in rows]), apart=apart,
        decode_s=np.array([row.decode.decode_s for row in rows]), experts_s=np.array([row.decode.experts_s for row in rows]),
        mixed_s=np.array([row.decode.mixed_s for row in rows]),
        prompt_s=np.array([row.prompt.prompt_s for row in rows]),
        decode_bound_s=np.array([row.decode.decode_bound_s for row in rows]),
        prompt_bound_s=np.array([row.prompt.prompt_bound_s for row in rows]),
        layers=np.array([float(row.decode.layers) for row in rows]), log_ranks=np.log2([row.decode.ranks for row in rows]),
        prompt_log_ranks=np.log2([row.prompt.ranks for row in rows]),
    )  # fmt: skip


def _capacity(row: Asked) -> float:
    """Sequences that fit one rank: by memory for what a request reserves on admission, by its own limit."""
    free = _USABLE * row.decode.memory_bytes - row.decode.weight_bytes - _RUNTIME_BYTES
    first, last = row.decode.kv_bytes
    reserved = first + _RESERVED.get(row.engine, 0.5) * (last - first)
    return float(min(max(free / max(reserved, 1.0), 1.0), row.max_sequences))


def at_batch(curves: Float, batch: Float) -> Float:
    """Values of each row's curve over KNOTS at its batch, linear in log2(batch)."""
    x = np.clip(np.log2(np.maximum(batch, 1.0)), 0.0, _LOG_KNOTS[-1])
    j = np.clip(np.searchsorted(_LOG_KNOTS, x, side="right") - 1, 0, KNOTS.size - 2)
    row = np.arange(batch.size)
    share = (x - _LOG_KNOTS[j]) / (_LOG_KNOTS[j + 1] - _LOG_KNOTS[j])
    return np.asarray(curves[row, j] * (1 - share) + curves[row, j + 1] * share)


def steady(load: Loads, constants: Constants, wait_s: Float | float = 0.0, turns: int = 25) -> Steady:
    """The fixed point of step time, running batch (Little's law, at most the capacity) and time per token.

    In the time of one request each of the other running ones is prefilled once, so TPOT = D(b) / emitted + S · (b − 1) / output;
    where every request was in flight from the start (rounds = 1) it meets half of them. As decoding rests while long prompts are
    computed, all the others are met that do not go before in the queue. Prompts come independently of each other: those of one step
    share its pass, which matters where outputs are short. wait_s: mean queueing before the prefill.
    """
    met = np.where(load.apart, 0.0, (1 - 0.5 / load.rounds) / load.output_len)
    running = np.minimum(load.sequences, load.capacity)
    tpot: Float = np.zeros_like(running)
    for turn in range(turns):
        step, prompt = _times(load, constants, running)
        alone = prompt + np.where(load.alone | load.apart, 0.0, step)
        ahead = np.where(load.sequences > load.capacity, np.inf, wait_s / alone)
        come = np.maximum(np.maximum(running - 1, load.sequences - 1 - ahead), 1e-9) * met * load.emitted  # prompts per decode step
        held = -np.expm1(-come)  # share of steps that some come in
        together = np.divide(come, held, out=np.ones_like(come), where=held > 0)
        found = (step + held * _times(load, constants, running, together)[1]) / load.emitted
        tpot = found if turn == 0 else (tpot + found) / 2
        first = alone + wait_s
        decoding = load.output_len * tpot
        # Where all prompts of a single burst go before its decodes, everything decodes together.
        decoded = np.where(load.alone & (load.rounds == 1), 1.0, decoding / (first + decoding))
        share = np.minimum(load.sequences * decoded, load.capacity)
        running = np.maximum((running + share) / 2, 1.0)
    return Steady(running, step, prompt, tpot)


def _times(load: Loads, constants: Constants, running: Float, prompts: Float | float = 1.0) -> tuple[Float, Float]:
    """(a decode step, what `prompts` take alone or add to a step) with so many running sequences."""
    host = constants.fixed_s + constants.per_layer_rank_s * load.layers * load.log_ranks
    least = constants.per_layer_s * load.layers
    plain, experts = at_batch(load.decode_s, running), at_batch(load.experts_s, running)
    kernels = constants.decode_scale * (plain - experts) + constants.expert_scale * experts
    step = np.maximum(host + kernels + constants.per_sequence_s * running, _MOST_SAVED * kernels)
    elsewhere = np.where(load.apart, constants.per_layer_rank_s * load.layers * load.prompt_log_ranks, 0.0)
    whole = pnorm(constants.prompt_scale * prompts * load.prompt_s + elsewhere, least, _HOST_OVERLAP)
    more = constants.prompt_scale * prompts * (at_batch(load.mixed_s, running) - plain)
    return step, np.where(load.alone | load.apart, whole, pnorm(step + more, least, _HOST_OVERLAP) - step)


def mean_waits(load: Loads, state: Steady, constants: Constants) -> Float:
    """Mean queueing of each row's requests, seconds: the burst at the start and what it leaves behind."""
    shared = ~(load.alone | load.apart)
    # A pass has room for several short prompts of a burst, and a long prompt takes several passes; each emits a token of the others.
    together = np.where(load.apart, 1.0, np.clip(_STEP_TOKENS / load.input_len, 1.0, load.burst))
    service = (_times(load, constants, state.running, together)[1] + np.where(shared, state.step_s, 0.0)) / together
    passes = np.maximum(load.input_len / _STEP_TOKENS, 1 / together)
    meanwhile = np.where(load.apart, service, np.where(load.alone, 0.0, np.minimum(passes * state.step_s, service)))
    slots = np.where(load.apart, load.capacity * load.burst / load.sequences, load.capacity)
    decoding = load.output_len * state.step_s / load.emitted
    after = constants.first_s + (constants.first_steps + load.delay_steps) * state.step_s
    rows = zip(load.burst, load.rounds, service, meanwhile, decoding, slots, load.workers, after, strict=True)
    return np.array([_mean_wait(*row) for row in rows])


def _first(load: Loads, state: Steady, constants: Constants) -> Float:
    """What comes on top of queue and prefill before the first token is out, seconds."""
    return constants.first_s + (constants.first_steps + load.delay_steps) * load.emitted * state.tpot_s


def _mean_wait(
    clients: float, rounds: float, service: float, meanwhile: float, decoding: float, slots: float, workers: int, after: float
) -> float:
    """Queueing in a closed loop of `clients` that start together, first come, first served; output lengths spread over ± 11 %.

    meanwhile: by how much decoding goes on while a prompt is computed; where it is all of `service`, `workers` prompts run at once.
    Lengths follow the golden ratio's sequence: evenly spread and the same in every run.
    """
    fold = max(clients / _MOST_CLIENTS, 1.0)  # a crowd queues as a tenth of it does at a tenth of the pace
    service, meanwhile, slots, count = service * fold, meanwhile * fold, slots / fold, max(round(clients / fold), 1)
    arrivals, free, finished = [0.0] * count, [0.0] * min(int(workers), count), list[float]()
    clock, lag, lags = 0.0, 0.0, ([0.0], [0.0])  # all times are of decoding; the true ones are later by a lag that prompts add to
    total, spread = 0.0, 0.5
    requests = max(int(min(rounds, _MOST_ROUNDS) * count), 1)
    for _ in range(requests):
        arrived = heapq.heappop(arrivals)
        start = max(arrived, heapq.heappop(free))
        if len(finished) >= max(int(slots), 1):
            start = max(start, heapq.heappop(finished))
        total += start + lag - arrived - _lag_at(arrived, *lags)
        if meanwhile < service:
            clock = max(clock, start)
            lags[0].append(clock)
            lags[1].append(lag)
            clock, lag = clock + meanwhile, lag + service - meanwhile
            lags[0].append(clock)
            lags[1].append(lag)
        heapq.heappush(free, start + meanwhile)
        spread = (spread + _GOLDEN) % 1.0
        end = start + meanwhile + after + decoding * (8 + 2 * spread) / 9
        heapq.heappush(arrivals, end)
        heapq.heappush(finished, end)
    return total / requests


def _lag_at(time: float, times: Sequence[float], lags: Sequence[float]) -> float:
    """The lag when decoding had first come as far as `time`, linear between the marks."""
    at = bisect.bisect_left(times, time)
    if at == len(times):
        return lags[-1]
    if times[at] == time or at == 0:
        return lags[at]
    return lags[at - 1] + (lags[at] - lags[at - 1]) * (time - times[at - 1]) / (times[at] - times[at - 1])


def settle(load: Loads, constants: Constants) -> tuple[Steady, Float]:
    """(steady state, mean time to the first token in seconds): queueing hardly depends on the batch, so two passes agree."""
    wait = np.zeros_like(load.sequences)
    for _ in range(2):
        state = steady(load, constants, wait)
        wait = mean_waits(load, state, constants)
    state = steady(load, constants, wait)
    shared = np.where(load.alone | load.apart, 0.0, state.step_s)
    return state, wait + state.prompt_s + shared + _first(load, state, constants)
