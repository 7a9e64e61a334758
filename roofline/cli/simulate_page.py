"""The simulations of a `roofline simulate`, and their page: latencies, what was waited for, goodput, rejections."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from roofline import units
from roofline.cli import jsonout
from roofline.cli.output import write_atomically
from roofline.cli.render import Block, Column, Heading, Paragraph, Table, assumed
from roofline.phases import Setup
from roofline.planning.load import Load, missed_alone, operate
from roofline.planning.max_rate import MaxRate, find_max_rate
from roofline.serving.asked import Disaggregated, RouterName, Traffic, serve
from roofline.serving.deployment import Deployment, typical_tokens
from roofline.serving.export import chrome_trace, request_rows, timeline
from roofline.serving.measured import measured_note
from roofline.serving.recorder import STALLED
from roofline.serving.statistics import Result
from roofline.serving.waiting import FULL_POOL, load_of
from roofline.timing.engines import engine_step

LATENCIES = (
    Column("metric", "latency"),
    *(Column(key, key, "time") for key in ("mean", "p50", "p90", "p99")),
)
_TURNS = 3  # requests of each user below which a run says little about how they settle
NAMES = {"ttft_s": "TTFT", "queue_s": "queue", "tpot_s": "TPOT", "itl_s": "ITL", "e2el_s": "E2E"}


@dataclass(frozen=True)
class Found:
    """What was simulated: the run (None: no rate meets the levels), runs at the ends of the interval, the highest rate."""

    run: Run
    result: Result | None
    ends: Mapping[str, Result] = field(default_factory=dict)
    highest: MaxRate | None = None

    @property
    def met(self) -> bool:
        """Whether any request was served, enough met the service levels, if there are some, and the engine did not stop."""
        if self.result is None or self.result.stalled or not self.result.completed.any():
            return False
        return not self.run.levels or self.highest is not None or float(self.result.good(self.run.levels).mean()) >= self.run.attainment

    @property
    def subtitle(self) -> str:
        """Model, device and traffic in a line."""
        deployment = self.run.deployment
        where = f"{deployment.model.name} on {self.run.gpus} × {deployment.hardware.name}"
        return where if self.result is None else f"{where} · {self.result.workload.name}"

    @property
    def growth(self) -> str:
        """That this may be no steady state, and what would show it; "" where nothing speaks against one."""
        if self.result is None or self.result.filling is None:
            return ""
        early, late = (f"{count:.0f}" for count in self.result.filling)
        wanted, longer = self.run.traffic.num_requests, "a longer run (--num-requests)"
        if self.run.traffic.trace is not None:
            longer = "more of the trace (--num-requests)" if wanted == len(self.result.workload) else "a longer trace"
        return (
            f"this may be no steady state: {early} requests were in the system in the second quarter of the arrivals and {late} in the "
            f"last; {longer} shows whether the server keeps up"
        )

    @property
    def few_turns(self) -> str:
        """That users asked too seldom for their pauses and answers to settle, else ""."""
        users = self.run.traffic.users
        if self.result is None or users is None or len(self.result.workload) >= _TURNS * users:
            return ""
        return (
            f"this may be no steady state: {users:,} users sent {len(self.result.workload):,} requests, fewer than {_TURNS} each; "
            "a longer run (--num-requests) shows what they settle at"
        )

    @property
    def short_trace(self) -> str:
        """That the trace has fewer requests than were asked for, else ""."""
        wanted, trace = self.run.traffic.num_requests, self.run.traffic.trace
        if self.result is None or trace is None or wanted is None or wanted <= len(self.result.workload):
            return ""
        return f"the trace has {len(self.result.workload):,} requests, fewer than --num-requests {wanted:,}: each is sent once"

    def data(self) -> dict[str, Any]:
        """The keys of the JSON document."""
        deployment, run = self.run.deployment, self.run
        data: dict[str, Any] = {"gpus": run.gpus, "meets_goodput": self.met}
        if run.levels and run.traffic.open_ended:
            data["max_rate"] = None if self.highest is None else {
                "requests_per_s": self.highest.request_rate, "attainment": run.attainment, "shares": list(self.highest.shares),
                "missed_above": self.highest.missed, "missed_at_requests_per_s": self.highest.above,
            }  # fmt: skip
        if self.result is None:
            return data
        load = load_of(self.result, deployment.max_num_seqs)
        data |= self.result.to_json(run.levels) | {
            "kv_blocks": deployment.kv_blocks(typical_tokens(self.result.workload)),
            "waited_for": load.binding,
            "load": vars(load),
        }
        if self.ends:
            data["band"] = {name: result.to_json(run.levels) for name, result in self.ends.items()}
        return data

    def assumptions(self) -> list[str]:
        """What the simulation rests on."""
        deployment = self.run.deployment
        policy, settings = deployment.policy, deployment.memory.settings
        step = engine_step(deployment.engine)
        notes = list(deployment.memory.assumptions) if policy.kv_blocks is None else []
        notes.append(f"step times: expected kernel times and the overhead of {deployment.engine} ({step.source})")
        if note := measured_note(self.run.setup, apart=self.run.pools is not None):
            notes.append(note)
        host = "behind" if policy.asynchronous else "before"
        each = f"{units.plain(1e3 * step.host_s)} ms + {units.plain(1e6 * step.host_per_sequence_s)} µs per sequence"
        notes.append(f"the host takes {each}, {host} the device")
        notes.append(f"at most {deployment.max_num_seqs} sequences and {settings.max_num_batched_tokens} tokens per step")
        if deployment.engines > 1:
            ranks = "data-parallel ranks and pipeline micro-batches"
            notes.append(f"{ranks} are {deployment.engines} engines that share the requests, with equal parts of the KV")
        if self.run.pools is not None:
            speed = units.format(self.run.pools.bandwidth, "bandwidth")
            notes.append(f"KV moves after the whole prefill at {speed} per rank; the decode server computes the last prompt token again")
        if deployment.speculating is not None:
            drafter = deployment.speculating.drafter
            notes.append(
                f"drafting for one sequence takes {units.format(drafter.draft_time(1), 'time')} a step; acceptance is alike everywhere"
            )
        notes.append("outputs end at their length; tokenisation and the network are not in the times")
        traffic = self.run.traffic
        if (traffic.concurrency or 1) > 1 and not traffic.lengths.variation and deployment.speculating is None:
            notes.append(
                "all lengths are alike, so the requests in flight end together and their successors' prompts are computed together: "
                "TTFT comes from that, and is shorter where lengths differ (--length-variation 0.3)"
            )
        notes += [note for note in (self.short_trace, self.few_turns, self.growth) if note]
        if self.result is not None and self.result.completed.any():
            notes.append("rates are over the whole run, first request to last token: while it fills up and drains the server does less")
        return notes


@dataclass(frozen=True)
class Run:
    """A question: servers, traffic, service levels (seconds by name) and the share of requests that must meet them."""

    deployment: Deployment
    traffic: Traffic
    levels: Mapping[str, float]
    attainment: float
    replicas: int
    router: RouterName
    pools: Disaggregated | None
    seed: int
    class_servers: Mapping[str, int] | None = None

    @property
    def gpus(self) -> int:
        """GPUs of all servers."""
        servers = self.replicas if self.pools is None else self.pools.prefill + self.pools.decode
        if self.class_servers is not None:
            servers = sum(self.class_servers.values())
        return servers * self.deployment.parallel.gpus

    def once(self, *, band: bool) -> Found:
        """One simulation, and two more at the ends of the interval if asked."""
        workload = self.traffic.workload()
        ends = {name: self._serve(workload, name) for name in ("low", "high")} if band else {}
        return Found(self, self._serve(workload), ends)

    def max_rate(self, progress: Callable[[str], None]) -> Found:
        """The highest rate under the service levels, and the run at it."""

        def arrivals(seed: int) -> Callable[[float], Result]:
            def at(rate: float) -> Result:
                progress(f"{units.plain(rate, 4)} requests/s …")
                return self._serve(replace(self.traffic, seed=seed).workload(rate))

            return at

        others = [] if self.traffic.trace is not None else [arrivals(self.seed + 1), arrivals(self.seed + 2)]
        guess = self._guess()
        highest = find_max_rate(arrivals(self.seed), self.levels, attainment=self.attainment, guess=guess, others=others)
        return Found(self, None if highest is None else highest.result, highest=highest)

    def _serve(self, workload: Any, band: str = "expected") -> Result:
        return serve(
            self.deployment,
            workload,
            replicas=self.replicas,
            router=self.router,
            pools=self.pools,
            class_servers=self.class_servers,
            band=band,
            seed=self.seed,
        )

    def missed_alone(self) -> str:
        """By how much a request that is alone misses the levels."""
        lengths = self.traffic.lengths
        inputs, outputs = lengths.input_len, lengths.output_len
        if self.traffic.trace is not None:
            sent = self.traffic.workload()
            inputs, outputs = (round(float(tokens.mean())) for tokens in (sent.input_tokens, sent.output_tokens))
        load = Load(inputs, outputs, ttft_s=self.levels.get("ttft"), tpot_s=self.levels.get("tpot"))
        return missed_alone(self.setup, load, self.levels.get("e2el"))

    @property
    def setup(self) -> Setup:
        """What one replica is."""
        deployment = self.deployment
        return Setup(deployment.model, deployment.hardware, deployment.parallel, deployment.precision, deployment.engine)

    def _guess(self) -> float:
        """A rate near the answer: half of what the closed form gives at a middling batch."""
        deployment, lengths = self.deployment, self.traffic.lengths
        point = operate(self.setup, Load(lengths.input_len, lengths.output_len), 32)
        return 0.5 * point.request_rate * max(1, self.gpus // deployment.parallel.gpus)


def table(found: Found) -> Table:
    """Latencies, a row per metric, in seconds."""
    if found.result is None:
        return Table(LATENCIES, [])
    data = found.result.to_json()
    return Table(LATENCIES, [{"metric": name, **data[key]} for key, name in NAMES.items()])


def blocks(found: Found) -> list[Block]:
    """Answer, latencies, what was waited for, service levels, assumptions."""
    page: list[Block] = [Heading(found.subtitle), *(Paragraph(text) for text in _answer(found))]
    if found.result is not None and found.result.completed.any():
        page += [Paragraph(""), table(found), Paragraph("")]
        page += [Paragraph(text, bullet="·") for text in _details(found, found.result)]
    return [*page, *assumed(found.assumptions())]


def _answer(found: Found) -> Iterator[str]:
    run, result = found.run, found.result
    if result is None:
        goals = " and ".join(f"{name.upper()} ≤ {units.plain(1e3 * limit)} ms" for name, limit in run.levels.items())
        yield f"No request rate meets {goals}, so no number of such replicas does: {run.missed_alone()}."
        yield "More ranks per replica (--tp) and smaller formats (--weights, --kv-dtype) make a lone request faster."
        return
    data = result.to_json(run.levels)
    if found.highest is not None:
        found_at = f"The highest rate that meets the service level for {100 * run.attainment:g} % of the requests: "
        yield found_at + f"{units.significant(found.highest.request_rate)} requests/s on {run.gpus} GPU{'s' if run.gpus > 1 else ''}."
        yield f"At {units.significant(found.highest.above)} requests/s it is {found.highest.missed.upper()} that is missed."
        if len(found.highest.shares) > 1:
            low, high = (100 * end(found.highest.shares) for end in (min, max))
            yield f"{low:.0f}–{high:.0f} % meet it there, over {len(found.highest.shares)} runs with other arrivals."
    if result.stalled:
        yield f"{result.stalled:,} of {data['requests']:,} requests never end: {STALLED}."
    rate = data["requests_per_s"]
    if rate is None:
        reason, *others = result.recorder.rejected.values()
        yield f"Not one request could be served: {reason}" + (f" (and {len(others):,} more)." if others else ".")
        return
    yield (
        f"{data['requests_completed']:,} requests in {units.format(data['makespan_s'], 'time')}: {units.significant(rate)} requests/s, "
        f"{data['output_tokens_per_s']:,.0f} output tokens/s, {units.significant(data['mean_in_system'])} in the system on average."
    )
    for note in (found.short_trace, found.few_turns, found.growth):
        if note:
            yield f"{note[:1].upper()}{note[1:]}."


def _details(found: Found, result: Result) -> Iterator[str]:
    run = found.run
    load = load_of(result, run.deployment.max_num_seqs)
    pool = f"the KV pool was at most {100 * load.kv_peak:.0f} % full, {sum(result.recorder.preemptions):,} preemptions"
    yield f"Steps ran {100 * load.busy:.0f} % of the time, {100 * load.prefill:.0f} % with prompt tokens in them; {pool}."
    if load.binding == "nothing":
        yield "Nobody waited for a place in the batch."
    else:
        why = {
            "max_num_seqs": f"all {run.deployment.max_num_seqs} places of the batch were taken (--max-num-seqs)",
            "KV memory": f"the KV pool was over {100 * FULL_POOL:.0f} % full",
            "prefill": "prompts waited for earlier prompts: the steps' token budget and speed",
        }[load.binding]
        yield f"Somebody waited {100 * load.waiting:.0f} % of the time; mostly {why}."
    if result.prefix_cache_hit_rate:
        yield f"{100 * result.prefix_cache_hit_rate:.1f} % of the prompt tokens were in the prefix cache."
    if result.recorder.drafted_tokens:
        share = 100 * result.recorder.accepted_tokens / result.recorder.drafted_tokens
        yield f"{share:.0f} % of the drafts were accepted; a draft counts only if all those before it in its step were right."
    for name, each in result.to_json().get("classes", {}).items():
        times = ", ".join(f"{NAMES[key]} {units.format(each[key]['mean'] or 0, 'time')} on average" for key in ("ttft_s", "tpot_s"))
        yield f"Class {name}: {each['requests']:,} requests, {times}."
    for name, limit in run.levels.items():
        share = float(result.good({name: limit}).mean())
        yield f"{name.upper()} ≤ {units.plain(1e3 * limit)} ms: {100 * share:.1f} % of the requests."
    if run.levels:
        yield f"Goodput: {units.significant(result.goodput(run.levels))} requests/s meet every level."
    for name, end in found.ends.items():
        data = end.to_json()
        parts = (f"{NAMES[key]} {units.format(data[key]['mean'], 'time')}" for key in ("ttft_s", "tpot_s") if data[key]["mean"])
        yield f"With step times at the {name} end of their interval, on average: {', '.join(parts)}."
    rejected = result.recorder.rejected
    for reason in list(dict.fromkeys(rejected.values()))[:3]:
        yield f"Rejected: {reason}" + (f" (and {len(rejected) - 1:,} more)" if len(rejected) > 1 else "")
        break


def export(result: Result, timeline_file: Path | None, requests_file: Path | None) -> None:
    """Writes the state over time (CSV, or a Chrome trace as .json) and one CSV row per request."""
    if timeline_file is not None:
        if timeline_file.suffix == ".json":
            write_atomically(timeline_file, json.dumps(jsonout.plain(chrome_trace(result))) + "\n")
        else:
            series = timeline(result)
            rows = [dict(zip(series, values, strict=True)) for values in zip(*series.values(), strict=True)]
            write_atomically(timeline_file, _csv(rows))
    if requests_file is not None:
        write_atomically(requests_file, _csv(request_rows(result)))


def _csv(rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: jsonout.plain(value) for key, value in row.items()} for row in rows)
    return out.getvalue()
