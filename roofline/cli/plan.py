"""`roofline plan`: does it fit, how fast is it, what runs out first, what to change."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from roofline.cli import options, plan_page
from roofline.cli.output import Answer, emit
from roofline.cli.render import Block
from roofline.cli.shell import GoodputCommand, new_app
from roofline.errors import InputError
from roofline.ledger import Conventions, Parallel, Precision
from roofline.phases import Setup
from roofline.planning.document import plan_document
from roofline.planning.load import Load
from roofline.planning.plan import Plan, make_plan, price_of
from roofline.profiles.catalog import load_hardware, load_model
from roofline.profiles.hardware import Price

app = new_app()

EngineName = Annotated[
    Literal["vllm", "sglang", "trtllm", "llamacpp", "reference", "plain"],
    typer.Option(help="Whose memory rules and step overhead to assume; plain: weights and KV only, kernels alone."),
]
Concurrency = Annotated[int | None, typer.Option("--concurrency", "--max-concurrency", min=1, metavar="N", help="Requests in flight.")]
RequestRate = Annotated[float | None, typer.Option(metavar="R", help="Requests per second.")]
Users = Annotated[int | None, typer.Option(min=1, metavar="U", help="People who read an answer for --think-time and ask again.")]
ThinkTime = Annotated[float, typer.Option(metavar="S", help="Seconds between an answer and the next question.")]
Goodput = Annotated[list[str] | None, typer.Option(metavar="GOAL...", help="Service level in milliseconds: ttft:500 tpot:50.")]
EngineVersion = Annotated[
    str | None, typer.Option(metavar="V", help="Version of the memory rules, like 0.11; the newest known unless given.")
]
Fraction = Annotated[
    float | None, typer.Option("--gpu-memory-utilization", metavar="F", help="The engine's memory fraction; its default unless given.")
]
MaxModelLen = Annotated[int | None, typer.Option(min=1, metavar="N", help="Longest sequence; it must fit once.")]
MaxNumSeqs = Annotated[int | None, typer.Option(min=1, metavar="N", help="Most running sequences.")]
MaxBatchedTokens = Annotated[int | None, typer.Option("--max-num-batched-tokens", min=1, metavar="N", help="Token budget of one step.")]
UsdPerHour = Annotated[
    float | None, typer.Option("--price", metavar="USD", help="Per GPU and hour; the profile's cheapest on-demand price unless given.")
]
ChartFile = Annotated[Path | None, typer.Option("--chart", metavar="FILE", help="Also the batch curve as a figure: .pdf, .png or .svg.")]

SearchLayouts = Annotated[bool, typer.Option("--search", help="Also simulate layouts for the load: the fewest GPUs, mixed or split.")]
Speedups = Annotated[bool, typer.Option("--speedups", help="Also what number formats, tensor parallelism and speculation gain, by phase.")]
Drafts = Annotated[str, typer.Option(metavar="K:A", help="For --speedups: K drafts per step, each right with probability A.")]


@app.command(cls=GoodputCommand)
def plan(
    context: typer.Context,
    model: options.ModelName,
    hardware: options.HardwareName,
    input_len: options.InputLength = 1024,
    output_len: options.OutputLength = 256,
    concurrency: Concurrency = None,
    request_rate: RequestRate = None,
    users: Users = None,
    think_time: ThinkTime = 30.0,
    goodput: Goodput = None,
    tp: options.Tp = 1,
    pp: options.Pp = 1,
    ep: options.Ep = 1,
    dp: options.Dp = 1,
    weights: options.Weights = None,
    kv_dtype: options.KvDtype = None,
    engine: EngineName = "vllm",
    engine_version: EngineVersion = None,
    utilization: Fraction = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = None,
    max_num_batched_tokens: MaxBatchedTokens = None,
    price: UsdPerHour = None,
    full: options.FullAttention = False,
    chart: ChartFile = None,
    search: SearchLayouts = False,
    speedups: Speedups = False,
    speculative: Drafts = "3:0.7",
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    output: options.OutFile = None,
) -> None:
    """Does it fit, how many tokens and sequences, TTFT, TPOT and throughput, what runs out first, and what each knob buys.

    Every time is a hard bound, an expected value and an 80 % interval. Exit code 3: it does not fit, or misses --goodput.
    """
    goals = service_levels(goodput or [])
    load = Load(input_len, output_len, concurrency, request_rate, users, think_time, goals.get("ttft"), goals.get("tpot"))
    setup = Setup(
        load_model(model),
        load_hardware(hardware),
        Parallel(tp=tp, pp=pp, ep=ep, dp=dp),
        Precision(weights=weights, kv=kv_dtype),
        "reference" if engine == "plain" else engine,
        Conventions(causal=not full),
    )
    memory = {
        "engine": engine, "engine_version": engine_version, "utilization": utilization, "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens,
    }  # fmt: skip
    found = make_plan(setup, load, price=_price(price), **memory)
    if chart is not None:
        _draw(chart, found, memory, context)
    inputs = {
        "model": setup.model.name, "hardware": setup.hardware.id, "input_len": input_len, "output_len": output_len,
        "concurrency": concurrency, "request_rate": request_rate, "users": users, "think_time_s": think_time if users else None,
        "ttft_s": load.ttft_s, "tpot_s": load.tpot_s, "tp": tp, "pp": pp, "ep": ep, "dp": dp, "weights": weights,
        "kv_dtype": kv_dtype, "causal": not full, **memory,
    }  # fmt: skip
    data, met = plan_document(found), found.fits and found.meets_load
    page = plan_page.blocks(found, searched=search)
    if search:
        sections, met = _search(found, memory, data, price_of(setup.hardware, _price(price)))
        page = [*sections, *page]
    if speedups:
        from roofline.cli import search_page
        from roofline.cli.simulate import speculation

        data["speedups"], sections = search_page.speedups(setup, load, speculation(speculative))
        page += sections
    assumptions = (*found.assumptions, *([found.too_long] if found.too_long else []))
    answer = Answer("plan", inputs, data, plan_page.curve_table(found), page, assumptions, 0 if met else 3)
    emit(answer, as_json=as_json, as_csv=as_csv, path=output)


def _search(found: Plan, memory: dict[str, Any], data: dict[str, Any], price: Price | None) -> tuple[list[Block], bool]:
    """Adds the search for the fewest GPUs to a plan's data; its section of the page, and whether some layout meets the load."""
    from roofline.cli import search_page
    from roofline.cli.simulate import show_progress
    from roofline.planning.search import search

    options = {name: value for name, value in memory.items() if value is not None}
    best = search(found.setup, found.load, progress=show_progress, **options)
    show_progress("")
    data["search"] = search_page.search_data(best, price)
    sections = search_page.search_blocks(best, price)
    return sections, best.best is not None


def service_levels(words: list[str]) -> dict[str, float]:
    """["ttft:500", "tpot:50"] in milliseconds → seconds by name. Raises InputError for anything else."""
    found: dict[str, float] = {}
    for word in words:
        match = re.fullmatch(r"(ttft|tpot):(\d+(?:\.\d+)?)(?:ms)?", word)
        if not match or not math.isfinite(float(match[2])) or float(match[2]) <= 0:
            raise InputError(f"--goodput {word!r}: write ttft:MS or tpot:MS with positive milliseconds, like ttft:500 tpot:50")
        if match[1] in found:
            raise InputError(f"--goodput names {match[1]} twice")
        found[match[1]] = float(match[2]) / 1e3
    return found


def _draw(path: Path, plan: Plan, memory: dict[str, Any], context: typer.Context) -> None:
    """The batch curve of the plan as a figure; only now is a drawing library loaded."""
    from roofline.charts import build
    from roofline.charts.chart import Request
    from roofline.charts.save import format_of, save
    from roofline.cli.drawing import command_line

    format_of(path)
    setup = plan.setup
    request = Request(
        model=setup.model,
        devices=(setup.hardware,),
        parallel=setup.parallel,
        precision=setup.precision,
        conventions=setup.conventions,
        engine=setup.engine,
        batch=plan.batch,
        load=plan.load,
        memory_options=memory,
        command=command_line(context),
    )
    save(build("batch", request), path)


def _price(usd_per_hour: float | None) -> Price | None:
    if usd_per_hour is None:
        return None
    if not (math.isfinite(usd_per_hour) and usd_per_hour > 0):
        raise InputError(f"--price must be a positive number of dollars per GPU and hour, got {usd_per_hour}")
    return Price(provider="--price", usd_per_gpu_hour=usd_per_hour, terms="as given", as_of="", source="command line")
