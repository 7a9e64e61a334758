"""The fewest GPUs that carry a load under its service levels: closed form first, then simulation of the best candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from roofline.batch import Batch
from roofline.capacity import memory_plan
from roofline.errors import DoesNotFitError, InputError, ShardError
from roofline.ledger import Parallel, Precision
from roofline.phases import Setup
from roofline.planning.load import Load, largest_batch_within, missed_alone, replicas_needed
from roofline.planning.rehearsal import spread
from roofline.serving import workloads
from roofline.serving.asked import CYCLES, Disaggregated, serve
from roofline.serving.deployment import Deployment, deploy
from roofline.serving.statistics import Result
from roofline.serving.waiting import load_of
from roofline.serving.workloads import Workload

TP_SIZES = (1, 2, 4, 8, 16)
BUDGETS = (512, 2048, 8192)
MOST_REPLICAS = 4096
_MOST_REQUESTS = 6000


@dataclass(frozen=True)
class Trial:
    """One simulated configuration: `replicas` of a layout (prefill: how many of them only prefill, 0 = all mixed).

    attainment: share of the requests that met every level; waited_for: what requests waited for. ttft_s, tpot_s: means.
    output_tokens_per_s: of all replicas, without filling up and draining; those asked for where the layout keeps up with a rate.
    """

    parallel: Parallel
    precision: Precision
    replicas: int
    prefill: int
    max_num_batched_tokens: int
    gpus: int
    attainment: float
    ttft_s: float
    tpot_s: float
    output_tokens_per_s: float
    waited_for: str
    meets: bool

    @property
    def layout(self) -> str:
        """In words: 3 × TP2, 1:2 TP4 …"""
        count = f"{self.prefill}:{self.replicas - self.prefill}" if self.prefill else f"{self.replicas} ×"
        parts = [f"TP{self.parallel.tp}"] + [f"{n.upper()}{s}" for n in ("pp", "ep", "dp") if (s := getattr(self.parallel, n)) > 1]
        return " ".join([count, *parts])


@dataclass(frozen=True)
class Search:
    """best: the trial with the fewest GPUs that meets the load, None if no layout can. trials: all that were simulated, best first.

    gpus_range: GPUs of the best layout at the low and high end of the step times. binding, next_: what keeps a replica of the best
    layout from carrying more, and what would after that. why_not: sentences on layouts that can never meet the load.
    """

    best: Trial | None
    trials: tuple[Trial, ...]
    gpus_range: tuple[int, int] | None
    binding: str
    next_: str
    why_not: tuple[str, ...] = field(default=())


def search(
    setup: Setup,
    load: Load,
    *,
    attainment: float = 0.9,
    precisions: Sequence[Precision] = (),
    tp_sizes: Sequence[int] = TP_SIZES,
    requests: int = 400,
    candidates: int = 3,
    progress: Callable[[str], None] = lambda text: None,
    **memory_options: Any,
) -> Search:
    """Tries tensor-parallel sizes, precisions (the setup's own unless given) and token budgets for a load with a rate or users.

    The closed form ranks the layouts; the best `candidates` are simulated with `requests` requests per replica, with more replicas
    until `attainment` of them meet the levels. Lengths are the load's; 80 … 100 % of them in a closed loop, whose requests would otherwise
    go in step. Raises InputError without a load.
    """
    if load.request_rate is None and load.users is None and load.concurrency is None:
        raise InputError("a search needs a load: --request-rate, --users or --concurrency")
    ranked, why_not = _ranked(setup, load, precisions or (setup.precision,), tp_sizes, memory_options)
    trials: list[Trial] = []
    for each, options, guess in ranked[:candidates]:
        most = min((trial.gpus for trial in trials if trial.meets), default=1 << 60)
        for budget in dict.fromkeys([None, *BUDGETS]):
            progress(f"TP{each.parallel.tp}, {budget or 'default'} tokens per step …")
            trial = _fewest(each, load, guess, budget, attainment, requests, most, options)
            if trial is not None and trial not in trials:
                trials.append(trial)
                most = min(most, trial.gpus if trial.meets else most)
    trials.sort(key=_merit)
    met = [trial for trial in trials if trial.meets]
    if not met:
        return Search(None, tuple(trials), None, "", "", tuple(why_not))
    best = met[0]
    winner = replace(setup, parallel=best.parallel, precision=best.precision)
    if best.replicas > 1:
        trials += _split(winner, load, best, attainment, requests, memory_options)
        trials.sort(key=_merit)
        best = next(trial for trial in trials if trial.meets)
    binding, next_ = _constraints(winner, load, memory_options)
    return Search(best, tuple(trials), _range(winner, load, best, attainment, requests, memory_options), binding, next_, tuple(why_not))


def _merit(trial: Trial) -> tuple[bool, int, float]:
    return not trial.meets, trial.gpus, -trial.attainment


_Ranked = tuple[Setup, Mapping[str, Any], int]


def _ranked(
    setup: Setup, load: Load, precisions: Sequence[Precision], tp_sizes: Sequence[int], options: Mapping[str, Any]
) -> tuple[list[_Ranked], list[str]]:
    """(layouts by GPUs of the closed form, with its replicas; why the others cannot)."""
    found: list[tuple[int, float, _Ranked]] = []
    why_not: list[str] = []
    for each in _layouts(setup, precisions, tp_sizes):
        name = f"TP{each.parallel.tp}" + (f" {each.precision.weights}" if each.precision.weights else "")
        memory = memory_plan(each.model, each.hardware, each.parallel, each.precision, **{"engine": each.engine, **options})
        held = memory.max_sequences(load.longest) if memory.fits else 0
        if not held:
            why_not.append(f"{name}: not one request of {load.longest:,} tokens fits")
            continue
        slots = memory.settings.max_num_seqs * each.parallel.dp
        need = replicas_needed(each, load, kv_limit=held, slot_limit=slots)
        if need is None:
            why_not.append(f"{name}: {missed_alone(each, load)}")
            continue
        found.append((need.gpus, need.point.tpot_s, (each, options, need.replicas)))
    found.sort(key=lambda entry: entry[:2])
    return [entry[2] for entry in found], why_not


def _layouts(setup: Setup, precisions: Sequence[Precision], tp_sizes: Sequence[int]) -> Iterator[Setup]:
    for precision in precisions:
        for tp in tp_sizes:
            parallel = replace(setup.parallel, tp=tp, ep=tp * setup.parallel.dp if setup.parallel.ep > 1 else 1)
            try:
                parallel.check(setup.model)
            except ShardError:
                continue
            yield replace(setup, parallel=parallel, precision=precision)


def _workload(load: Load, replicas: int, requests: int) -> Workload:
    """The load of one of `replicas` replicas, or of all of them where requests are sent by users."""
    inputs, outputs = workloads.fixed_length(load.input_len), workloads.fixed_length(load.output_len)
    if load.request_rate is not None:
        rate = load.request_rate / replicas
        count = min(_MOST_REQUESTS, max(requests, round(rate * _seconds(load))))
        return workloads.open_loop(count, rate, inputs, outputs)
    if load.users is not None:
        number = math.ceil(load.users / replicas)
        count = max(requests, min(CYCLES * number, max(_MOST_REQUESTS, 2 * number)))
        return workloads.users(count, number, load.think_time_s, inputs, outputs)
    assert load.concurrency is not None  # noqa: S101 - the search asked for a load
    share = math.ceil(load.concurrency / replicas)
    return workloads.closed_loop(max(requests, 3 * share), share, *spread(load))


def _seconds(load: Load) -> float:
    """So long that the filling of the batch at the start does not count: a minute, and 8 requests at the slowest pace allowed."""
    return max(60.0, 8 * load.output_len * (load.tpot_s or 0.05))


def _levels(load: Load) -> dict[str, float]:
    return {name: level for name, level in (("ttft", load.ttft_s), ("tpot", load.tpot_s)) if level is not None}


def _fewest(
    setup: Setup, load: Load, guess: int, budget: int | None, attainment: float, requests: int, most_gpus: int, options: Mapping[str, Any]
) -> Trial | None:
    """The fewest replicas of a layout that meet the load, looked for around `guess`; None if they take over most_gpus."""
    try:
        deployment = _deployed(setup, load, budget, options)
    except (DoesNotFitError, InputError):
        return None
    most = min(most_gpus // setup.parallel.gpus, MOST_REPLICAS)
    if guess > most:
        return None
    return _least(lambda replicas: _try(deployment, load, replicas, attainment, requests), guess, most)


def _least(attempt: Callable[[int], Trial], guess: int, most: int) -> Trial | None:
    """The trial with the fewest replicas up to `most` that meets the load, None if none does: steps from `guess` that double, then
    halving; to one in a hundred, which is what a simulation can tell apart."""
    good: Trial | None = None
    failed, replicas, step = 0, guess, max(1, guess // 8)
    while good is None or good.replicas - failed > max(1, good.replicas // 100):
        replicas = min(replicas, most)
        if replicas <= failed:
            break
        trial = attempt(replicas)
        if trial.meets:
            good = trial
        else:
            failed = replicas
        if good is not None and failed:
            replicas = (failed + good.replicas) // 2
        else:
            replicas = replicas + step if good is None else max(1, replicas - step)
            step *= 2
    return good


def _deployed(setup: Setup, load: Load, budget: int | None, options: Mapping[str, Any]) -> Deployment:
    chosen = {"engine": setup.engine, **options} | ({} if budget is None else {"max_num_batched_tokens": budget})
    if budget is not None and chosen.get("max_num_seqs") is None:
        plan = memory_plan(setup.model, setup.hardware, setup.parallel, setup.precision, **{"engine": setup.engine, **options})
        chosen["max_num_seqs"] = min(budget, plan.settings.max_num_seqs)
    return deploy(setup.model, setup.hardware, setup.parallel, setup.precision, **chosen)


def _try(deployment: Deployment, load: Load, replicas: int, attainment: float, requests: int, band: str = "expected") -> Trial:
    """One replica with its share of the load."""
    result = serve(deployment, _workload(load, replicas, requests), band=band)
    return _trial(deployment, result, load, replicas, 0, attainment, share=replicas)


def _trial(deployment: Deployment, result: Result, load: Load, replicas: int, prefill: int, attainment: float, *, share: int) -> Trial:
    """share: by how much the simulated part is to be multiplied to give the whole."""
    met, kept_up = float(result.good(_levels(load)).mean()), keeps_up(result)
    data = result.to_json()
    tokens = share * result.steady_output_tokens_per_s
    if load.request_rate is not None and kept_up:
        tokens = load.request_rate * load.output_len
    return Trial(
        deployment.parallel,
        deployment.precision,
        replicas,
        prefill,
        deployment.memory.settings.max_num_batched_tokens,
        replicas * deployment.parallel.gpus,
        met,
        float(data["ttft_s"]["mean"] or math.nan),
        float(data["tpot_s"]["mean"] or 0.0),
        tokens,
        load_of(result, deployment.max_num_seqs).binding,
        met >= attainment and kept_up,
    )


def keeps_up(result: Result) -> bool:
    """Whether an open loop is served as fast as it arrives: the last request does not wait far longer than the middle one."""
    if result.workload.reactive:
        return True
    span = float(np.ptp(result.workload.arrival_s))
    return result.makespan_s <= 1.1 * span + 4 * float(np.nanmedian(result.e2el_s))


def _split(setup: Setup, load: Load, best: Trial, attainment: float, requests: int, options: Mapping[str, Any]) -> list[Trial]:
    """Prefill and decode pools of as many replicas as the best mixed trial has, and of one fewer; all replicas simulated together."""
    link = setup.hardware.link_bandwidth or setup.hardware.pcie_bandwidth
    if link is None or setup.engine == "sglang" or best.replicas > 16:
        return []
    deployment = _deployed(setup, load, best.max_num_batched_tokens, options)
    prefill = float(np.asarray(setup.price(Batch.prefill(1, load.input_len)).estimate.expected_s))
    batch = max(1, round(_batch(best, load)))
    step = setup.price(Batch.decode(setup.per_pass(batch), load.mean_context)).estimate.expected_s
    decoding = load.output_len * float(np.asarray(step)) / batch
    trials = []
    for total in {best.replicas, best.replicas - 1} - {0, 1}:
        share = round(total * prefill / (prefill + decoding))
        for count in {min(share + 1, total - 1), min(share + 2, total - 1)}:
            workload = _workload(load, 1, requests * total)
            result = serve(deployment, workload, pools=Disaggregated(count, total - count, link))
            trials.append(_trial(deployment, result, load, total, count, attainment, share=1))
    return trials


def _batch(trial: Trial, load: Load) -> float:
    """Requests in flight on a replica of a trial (Little's law)."""
    rate = trial.output_tokens_per_s / load.output_len / trial.replicas
    return rate * (trial.ttft_s + load.output_len * trial.tpot_s)


def _constraints(setup: Setup, load: Load, options: Mapping[str, Any]) -> tuple[str, str]:
    """(what caps the batch of a replica first, what would next)."""
    memory = memory_plan(setup.model, setup.hardware, setup.parallel, setup.precision, **{"engine": setup.engine, **options})
    far = 1 << 14
    caps = [("KV memory", memory.max_sequences(load.longest)), ("max_num_seqs", memory.settings.max_num_seqs * setup.parallel.dp)]
    alone = {"TTFT level": replace(load, tpot_s=None), "TPOT level": replace(load, ttft_s=None)}
    for name, level in (("TTFT level", load.ttft_s), ("TPOT level", load.tpot_s)):
        if level is not None:
            caps.append((name, largest_batch_within(setup, alone[name], far)))
    caps.sort(key=lambda pair: pair[1])
    said = [f"{name} (batch {'beyond ' if cap == far else ''}{cap:,})" for name, cap in caps]
    return said[0], said[1]


def _range(setup: Setup, load: Load, best: Trial, attainment: float, requests: int, options: Mapping[str, Any]) -> tuple[int, int] | None:
    """GPUs of mixed replicas like the best at the two ends of the step times."""
    if best.prefill:
        return None
    deployment = _deployed(setup, load, best.max_num_batched_tokens, options)
    limit = 2 * best.replicas + 1

    def gpus(band: str) -> int:
        end = _least(lambda replicas: _try(deployment, load, replicas, attainment, requests, band), best.replicas, limit)
        return (limit if end is None else end.replicas) * setup.parallel.gpus

    return gpus("low"), gpus("high")
