"""Sweeps: every combination once, resumable, and a front that nobody beats."""

from __future__ import annotations

import json

import pytest

from roofline.errors import InputError
from roofline.planning.sweep import configurations, load_spec, pareto, sweep

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
