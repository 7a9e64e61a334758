"""Number formats: bits with scales, whole scales of a matrix counted one by one, and the spellings that mean the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.dtypes import ALIASES, DTYPES, dtype
from roofline.errors import InputError
from roofline.profiles.hardware import COMPUTE_TYPES


@pytest.mark.parametrize(
    ("name", "bits"),
    [("bf16", 16), ("fp16", 16), ("fp32", 32), ("fp8", 8), ("int8", 8), ("int4", 4.25), ("nvfp4", 4.5), ("mxfp4", 4.25), ("mxfp8", 8.25)],
)
def test_bits_with_scales(name: str, bits: float) -> None:
    assert dtype(name).bits_per_element == bits
    assert dtype(name).bytes_per_element == bits / 8


def test_a_block_scale_is_spread_over_its_block() -> None:
    assert dtype("fp8_block").bits_per_element == pytest.approx(8 + 32 / 16384, rel=1e-15)


def count_bytes(name: str, n: int, k: int) -> float:
    """Bytes of an (n, k) matrix, element by element and scale by scale."""
    form = dtype(name)
    bits = 0.0
    scales = set()
    for row in range(n):
        for column in range(k):
            bits += form.bits
            if form.block:
                scales.add((row // form.block[0], column // form.block[1]))
            elif form.group:
                scales.add((row, column // form.group))
    return (bits + len(scales) * form.scale_bits) / 8


@given(st.sampled_from(sorted(DTYPES)), st.integers(1, 150), st.integers(1, 150))
def test_matrix_bytes_counts_every_scale(name: str, n: int, k: int) -> None:
    assert dtype(name).matrix_bytes(n, k) == pytest.approx(count_bytes(name, n, k), rel=1e-12)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_a_large_matrix_has_the_stated_bits(name: str) -> None:
    form = dtype(name)
    assert form.matrix_bytes(4096, 4096) == pytest.approx(4096 * 4096 * form.bytes_per_element, rel=1e-12)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("bf16", "bfloat16"),
        ("fp4", "nvfp4"),
        ("int4_wo", "w4a16"),
        ("int8_wo", "w8a16"),
        ("half", "fp16"),
        ("torch.bfloat16", "bf16"),
        (" BF16 ", "bf16"),
        ("w4a16_mxfp4", "mxfp4"),
    ],
)
def test_spellings_of_the_same_format(one: str, other: str) -> None:
    assert dtype(one) is dtype(other)


@pytest.mark.parametrize("name", ["w4a8_mxfp4", "w4afp8"])
def test_four_bit_weights_with_fp8_activations_compute_in_fp8(name: str) -> None:
    assert dtype(name).compute == "fp8"
    assert not dtype(name).weight_only
    assert 4 < dtype(name).bits_per_element <= 4.25


def test_aliases_lead_to_formats_and_hide_none() -> None:
    assert set(ALIASES.values()) <= set(DTYPES)
    assert not set(ALIASES) & set(DTYPES)


def test_every_format_computes_in_a_type_that_hardware_can_have() -> None:
    assert {form.compute for form in DTYPES.values()} <= set(COMPUTE_TYPES)


def test_a_format_is_its_own_name() -> None:
    assert dtype(dtype("fp8")) is DTYPES["fp8"]


@pytest.mark.parametrize("name", ["fp7", "", "int5", "None"])
def test_an_unknown_format_lists_the_known(name: str) -> None:
    with pytest.raises(InputError, match=r"known: .*bf16"):
        dtype(name)
