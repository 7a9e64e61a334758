"""The story of a plan: the answer, what was asked, phases, memory, batch, limits, the ledger, and how each number was got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roofline import __version__, units
from roofline.batch import Batch
from roofline.charts import Request, build
from roofline.charts.pricing import op_seconds
from roofline.ledger import build_ledger
from roofline.phases import Phase
from roofline.planning.load import operate
from roofline.planning.plan import Plan
from roofline.profiles.model import MoE
from roofline.report.document import Answer, Block, Code, Column, Document, Facts, Picture, Section, Text, grid
from roofline.report.results import result_sections
from roofline.timing.bound import limited_by, op_bound_s
from roofline.timing.estimate import Estimate


def tell(plan: Plan, request: Request, results: Sequence[Mapping[str, Any]] = ()) -> Document:
    """The report of a plan. results: JSON documents of other commands (simulate, validate, loadtest), each a section of its own."""
    return Document(
        title=f"{plan.setup.model.name} on {_machine(plan)}",
        subtitle=f"{request.shown} · {plan.load.input_len:,} tokens in, {plan.load.output_len:,} out · roofline {__version__}",
        verdict=_verdict(plan),
        answers=_answers(plan),
        sections=[
            _asked(plan, request),
            _phases(plan, request),
            _memory(plan, request),
            _batch(plan, request),
            _change(plan),
            _ledger(plan, request),
            *result_sections(results),
            _derivation(plan, request),
            _not_counted(plan),
            Section("Run it again", [Text(["The same command gives the same bytes."]), Code(request.command)]),
        ],
        footer=f"roofline {__version__} · {request.shown}",
    )


def _machine(plan: Plan) -> str:
    gpus, name = plan.setup.parallel.gpus, plan.setup.hardware.name
    return name if gpus == 1 else f"{gpus} × {name}"


def _verdict(plan: Plan) -> str:
    memory, load = plan.memory, plan.load
    if not plan.fits:
        return f"It does not fit: {units.format(memory.shortfall_bytes, 'bytes', binary=True)} are missing on each GPU."
    level = "" if plan.meets_load else " The service level asked for cannot be met."
    return (
        f"It fits: {units.format(memory.kv_bytes, 'bytes', binary=True)} of each GPU are left for KV, which hold "
        f"{memory.kv_tokens_total:,} tokens or {units.counted(plan.largest_batch, 'request')} of {load.longest:,} tokens at once.{level}"
    )


def _answers(plan: Plan) -> list[Answer]:
    """TTFT, TPOT and throughput, each as expectation, bound and interval; times of one replica without queueing."""
    most = plan.curve[-1]
    alone = operate(plan.setup, plan.load, 1)
    decode = plan.decode.time
    rate = Estimate(*(most.batch / t for t in (most.bound_s, most.expected_s, most.high_s, most.low_s)))
    return [
        Answer("time to first token", units.format(alone.ttft_s, "time"), _range(plan.prefill.time, "time")),
        Answer(f"time per output token, batch {plan.batch}", units.format(float(decode.expected_s), "time"), _range(decode, "time")),
        Answer(f"output at batch {most.batch:,}", units.format(float(rate.expected_s), "token_rate"), _range(rate, "token_rate")),
    ]


def _range(estimate: Estimate, kind: str) -> str:
    bound, low, high = (units.format(float(v), kind) for v in (estimate.bound_s, estimate.low_s, estimate.high_s))
    return f"bound {bound} · 80 % interval {low} to {high}"


def _asked(plan: Plan, request: Request) -> Section:
    setup, load = plan.setup, plan.load
    device, model, layout = setup.hardware, setup.model, setup.parallel
    precision = setup.precision
    pairs = [
        ("model", f"{model.name} ({model.source})"),
        ("device", f"{device.name} ({device.vendor}, {device.architecture}), profile {device.id}, confidence {device.confidence}"),
        ("layout", f"tp {layout.tp}, pp {layout.pp}, ep {layout.ep}, dp {layout.dp}: {units.counted(layout.gpus, 'GPU')} a replica"),
        ("formats", f"weights {precision.weights or 'as in the checkpoint'}, KV {precision.kv_cache_dtype(model).name}"),
        ("engine", f"{setup.engine}, memory fraction {plan.memory.settings.utilization:g}"),
        ("lengths", f"{load.input_len:,} tokens in, {load.output_len:,} out; decode stands at {load.mean_context:,} cached tokens"),
        ("times", request.basis),
    ]
    return Section("What was asked, and what is assumed", [Facts(pairs), Text(list(plan.assumptions), bullets=True)])


_PHASE_ROWS: tuple[tuple[str, str, str], ...] = (
    ("FLOPs of one GPU", "flops", "flop"), ("  matrices", "linear_flops", "flop"), ("  attention", "attention_flops", "flop"),
    ("bytes moved", "bytes", "bytes"), ("  weights", "weight_bytes", "bytes"), ("  KV read", "kv_read_bytes", "bytes"),
    ("  KV written", "kv_write_bytes", "bytes"), ("  activations", "activation_bytes", "bytes"),
    ("arithmetic intensity", "intensity", "intensity"), ("ridge of the device", "ridge", "intensity"),
)  # fmt: skip


def _phases(plan: Plan, request: Request) -> Section:
    prefill, decode = plan.prefill, plan.decode
    rows: list[dict[str, Any]] = [
        {"what": name, "prefill": units.format(getattr(prefill, key), kind), "decode": units.format(getattr(decode, key), kind)}
        for name, key, kind in _PHASE_ROWS
    ]
    rows.append({"what": "limited by", "prefill": prefill.limited_by, "decode": decode.limited_by})
    for name, key in (("hard bound", "bound_s"), ("expected", "expected_s"), ("80 % interval from", "low_s"), ("to", "high_s")):
        rows.append({"what": f"time, {name}", **{p.name: units.format(float(getattr(p.time, key)), "time") for p in (prefill, decode)}})
    columns = [Column("", "what"), Column(_phase_name(prefill), "prefill"), Column(_phase_name(decode), "decode")]
    return Section(
        "Prefill and decode",
        [
            grid(columns, rows),
            Picture(build("roofline", request)),
            Picture(build("prefill-split", request)),
            Picture(build("waterfall", request)),
        ],
    )


def _phase_name(phase: Phase) -> str:
    cached = f", {phase.context:,} cached each" if phase.context else ""
    return f"{phase.name}: {phase.batch:,} × {phase.new_tokens:,} token{'s' if phase.new_tokens > 1 else ''}{cached}"


def _memory(plan: Plan, request: Request) -> Section:
    memory = plan.memory
    rows: list[dict[str, Any]] = [
        {"what": "memory of the GPU", "bytes": memory.total_bytes},
        {"what": "what the engine may use", "bytes": memory.usable_bytes},
        {"what": "weights", "bytes": memory.weight_bytes},
        {"what": "activations", "bytes": memory.activation_bytes, "low": memory.activation.low, "high": memory.activation.high},
        {"what": "runtime and graphs", "bytes": memory.runtime_bytes, "low": memory.runtime.low, "high": memory.runtime.high},
        {"what": "left for KV", "bytes": memory.kv_bytes, "low": max(0.0, memory.kv.low), "high": max(0.0, memory.kv.high)},
        {"what": "KV of one token", "bytes": memory.kv_bytes_per_token},
    ]
    columns = [
        Column("one GPU", "what"),
        *(Column(t, k, "bytes", binary=True) for t, k in (("expected", "bytes"), ("low", "low"), ("high", "high"))),
    ]
    return Section("Memory", [grid(columns, rows), Picture(build("budget", request)), Picture(build("kv", request))])


def _batch(plan: Plan, request: Request) -> Section:
    rows = [vars(point) | {"fits": "yes" if point.fits else "no"} for point in plan.curve]
    columns = [
        Column("batch", "batch", "integer"), Column("TPOT, bound", "bound_s", "time"), Column("expected", "expected_s", "time"),
        Column("from", "low_s", "time"), Column("to", "high_s", "time"), Column("output tokens/s", "tokens_per_s", "token_rate"),
        Column("fits", "fits"),
    ]  # fmt: skip
    kinds = ("batch", "heatmap", "pareto", "gemm-curve")
    return Section("Batch and throughput", [grid(columns, rows), *(Picture(build(kind, request)) for kind in kinds)])


def _change(plan: Plan) -> Section:
    limits = [f"{limit.text}." for limit in plan.limits]
    gains: list[dict[str, Any]] = [vars(gain) | {"fits": "yes" if gain.fits else "no"} for gain in plan.gains]
    columns = [
        Column("change", "change"), Column("KV tokens", "kv_tokens", "integer"), Column("gained", "kv_tokens_gained", "integer"),
        Column("requests at once", "sequences", "integer"), Column("gained", "sequences_gained", "integer"), Column("fits", "fits"),
    ]  # fmt: skip
    blocks: list[Block] = [Text(limits, bullets=True), grid(columns, gains, "What each knob buys, one at a time")]
    if plan.need is not None:
        need = plan.need
        takes = f"{units.counted(need.replicas, 'replica')}, {units.counted(need.gpus, 'GPU')}"
        blocks.append(Text([f"The load takes {takes}; what binds a replica: {need.binding}."]))
    if plan.cost is not None:
        cost, price = plan.cost, plan.cost.price
        blocks.append(
            Text([
                f"At {price.usd_per_gpu_hour:g} USD per GPU and hour ({price.provider}, {price.terms} {price.as_of}): "
                f"{cost.usd_per_hour:.2f} USD per hour, "
                f"{units.significant(cost.usd_per_million_output_tokens)} USD per million output tokens."
            ])
        )  # fmt: skip
    return Section("What runs out first, and what to change", blocks)


def _ledger(plan: Plan, request: Request) -> Section:
    passes = {
        f"Decode, batch {plan.batch:,}, {plan.load.mean_context:,} cached": Batch.decode(
            plan.setup.per_pass(plan.batch), plan.load.mean_context
        ),
        f"Prefill of {plan.load.input_len:,} tokens": Batch.prefill(1, plan.load.input_len),
    }
    return Section("The ledger: every operation of one GPU", [_ops(plan, caption, batch) for caption, batch in passes.items()])


def _ops(plan: Plan, caption: str, batch: Batch) -> Block:
    setup = plan.setup
    device = setup.hardware
    ledger = build_ledger(setup.model, batch, parallel=setup.parallel, precision=setup.precision, conventions=setup.conventions)
    rows: list[dict[str, Any]] = []
    for op in ledger:
        times = {"bound": op.count * float(op_bound_s(op, device)), "expected": op.count * float(op_seconds(op, device))}
        counts = {"count": op.count, "flops": op.count * float(op.flops_each) or None, "bytes": op.count * float(op.bytes_each) or None}
        rows.append({"name": op.name, "layer": op.layer, "limited": limited_by(op, device), "formula": op.formula, **counts, **times})
    columns = [
        Column("op", "name"), Column("layer", "layer"), Column("runs", "count", "integer"), Column("FLOPs", "flops", "flop"),
        Column("bytes", "bytes", "bytes"), Column("limited by", "limited"), Column("bound", "bound", "time"),
        Column("expected", "expected", "time"), Column("FLOPs of one run", "formula"),
    ]  # fmt: skip
    return grid(columns, rows, caption)


def _derivation(plan: Plan, request: Request) -> Section:
    device = plan.setup.hardware
    lines = [
        "FLOPs and bytes: the ledger above; 1 multiply-add is 2 FLOP; weights are read once a pass, cached KV once a step.",
        "Bound of an operation: the larger of FLOPs/peak and bytes/bandwidth; of a step: the largest of its summed compute, memory and "
        "link times.",
        "Expected time: kernels one after another, each with its launch and the share of peak or bandwidth that it reaches, plus the "
        f"engine's work on the host; {request.basis}.",
        "Interval: 10 % and 90 % quantiles of measured over expected.",
        "KV tokens: what weights, activations and runtime leave of the engine's share of memory, over the KV bytes of a token, in blocks.",
        "Time to first token: the prefill of one prompt behind no other work; queueing is not in it.",
    ]
    rows: list[dict[str, Any]] = [
        {"name": key, "value": str(figure.value), "kind": figure.kind, "source": figure.source} for key, figure in device.figures.items()
    ]
    columns = [Column("figure", "name"), Column("value", "value"), Column("kind", "kind"), Column("source", "source")]
    caption = f"What is known of {device.name}; sources are keys of hwprofiles/_sources.yaml"
    return Section("How each number was got", [Text(lines, bullets=True), grid(columns, rows, caption)])


def _not_counted(plan: Plan) -> Section:
    model = plan.setup.model
    routed = any(isinstance(model.layers[name].ffn, MoE) for name in model.stack)
    lines = [
        "Queueing and interference between requests: `roofline simulate` has them.",
        "Tokenisation, the network, and the client.",
        "Thermal and power limits, other work on the machine, and what a driver or container takes.",
        *(["Tokens are assumed to choose experts uniformly; real routing is more uneven."] if routed else []),
        "An expected time that no measurement of the device backs is a guess with an interval: `roofline validate` measures.",
    ]
    return Section("What is not in these numbers", [Text(lines, bullets=True)])
