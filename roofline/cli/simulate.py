"""`roofline simulate`: what happens to requests under load, through the engine's own scheduler."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from roofline.cli import options, simulate_page
from roofline.cli.output import Answer, check_target, emit
from roofline.cli.plan import (
    Concurrency,
    EngineName,
    EngineVersion,
    Fraction,
    MaxBatchedTokens,
    MaxModelLen,
    MaxNumSeqs,
    RequestRate,
    ThinkTime,
    Users,
)
from roofline.cli.shell import GoodputCommand, new_app
from roofline.cli.simulate_options import check_effects
from roofline.cli.simulate_page import Run
from roofline.errors import InputError
from roofline.ledger import Parallel, Precision
from roofline.profiles.catalog import load_hardware, load_model
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model
from roofline.serving import asked
from roofline.serving.deployment import Policy, deploy
from roofline.serving.drafting import speculate
from roofline.units import parse

app = new_app()

Trace = Annotated[Path | None, typer.Option(metavar="FILE", help="Requests of a trace: Azure or own CSV, Mooncake or own JSONL, BurstGPT.")]
NumRequests = Annotated[int | None, typer.Option(min=1, metavar="N", help="Requests to send; 1000, or the whole trace, unless given.")]
Blocks = Annotated[int | None, typer.Option(min=2, metavar="N", help="KV blocks of 16 tokens per rank in place of what memory leaves.")]
LevelGoal = re.compile(r"(ttft|tpot|e2el):(\d+(?:\.\d+)?)(?:ms)?")


@app.command(cls=GoodputCommand)
def simulate(
    context: typer.Context,
    model: options.ModelName,
    hardware: options.HardwareName,
    trace: Trace = None,
    speed: Annotated[float, typer.Option(metavar="X", help="Send the trace so many times as fast.")] = 1.0,
    request_rate: RequestRate = None,
    burstiness: Annotated[float, typer.Option(metavar="X", help="1: Poisson arrivals; below: burstier; above: more regular.")] = 1.0,
    concurrency: Concurrency = None,
    users: Users = None,
    think_time: ThinkTime = 30.0,
    num_requests: NumRequests = None,
    input_len: options.InputLength = 1024,
    output_len: options.OutputLength = 256,
    length_variation: Annotated[
        float, typer.Option(min=0, metavar="X", help="Spread of lengths: standard deviation over mean, log-normal; 0: all alike.")
    ] = 0.0,
    shared_prefix_len: Annotated[
        int, typer.Option(min=0, metavar="N", help="Tokens, of the input, that prompts begin with in common.")
    ] = 0,
    prefix_groups: Annotated[int, typer.Option(min=1, metavar="N", help="How many such beginnings there are.")] = 1,
    goodput: Annotated[list[str] | None, typer.Option(metavar="GOAL...", help="Service level, ms: ttft:500 tpot:50 e2el:9000.")] = None,
    find_max_rate: Annotated[bool, typer.Option("--find-max-rate", help="The highest rate that meets --goodput.")] = False,
    attainment: Annotated[float, typer.Option(metavar="X", help="Share of requests that must meet --goodput.")] = 0.9,
    tp: options.Tp = 1,
    pp: options.Pp = 1,
    ep: options.Ep = 1,
    dp: options.Dp = 1,
    replicas: Annotated[int, typer.Option(min=1, metavar="N", help="Equal servers; each request goes to the least loaded.")] = 1,
    router: Annotated[asked.RouterName, typer.Option(help="How a request finds its server.")] = "least-loaded",
    class_servers: Annotated[
        str | None, typer.Option(metavar="NAME:N,…", help="Servers of each traffic class of a trace: interactive:2,batch:1.")
    ] = None,
    disaggregated: Annotated[str | None, typer.Option(metavar="P:D", help="P prefill and D decode servers in place of mixed ones.")] = None,
    kv_link: Annotated[str | None, typer.Option(metavar="SPEED", help='The way of KV between them, like "50 GB/s".')] = None,
    weights: options.Weights = None,
    kv_dtype: options.KvDtype = None,
    engine: EngineName = "vllm",
    engine_version: EngineVersion = None,
    utilization: Fraction = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = None,
    max_num_batched_tokens: MaxBatchedTokens = None,
    kv_blocks: Blocks = None,
    prefix_caching: Annotated[bool, typer.Option(help="Keep and share the KV of common beginnings.")] = True,
    watermark: Annotated[float, typer.Option(metavar="X", help="Share of the KV pool that admission leaves free.")] = 0.0,
    long_prefill_token_threshold: Annotated[
        int, typer.Option(min=0, metavar="N", help="Most tokens of one prompt per step; 0: no cap.")
    ] = 0,
    async_scheduling: Annotated[bool, typer.Option(help="The host schedules while the device computes.")] = True,
    static_batching: Annotated[bool, typer.Option("--static-batching", help="Batches run until their longest ends, for contrast.")] = False,
    speculative: Annotated[str | None, typer.Option(metavar="K:A", help="K drafts per step, each right with probability A.")] = None,
    draft: Annotated[str, typer.Option(metavar="NAME", help="Who drafts: head (one layer), ngram (free), or a model.")] = "head",
    band: Annotated[bool, typer.Option("--band", help="Also at the low and high ends of the step times.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals, lengths and acceptance.")] = 0,
    timeline: Annotated[Path | None, typer.Option(metavar="FILE", help="State over time as CSV, or .json for chrome://tracing.")] = None,
    requests_file: Annotated[Path | None, typer.Option("--requests", metavar="FILE", help="One CSV row per request.")] = None,
    chart: Annotated[Path | None, typer.Option(metavar="FILE", help="TTFT, TPOT, concurrency and KV over time: .pdf, .png, .svg.")] = None,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    output: options.OutFile = None,
) -> None:
    """Latency percentiles, goodput, preemptions and what requests waited for, through the engine's scheduler in simulated time.

    Exit code 3: the model does not fit, no request is served, or fewer than --attainment of the requests meet --goodput.
    """
    given = {name: value for name, value in context.params.items() if value is not None}
    levels = service_levels(goodput or [])
    if not 0 < attainment <= 1:
        raise InputError(f"--attainment {attainment}: the share of requests that must meet --goodput, above 0 and at most 1")
    check_effects(context)
    for target in (output, timeline, requests_file, chart):
        check_target(target)
    the_model, device = load_model(model), load_hardware(hardware)
    parallel, precision = Parallel(tp=tp, pp=pp, ep=ep, dp=dp), Precision(weights=weights, kv=kv_dtype)
    lengths = asked.Lengths(input_len, output_len, length_variation, shared_prefix_len, prefix_groups)
    traffic = asked.Traffic(
        trace, speed, request_rate, burstiness, concurrency, users, think_time, num_requests, lengths, seed, open_ended=find_max_rate
    )
    speculating = None
    if speculative is not None:
        drafts, acceptance = speculation(speculative)
        drafter: Model | str = draft if draft in ("head", "ngram") else load_model(draft)
        middle = lengths.input_len + lengths.output_len // 2
        speculating = speculate(
            the_model, device, drafts, acceptance, draft=drafter, parallel=parallel, precision=precision,
            engine="reference" if engine == "plain" else engine, context=middle,
        )  # fmt: skip
    deployment = deploy(
        the_model, device, parallel, precision, engine=engine, engine_version=engine_version, utilization=utilization,
        max_model_len=max_model_len, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, speculating=speculating,
        policy=Policy(
            kv_blocks, prefix_caching, watermark, long_prefill_token_threshold, static_batching=static_batching,
            asynchronous=async_scheduling,
        ),
    )  # fmt: skip
    pools = None if disaggregated is None else asked.Disaggregated(*_ratio(disaggregated), _bandwidth(kv_link, device))
    run = Run(deployment, traffic, levels, attainment, replicas, router, pools, seed, _servers(class_servers))
    found = run.max_rate(show_progress) if find_max_rate else run.once(band=band)
    show_progress("")
    if found.result is not None:
        simulate_page.export(found.result, timeline, requests_file)
    if chart is not None:
        _draw(found, chart, context)
    emit(
        Answer(
            "simulate",
            _inputs(given),
            found.data(),
            simulate_page.table(found),
            simulate_page.blocks(found),
            found.assumptions(),
            0 if found.met else 3,
        ),
        as_json=as_json,
        as_csv=as_csv,
        path=output,
    )


def service_levels(words: list[str]) -> dict[str, float]:
    """["ttft:500", "e2el:9000"] in milliseconds → seconds by name. Raises InputError for anything else."""
    found: dict[str, float] = {}
    for word in words:
        match = LevelGoal.fullmatch(word)
        if not match or float(match[2]) <= 0:
            raise InputError(f"--goodput {word!r}: write ttft:MS, tpot:MS or e2el:MS with positive milliseconds, like ttft:500 tpot:50")
        if match[1] in found:
            raise InputError(f"--goodput names {match[1]} twice")
        found[match[1]] = float(match[2]) / 1e3
    return found


def speculation(text: str) -> tuple[int, float]:
    match = re.fullmatch(r"(\d+):(\d*\.?\d+)", text)
    if not match or not 1 <= int(match[1]) <= 64 or not 0 <= float(match[2]) <= 1:
        raise InputError(f"--speculative {text!r}: write DRAFTS:ACCEPTANCE, like 3:0.7 (1 to 64 drafts, acceptance 0 to 1)")
    return int(match[1]), float(match[2])


def _servers(text: str | None) -> dict[str, int] | None:
    if text is None:
        return None
    pairs = [re.fullmatch(r"([^:,]+):([1-9]\d*)", part.strip()) for part in text.split(",")]
    if not all(pairs):
        raise InputError(f"--class-servers {text!r}: write CLASS:SERVERS, separated by commas, like interactive:2,batch:1")
    return {pair[1]: int(pair[2]) for pair in pairs if pair}


def _ratio(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d*):([1-9]\d*)", text)
    if not match:
        raise InputError(f"--disaggregated {text!r}: write PREFILL:DECODE servers, like 1:2, at least one of each")
    return int(match[1]), int(match[2])


def _bandwidth(text: str | None, device: Hardware) -> float:
    """Bytes per second between a prefill and a decode server."""
    if text is not None:
        return parse(text, "bandwidth")
    known = device.link_bandwidth or device.pcie_bandwidth
    if known is None:
        raise InputError(f'{device.id}: no link is known; give --kv-link, like "50 GB/s"')
    return known


def _inputs(given: dict[str, Any]) -> dict[str, Any]:
    hidden = ("as_json", "as_csv", "output", "timeline", "requests_file", "chart")
    return {name: value for name, value in given.items() if name not in hidden}


def show_progress(text: str) -> None:
    """One line on a terminal's stderr, in place; an empty text takes it away."""
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def _draw(found: simulate_page.Found, path: Path, context: typer.Context) -> None:
    """The run over time as a figure; only now is a drawing library loaded."""
    from roofline.charts.chart import Request
    from roofline.charts.save import format_of, save
    from roofline.charts.timeline import timeline_of
    from roofline.cli.drawing import command_line

    format_of(path)
    if found.result is None:
        raise InputError("no rate meets the service level, so there is no run to draw")
    server = found.run.deployment
    request = Request(
        server.model, (server.hardware,), server.parallel, server.precision, engine=server.engine, command=command_line(context)
    )
    save(timeline_of(found.result, found.subtitle, request), path)
