"""Cases choose the attention backend for the whole process: after each test torch may choose again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from microbench.device import ATTENTION_BACKENDS, attention_backends


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    """Whatever a test measured, the next one finds torch as it was."""
    yield
    attention_backends(*ATTENTION_BACKENDS)
