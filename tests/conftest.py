"""Which tests want the machine for themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
# they start servers and send loads, or time what the machine does: two at once would disturb each other
ALONE = ("loadtest", "microbench", "validation", "engine/server", "diagnosis/test_demonstration.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks them `alone`."""
    for item in items:
        if any(item.path.is_relative_to(HERE / place) for place in ALONE):
            item.add_marker(pytest.mark.alone)
