"""Which tests want the machine for themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
# they start servers and send loads, or time what the machine does: two at once would disturb each other
ALONE = (
    "diagnosis/test_demonstration.py",
    "engine/server/test_api.py",
    "engine/server/test_command.py",
    "engine/server/test_limits.py",
    "engine/server/test_metrics.py",
    *(f"loadtest/test_{name}.py" for name in ("cases", "cli", "exchange", "failures", "http", "journal", "mock", "selfcheck", "stages")),
    "microbench",
    *(f"validation/test_{name}.py" for name in ("cli", "passes")),
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks them `alone`."""
    for item in items:
        if any(item.path.is_relative_to(HERE / place) for place in ALONE):
            item.add_marker(pytest.mark.alone)
