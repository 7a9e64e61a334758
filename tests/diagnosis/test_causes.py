"""The right cause first: public cases, saved pages of known cause, simulated servers; and no alarm where nothing is wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from roofline.diagnosis import expectation, families, sources
from roofline.diagnosis.logs import read_log
from roofline.diagnosis.observations import Observations
from roofline.diagnosis.rank import Diagnosis, diagnose
from roofline.ledger import AS_SHIPPED, Parallel
from roofline.phases import Setup
from roofline.profiles.catalog import load_hardware, load_model
from tests.diagnosis.simulated import FAULTS, HEALTHY, Server, drawn

DATA = Path(__file__).parents[1] / "data"
CASES: list[dict[str, Any]] = yaml.safe_load((DATA / "diagnosis_cases.yaml").read_text())
SHOWN = [case for case in CASES if case["evidence"] == "E1"]
PAIRS = {"healthy": "NONE", "queue_slots": "CAP", "kv_pressure": "KV", "prefill_bound": "PQ", "underload_launch": "HOST"}
FOLDERS = [DATA / "metrics", Path(os.environ.get("ROOFLINE_SHARED", DATA.parents[2] / "shared")) / "data" / "metrics"]


def of_case(case: dict[str, Any]) -> Diagnosis:
    seen = Observations(case.get("observed"), f"case {case['id']}")
    if "log" in case:
        seen.update(read_log([case["log"]], "log"))
    return diagnose(seen)


def of_server(server: Server) -> Diagnosis:
    return diagnose(of_pages(*server.pages()))


def of_pages(before: str, after: str) -> Observations:
    return families.observe(families.read(before.splitlines(), "before"), families.read(after.splitlines(), "after"))


def test_cases_whose_cause_was_shown() -> None:
    right = [of_case(case).first.label in case["label"].split() for case in SHOWN]
    assert len(right) == 12
    assert sum(right) >= 0.85 * len(right)


def test_cases_whose_cause_was_asserted() -> None:
    others = [case for case in CASES if case["evidence"] != "E1"]
    right = [of_case(case).first.label in case["label"].split() for case in others]
    assert sum(right) >= 0.85 * len(right)


def test_cases_encoded_blind() -> None:
    """By a reader who saw what was observed and neither causes nor rules: shown causes are named, asserted ones named or left open."""
    blind: dict[str, dict[str, Any]] = yaml.safe_load((DATA / "diagnosis_cases_blind.yaml").read_text())
    found = {str(case["id"]): (diagnose(Observations(blind[str(case["id"])], "blind")), case["label"].split()) for case in CASES}
    shown = [found[str(case["id"])] for case in SHOWN]
    assert sum(diagnosis.first.label in labels for diagnosis, labels in shown) >= 0.85 * len(shown)
    assert all(diagnosis.first.label in labels or diagnosis.verdict == "unclear" for diagnosis, labels in found.values())


@pytest.mark.parametrize("folder", FOLDERS, ids=["own", "shared"])
@pytest.mark.parametrize(("name", "label"), PAIRS.items())
def test_saved_pages(name: str, label: str, folder: Path) -> None:
    if not folder.is_dir():
        pytest.skip("the shared folder is not here")
    seen, notes = sources.observe([str(folder / f"vllm_v1_{name}_{i}.prom") for i in (0, 1)], 60)
    found = diagnose(seen)
    assert notes == []
    assert found.first.label == label
    assert found.verdict == {"NONE": "healthy", "HOST": "unclear"}.get(label, "cause")  # the roof or overhead: only a plan tells


@pytest.mark.parametrize("server", HEALTHY, ids=str)
def test_no_alarm_where_users_are_satisfied(server: Server) -> None:
    assert server.satisfied() >= 0.9
    assert of_server(server).verdict != "cause"


@pytest.mark.parametrize("server", HEALTHY, ids=str)
def test_no_alarm_beside_the_plan(server: Server) -> None:
    seen = of_pages(*server.pages())
    setup = Setup(load_model(server.model), load_hardware(server.hardware), Parallel(tp=server.tp), AS_SHIPPED, "vllm")
    expected = expectation.expect(setup, seen)
    assert expected is not None
    seen.update(expectation.beside(expected, seen))
    assert diagnose(seen).verdict != "cause"


def test_there_are_enough_healthy_servers() -> None:
    assert len(set(HEALTHY)) >= 20


@pytest.mark.parametrize(("label", "server"), FAULTS, ids=str)
def test_simulated_faults(label: str, server: Server) -> None:
    found = of_server(server)
    assert found.first.label == label
    assert found.verdict != "healthy"


def test_confidence_is_the_share_of_right_answers() -> None:
    """On random servers that no rule was made with; the truth is what relieves the server, found by trying."""
    found = [(of_server(server).first, server.cause()) for server in drawn(30, seed=2024)]
    claims = [(first.confidence, first.label == truth) for first, truth in found if first.confidence >= 0.5]
    confidence, right = np.array(claims, dtype=float).T
    assert len(claims) >= 20
    spread = 2 * np.sqrt(confidence.mean() * (1 - confidence.mean()) / len(claims))
    assert abs(confidence.mean() - right.mean()) <= spread


def test_nothing_observed_is_not_enough_evidence() -> None:
    found = diagnose(Observations())
    assert found.verdict == "unclear"
    assert found.unknown > found.first.confidence
    assert sum(cause.confidence for cause in found.causes) + found.unknown == pytest.approx(1)


def test_a_full_pool_alone_proves_nothing() -> None:
    assert diagnose(Observations({"running": 8, "kv_usage": 0.93, "waiting": 0, "preemptions": 0})).first.label != "KV"
    assert diagnose(Observations({"running": 20, "kv_usage": 0.32, "waiting": 40, "waiting_before": 5, "prompt_length": 6000,
                                  "output_length": 2})).first.label == "PQ"  # fmt: skip


@pytest.mark.parametrize("load", [1, 2, 4])
def test_a_prefix_cache_that_is_off_is_suspected_from_metrics_alone(load: float) -> None:
    off = 'vllm:cache_config_info{block_size="16",enable_prefix_caching="False",engine="0",num_gpu_blocks="9000"} 1.0\n'
    pages = [page + off for page in Server(load=load, prompt=4096, output=128).pages()]
    found = diagnose(families.observe(*(families.read(page.splitlines(), "page") for page in pages)))
    assert found.first.label == "PFX"
    assert found.verdict == "unclear"  # whether prompts share anything, only the user knows


def test_every_cause_can_be_found() -> None:
    labels = {of_case(case).first.label for case in CASES} | {"HOST", "FIX", "NONE"}
    assert labels == {cause.label for cause in diagnose(Observations()).causes}
    fixed = Observations({"running": 4, "waiting": 6, "kv_usage": 0.93, "kv_tokens": 400e3, "prompt_length": 900, "output_length": 100})
    assert diagnose(fixed).first.label == "FIX"
    assert diagnose(Observations({"running": 2, "waiting": 0, "cuda_graph": False, "tpot_over_expected": 3.0})).first.label == "HOST"
