"""A whole load test: first request, warm-up, stage after stage, and what they say together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from roofline.errors import InputError, RecordError
from roofline.loadtest import knee, selfcheck, server_metrics, timeline
from roofline.loadtest.failures import Failure
from roofline.loadtest.http import Target
from roofline.loadtest.journal import Journal, Past, resumed
from roofline.loadtest.lane import GIVE_UP_S, Shop
from roofline.loadtest.probe import fetch, first_request, only_model
from roofline.loadtest.prompts import Tokenizer, WordPrompts
from roofline.loadtest.selfcheck import ClientCheck, Load
from roofline.loadtest.settings import Settings, Stage, prompts_for, stages
from roofline.loadtest.stage import Plan, run_stage
from roofline.loadtest.statistics import DEFINITIONS, StageData, describe, met, summary
from roofline.loadtest.team import on_interrupt, run_in_processes
from roofline.loadtest.wire import Wire
from roofline.records import RequestRecord, capture_environment
from roofline.serving.workloads import Workload

NO_BATCHING_GAIN = 1.2
"""Throughput of many streams / that of few, up to which the server is said not to batch."""


@dataclass(frozen=True)
class Progress:
    """Where a run is: for whoever shows it. ended: the stage is over, whole or not."""

    title: str
    done: int
    total: int
    failed: int
    output_tokens: int
    elapsed_s: float
    ended: bool = False


Show = Callable[[Progress], None]


@dataclass
class StageOutcome:
    """A finished (or interrupted) stage."""

    stage: Stage
    data: StageData
    load: Load
    check: ClientCheck
    server: dict[str, Any]
    processes: int
    complete: bool = True


@dataclass
class Outcome:
    """All that a load test found; `to_json` has the keys of results. broken: why it ended early."""

    settings: Settings
    model: str
    run_id: str
    started: str
    warmup: StageData = field(default_factory=StageData)
    stages: list[StageOutcome] = field(default_factory=list)
    interrupted: bool = False
    broken: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def error_rate(self) -> float:
        """Failed requests / all, warm-up left out; 0 of nothing."""
        failed = sum(each.data.failed for each in self.stages)
        total = sum(each.data.total for each in self.stages)
        return failed / total if total else 0.0

    @property
    def mismatched(self) -> int:
        """Answers of another length than a fixed-length run asked for."""
        return sum(each.data.mismatched() for each in self.stages) if self.settings.ignore_eos else 0

    @property
    def reasons(self) -> list[str]:
        """Why the client is not to be trusted, by stage; empty if it is."""
        return [f"{each.stage.title}: {reason}" for each in self.stages for reason in each.check.reasons]

    def knee(self) -> dict[str, Any] | None:
        """The knee of a ladder; None for other runs."""
        if not self.settings.ladder:
            return None
        rungs = []
        for each in self.stages:
            streams = each.stage.concurrency or 1
            if each.data.total < streams:
                continue
            hits = met(each.data, self.settings.levels_s)
            e2el = each.data.column("e2el_s")[each.data.steady(streams)]
            rungs.append(knee.Rung(streams, e2el, hits, each.data.total))
        return knee.find(rungs, service_levels=bool(self.settings.levels_s), seed=self.settings.seed)

    def unbatched(self) -> list[str]:
        """A note if many streams get no more answers per second than few: the server takes one request after the other."""
        means = [
            (each.stage.concurrency, float(each.data.column("e2el_s")[each.data.steady(each.stage.concurrency)].mean()))
            for each in self.stages
            if each.stage.concurrency and each.data.ok
        ]
        if not means or min(means)[0] * 2 > max(means)[0]:
            return []
        (few, alone), (many, together) = min(means), max(means)
        gain = many / together / (few / alone)
        if gain > NO_BATCHING_GAIN:
            return []
        return [f"batching is not in effect: {many} streams get {gain:.2f} × the answers per second that {few} get"]

    def to_json(self) -> dict[str, Any]:
        """The keys of `loadtest --json`."""
        return {
            "model": self.model,
            "run_id": self.run_id,
            "started": self.started,
            "interrupted": self.interrupted,
            "stages": [_stage_json(each, self.settings.levels_s) for each in self.stages],
            "knee": self.knee(),
            "warmup": {"requests_ok": self.warmup.ok, "requests_failed": self.warmup.failed, "errors": dict(self.warmup.errors)}
            | {f"{name}_s": summary(self.warmup.column(f"{name}_s")) for name in ("ttft", "tpot", "e2el")},
            "client": _client_json(self),
            "error_rate": self.error_rate,
            "length_mismatches": self.mismatched,
            "definitions": DEFINITIONS,
            "environment": capture_environment().to_json(),
            "notes": [*([self.broken] if self.broken else []), *self.notes, *self.unbatched()],
        }


def _stage_json(each: StageOutcome, levels_s: dict[str, float]) -> dict[str, Any]:
    row = {
        "stage": each.stage.number,
        "title": each.stage.title,
        "concurrency": each.stage.concurrency,
        "request_rate": each.stage.request_rate,
        **describe(each.data, each.stage.concurrency, levels_s),
        "complete": each.complete,
        "processes": each.processes,
        "client": each.check.as_json(),
        "timeline": timeline.slices(each.data),
        "patterns": timeline.patterns(each.data),
    }
    if each.server:
        gaps, notes = server_metrics.beside_client(each.server, row)
        row["server"] = each.server | {"client_minus_server_s": gaps}
        row["warnings"] = [*row["warnings"], *notes]
    return row


def _client_json(outcome: Outcome) -> dict[str, Any]:
    lag = selfcheck.spread([value for each in outcome.stages for value in each.load.lag_s])
    delay = selfcheck.spread(np.concatenate([each.data.column("send_delay_s") for each in outcome.stages] or [np.zeros(0)]))
    reasons = outcome.reasons
    return {"event_loop_lag_s": lag, "send_delay_s": delay, "trustworthy": not reasons, "reasons": reasons}


class LoadTest:
    """Runs `settings`. journal: where every request is written; resume: go on with what is there already; show: called about
    five times a second and at the end of a stage. key: the API key, kept out of everything that is written."""

    def __init__(
        self, settings: Settings, *, key: str = "", journal: Path | None = None, resume: bool = False, show: Show | None = None
    ) -> None:
        self.settings = settings
        self._show = show or (lambda progress: None)
        self._prompts, self._dataset, self._tokenizer = prompts_for(settings)
        self._stages = stages(settings, self._dataset)
        if journal is not None and journal.is_dir():
            raise InputError(f"{journal}: is a folder; give a file name")
        if journal is not None and journal.exists() and journal.stat().st_size and not resume:
            raise InputError(f"{journal}: exists; --resume goes on with it, or give another name")
        known = journal is not None and journal.exists() and journal.stat().st_size > 0
        self._past = resumed(journal, settings.to_json()) if journal is not None and known else Past()
        self._journal = Journal(journal)
        self._has_metrics = True
        run_id = self._past.run_id or f"roofline-{secrets.token_hex(4)}"
        model = settings.model or self._past.settings.get("model") or ""
        self._wire = Wire(Target.parse(settings.url), settings.endpoint, model, settings.ignore_eos, settings.extra_body, key)
        self._shop = Shop(self._wire, self._prompts, monotonic(), run_id, settings.timeout_s, self._tokenizer is not None)
        self.outcome = Outcome(settings, model, run_id, datetime.now(UTC).isoformat(timespec="seconds"), self._past.warmup)

    def run(self) -> Outcome:
        """Runs all stages; Ctrl-C, or a disk that is full, ends early with what there is. Raises RecordError if that is nothing."""
        try:
            with self._journal:
                asyncio.run(self._main())
        except OSError as error:
            self.outcome.broken = f"{self._journal.path}: cannot write: {error.strerror}"
            self.outcome.interrupted = True
            if not any(each.data.total for each in self.outcome.stages):
                raise RecordError(self.outcome.broken) from None
        return self.outcome

    async def _main(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - inside of a coroutine there is one
        on_interrupt(task.cancel)
        try:
            if not self._wire.model:
                self._wire = self._shop.wire = replace(self._wire, model=await only_model(self._wire))
                self.outcome.model = self._wire.model
            if not self._past.run_id:
                settings = self.settings.to_json() | {"model": self._wire.model}
                origin = {"origin_monotonic_s": self._shop.origin_s, "origin": datetime.now(UTC).isoformat()}
                self._journal.write("loadtest", run_id=self.outcome.run_id, settings=settings, **origin)
                self._journal.write(**capture_environment().to_json())
            todo = [stage for stage in self._stages if stage.number not in self._past.ends]
            if todo and self.settings.warmup:
                await self._warm_up(todo[0])
            for stage in self._stages:
                await self._one(stage)
        except asyncio.CancelledError:
            self.outcome.interrupted = True

    async def _warm_up(self, stage: Stage) -> None:
        """One request alone, which shows whether all is well and how the server counts; then the rest together."""
        inputs, outputs = int(stage.workload.input_tokens[0]), int(stage.workload.output_tokens[0])
        record = await first_request(self._shop, inputs, outputs, 0)
        self._keep_warm(record, "")
        await self._calibrate(record, inputs, outputs)
        rest = self.settings.warmup - 1
        if rest:
            load = Workload(np.zeros(rest), np.full(rest, inputs), np.full(rest, outputs), concurrency=rest)
            await run_stage(Plan(-1, "warmup", load, first_number=(1 << 40) + 2), self._shop, self._keep_warm)
        self._journal.flush()

    def _keep_warm(self, record: RequestRecord, text: str) -> None:
        self._journal.request(record)
        self.outcome.warmup.add(record)

    async def _calibrate(self, record: RequestRecord, inputs: int, outputs: int) -> None:
        """Makes a word the server's token, by its own count."""
        prompts, counted = self._shop.prompts, record.input_tokens
        if not isinstance(prompts, WordPrompts) or not counted or counted == inputs:
            return
        other = max(8, inputs // 2) if inputs != 8 else 16
        second = await first_request(self._shop, other, min(outputs, 8), 1)
        self._keep_warm(second, "")
        both = second.input_tokens > 0 and other != inputs
        sent, seen = ([inputs, other], [counted, second.input_tokens]) if both else ([inputs], [counted])
        self._shop.prompts = prompts.calibrated(sent, seen)
        per_word, offset = self._shop.prompts.tokens_per_word, self._shop.prompts.offset
        self.outcome.notes.append(f"the server counts {offset} + {per_word:.4g} tokens per word of a prompt: lengths are adjusted to that")
        if inputs <= offset:
            raise InputError(f"--input-len {inputs}: the server adds {offset} tokens to every prompt; give more")

    async def _one(self, stage: Stage) -> None:
        """Runs a stage, or takes it from the journal."""
        end = self._past.ends.get(stage.number)
        if end is not None:
            load = Load(end["lag_s"], end["waited_s"], end["cpu_s"], end["wall_s"], end["processes"])
            data = self._past.data[stage.number]
            self.outcome.stages.append(StageOutcome(stage, data, load, self._check(stage, data, load), end["server"], end["processes"]))
            return
        data, processes = StageData(), stage.processes(self.settings.processes, _cores())
        self._journal.write("stage_start", stage=stage.number, title=stage.title, at_s=monotonic() - self._shop.origin_s)
        before, began = await self._metrics(), monotonic()
        ticker = asyncio.create_task(self._tick(stage, data, began))
        load = Load((), 0.0, 0.0, 0.0)
        ended_by: BaseException | None = None
        try:
            load = await self._send(stage, data, processes)
        except (asyncio.CancelledError, OSError) as error:
            ended_by = error
        finally:
            ticker.cancel()
            self._tell(stage, data, began, ended=True)
        missing = len(stage.workload) - data.total
        if ended_by is None and missing:
            self.outcome.broken = f"{stage.title}: no connection to the server for {GIVE_UP_S:.0f} s; {missing} requests were not sent"
            ended_by = asyncio.CancelledError()
        server = server_metrics.difference(before, await self._metrics()) if before and ended_by is None else {}
        outcome = StageOutcome(stage, data, load, self._check(stage, data, load), server, processes, complete=ended_by is None)
        self.outcome.stages.append(outcome)
        if ended_by is not None:
            self._journal.flush()
            raise ended_by
        own = {"lag_s": selfcheck.thinned(load.lag_s), "waited_s": load.waited_s, "cpu_s": load.cpu_s, "wall_s": load.wall_s}
        self._journal.write("stage_end", stage=stage.number, server=server, processes=processes, **own)

    async def _send(self, stage: Stage, data: StageData, processes: int) -> Load:
        def sink(record: RequestRecord, text: str) -> None:
            _count(record, text, self._tokenizer)
            data.add(record)
            self._journal.request(record)

        plan = Plan(stage.number, "measured", stage.workload, stage.first_number, most_in_flight=self.settings.max_concurrency)
        if processes > 1:
            return await run_in_processes(plan, self._shop, sink, processes)
        return await run_stage(plan, self._shop, sink)

    def _check(self, stage: Stage, data: StageData, load: Load) -> ClientCheck:
        return selfcheck.check(load, data, closed_loop=stage.concurrency is not None or stage.workload.concurrency is not None)

    async def _tick(self, stage: Stage, data: StageData, began: float) -> None:
        """Keeps the journal and whoever watches up to date."""
        while True:
            await asyncio.sleep(0.2)
            with contextlib.suppress(OSError):  # who writes the next record meets it again
                self._journal.flush()
            self._tell(stage, data, began)

    def _tell(self, stage: Stage, data: StageData, began: float, *, ended: bool = False) -> None:
        elapsed_s = monotonic() - began
        self._show(Progress(stage.title, data.total, len(stage.workload), data.failed, data.output_tokens, elapsed_s, ended))

    async def _metrics(self) -> dict[str, float]:
        """The server's /metrics page; empty if it has none, and then it is not asked again."""
        page = None
        if self._has_metrics:
            with contextlib.suppress(Failure):
                page = await fetch(self._wire, f"{self._wire.target.root}/metrics")
        self._has_metrics = page is not None and page.status == 200
        return server_metrics.parse(page.body.decode("utf-8", "replace")) if page is not None and page.status == 200 else {}


def _count(record: RequestRecord, text: str, tokenizer: Tokenizer | None) -> None:
    """Counts an answer's tokens with the tokenizer where the server did not."""
    if tokenizer is not None and record.ok and record.tokens_source == "chunks":
        record.output_tokens, record.tokens_source = max(1, tokenizer.count(text)), "tokenizer"
        if record.output_tokens != record.chunks:
            record.first_chunk_tokens = max(1, round(record.output_tokens / record.chunks))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
