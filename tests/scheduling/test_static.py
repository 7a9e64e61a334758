"""Static batching."""

from __future__ import annotations

import pytest

from roofline.errors import InputError
from roofline.scheduling import Request, StaticScheduler


def test_a_batch_runs_to_its_longest_member_and_nobody_joins():
    target = StaticScheduler(2, 1000, 100)
    for number, output in enumerate((2, 4, 1)):
        target.add(Request(f"r{number}", 10, output))
    shapes = []
    for _ in range(5):
        batch = target.schedule()
        shapes.append((len(batch.chunks), len(batch.decodes), batch.num_padding, batch.decode_context))
        target.update(batch)
        target.check_integrity()
    assert shapes == [(2, 0, 0, 0), (0, 2, 0, 20), (0, 1, 1, 22), (0, 1, 1, 24), (1, 0, 0, 0)]
    assert not target.running


def test_reservation_limits_the_batch():
    assert StaticScheduler(64, 60_000, 8192).batch_size == 7
    with pytest.raises(InputError, match="not even one fits"):
        StaticScheduler(64, 8000, 8192)
    with pytest.raises(InputError, match="are reserved"):
        StaticScheduler(64, 60_000, 8192).add(Request("r", 8000, 200))
