"""Every shipped device and model gets a plan, or a clear "does not fit", without a warning."""

from __future__ import annotations

import pytest

from roofline.profiles import catalog
from tests.cli.conftest import Cli


@pytest.mark.parametrize("device", catalog.files(catalog.HARDWARE))
def test_every_device(cli: Cli, device: str) -> None:
    done = cli("plan", "llama-3.1-8b", "-H", device, columns=80)
    assert done.code in (0, 3)
    assert done.err == ""
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.parametrize("model", catalog.files(catalog.MODELS))
def test_every_model(cli: Cli, model: str) -> None:
    done = cli("plan", model, "-H", "h200-sxm", "--json")
    assert done.code in (0, 3)
    assert done.err == ""
    assert done.json["fits"] is (done.code == 0)
