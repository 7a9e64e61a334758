"""`roofline engine` as a user meets it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from roofline.records import read_jsonl
from roofline.records.requests import RequestRecord
from tests.cli.conftest import Cli, cli, process
from tests.engine.test_transformers import DENSE, reference

__all__ = ["cli"]
SMALL = ("--num-requests", "5", "--input-len", "20", "--output-len", "6", "--threads", "1", "--kv-blocks", "64")


def test_a_run_with_records(cli: Cli, tmp_path: Path) -> None:
    done = cli("engine", "tiny-llama-15m", *SMALL, "--max-num-batched-tokens", "32", "--records", tmp_path, "--json")
    assert done.code == 0
    found = done.json
    assert (found["command"], found["requests"], found["rejected"], found["output_tokens"]) == ("engine", 5, 0, 30)
    steps = [row for _, row in read_jsonl(tmp_path / "steps.jsonl")]
    requests = [RequestRecord.from_json(row) for _, row in read_jsonl(tmp_path / "requests.jsonl")]
    assert len(steps) == found["steps"]
    assert sum(step["emitted"] for step in steps) == 30
    assert sum(new for step in steps for new, _, _ in step["chunks"]) == 5 * 20
    assert max(step["decodes"] + sum(new for new, _, _ in step["chunks"]) for step in steps) <= 32
    for record in requests:
        assert len(record.gaps_s) == 5
        assert math.isclose(record.first_token_s + sum(record.gaps_s), record.end_s, abs_tol=1e-4)
    assert found["makespan_s"] == pytest.approx(max(record.end_s for record in requests), abs=1e-5)
    assert json.loads((tmp_path / "environment.json").read_text())["inputs"]["model"] == "tiny-llama-15m"
    assert any("random weights" in note for note in found["assumptions"])


@pytest.mark.parametrize(
    "options",
    [
        ("--speculative", "ngram:3"),
        ("--speculative", "tiny-llama-15m:2", "--temperature", "0.8"),
        ("--static-batching", "2", "--max-model-len", "32"),
        ("--max-concurrency", "2", "--no-prefix-caching"),
        ("--weights", "w8a16", "--kv-dtype", "fp8", "--dtype", "bf16"),
    ],
)
def test_options(cli: Cli, options: tuple[str, ...]) -> None:
    done = cli("engine", "tiny-llama-15m", *SMALL, *options, "--json")
    assert done.code == 0
    assert (done.json["requests"], done.json["output_tokens"]) == (5, 30)


def test_a_trace_and_a_folder_of_weights(cli: Cli, tmp_path: Path) -> None:
    reference("Llama", DENSE, tmp_path / "model")
    (tmp_path / "trace.csv").write_text(
        "arrival_s,input_tokens,output_tokens,prefix_id,prefix_tokens\n0,40,3,a,32\n0.01,40,4,a,32\n0.02,500,1,,\n"
    )
    done = cli("engine", tmp_path / "model", "--trace", tmp_path / "trace.csv", "--json")
    assert done.code == 0
    assert (done.json["requests"], done.json["rejected"], done.json["output_tokens"]) == (3, 1, 7)
    assert "leave no room for output" in done.json["rejections"]["2"]
    assert done.json["prefix_cache_hit_rate"] == pytest.approx(32 / 80)
    assert not any("random weights" in note for note in done.json["assumptions"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("tiny-llama-15m", "--input-len", "300"), "300 prompt tokens leave no room for output within max_model_len 256"),
        (("tiny-llama-15m", "--kv-blocks", "4"), "the pool has 3"),
        (("tiny-llama-15m", "--tp", "4"), "heads = 6 cannot be split over tp = 4"),
        (("tiny-llama-15m", "--speculative", "ngram"), "write ngram:K or MODEL:K"),
        (("tiny-llama-15m", "--weights", "w3a5"), "unknown dtype"),
        (("tiny-llama-15m", "--top-p", "0"), "0 < top_p ≤ 1"),
        (("gpt2",), "the engine does not run 'gpt2' models"),
        (("tiny-llama-15m", "--speculative", "qwen3-0.6b:2"), "its vocabulary of 151936 is not 32000"),
    ],
)
def test_what_cannot_run_ends_with_2_and_the_reason(cli: Cli, options: tuple[str, ...], says: str) -> None:
    done = cli("engine", *options)
    assert done.code == 2
    assert says in done.err
    assert "Traceback" not in done.err


def test_two_ranks_as_one_command() -> None:
    done = process("engine", "tiny-llama-15m", *SMALL, "--tp", "2", "--json", env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output_tokens"] == 30
