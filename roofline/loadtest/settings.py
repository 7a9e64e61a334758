"""What a load test is asked to do, checked once, with nothing secret in it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from roofline.errors import InputError
from roofline.loadtest.http import Target
from roofline.loadtest.prompts import Dataset, Prompts, Tokenizer, WordPrompts, load_dataset, shared_prefixes
from roofline.loadtest.wire import PATHS, Endpoint
from roofline.serving.traces import load_trace
from roofline.serving.workloads import Workload, interarrival

TOKENS_PER_S_PER_PROCESS = 20_000
STREAMS_PER_PROCESS = 512
"""What one process on a free core reads truthfully (docs/how-to/load-test.md)."""


@dataclass(frozen=True)
class Settings:
    """One load test. ladder: streams of each stage (a closed loop); rates: requests/s of each (an open loop; inf: all at once).

    One of ladder, rates and trace says what the stages are. Lengths in tokens. requests_per_stage: None = 4 per stream, at least
    32 (rates: 100). shared_prefix_tokens of every prompt are one of prefix_groups common beginnings. levels_s: service levels in
    seconds by ttft, tpot, e2el. speed: a trace is replayed so many times as fast.
    """

    url: str
    model: str | None = None
    endpoint: Endpoint = "chat"
    ladder: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    trace: Path | None = None
    speed: float = 1.0
    burstiness: float = 1.0
    requests_per_stage: int | None = None
    input_tokens: int = 128
    output_tokens: int = 64
    dataset: Path | None = None
    tokenizer: Path | None = None
    shared_prefix_tokens: int = 0
    prefix_groups: int = 1
    ignore_eos: bool = True
    warmup: int = 8
    max_concurrency: int | None = None
    levels_s: dict[str, float] = field(default_factory=dict)
    timeout_s: float = 600.0
    processes: int = 0
    seed: int = 0
    extra_body: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Target.parse(self.url)
        chosen = [name for name in ("ladder", "rates", "trace") if getattr(self, name)]
        if len(chosen) != 1:
            raise InputError(f"one of --ladder, --request-rate and --trace is needed, not {' and '.join(chosen) or 'none'}")
        if self.endpoint not in PATHS:
            raise InputError(f"--endpoint {self.endpoint}: one of {', '.join(PATHS)}")
        if any(streams < 1 for streams in self.ladder):
            raise InputError("--ladder: streams must be 1 or more, like 1,2,4,8")
        if any(not rate > 0 for rate in self.rates) or not self.burstiness > 0 or not self.speed > 0:
            raise InputError("--request-rate, --burstiness and --speed must be above 0")
        if not 0 <= self.shared_prefix_tokens <= self.input_tokens:
            raise InputError(f"--shared-prefix-len {self.shared_prefix_tokens}: at most --input-len {self.input_tokens}")
        if self.dataset and self.shared_prefix_tokens:
            raise InputError("--shared-prefix-len is for synthetic prompts; a data set has its own")
        for name, limit in self.levels_s.items():
            if name not in ("ttft", "tpot", "e2el") or not limit > 0:
                raise InputError(f"--goodput {name}:{1e3 * limit:g}: ttft, tpot or e2el with milliseconds above 0, like ttft:500 tpot:50")

    def to_json(self) -> dict[str, Any]:
        """For results and records; paths by file name only."""
        values = asdict(self)
        for name in ("trace", "dataset", "tokenizer"):
            values[name] = values[name].name if values[name] else None
        values["rates"] = ["inf" if math.isinf(rate) else rate for rate in self.rates]
        values["ladder"] = list(self.ladder)
        return values


@dataclass(frozen=True)
class Stage:
    """One stage to come: its workload and what to call it."""

    number: int
    workload: Workload
    concurrency: int | None = None
    request_rate: float | None = None
    first_number: int = 0

    @property
    def title(self) -> str:
        """For people."""
        if self.concurrency is not None:
            return f"{self.concurrency} stream{'s' if self.concurrency > 1 else ''}"
        return f"{self.request_rate:g} req/s" if self.request_rate is not None else self.workload.name

    def processes(self, wanted: int, cores: int) -> int:
        """Client processes for this stage: as many as wanted, or (0) as its token rate needs and the cores allow."""
        if wanted:
            return min(wanted, self.concurrency or wanted)
        need = math.ceil((self.concurrency or 1) / STREAMS_PER_PROCESS)
        if self.request_rate is not None and math.isfinite(self.request_rate):
            need = math.ceil(self.request_rate * float(self.workload.output_tokens.mean()) / TOKENS_PER_S_PER_PROCESS)
        return max(1, min(need, cores - 1))


def stages(settings: Settings, dataset: Dataset | None) -> list[Stage]:
    """The stages in order; prompts are numbered through, so that no stage repeats another's."""
    if settings.trace is not None:
        load = load_trace(settings.trace).scaled(rate=settings.speed)
        count = settings.requests_per_stage
        return [Stage(0, load.slice(0, count) if count else load)]
    rng = np.random.default_rng(settings.seed)
    result, first = [], 0
    for number, step in enumerate(settings.ladder or settings.rates):
        closed = bool(settings.ladder)
        count = settings.requests_per_stage or (max(32, 4 * int(step)) if closed else 100)
        load = Workload(
            np.zeros(count) if closed else interarrival(count, step, settings.burstiness, rng),
            np.full(count, settings.input_tokens),
            _output_lengths(settings, dataset, first, count),
            concurrency=int(step) if closed else None,
            segments=shared_prefixes(count, settings.prefix_groups, settings.shared_prefix_tokens, rng)
            if settings.shared_prefix_tokens
            else None,
        )
        result.append(Stage(number, load, int(step) if closed else None, None if closed else float(step), first))
        first += count
    return result


def _output_lengths(settings: Settings, dataset: Dataset | None, first: int, count: int) -> Any:
    if dataset is None:
        return np.full(count, settings.output_tokens)
    lengths = np.array([dataset.output_tokens[index % len(dataset.output_tokens)] for index in range(first, first + count)])
    return np.where(lengths > 0, lengths, settings.output_tokens)


def prompts_for(settings: Settings) -> tuple[Prompts, Dataset | None, Tokenizer | None]:
    """Prompts, the data set they come from if any, and the tokenizer that counts answers if one was given."""
    tokenizer = Tokenizer(settings.tokenizer) if settings.tokenizer else None
    if settings.dataset is not None:
        dataset = load_dataset(settings.dataset)
        if settings.endpoint == "completions" and any(content.startswith("[") for content in dataset.prompts.contents):
            raise InputError(f"{settings.dataset}: messages need --endpoint chat")
        return dataset.prompts, dataset, tokenizer
    return (tokenizer.prompts(settings.seed) if tokenizer else WordPrompts(settings.seed)), None, tokenizer
