"""Sweeps: every combination once, resumable, and a front that nobody beats."""

from __future__ import annotations

import json

import pytest

from roofline.capacity import memory_plan
from roofline.errors import InputError
from roofline.ledger import Parallel, Precision
from roofline.phases import Setup
from roofline.planning.load import Load, operate
from roofline.planning.sweep import configurations, load_spec, pareto, sweep
from roofline.profiles.catalog import load_hardware, load_model
from tests.cli.conftest import cli  # noqa: F401  the fixture is used here too

TEXT = """axes:
  model: llama-3.1-8b
  hardware: [h100-sxm, l40s]
  tp: [1, 3]
  concurrency: [1, 16]
  output_len: 32
method: closed
tpot_ms: 40
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(TEXT)
    return load_spec(path)


def test_every_combination_once_and_errors_are_records(spec, tmp_path):
    records = sweep(spec, tmp_path / "out.jsonl", backend="sequential")
    assert len(records) == len(configurations(spec)) == 8
    assert len({record["key"] for record in records}) == 8
    assert all("error" in record for record in records if record["tp"] == 3)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 8


def test_a_sweep_goes_on_where_it_was_cut_off(spec, tmp_path):
    place = tmp_path / "out.jsonl"
    whole = sweep(spec, place, backend="sequential")
    lines = place.read_text().splitlines(keepends=True)
    marked = json.loads(lines[0]) | {"tpot_s": 1e-9}
    place.write_text(json.dumps(marked) + "\n" + lines[1] + lines[2][:20])
    seen = []
    again = sweep(spec, place, backend="sequential", progress=lambda done, of: seen.append((done, of)))
    assert again[0]["tpot_s"] == 1e-9
    assert again[1:] == whole[1:]
    assert seen[0] == (3, 8)
    assert sweep(spec, place, backend="sequential", progress=lambda *_: pytest.fail("nothing is missing")) == again


def test_the_front_against_all_pairs(spec):
    records = [record for record in sweep(spec, None, backend="sequential") if "error" not in record]
    front = pareto(records).records
    for record in records:
        beaten = any(
            (other["tpot_s"] < record["tpot_s"] and other["output_tokens_per_s_per_gpu"] >= record["output_tokens_per_s_per_gpu"])
            or (other["tpot_s"] <= record["tpot_s"] and other["output_tokens_per_s_per_gpu"] > record["output_tokens_per_s_per_gpu"])
            for other in records
            if other["meets_goodput"]
        )  # fmt: skip
        assert (record in front) == (record["meets_goodput"] and not beaten)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("axes: {model: m}\n", "axes.hardware"),
        ("axes:\n  model: m\n  hardware: h\n  tpp: 2\n", r":4:axes.tpp"),
        ("axes:\n  model: m\n  hardware: h\n  tp: two\n", r":4:axes.tp"),
        ("axes: [", "not YAML"),
        ("hello\n", "mapping"),
    ],
)
def test_bad_files_name_the_place(text, said, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        load_spec(path)


def test_a_damaged_record_is_named(spec, tmp_path):
    place = tmp_path / "out.jsonl"
    place.write_text("{broken\n{}\n")
    with pytest.raises(InputError, match=r"out.jsonl:1"):
        sweep(spec, place, backend="sequential")


RATES = """axes:
  model: llama-3.1-70b
  hardware: h100-sxm
  tp: [1, 4]
  weights: fp8
  request_rate: [0.4, 2, 9, 9.5, 15]
method: closed
tpot_ms: 50
ttft_ms: 2000
"""


def _rows(text, tmp_path):
    path = tmp_path / "asked.yaml"
    path.write_text(text)
    return sweep(load_spec(path), None, backend="sequential")


def test_the_closed_form_of_a_rate_is_the_smallest_batch_that_carries_it(tmp_path):
    """A loop over every batch, from 1 up, in place of the bisection; what no batch carries is served as far as it goes, and fails."""
    load = Load(1024, 256)
    for row in _rows(RATES, tmp_path):
        parallel, precision = Parallel(tp=row["tp"]), Precision(weights="fp8")
        setup = Setup(load_model("llama-3.1-70b"), load_hardware("h100-sxm"), parallel, precision)
        memory = memory_plan(setup.model, setup.hardware, parallel, precision)
        points = [operate(setup, load, b) for b in range(1, memory.max_sequences(load.longest) + 1)]
        carrying = [point for point in points if point.request_rate >= row["request_rate"]]
        point = carrying[0] if carrying else points[-1]
        assert row["batch"] == point.batch
        assert row["tpot_s"] == point.tpot_s
        assert row["requests_per_s"] == (row["request_rate"] if carrying else point.request_rate)
        assert row["output_tokens_per_s"] == 256 * row["requests_per_s"]
        assert row["ttft_s"] == (point.ttft_s if carrying else None)
        assert row["meets_goodput"] == (bool(carrying) and point.tpot_s <= 0.05 and point.ttft_s <= 2)
        assert row["capacity_requests_per_s"] == points[-1].request_rate


def test_the_closed_form_agrees_with_the_simulation_on_what_meets_its_levels(tmp_path):
    """At rates that are not near the edge; the simulation schedules every step and shares only the step times."""
    text = RATES.replace("request_rate: [0.4, 2, 9, 9.5, 15]", "request_rate: [0.2, 2, 15]")
    closed = {(row["tp"], row["request_rate"]): row for row in _rows(text, tmp_path)}
    for row in _rows(text.replace("closed", "simulate"), tmp_path):
        assert closed[row["tp"], row["request_rate"]]["meets_goodput"] == row["meets_goodput"], row
        assert row["requests"] == 200


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ("  concurrency: 4\n  request_rate: 2\n", "one of"),
        ("  trace: a.csv\n", "method: simulate"),
        ("  concurrency: 100000\n", "do not fit at once"),
        ("  concurrency: 0\n", "positive"),
        ("  request_rate: 1\n  input_len: 4000000\n", "not one request"),
    ],
)
def test_what_the_closed_form_cannot_take_is_an_error_of_the_record(load, said, tmp_path):
    (row,) = _rows(f"axes:\n  model: llama-3.1-8b\n  hardware: h100-sxm\n{load}method: closed\n", tmp_path)
    assert said in row["error"]


def test_without_a_load_the_closed_form_takes_what_fits(tmp_path):
    (row,) = _rows("axes: {model: llama-3.1-8b, hardware: h100-sxm}\nmethod: closed\n", tmp_path)
    assert row["batch"] == memory_plan(load_model("llama-3.1-8b"), load_hardware("h100-sxm")).max_sequences(1280)


def test_the_page_says_how_its_rows_were_got(cli, tmp_path):  # noqa: F811
    for method, said in (("closed", "Closed form"), ("simulate", "40 requests")):
        path = tmp_path / f"{method}.yaml"
        path.write_text(f"axes: {{model: llama-3.1-8b, hardware: h100-sxm, request_rate: 2}}\nmethod: {method}\nnum_requests: 40\n")
        done = cli("sweep", path)
        assert done.code == 0, done.err
        assert said in " ".join(done.out.split())
