"""What is not known of an engine's pages is said in the answer."""

from __future__ import annotations

from roofline.capacity import memory_plan
from roofline.ledger import Parallel
from roofline.profiles.catalog import load_hardware, load_model


def test_compressed_caches_are_named_as_an_extrapolation() -> None:
    known, extrapolated = (
        memory_plan(load_model(name), load_hardware("b200-sxm"), Parallel(tp=8)).assumptions for name in ("deepseek-v3", "deepseek-v4-pro")
    )
    assert any(note.startswith("compressed caches") for note in extrapolated)
    assert not any(note.startswith("compressed caches") for note in known)
