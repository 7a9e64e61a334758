"""`roofline engine`: a workload or a trace on the reference engine, with a record of every step and of every request."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofline import units
from roofline.cli import engine_options, options
from roofline.cli.output import Answer, emit
from roofline.cli.render import Block, Column, Heading, Paragraph, Table, assumed
from roofline.cli.shell import new_app
from roofline.errors import InputError, RooflineError
from roofline.profiles.catalog import load_model
from roofline.records import JsonlWriter, capture_environment
from roofline.scheduling import Scheduler, VllmConfig
from roofline.serving.arrivals import stream
from roofline.serving.traces import load_trace
from roofline.serving.workloads import Workload, closed_loop, fixed_length, open_loop

if TYPE_CHECKING:
    from roofline.engine.build import Setup
    from roofline.engine.driver import Run
    from roofline.engine.sampler import Sampling

app = new_app()

COLUMNS = (
    Column("metric", "metric"),
    Column("mean", "mean", "time"),
    Column("p50", "p50", "time"),
    Column("p90", "p90", "time"),
    Column("p99", "p99", "time"),
)
METRICS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "e2el_s": "E2E", "step_s": "step"}


@dataclass(frozen=True)
class _Asked:
    """The workload options."""

    trace: Path | None
    num_requests: int
    request_rate: float
    max_concurrency: int | None
    input_len: int
    output_len: int
    seed: int

    def workload(self) -> Workload:
        if self.trace is not None:
            return load_trace(self.trace)
        inputs, outputs = fixed_length(self.input_len), fixed_length(self.output_len)
        if self.max_concurrency is not None:
            return closed_loop(self.num_requests, self.max_concurrency, inputs, outputs, seed=self.seed)
        return open_loop(self.num_requests, self.request_rate, inputs, outputs, seed=self.seed)


@app.command()
def engine(
    model: options.ModelName,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Replay a trace: arrival_s, input_tokens, output_tokens.")] = None,
    num_requests: Annotated[int, typer.Option("--num-requests", "--num-prompts", min=1, metavar="N", help="Requests.")] = 16,
    request_rate: Annotated[float, typer.Option(metavar="R", help="Requests/s, Poisson; inf: all at once.")] = float("inf"),
    max_concurrency: Annotated[int | None, typer.Option(min=1, metavar="N", help="A closed loop of N instead of a rate.")] = None,
    input_len: options.InputLength = 128,
    output_len: options.OutputLength = 32,
    device: engine_options.Device = "cpu",
    dtype: engine_options.ComputeType = "fp32",
    weights: engine_options.LayerWeights = "",
    kv_dtype: engine_options.KvType = "",
    kv_blocks: engine_options.KvBlocks = 1024,
    block_size: engine_options.BlockSize = 16,
    max_model_len: engine_options.MaxModelLen = None,
    max_num_batched_tokens: engine_options.MaxBatchedTokens = 512,
    max_num_seqs: engine_options.MaxSequences = 64,
    prefix_caching: engine_options.PrefixCaching = True,
    static_batching: Annotated[int, typer.Option(min=0, metavar="N", help="Static batches of N instead of continuous batching.")] = 0,
    speculative: engine_options.Speculative = "",
    temperature: Annotated[float, typer.Option(min=0, help="0: greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Share of probability to sample from.")] = 1.0,
    graphs: engine_options.Graphs = True,
    attention: engine_options.AttentionBackend = "sdpa",
    compiler: engine_options.Compiler = "",
    threads: engine_options.Threads = 0,
    tp: options.Tp = 1,
    random_weights: engine_options.RandomWeights = False,
    warmup: Annotated[int, typer.Option(min=0, metavar="N", help="Requests like the first one that are run before, unrecorded.")] = 1,
    seed: Annotated[int, typer.Option(metavar="N", help="Of random weights, lengths, prompts and sampling.")] = 0,
    records: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for steps.jsonl, requests.jsonl, environment.json.")] = None,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    output: options.OutFile = None,
) -> None:
    """Runs a workload on the reference engine and says how fast each step and each request was.

    Weights are random unless MODEL is a folder with safetensors; times do not depend on them, texts do. Outputs have fixed length.
    """
    inputs = {name: value for name, value in locals().items() if name not in ("as_json", "as_csv", "output")}
    engine_options.use_torch("engine", threads)
    from roofline.engine import build, parallel
    from roofline.engine.sampler import Sampling

    sampling = Sampling(temperature, top_p, seed)
    how = build.Options(
        device, dtype, engine_options.storage_format(weights, dtype), engine_options.storage_format(kv_dtype, dtype), kv_blocks,
        block_size, seed, "graphs" if graphs and device == "cuda" else "eager", compiler, attention,
    )  # fmt: skip
    setup = build.check(
        load_model(model),
        how,
        folder=engine_options.weights_folder(model, random_weights),
        speculation=engine_options.speculation(speculative, random_weights),
        ranks=parallel.Ranks(int(os.environ.get("RANK", "0")), tp),
        max_model_len=max_model_len,
    )
    config = VllmConfig(max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=min(max_num_seqs, max_num_batched_tokens))
    scheduler = setup.static_scheduler(static_batching) if static_batching else setup.scheduler(config, prefix_caching=prefix_caching)
    workload = _Asked(trace, num_requests, request_rate, max_concurrency, input_len, output_len, seed).workload()
    _check_requests(scheduler, workload)
    if tp > 1 and "RANK" not in os.environ:
        if code := parallel.launch(tp, parallel.own_command()):
            raise RooflineError(f"a rank of {tp} ended with exit code {code}; its message stands above")
        return
    setup.ranks.connect(device)
    run = _run(setup, scheduler, workload, sampling, warmup)
    setup.ranks.close()
    if setup.ranks.rank == 0:
        if records is not None:
            _write_records(records, run, inputs, setup)
        emit(_answer(setup, run, inputs), as_json=as_json, as_csv=as_csv, path=output)


def _check_requests(scheduler: Scheduler, workload: Workload) -> None:
    """Stops before anything is loaded if no request can run."""
    reasons = [reason for index in range(len(workload)) if (reason := scheduler.why_never(workload.request(index)))]
    if len(reasons) == len(workload):
        raise InputError(f"none of the {len(reasons)} requests can run: {reasons[0]}")


def _run(setup: Setup, scheduler: Scheduler, workload: Workload, sampling: Sampling, warmup: int) -> Run:
    """The run of the workload on a new engine. Request i is sampled with seed + i."""
    from roofline.engine.build import build_engine
    from roofline.engine.driver import Driver

    engine = build_engine(setup, scheduler)
    for index in range(warmup):
        length = max(1, min(int(workload.input_tokens[0]), setup.positions - 2))
        engine.add_request(f"warm-up {index}", [(7 * at + index) % setup.model.vocab_size for at in range(length)], 2)
    while engine.step() is not None:
        pass
    each = [replace(sampling, seed=sampling.seed + index) for index in range(len(workload))]
    return Driver(engine, workload, stream(workload), sampling=lambda index: each[index], ranks=setup.ranks).run()


def _write_records(folder: Path, run: Run, inputs: dict[str, Any], setup: Setup) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    environment = capture_environment(_device_facts(setup))
    about = environment.to_json() | {"inputs": {key: str(value) for key, value in inputs.items()}, "assumptions": setup.assumptions}
    (folder / "environment.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    for name, rows in (("steps", run.steps), ("requests", list(run.requests.values()))):
        path = folder / f"{name}.jsonl"
        path.unlink(missing_ok=True)
        with JsonlWriter(path) as writer:
            for row in rows:
                writer.write(row.to_json())
    print(f"records: {folder}", file=sys.stderr)


def _device_facts(setup: Setup) -> dict[str, Any]:
    torch = engine_options.use_torch("engine")
    if setup.options.device == "cuda":
        return {"name": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return {"threads": torch.get_num_threads()}


def _answer(setup: Setup, run: Run, inputs: dict[str, Any]) -> Answer:
    from roofline.engine.driver import summary

    data = summary(run)
    table = Table(COLUMNS, [{"metric": title, **data[key]} for key, title in METRICS.items()])
    how = setup.options
    kind = f"{how.dtype}{f', weights {how.weights}' if how.weights else ''}{f', KV {how.kv}' if how.kv else ''}"
    text = (
        f"{data['requests']:,} requests in {units.significant(data['makespan_s'])} s, {data['output_tokens_per_s']:,.1f} output tokens/s; "
        f"{data['steps']:,} steps, {data['preemptions']} preemptions, {100 * data['prefix_cache_hit_rate']:.3g} % of prompt tokens cached"
    )
    if data["drafted_tokens"]:
        text += f"; {data['accepted_tokens']:,} of {data['drafted_tokens']:,} drafts accepted"
    blocks: list[Block] = [Heading(f"{setup.model.name} on {how.device} ({kind})"), Paragraph(text), table]
    if run.rejected:
        blocks.append(Paragraph(f"{len(run.rejected)} rejected: {next(iter(run.rejected.values()))}", style="yellow"))
    backend = "FlashAttention on the pages" if how.attention == "flash" else "pages gathered, then scaled_dot_product_attention"
    threads = units.counted(engine_options.use_torch("engine").get_num_threads(), "CPU thread")
    assumptions = [
        *setup.assumptions,
        f"attention: {backend}; {threads}" * (how.device == "cpu"),
    ]
    assumptions = [note for note in assumptions if note]
    resolved = inputs | {"trace": str(inputs["trace"] or ""), "records": str(inputs["records"] or ""), "mode": how.mode}
    rejected = {"rejections": {str(index): reason for index, reason in run.rejected.items()}}
    return Answer("engine", resolved, data | rejected, table, [*blocks, *assumed(assumptions)], assumptions)
