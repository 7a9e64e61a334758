"""Many configurations from one file: every combination planned or simulated, one record per line, resumable, and the Pareto front."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from roofline.errors import InputError, MissingDependencyError, RooflineError
from roofline.ledger import Parallel, Precision
from roofline.phases import Setup
from roofline.planning.load import Load, operate, replicas_needed
from roofline.planning.sweep_records import open_records
from roofline.profiles.catalog import load_hardware, load_model
from roofline.serving.asked import Lengths, Traffic, serve
from roofline.serving.deployment import Deployment, Policy, deploy
from roofline.serving.statistics import Summary

Backend = Literal["loky", "sequential", "dask", "ray"]
ATTAINMENT = 0.9  # of simulated requests that must meet every level, as in `simulate`
_FORM = 2  # raised when a figure changes its meaning, so that a resumed sweep computes it anew


class Axes(BaseModel):
    """What a sweep varies: each a value or a list of values; every combination is one configuration."""

    model_config = ConfigDict(extra="forbid")

    model: list[str]
    hardware: list[str]
    tp: list[int] = [1]
    pp: list[int] = [1]
    ep: list[int] = [1]
    dp: list[int] = [1]
    weights: list[str | None] = [None]
    kv_dtype: list[str | None] = [None]
    engine: list[str] = ["vllm"]
    max_num_batched_tokens: list[int | None] = [None]
    max_num_seqs: list[int | None] = [None]
    input_len: list[int] = [1024]
    output_len: list[int] = [256]
    concurrency: list[int | None] = [None]
    request_rate: list[float | None] = [None]
    trace: list[str | None] = [None]


class Spec(BaseModel):
    """A sweep file. method: closed (the closed form) or simulate. num_requests, seed: of each simulation.

    ttft_ms, tpot_ms: levels that the closed form's point must keep, or ATTAINMENT of the simulated requests.
    """

    model_config = ConfigDict(extra="forbid")

    axes: Axes
    method: Literal["closed", "simulate"] = "simulate"
    num_requests: int = Field(200, ge=1)
    seed: int = Field(0, ge=0)
    ttft_ms: float | None = Field(None, gt=0)
    tpot_ms: float | None = Field(None, gt=0)

    @property
    def levels(self) -> dict[str, float]:
        """Service levels in seconds by name."""
        return {name: value / 1e3 for name, value in (("ttft", self.ttft_ms), ("tpot", self.tpot_ms)) if value is not None}


def load_spec(path: Path) -> Spec:
    """Reads a sweep file. Raises InputError (file:line:key and the fix)."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text") from None
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise InputError(f"{where}: not YAML ({getattr(error, 'problem', error)})") from None
    if not isinstance(document, dict):
        raise InputError(f"{path}: a sweep file is a mapping with `axes:` (model, hardware, tp, concurrency …)")
    axes = document.get("axes")
    if isinstance(axes, dict):
        document = document | {"axes": {key: value if isinstance(value, list) else [value] for key, value in axes.items()}}
    try:
        return Spec.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"] if not isinstance(part, int))
        raise InputError(f"{path}:{_line_of(text, key)}:{key}: {first['msg']}; known keys: {', '.join(_known(key))}") from None


def _line_of(text: str, key: str) -> int:
    name = key.rsplit(".", 1)[-1]
    return next((number for number, line in enumerate(text.splitlines(), 1) if line.strip().startswith(f"{name}:")), 1)


def _known(key: str) -> list[str]:
    return list(Axes.model_fields if key.startswith("axes.") else Spec.model_fields)


def configurations(spec: Spec) -> list[dict[str, Any]]:
    """Every combination of the axes, in order of the file's axes."""
    values = {name: getattr(spec.axes, name) for name in Axes.model_fields}
    return [dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())]


def evaluate(configuration: Mapping[str, Any], spec: Spec) -> dict[str, Any]:
    """One record: the configuration, its key, and its figures in base units, or an `error`."""
    record: dict[str, Any] = {"key": key_of(configuration, spec), **configuration}
    try:
        return record | _figures(configuration, spec)
    except RooflineError as error:
        return record | {"error": str(error)}


def key_of(configuration: Mapping[str, Any], spec: Spec) -> str:
    """Names a configuration under a method, so that a resumed sweep knows what it has."""
    rest = spec.model_dump(exclude={"axes"})
    text = json.dumps([dict(configuration), rest, _FORM], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _figures(one: Mapping[str, Any], spec: Spec) -> dict[str, Any]:
    parallel = Parallel(tp=one["tp"], pp=one["pp"], ep=one["ep"], dp=one["dp"])
    precision = Precision(weights=one["weights"], kv=one["kv_dtype"])
    model, hardware = load_model(one["model"]), load_hardware(one["hardware"])
    limits = {name: one[name] for name in ("max_num_batched_tokens", "max_num_seqs")}
    server = deploy(model, hardware, parallel, precision, engine=one["engine"], policy=Policy(), **limits)
    figures = (_closed if spec.method == "closed" else _simulated)(one, spec, server)
    gpus = parallel.gpus
    return figures | {"gpus": gpus, "output_tokens_per_s_per_gpu": figures["output_tokens_per_s"] / gpus}


def _closed(one: Mapping[str, Any], spec: Spec, server: Deployment) -> dict[str, Any]:
    """The operating point of one replica that keeps the concurrency or carries the rate; the most that fits where neither is stated.

    capacity_requests_per_s: at the most requests that fit. A rate above it is served that far and never meets its levels; its TTFT
    has no value, since the queue grows for as long as it lasts.
    """
    if one["trace"] is not None:
        raise InputError("the closed form takes requests that are all alike, no trace: method: simulate does")
    load = Load(one["input_len"], one["output_len"], one["concurrency"], one["request_rate"])
    setup = Setup(server.model, server.hardware, server.parallel, server.precision, server.engine)
    in_memory, slots = server.memory.max_sequences(load.longest), server.max_num_seqs * server.engines
    held = min(in_memory, slots)
    if held < 1:
        raise InputError(f"not one request of {load.longest:,} tokens fits")
    if load.concurrency is not None and load.concurrency > held:
        raise InputError(f"{load.concurrency} requests of {load.longest} tokens do not fit at once: {held} do")
    full = operate(setup, load, held)
    need = replicas_needed(setup, load, kv_limit=in_memory, slot_limit=slots)
    carried = need is None or need.replicas == 1
    point = need.point if need is not None and carried else full
    rate = load.request_rate if load.request_rate is not None and carried else point.request_rate
    reached = {"ttft": point.ttft_s, "tpot": point.tpot_s}
    return {
        "batch": point.batch,
        "ttft_s": point.ttft_s if carried else None,
        "tpot_s": point.tpot_s,
        "requests_per_s": rate,
        "capacity_requests_per_s": full.request_rate,
        "output_tokens_per_s": rate * load.output_len,
        "meets_goodput": carried and all(reached[name] <= limit for name, limit in spec.levels.items()),
    }


def _simulated(one: Mapping[str, Any], spec: Spec, server: Deployment) -> dict[str, Any]:
    """Means and percentiles over `requests` simulated ones, rates over the run from the first one sent to the last token."""
    traffic = Traffic(
        Path(one["trace"]) if one["trace"] else None, request_rate=one["request_rate"], concurrency=one["concurrency"],
        num_requests=spec.num_requests, lengths=Lengths(one["input_len"], one["output_len"]), seed=spec.seed,
    )  # fmt: skip
    result = serve(server, traffic.workload(), seed=spec.seed)
    data = result.to_json()
    return {
        "requests": data["requests"],
        "ttft_s": data["ttft_s"]["mean"],
        "tpot_s": data["tpot_s"]["mean"],
        "requests_per_s": data["requests_per_s"],
        "ttft_p99_s": Summary.of(result.ttft_s).p99,
        "itl_p99_s": data["itl_s"]["p99"],
        "preemptions": data["preemptions"],
        "output_tokens_per_s": data["output_tokens_per_s"] or 0.0,
        "meets_goodput": bool(result.completed.any()) and float(result.good(spec.levels).mean()) >= ATTAINMENT,
    }


def sweep(
    spec: Spec,
    records: Path | None,
    *,
    backend: Backend = "loky",
    jobs: int = -1,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> list[dict[str, Any]]:
    """Evaluates what `records` (JSON lines, appended to as results come) lacks; returns all records in the order of configurations.

    backend: local processes (loky), this process (sequential), or an existing dask or ray cluster. Ctrl-C keeps what is written.
    Raises MissingDependencyError without joblib (except sequential).
    """
    every = configurations(spec)
    with open_records(records) if records is not None else nullcontext((dict[str, dict[str, Any]](), None)) as (known, writer):
        missing = [one for one in every if key_of(one, spec) not in known]
        for done, record in enumerate(_results(missing, spec, backend, jobs), len(every) - len(missing) + 1):
            known[record["key"]] = record
            if writer is not None:
                writer.write(record)
                writer.flush()
            progress(done, len(every))
    return [known[key_of(one, spec)] for one in every]


def _results(missing: Sequence[Mapping[str, Any]], spec: Spec, backend: Backend, jobs: int) -> Iterable[dict[str, Any]]:
    if backend == "sequential" or len(missing) < 2:
        return (evaluate(one, spec) for one in missing)
    try:
        import joblib
    except ImportError:
        raise MissingDependencyError("joblib", "sweep", f"a sweep with the backend {backend}") from None
    if backend == "ray":
        import_module("ray.util.joblib").register_ray()
    return _with_joblib(joblib, missing, spec, backend, jobs)


def _with_joblib(joblib: Any, missing: Sequence[Mapping[str, Any]], spec: Spec, backend: str, jobs: int) -> Iterator[dict[str, Any]]:
    with joblib.parallel_config(backend=backend, n_jobs=jobs):
        yield from joblib.Parallel(return_as="generator_unordered")(joblib.delayed(evaluate)(one, spec) for one in missing)


@dataclass(frozen=True)
class Front:
    """The records that no other beats in both output tokens per second of a user and of a GPU, best per user first."""

    records: tuple[dict[str, Any], ...]


def pareto(records: Iterable[Mapping[str, Any]]) -> Front:
    """Of the records without an error that meet their service levels: the front over 1/TPOT and output tokens per second and GPU."""
    good = [dict(r) for r in records if not r.get("error") and r.get("meets_goodput") and r.get("tpot_s")]
    good.sort(key=lambda record: (record["tpot_s"], -record["output_tokens_per_s_per_gpu"]))
    front: list[dict[str, Any]] = []
    for record in good:
        if not front or record["output_tokens_per_s_per_gpu"] > front[-1]["output_tokens_per_s_per_gpu"]:
            front.append(record)
    return Front(tuple(front))
