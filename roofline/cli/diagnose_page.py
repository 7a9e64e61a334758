"""The page of `roofline diagnose`: the answer first, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from roofline.cli.output import Answer
from roofline.cli.render import Block, Column, Heading, Paragraph, Table
from roofline.diagnosis.observations import VOCABULARY, Fact, Observations
from roofline.diagnosis.patterns import PATTERNS
from roofline.diagnosis.rank import Cause, Diagnosis
from roofline.diagnosis.rules import HEALTHY, Rule, idle_at_both_ends, no_traffic, stands_still
from roofline.diagnosis.symptoms import Symptom
from roofline.units import format as with_unit
from roofline.units import significant

_SHOWN = 0.08  # causes below this confidence are only in --json and --csv
_MOST_SHOWN = 3
_IMPLAUSIBLE = 10.0  # TPOT over the plan from which another device or model is likelier than a fault
_TELLING = (
    "running",
    "waiting",
    "kv_usage",
    "preemptions",
    "queue_s",
    "ttft_s",
    "itl_p99_s",
    "itl_p50_s",
    "prompt_tokens",
    "generation_tokens",
)
COLUMNS = (
    Column("label", "label"),
    Column("confidence", "confidence", "percent"),
    Column("title", "cause"),
    Column("supporting", "for"),
    Column("opposing", "against"),
)


def page(
    found: Diagnosis,
    seen: Observations,
    complaint: Symptom | None,
    bought: Mapping[str, Sequence[str]],
    notes: Sequence[str],
    plan: str | None = None,
) -> list[Block]:
    """Verdict, causes with evidence, what is missing, what was observed. plan: as in `tell_apart`."""
    nothing_came = found.verdict != "cause" and no_traffic(seen)
    blocks: list[Block] = list(_verdict(found, complaint, nothing_came=nothing_came))
    likely = [cause for cause in found.causes if cause.confidence >= _SHOWN and (cause.supporting or complaint)][:_MOST_SHOWN]
    for number, cause in enumerate([] if nothing_came and complaint is None else likely, 1):
        blocks += _cause(number, cause, bought.get(cause.label, ()), plan)
    absent = missing(seen, complaint, found)
    if absent:
        blocks += [Heading("What would tell"), *(Paragraph(f"{name}: {VOCABULARY[name][1]}", bullet="·") for name in absent)]
        blocks.append(Paragraph("Give them with --observe NAME=VALUE, or a source that has them.", style="dim"))
    if len(seen):
        rows = [{"name": fact.name, "value": _value(fact), "meaning": VOCABULARY[fact.name][1]} for fact in seen]
        columns = (Column("name", "observed"), Column("value", "value", align="right"), Column("meaning", "meaning", drop=1, most=38))
        blocks += [Heading("Observed"), Table(columns, rows)]
    pattern = PATTERNS.get(seen.text("pattern"))
    if pattern is not None:
        blocks.append(Paragraph(f"over time: {pattern.name}: {pattern.meaning} (known for {', '.join(pattern.labels)})", bullet="·"))
    notes = [*notes, *remarks(seen)]
    if notes:
        blocks += [Heading("Notes"), *(Paragraph(note, bullet="·") for note in notes)]
    return blocks


def remarks(seen: Observations) -> Iterator[str]:
    """What a reader of the observations should know, whatever the cause."""
    if seen.number("engine_restarts") > 0:
        yield _fallen(seen.says("all_counters_fell", value=True))
    if no_traffic(seen):
        yield "no traffic between the two readings: nothing to judge; take both while the load runs"
    elif stands_still(seen):
        yield "requests run and no token came between the readings: the engine stands still, or both pages are the same one"
    elif idle_at_both_ends(seen):
        yield "at both readings nothing ran: gauges (running, waiting, kv_usage) are of an idle moment; save both pages while the load runs"
    if seen.number("tpot_over_expected") > _IMPLAUSIBLE:
        yield f"TPOT is {significant(seen.number('tpot_over_expected'), 2)} × the plan: is the device or model given the right one?"
    if seen.says("client_trustworthy", value=False):
        yield "the load client failed its own check: it may have shaped these numbers"
    if seen.number("engine_imbalance") > 1.5:
        ratio = significant(seen.number("engine_imbalance"), 2)
        yield f"one engine has {ratio} × the mean of requests: look at the routing between the engines"
    if seen.number("requests_rejected") > 0:
        yield f"{seen.number('requests_rejected'):.0f} requests were turned away, aborted or failed"


def _fallen(every: bool) -> str:
    """Why counters may have fallen, the likelier reason first."""
    restarted = "an engine was restarted, and what it counted before that is lost"
    swapped = "the pages are in the wrong order: the earlier one first"
    if every:
        return f"every counter fell between the two pages: {swapped}; or {restarted}"
    return f"counters fell between the two pages: {restarted}; or {swapped}"


def _verdict(found: Diagnosis, complaint: Symptom | None, *, nothing_came: bool) -> Iterator[Block]:
    first = found.first
    if nothing_came:
        yield Paragraph("No traffic between the two readings: nothing to judge.", style="yellow")
    elif found.verdict == "unclear":
        yield Paragraph(f"Not enough evidence for a cause{_suspect(first)}.", style="yellow")
    else:
        style = "green" if found.verdict == "healthy" else "red"
        yield Paragraph(f"{first.rule.title[0].upper()}{first.rule.title[1:]} ({first.label}, {first.confidence:.0%}).", style=style)
    if complaint is not None:
        yield Paragraph(
            f"{complaint.complaint[0].upper()}{complaint.complaint[1:]}: {complaint.remark}. Usual causes: {', '.join(complaint.labels)}."
        )


def _suspect(first: Cause) -> str:
    """What is likeliest where nothing is likely enough."""
    if not first.supporting:
        return ""
    if first.label == HEALTHY:
        return f"; nothing stands out ({first.confidence:.0%})"
    return f"; the first suspect is {first.label}, {first.confidence:.0%}"


def tell_apart(rule: Rule, plan: str | None) -> str:
    """What tells a cause from others. plan: None if no model was given; else why its plan was not set beside, empty if it was."""
    if not rule.by_plan:
        return rule.apart
    if plan is None:
        return f"{rule.apart}; the plan tells the roof from overhead: give --model NAME -H DEVICE"
    return f"{rule.apart}; the plan, which tells the roof from overhead, was not set beside: {plan}" if plan else rule.apart


def _cause(number: int, cause: Cause, bought: Sequence[str], plan: str | None) -> list[Block]:
    blocks: list[Block] = [Heading(f"{number}. {cause.label}  {cause.confidence:.0%}  {cause.rule.title}")]
    blocks += [Paragraph(each.text, bullet="+") for each in cause.supporting]
    blocks += [Paragraph(each.text, bullet="−") for each in cause.opposing]
    blocks += [
        Paragraph(f"tell apart: {tell_apart(cause.rule, plan)}", bullet=" "),
        Paragraph(f"next check: {cause.rule.check}", bullet=" "),
        Paragraph(f"knob: {cause.rule.knob}", bullet=" "),
    ]
    return blocks + [Paragraph(f"predicted: {text}", bullet=" ") for text in bought]


def missing(seen: Observations, complaint: Symptom | None, found: Diagnosis) -> list[str]:
    """Names of observations that would tell the causes apart; none once there is a verdict and no complaint."""
    if complaint is not None:
        return [name for name in complaint.wanted if name not in seen]
    return [name for name in _TELLING if name not in seen] if found.verdict == "unclear" else []


def table(found: Diagnosis) -> Table:
    """All causes, one a row."""
    rows = [
        {
            "label": cause.label,
            "confidence": cause.confidence,
            "title": cause.rule.title,
            "supporting": "; ".join(each.text for each in cause.supporting),
            "opposing": "; ".join(each.text for each in cause.opposing),
        }
        for cause in found.causes
    ]
    return Table(COLUMNS, rows)


def vocabulary(words: Mapping[str, tuple[str, str]]) -> Answer:
    """The names that observations have."""
    rows = [{"name": name, "unit": unit, "meaning": meaning} for name, (unit, meaning) in words.items()]
    shown = Table((Column("name", "name"), Column("unit", "unit"), Column("meaning", "meaning")), rows)
    return Answer("diagnose", {}, {"observations": rows}, shown, [shown])


def _value(fact: Fact) -> str:
    if isinstance(fact.value, bool):
        return "yes" if fact.value else "no"
    if isinstance(fact.value, str):
        return fact.value
    if fact.unit == "share":
        return f"{fact.value:.1%}"
    if fact.unit == "s":
        return with_unit(fact.value, "time")
    if fact.unit == "B":
        return with_unit(fact.value, "bytes", binary=True)
    number = f"{fact.value:,.0f}" if fact.value.is_integer() else significant(fact.value)
    return f"{number} {fact.unit}".removesuffix(" 1")
