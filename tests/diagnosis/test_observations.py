"""What is observed stays what it is: zeros of an idle server, extremes, and any choice of facts."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from roofline.diagnosis.observations import VOCABULARY, Observations
from roofline.diagnosis.rank import diagnose


def test_zeros_and_extremes_end_no_rule() -> None:
    """An idle server has nothing but zeros; whatever is observed, every cause is weighed and says why."""
    draw = random.Random(7)
    kinds: dict[str, Callable[[], float | bool | str]] = {
        "yes/no": lambda: draw.random() < 0.5,
        "text": lambda: draw.choice(("overload", "queue-grows", "burst", "steady", "")),
    }
    numbers = (0.0, 0.0, 1.0, 0.5, 1e-3, 37.0, 1e-300, 1e300)
    for size in (1, 2, 3, 5, 10, 30, len(VOCABULARY)):
        for _ in range(200):
            names = draw.sample(list(VOCABULARY), size)
            seen = Observations({name: kinds.get(VOCABULARY[name][0], lambda: draw.choice(numbers))() for name in names}, "drawn")
            found = diagnose(seen)
            assert sum(cause.confidence for cause in found.causes) + found.unknown == pytest.approx(1)
    idle = Observations(
        dict.fromkeys(("ttft_s", "queue_s", "prefill_s", "running", "waiting", "kv_usage", "requests_finished"), 0.0), "idle"
    )
    assert "ttft_s" not in idle
    assert diagnose(idle).verdict != "cause"
