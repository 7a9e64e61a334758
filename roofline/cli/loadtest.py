"""`roofline loadtest`: what a user of the server would see, and whether this client may say so."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from roofline.cli import jsonout, options
from roofline.cli.output import Answer, check_target, emit, write_atomically
from roofline.cli.render import Block, Column, Heading, Paragraph, Table
from roofline.cli.shell import GoodputCommand, new_app
from roofline.errors import InputError
from roofline.loadtest.compare import compare, load_prediction
from roofline.loadtest.run import LoadTest, Outcome, Progress, Show
from roofline.loadtest.settings import Settings
from roofline.loadtest.vllm_layout import vllm_result
from roofline.loadtest.wire import key_from_environment

app = new_app()

COLUMNS = (
    Column("title", "load"),
    Column("requests_ok", "ok", "integer"),
    Column("requests_failed", "failed", "integer"),
    Column("ttft_p50", "TTFT p50", "time", "ms"),
    Column("ttft_p99", "p99", "time", "ms"),
    Column("tpot_p50", "TPOT p50", "time", "ms"),
    Column("tpot_p99", "p99", "time", "ms"),
    Column("itl_p99", "ITL p99", "time", "ms", drop=3),
    Column("e2el_p50", "E2E p50", "time", "s", drop=4),
    Column("output_tokens_per_s", "out tok/s", "number"),
    Column("requests_per_s", "req/s", "number", drop=2),
    Column("attainment", "in level", "percent", drop=1),
)
COMPARED = (
    Column("stage", "load"),
    Column("metric", "metric"),
    Column("statistic", "of"),
    Column("measured", "measured", "number"),
    Column("expected", "expected", "number"),
    Column("low", "low", "number", drop=1),
    Column("high", "high", "number", drop=2),
    Column("error", "error", "percent"),
)


@app.command(cls=GoodputCommand)
def loadtest(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server's root, with or without /v1.")],
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Model name for the server; its only one if not given.")] = None,
    endpoint: Annotated[Literal["chat", "completions"], typer.Option(help="Which API.")] = "chat",
    ladder: Annotated[str, typer.Option(metavar="LIST", help="Streams of each stage: 1,2,4,8 (a closed loop).")] = "",
    request_rate: Annotated[str, typer.Option(metavar="LIST", help="Requests/s of each stage: 2,4,8 or inf (an open loop).")] = "",
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Replay a trace: arrival_s, input_tokens, output_tokens.")] = None,
    speed: Annotated[float, typer.Option(metavar="X", help="Replay it so many times as fast.")] = 1.0,
    burstiness: Annotated[float, typer.Option(metavar="X", help="1: Poisson arrivals; below: burstier; above: more regular.")] = 1.0,
    max_concurrency: Annotated[int | None, typer.Option(min=1, metavar="N", help="Most requests in flight in an open loop.")] = None,
    requests_per_stage: Annotated[int | None, typer.Option(min=1, metavar="N", help="Requests of each stage.")] = None,
    input_len: options.InputLength = 128,
    output_len: options.OutputLength = 64,
    ignore_eos: Annotated[bool, typer.Option(help="Ask for exactly the output length.")] = True,
    dataset: Annotated[Path | None, typer.Option(metavar="FILE", help="JSON lines with prompt or messages, and output_tokens.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(metavar="FILE", help="A tokenizer.json, to count with.")] = None,
    shared_prefix_len: Annotated[int, typer.Option(min=0, metavar="N", help="Tokens that prompts begin with in common.")] = 0,
    prefix_groups: Annotated[int, typer.Option(min=1, metavar="N", help="How many such beginnings there are.")] = 1,
    warmup: Annotated[int, typer.Option(min=0, metavar="N", help="Requests before the first stage, reported apart.")] = 8,
    goodput: Annotated[list[str] | None, typer.Option(metavar="NAME:MS", help="Service levels: ttft:500 tpot:50 e2el:9000")] = None,
    max_error_rate: Annotated[float, typer.Option(min=0, max=1, help="Failed requests above this share: exit code 1.")] = 0.0,
    timeout: Annotated[float, typer.Option(min=0.001, metavar="S", help="Longest that a request may take.")] = 600.0,
    processes: Annotated[int, typer.Option(min=0, metavar="N", help="Client processes; 0: as many as needed and cores allow.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts and arrivals.")] = 0,
    api_key_env: Annotated[str, typer.Option(metavar="NAME", help="Environment variable with the API key.")] = "OPENAI_API_KEY",
    extra_body: Annotated[str, typer.Option(metavar="JSON", help='More keys for each request: {"top_k": 1}')] = "",
    records: Annotated[Path | None, typer.Option(metavar="FILE", help="Every request as a JSON line, as it ends.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the stages that are missing in --records.")] = False,
    vllm_json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also in the layout of `vllm bench serve`.")] = None,
    compare_with: Annotated[Path | None, typer.Option("--compare", metavar="FILE", help="plan.json or sim.json to set beside.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on standard error.")] = False,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    output: options.OutFile = None,
) -> None:
    """Load an OpenAI-compatible server and say what its users would see.

    Without --ladder, --request-rate or --trace: 1, 2, 4, 8 and 16 streams. Exit code 1 above --max-error-rate or if answers have
    another length than asked for, 3 if no stage meets --goodput, 4 if the client itself was too slow.
    """
    chosen = bool(ladder) + bool(request_rate) + (trace is not None)
    settings = Settings(
        url, model, endpoint, () if chosen and not ladder else _streams(ladder or "1,2,4,8,16"), _rates(request_rate), trace, speed,
        burstiness, requests_per_stage, input_len, output_len, dataset, tokenizer, shared_prefix_len, prefix_groups, ignore_eos,
        warmup, max_concurrency, _levels(goodput or []), timeout, processes, seed, _body(extra_body),
    )  # fmt: skip
    if resume and records is None:
        raise InputError("--resume goes with --records FILE")
    for path in (output, vllm_json):
        check_target(path)
    prediction = load_prediction(compare_with) if compare_with is not None else None
    test = LoadTest(settings, key=key_from_environment(api_key_env), journal=records, resume=resume, show=None if quiet else _progress())
    outcome = test.run()
    data = outcome.to_json()
    if prediction is not None:
        data["comparison"] = compare(prediction, data["stages"])
    if vllm_json is not None:
        _write_vllm(outcome, vllm_json)
    table = Table(COLUMNS, [_row(stage) for stage in data["stages"]])
    blocks = _page(outcome, data, table, records)
    code = _exit_code(outcome, data, max_error_rate)
    emit(Answer("loadtest", settings.to_json(), data, table, blocks, [], code), as_json=as_json, as_csv=as_csv, path=output)


def _exit_code(outcome: Outcome, data: dict[str, Any], max_error_rate: float) -> int:
    """1 it broke off, too many failures or wrong lengths, 130 interrupted, 4 untrustworthy, 3 no stage within
    the service levels, 0 fine."""
    if outcome.broken:
        return 1
    if outcome.interrupted:
        return 130
    answered = sum(each.data.ok for each in outcome.stages)
    if outcome.error_rate > max_error_rate or outcome.mismatched or not answered:
        return 1
    if outcome.reasons:
        return 4
    levels = [stage["goodput"]["attainment"] or 0.0 for stage in data["stages"] if "goodput" in stage]
    return 3 if levels and max(levels) < 0.95 else 0


def _streams(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InputError(f"--ladder {text}: whole numbers with commas, like 1,2,4,8") from None


def _rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InputError(f"--request-rate {text}: numbers with commas, like 2,4.5,inf") from None


def _levels(words: list[str]) -> dict[str, float]:
    levels = {}
    for word in words:
        name, _, limit = word.partition(":")
        try:
            levels[name] = float(limit) / 1e3
        except ValueError:
            raise InputError(f"--goodput {word}: NAME:MILLISECONDS, like ttft:500") from None
    return levels


def _body(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text) if text else {}
    except ValueError as error:
        raise InputError(f"--extra-body: not JSON: {error}") from None
    if not isinstance(body, dict):
        raise InputError('--extra-body: a JSON object is needed, like {"top_k": 1}')
    return body


def _row(stage: dict[str, Any]) -> dict[str, Any]:
    """A stage as a row: the percentiles beside each other."""
    flat = {f"{name}_{key}": stage[f"{name}_s"][key] for name in ("ttft", "tpot", "itl", "e2el") for key in ("p50", "p99")}
    return stage | flat | {"attainment": stage.get("goodput", {}).get("attainment")}


def _page(outcome: Outcome, data: dict[str, Any], table: Table, records: Path | None) -> list[Block]:
    settings = outcome.settings
    lengths = f"{settings.input_tokens} tokens in, {settings.output_tokens} out"
    blocks: list[Block] = [Heading(f"Load test of {data['model']} at {settings.url}, {settings.endpoint}, {lengths}"), table]
    if data["knee"]:
        blocks += [Heading("Knee"), *_knee_lines(data["knee"])]
    if data.get("comparison"):
        blocks += [Heading("Prediction beside measurement (SI units)"), Table(COMPARED, data["comparison"])]
    notes = [f"{stage['title']}: {text}" for stage in data["stages"] for text in _stage_notes(stage)]
    if notes or data["notes"]:
        blocks += [Heading("Notes"), *(Paragraph(note, bullet="·") for note in (*data["notes"], *notes))]
    client = data["client"]
    lag = f"event loop {1e3 * client['event_loop_lag_s']['p99']:.1f} ms late (p99)"
    verdict = "trustworthy" if client["trustworthy"] else "client-bound: the client, not the server, shaped these numbers"
    blocks += [Heading("Client"), Paragraph(f"{verdict}; {lag}", style="" if client["trustworthy"] else "red")]
    blocks += [Paragraph(reason, bullet="·") for reason in client["reasons"]]
    if outcome.broken:
        blocks.append(Paragraph(f"Stopped: {outcome.broken}; the stages above are what there is.", style="red"))
    elif outcome.interrupted:
        how = f"; the same command with --resume goes on from {records}" if records else "; with --records FILE it could be resumed"
        blocks.append(Paragraph(f"Interrupted: the stages above are what there is{how}.", style="yellow"))
    return blocks


def _knee_lines(knee: dict[str, Any]) -> list[Block]:
    lines = []
    if knee["reason"]:
        lines.append(knee["reason"])
    else:
        low, high = knee["ci"]
        lines.append(
            f"{knee['concurrency']:.3g} streams ({low}–{high}, 95 %): from there on more streams wait rather than add throughput; "
            f"a full server answers {knee['max_requests_per_s']:.3g} req/s"
        )
        low, high = knee["best_power_ci"]
        lines.append(f"most throughput per latency at {knee['best_power']:.3g} streams ({low}–{high})")
    if "slo_capacity" in knee:
        low, high = knee["slo_capacity_ci"]
        lines.append(
            f"service level met by {100 * knee['slo_attainment']:.0f} % of requests up to {knee['slo_capacity']} streams ({low}–{high})"
        )
    return [Paragraph(line, bullet="·") for line in lines]


def _stage_notes(stage: dict[str, Any]) -> list[str]:
    failures = [f"{count} × {kind}{_said(stage, kind)}" for kind, count in stage["errors"].items()]
    patterns = [f"{found['name']}: {found['evidence']}" for found in stage["patterns"] if found["name"] != "steady"]
    return [*failures, *stage["warnings"], *patterns]


def _said(stage: dict[str, Any], kind: str) -> str:
    text = stage["error_details"].get(kind)
    return f" ({text[:120]})" if text else ""


def _write_vllm(outcome: Outcome, path: Path) -> None:
    """One file for one stage; for several, the load goes into the names."""
    for each in outcome.stages:
        label = each.stage.title.replace(" ", "-").replace("/", "-per-")
        target = path if len(outcome.stages) == 1 else path.with_name(f"{path.stem}-{label}{path.suffix or '.json'}")
        result = vllm_result(
            each.data, model=outcome.model, endpoint=outcome.settings.endpoint, date=outcome.started,
            concurrency=each.stage.concurrency, rate=each.stage.request_rate,
        )  # fmt: skip
        write_atomically(target, json.dumps(jsonout.plain(result), allow_nan=False) + "\n")


def _progress() -> Show:
    """A line on standard error as each stage ends; on a terminal it also counts while the stage runs."""
    live = sys.stderr is not None and sys.stderr.isatty()

    def show(now: Progress) -> None:
        rate = now.output_tokens / now.elapsed_s if now.elapsed_s else math.nan
        failed = f", {now.failed} failed" if now.failed else ""
        text = f"{now.title}: {now.done}/{now.total} requests{failed}, {rate:,.0f} tok/s, {now.elapsed_s:.0f} s"
        if sys.stderr is None or not (live or now.ended):
            return
        with contextlib.suppress(OSError):  # a reader that went away ends no load test
            print(f"\r\x1b[K{text}" if live else text, end="\n" if now.ended else "", file=sys.stderr, flush=True)

    return show
