"""`roofline diagnose`: from what a server shows to ranked causes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from roofline.cli import diagnose_page, options
from roofline.cli.output import Answer, emit
from roofline.cli.plan import EngineName
from roofline.cli.shell import new_app
from roofline.diagnosis import expectation, sources
from roofline.diagnosis.observations import VOCABULARY, Observations, read_value
from roofline.diagnosis.rank import Diagnosis
from roofline.diagnosis.rank import diagnose as rank
from roofline.diagnosis.symptoms import Symptom, symptom
from roofline.errors import InputError
from roofline.ledger import Parallel, Precision
from roofline.phases import Setup
from roofline.profiles.catalog import load_hardware, load_model

app = new_app()


@app.command()
def diagnose(
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE]...",
            help="A server's URL, two saved /metrics pages (earlier first), logs, a loadtest JSON.",
            show_default=False,
        ),
    ] = None,
    symptom_name: Annotated[
        str, typer.Option("--symptom", metavar="NAME", help="What is complained about: ttft-high, tpot-jitters, …")
    ] = "",
    observed: Annotated[
        list[str] | None, typer.Option("--observe", metavar="NAME=VALUE", help="Something you know; may be repeated: running=256")
    ] = None,
    list_observations: Annotated[bool, typer.Option("--list-observations", help="The names that --observe knows.")] = False,
    interval: Annotated[
        float | None, typer.Option(min=0.1, max=3600, metavar="S", help="Between the two scrapes; 10 for a URL unless given.")
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="MODEL", autocompletion=options.complete_model, help="What is served: then the plan is set beside.")
    ] = "",
    hardware: Annotated[
        str, typer.Option("--hardware", "-H", metavar="HW", autocompletion=options.complete_hardware, help="On which device.")
    ] = "",
    tp: options.Tp = 1,
    pp: options.Pp = 1,
    dp: options.Dp = 1,
    ep: options.Ep = 1,
    weights: options.Weights = None,
    kv_dtype: options.KvDtype = None,
    engine: EngineName = "vllm",
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    output: options.OutFile = None,
) -> None:
    """Why is this server slow? Ranked causes with what speaks for and against each, or that there is not enough evidence.

    Exit code 4: the load test's own client could not be trusted.
    """
    form = {"as_json": as_json, "as_csv": as_csv, "path": output}
    if list_observations:
        emit(diagnose_page.vocabulary(VOCABULARY), **form)  # type: ignore[arg-type]
        return
    complaint = symptom(symptom_name) if symptom_name else None
    if not source and not observed and complaint is None:
        raise InputError(
            "nothing to go by: give a /metrics URL, two saved pages, a log, a loadtest JSON, --symptom NAME or --observe NAME=VALUE"
        )
    if bool(model) != bool(hardware):
        raise InputError("--model and --hardware go together: the plan needs both")
    seen, notes = sources.observe(source or [], interval)
    seen.update(_given(observed or []))
    expected, unplanned = None, None
    if model:
        setup = Setup(
            load_model(model), load_hardware(hardware), Parallel(tp=tp, pp=pp, ep=ep, dp=dp), Precision(weights=weights, kv=kv_dtype),
            "reference" if engine == "plain" else engine,
        )  # fmt: skip
        expected = expectation.expect(setup, seen)
        if expected is None:
            unplanned = expectation.lacking(seen)
            notes.append(f"the plan was not set beside; {unplanned}")
        else:
            seen.update(expectation.beside(expected, seen))
            unplanned = "" if "tpot_over_expected" in seen else "no TPOT was observed (tpot_s)"
    found = rank(seen, complaint.labels if complaint else ())
    bought = {cause.label: expectation.gains(cause.label, expected, seen) for cause in found.causes[:3]} if expected else {}
    inputs = {"source": source or [], "symptom": symptom_name or None, "observe": observed or [], "model": model or None,
              "hardware": hardware or None}  # fmt: skip
    page = diagnose_page.page(found, seen, complaint, bought, notes, unplanned)
    data = _document(found, seen, complaint, bought, unplanned) | {"notes": [*notes, *diagnose_page.remarks(seen)]}
    code = 4 if seen.says("client_trustworthy", value=False) else 0
    assumptions = expected.assumptions if expected else ()
    emit(Answer("diagnose", inputs, data, diagnose_page.table(found), page, assumptions, code), **form)  # type: ignore[arg-type]


def _given(words: list[str]) -> Observations:
    seen = Observations()
    for word in words:
        name, mark, value = word.partition("=")
        if not mark:
            raise InputError(f"--observe {word}: write NAME=VALUE, like running=256")
        seen.add(name, read_value(name, value, f"--observe {word}"), f"--observe {word}")
    return seen


def _document(
    found: Diagnosis, seen: Observations, complaint: Symptom | None, bought: dict[str, list[str]], unplanned: str | None
) -> dict[str, Any]:
    """The keys of `diagnose --json`."""
    return {
        "verdict": found.verdict,
        "unknown_confidence": found.unknown,
        "causes": [
            {
                "label": cause.label,
                "title": cause.rule.title,
                "confidence": cause.confidence,
                "evidence_for": [asdict(each) for each in cause.supporting],
                "evidence_against": [asdict(each) for each in cause.opposing],
                "tell_apart": diagnose_page.tell_apart(cause.rule, unplanned),
                "next_check": cause.rule.check,
                "knob": cause.rule.knob,
                "predicted": bought.get(cause.label, []),
            }
            for cause in found.causes
        ],
        "observations": {fact.name: {"value": fact.value, "unit": fact.unit, "source": fact.source} for fact in seen},
        "symptom": asdict(complaint) if complaint else None,
        "missing": diagnose_page.missing(seen, complaint, found),
    }
