"""Kernel forms by family: closed formulas with few constants, vectorised over rows."""

from __future__ import annotations

from roofline.errors import InputError
from roofline.timing.forms.base import Constant, DeviceSpec, Form, Grid, Key, Shape, Table
from roofline.timing.forms.collective import COLLECTIVE
from roofline.timing.forms.decode_attention import DECODE_ATTENTION
from roofline.timing.forms.gemm import GEMM
from roofline.timing.forms.mla import MLA_DECODE, MLA_PREFILL
from roofline.timing.forms.moe import MOE
from roofline.timing.forms.prefill_attention import PREFILL_ATTENTION

FORMS: dict[str, Form] = {
    form.family: form for form in (GEMM, DECODE_ATTENTION, PREFILL_ATTENTION, MLA_DECODE, MLA_PREFILL, MOE, COLLECTIVE)
}


def form(family: str) -> Form:
    """The form of a kernel family. Raises InputError with the known names."""
    found = FORMS.get(family)
    if found is None:
        raise InputError(f"unknown kind of kernel {family!r}; known: {', '.join(FORMS)}")
    return found


__all__ = ["FORMS", "Constant", "DeviceSpec", "Form", "Grid", "Key", "Shape", "Table", "form"]
