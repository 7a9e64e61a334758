"""The note that servers of a stack were measured: there exactly where serving rows of that stack take constants of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from roofline.ledger import Parallel, Precision
from roofline.phases import Setup
from roofline.planning.load import Load
from roofline.planning.plan import make_plan
from roofline.profiles.catalog import load_hardware, load_model
from roofline.serving.measured import measured_note
from roofline.serving.points import choose, read_row


def _setup(engine: str, model: str, hardware: str, weights: str | None) -> Setup:
    return Setup(load_model(model), load_hardware(hardware), Parallel(tp=8), Precision(weights=weights), engine)


@pytest.mark.parametrize(
    ("engine", "model", "hardware", "weights", "row"),
    [
        ("vllm", "llama-3.1-70b", "h100-sxm", "fp8", {"model": "llama-3.1-70b", "gemm_dtype": "fp8"}),
        ("vllm", "llama-3.1-70b-fp8", "h100-sxm", None, {"model": "llama-3.1-70b", "gemm_dtype": "fp8"}),
        ("vllm", "llama-3.1-70b", "h100-sxm", None, {"model": "llama-3.1-70b"}),
        ("vllm", "llama-3.1-70b", "h200-sxm", "fp8", {"model": "llama-3.1-70b", "gemm_dtype": "fp8"}),
        ("vllm", "qwen3-32b", "h100-sxm", None, {"model": "qwen3-32b"}),
        ("sglang", "llama-3.1-8b", "h100-sxm", None, {"model": "llama-3.1-8b"}),
        ("sglang", "deepseek-r1", "h200-sxm", None, {"model": "deepseek-r1", "gemm_dtype": "fp8"}),
        ("trtllm", "qwen3-235b-a22b-fp8", "h100-sxm", None, {"model": "qwen3-235b-a22b-fp8", "gemm_dtype": "fp8"}),
        ("vllm", "kimi-k2.5", "h200-sxm", None, {"model": "kimi-k2.5", "gemm_dtype": "int4"}),
        ("vllm", "gpt-oss-120b", "h200-sxm", None, {"model": "gpt-oss-120b", "precision": "fp4"}),
    ],
)
def test_the_note_is_there_where_rows_have_constants_of_their_own(
    engine: str, model: str, hardware: str, weights: str | None, row: dict[str, str]
) -> None:
    """Against what `predict` chooses for a row of the same stack."""
    whole = {"software": engine, "hardware": hardware, "isl": 1024, "osl": 256, "concurrency": 8, "tp": 8, **row}
    level, _ = choose(read_row(whole)[1])
    assert bool(measured_note(_setup(engine, model, hardware, weights))) == (level in ("version", "model"))


def test_plans_say_it_once() -> None:
    def notes(weights: str | None) -> list[str]:
        plan = make_plan(_setup("vllm", "llama-3.1-70b", "h100-sxm", weights), Load())
        return [note for note in plan.assumptions if "roofline predict" in note]

    (note,) = notes("fp8")
    assert note.startswith("vllm was measured serving llama-3.1-70b in fp8 on h100-sxm")
    assert notes(None) == []
    quantised = make_plan(_setup("vllm", "llama-3.1-70b-fp8", "h100-sxm", None), Load()).assumptions
    assert any("serving llama-3.1-70b in fp8" in note for note in quantised)  # the name by which a row finds them


def test_what_prices_serving_rows_is_not_loaded_for_it() -> None:
    program = (
        "import sys, roofline.planning.plan; print([m for m in sys.modules if m in ('roofline.serving.points', 'roofline.serving.passes')])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
