"""Plans: loads by Little's law, limits in order, and what does not fit said so."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.errors import InputError
from roofline.ledger import Parallel
from roofline.phases import Setup
from roofline.planning.document import plan_document
from roofline.planning.load import Load, largest_batch_within, operate, replicas_needed
from roofline.planning.plan import CLOSED_FORM, make_plan
from roofline.profiles.catalog import load_hardware, load_model

SETUP = Setup(load_model("llama-3.1-8b"), load_hardware("h100-sxm"))


@given(st.integers(1, 300), st.integers(1, 4000), st.integers(1, 1000))
@settings(deadline=None, max_examples=30)
def test_littles_law_holds_at_every_operating_point(batch: int, input_len: int, output_len: int) -> None:
    load = Load(input_len, output_len)
    point = operate(SETUP, load, batch)
    residence = point.prefill_s + output_len * point.tpot_s
    assert point.request_rate * residence == pytest.approx(batch, rel=1e-9)


def test_more_in_flight_serves_more_and_slower() -> None:
    points = [operate(SETUP, Load(), batch) for batch in (1, 2, 8, 32, 128, 355)]
    assert all(a.request_rate < b.request_rate for a, b in pairwise(points))
    assert all(a.tpot_s < b.tpot_s for a, b in pairwise(points))


def test_a_rate_takes_the_fewest_replicas_that_carry_it() -> None:
    full = operate(SETUP, Load(), 300)
    for times in (0.1, 0.99, 1.01, 3.5):
        need = replicas_needed(SETUP, Load(request_rate=times * full.request_rate), kv_limit=300, slot_limit=1024)
        assert need is not None
        assert need.replicas == int(times) + 1
        assert need.point.request_rate * need.replicas >= need.request_rate * (1 - 1e-9)
        if need.point.batch > 1:  # and one request fewer per replica would not do
            assert operate(SETUP, Load(), need.point.batch - 1).request_rate * need.replicas < need.request_rate


def test_users_think_between_questions() -> None:
    busy = replicas_needed(SETUP, Load(users=2000, think_time_s=0.0), kv_limit=300, slot_limit=1024)
    idle = replicas_needed(SETUP, Load(users=2000, think_time_s=120.0), kv_limit=300, slot_limit=1024)
    assert busy is not None
    assert idle is not None
    assert idle.replicas < busy.replicas
    assert idle.concurrency < 2000 * 0.2


@pytest.mark.parametrize(("users", "think_s"), [(1, 30.0), (37, 0.0), (400, 10.0), (2000, 30.0), (50_000, 300.0)])
def test_every_user_either_reads_or_waits(users: int, think_s: float) -> None:
    """Rate and requests in flight are those of the times beside them, and one request fewer in a batch would not carry the users."""
    load = Load(users=users, think_time_s=think_s, tpot_s=0.05)
    need = replicas_needed(SETUP, load, kv_limit=300, slot_limit=1024)
    assert need is not None
    latency = need.point.prefill_s + load.output_len * need.point.tpot_s
    assert need.concurrency == pytest.approx(need.request_rate * latency)
    assert need.concurrency + need.request_rate * think_s == pytest.approx(users)
    assert need.concurrency <= need.replicas * need.point.batch + 1e-9
    if need.point.batch > 1:
        fewer = operate(SETUP, load, need.point.batch - 1)
        assert need.replicas * (fewer.batch + fewer.request_rate * think_s) < users


def test_service_levels_cap_the_batch() -> None:
    load = Load(tpot_s=0.02)
    batch = largest_batch_within(SETUP, load, 1000)
    assert operate(SETUP, load, batch).tpot_s <= 0.02 < operate(SETUP, load, batch + 1).tpot_s
    assert largest_batch_within(SETUP, Load(ttft_s=1e-6), 1000) == 0
    assert replicas_needed(SETUP, Load(request_rate=1.0, ttft_s=1e-6), kv_limit=300, slot_limit=1024) is None


def test_the_plan_of_the_readme() -> None:
    plan = make_plan(SETUP, Load())
    assert plan.fits
    assert plan.meets_load
    assert plan.batch == 1
    assert plan.curve[0].batch == 1
    assert plan.curve[-1].batch == plan.largest_batch
    assert all(point.fits for point in plan.curve)
    assert [limit.batch for limit in plan.limits] == sorted(limit.batch for limit in plan.limits)  # type: ignore[type-var]
    assert plan.largest_batch == plan.memory.max_sequences(1280)
    document = plan_document(plan)
    assert document["memory"]["max_sequences"] == plan.largest_batch
    assert document["decode"]["time_s"]["bound"] <= document["decode"]["time_s"]["expected"]


def test_no_change_promises_more_sequences_than_its_cap() -> None:
    """Short sequences: memory holds thousands, the engine runs 1,024 at most per data-parallel rank, and half of that in one row."""
    plan = make_plan(SETUP, Load(80, 20), max_num_seqs=1024)
    assert plan.memory.max_sequences(100) > 2 * 1024
    gains = {gain["knob"]: gain for gain in plan_document(plan)["knobs"]}
    caps = {knob: {"dp": 2048, "max_num_seqs": 512}.get(knob, 1024) for knob in gains}
    assert len(caps) > 5
    assert {knob: gain["sequences"] for knob, gain in gains.items()} == caps
    assert {knob: gain["sequences_gained"] for knob, gain in gains.items()} == {knob: cap - 1024 for knob, cap in caps.items()}
    assert gains["kv_dtype"]["kv_tokens_gained"] > 100_000


def test_70b_does_not_fit_one_gpu_and_says_by_how_much() -> None:
    plan = make_plan(Setup(load_model("llama-3.1-70b"), load_hardware("h100-sxm")), Load())
    assert not plan.fits
    assert plan.largest_batch == 0
    assert plan.memory.shortfall_bytes > 60e9
    assert not any(point.fits for point in plan.curve)
    assert plan.need is None
    assert any(gain.fits for gain in plan.gains if gain.knob == "tp" or gain.knob == "weights")


def test_four_gpus_hold_70b() -> None:
    plan = make_plan(Setup(load_model("llama-3.1-70b"), load_hardware("h100-sxm"), Parallel(tp=4)), Load(concurrency=50))
    assert plan.fits
    assert plan.need is not None
    assert plan.need.gpus == 4
    assert plan.need.point.batch == 50
    assert plan.cost is not None
    per_hour = plan.cost.price.usd_per_gpu_hour * 4
    assert plan.cost.usd_per_hour == pytest.approx(per_hour)
    tokens_per_hour = plan.need.request_rate * 256 * 3600
    assert plan.cost.usd_per_million_output_tokens == pytest.approx(per_hour / tokens_per_hour * 1e6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"input_len": 0},
        {"output_len": -1},
        {"concurrency": 0},
        {"request_rate": -1.0},
        {"request_rate": float("nan")},
        {"users": 3, "concurrency": 2},
        {"think_time_s": -1.0},
        {"tpot_s": 0.0},
    ],
)
def test_bad_loads_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError):
        Load(**wrong)  # type: ignore[arg-type]


def test_a_load_in_closed_form_is_said_to_be_one() -> None:
    setup = Setup(load_model("llama-3.1-8b"), load_hardware("h100-sxm"))
    assert CLOSED_FORM in make_plan(setup, Load(request_rate=5.0)).assumptions
    assert CLOSED_FORM not in make_plan(setup, Load()).assumptions
