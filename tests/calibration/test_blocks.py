"""Shipped constants can be had back from the rows they were fitted on; lookups name what they use; files round-trip."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from roofline.batch import Batch
from roofline.calibration import tables
from roofline.calibration.blocks import Residuals
from roofline.calibration.fit import fit_group
from roofline.calibration.groups import groups
from roofline.ledger import Precision
from roofline.profiles.calibration import CalibrationBlock, CalibrationFile, Provenance, dump, load_file, shipped
from roofline.profiles.catalog import HARDWARE, folders, load_hardware, load_model
from roofline.timing.constants import choose
from roofline.timing.forms import FORMS, Key
from roofline.timing.intervals import UNSEEN, log_interval
from roofline.timing.spec import device_spec
from roofline.timing.step import price_step

DATA = Path(__file__).parents[1] / "data" / "kernels"
MEASURED = (
    "a100-sxm-80gb", "arc-pro-b60", "b200-sxm", "b300-sxm", "gb200", "gb300", "h100-sxm", "h200-sxm", "l40s", "rtx-pro-6000-server",
)  # fmt: skip


def block_of(name: str, family: str, software: str, **words: str) -> CalibrationBlock:
    wanted = {"family": family, "software": software, **words}
    return next(b for b in shipped(name) if all(getattr(b, word) == value for word, value in wanted.items()))


@pytest.mark.parametrize(
    ("file", "device", "generation", "words"),
    [
        ("gemm_h100_trtllm_fp8_fit.csv", "h100-sxm", "hopper", {"family": "gemm", "software": "trtllm", "dtype": "fp8"}),
        ("mla_prefill_rtx_sglang_fit.csv", "rtx-pro-6000-server", "blackwell-rtx",
         {"family": "mla_prefill", "software": "sglang", "kernel": "triton"}),
    ],
)  # fmt: skip
def test_a_shipped_block_is_recomputed_from_its_fit_rows(file: str, device: str, generation: str, words: dict[str, str]) -> None:
    want = block_of(device, **words)
    start = block_of(f"generation-{generation}", **words)
    form = FORMS[words["family"]]
    (group,) = groups(form, tables.normalised(tables.read(DATA / file)), lambda name: device_spec(load_hardware(name)))
    fit = fit_group(form, group.rows, start.constants)
    assert len(group.rows) == want.provenance.rows
    assert fit.held_out_error == pytest.approx(want.provenance.held_out_error, rel=0.02)
    got = form.seconds(group.rows.shape, group.key, group.rows.spec, fit.constants, True)
    ours = form.seconds(group.rows.shape, group.key, group.rows.spec, want.constants, True)
    assert got == pytest.approx(ours, rel=5e-3)  # constants that the rows do not determine may differ, what they predict may not
    assert fit.constants["ec"] == pytest.approx(want.constants["ec"], rel=0.02)
    assert np.abs(np.subtract(fit.correction, want.correction_percent)).max() <= 1


@pytest.mark.parametrize("name", [*MEASURED, "generic", *(f"generation-{g}" for g in ("ampere", "ada", "hopper", "blackwell"))])
def test_every_shipped_block_says_where_it_comes_from(name: str) -> None:
    blocks = shipped(name)
    assert blocks
    for block in blocks:
        assert block.provenance.source
        assert block.provenance.version
        assert block.provenance.split == "fit"
        assert block.provenance.rows >= 15
        assert block.provenance.held_out_error is not None
        form = FORMS[block.family]
        assert set(block.interval_log_quantiles) == set(form.bands)
        names = {c.name for c in form.constants(Key(block.software, block.dtype, block.kernel, block.kv_dtype, block.form))}
        assert names == set(block.constants)
        assert len(block.correction_percent) in (0, form.grid.size if form.grid else 0)


def test_own_constants_go_before_relatives_and_the_choice_is_named() -> None:
    h100, h20 = device_spec(load_hardware("h100-sxm")), device_spec(load_hardware("h20-96gb"))
    own = choose(FORMS["gemm"], Key("vllm", "bf16"), h100)
    assert own.exact
    assert own.widening == 1.0
    relative = choose(FORMS["gemm"], Key("vllm", "bf16"), h20)
    assert "generation hopper" in relative.used
    assert relative.widening > own.widening
    foreign = choose(FORMS["gemm"], Key("vllm", "bf16"), device_spec(load_hardware("mi300x")))
    assert "all devices" in foreign.used
    assert foreign.widening > relative.widening


def test_a_kernel_that_quantises_activations_does_not_stand_in_for_one_that_does_not() -> None:
    """SGLang runs 8-bit weights with 8-bit activations; vLLM's kernel was never measured, so its 16-bit one with half the bytes is it."""
    h100 = device_spec(load_hardware("h100-sxm"))
    assert choose(FORMS["gemm"], Key("sglang", "w8a16"), h100).exact
    found = choose(FORMS["gemm"], Key("vllm", "w8a16"), h100)
    assert found.used == "gemm vllm bf16, for w8a16"
    assert found.widening >= 2.0


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("device", ["h100-sxm", "h200-sxm", "a100-sxm-80gb", "l40s", "b200-sxm"])
def test_eight_bit_weights_alone_gain_in_decode_and_not_in_prefill(device: str, engine: str) -> None:
    hardware, model = load_hardware(device), load_model("llama-2-7b")

    def gain(batch: Batch) -> float:
        times = [price_step(model, batch, hardware, engine=engine, precision=Precision(weights=how)).kernels_s for how in ("bf16", "w8a16")]
        return float(times[0] / times[1])

    assert 1.4 <= gain(Batch.decode(1, 500)) <= 1.9
    assert 0.7 <= gain(Batch.prefill(1, 8192)) <= 1.05


def test_a_kernel_never_measured_is_priced_by_its_library_elsewhere() -> None:
    found = choose(FORMS["prefill_attention"], Key("vllm", "bf16", "vllm_triton_attn", "fp8"), device_spec(load_hardware("b200-sxm")))
    assert found.block.kernel == "triton"
    assert not found.exact


def test_a_head_dim_never_fitted_widens_the_interval() -> None:
    form = FORMS["decode_attention"]
    block = CalibrationBlock(
        family="decode_attention", software="x", constants={}, seen={"head_dim": (128.0,)},
        interval_log_quantiles=dict.fromkeys(form.bands, (-0.1, 0.2)), provenance=Provenance(source="test"),
    )  # fmt: skip
    shape = {"batch": [1, 1], "context": [512, 512], "heads": [8, 8], "kv_heads": [8, 8], "head_dim": [128, 192], "window": [0, 0]}
    low, high = log_interval(form, {n: np.array(v, dtype=float) for n, v in shape.items()}, Key("x", kv_dtype="bf16"), block)
    assert low == pytest.approx([-0.1, -0.1 * UNSEEN])
    assert high == pytest.approx([0.2, 0.2 * UNSEEN])


def test_blocks_survive_their_file(tmp_path: Path) -> None:
    blocks = shipped("arc-pro-b60")
    path = tmp_path / "arc.yaml"
    path.write_text(dump(CalibrationFile(id="arc-pro-b60", blocks=blocks), "a comment\nof two lines"), encoding="utf-8")
    assert load_file(path).blocks == blocks


@pytest.mark.parametrize("path", sorted((folders(HARDWARE)[-1] / "calibration").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_files_are_yaml_in_the_syntax_of_json_for_a_quick_start(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    comments = [line for line in text.splitlines() if line.startswith("#")]
    plain = json.loads("\n".join(text.splitlines()[len(comments) :]))
    strict = load_file(path)
    assert CalibrationFile.model_validate(plain) == strict
    assert yaml.safe_load(text).keys() == plain.keys()
    assert shipped(path.stem) == strict.blocks
    assert dump(strict, "\n".join(line.removeprefix("# ") for line in comments)) == text


def test_a_shipped_file_in_other_yaml_is_read_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "calibration").mkdir()
    text = "id: made-up\nblocks:\n- {family: gemm, constants: {ec: 0.5}, provenance: {source: test}}\n"
    (tmp_path / "calibration" / "made-up.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("ROOFLINE_PROFILE_PATH", str(tmp_path))
    assert shipped("made-up")[0].constants == {"ec": 0.5}


def test_fit_rows_are_the_only_ones_carried() -> None:
    for name in ("gemm_h100_trtllm_fp8_fit.csv", "mla_prefill_rtx_sglang_fit.csv"):
        assert set(pd.read_csv(DATA / name)["split"]) == {"fit"}


def test_each_combination_of_facts_weighs_the_same_in_an_interval() -> None:
    often, seldom = np.zeros(900), np.linspace(-1.0, 1.0, 101)
    log, fact = np.concatenate([often, seldom]), np.repeat([128.0, 64.0], [900, 101])
    low, high = Residuals(log, np.zeros(log.size), fact).spread()
    assert (low, high) == (pytest.approx(-0.6, abs=0.03), pytest.approx(0.6, abs=0.03))  # half the weight spreads evenly over −1 … 1
    assert np.quantile(log, 0.9) < 0.1  # where the many rule
