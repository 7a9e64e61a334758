"""A batch × context grid of decode steps of a 70B model: points per second, ledger and hard bound in one NumPy evaluation.

Run from the checkout: python benchmarks/grid.py [ROUNDS]. Beside it, the same points one by one (a sample of them), as ratio.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from roofline.batch import Batch
from roofline.ledger import Parallel, build_ledger
from roofline.profiles.catalog import load_hardware, load_model
from roofline.timing.bound import step_bound

SIDE = 1000
ALONE = 100


def main(rounds: int) -> None:
    """Prints points per second of the grid and of single evaluations, and, last, one line of JSON."""
    model, hardware, parallel = load_model("llama-3.1-70b"), load_hardware("h100-sxm"), Parallel(tp=4)
    batches, contexts = np.arange(1, SIDE + 1.0)[:, None], 32.0 * np.arange(1, SIDE + 1)[None, :]
    grid_times, alone_times = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        bound = step_bound(build_ledger(model, Batch.decode(batches, contexts), parallel=parallel), hardware).step_s
        grid_times.append(time.perf_counter() - start)
        start = time.perf_counter()
        for i in range(ALONE):
            one = step_bound(build_ledger(model, Batch.decode(i + 1, contexts[0, i]), parallel=parallel), hardware).step_s
            assert one == np.asarray(bound)[i, i]
        alone_times.append(time.perf_counter() - start)
    grid, alone = SIDE * SIDE / min(grid_times), ALONE / min(alone_times)
    print(
        f"{SIDE} × {SIDE} decode points of {model.name}: {grid:,.0f} points/s; one by one {alone:,.0f} points/s; ratio {grid / alone:,.0f}"
    )
    print(json.dumps({"benchmark": "grid", "points_per_s": grid, "alone_points_per_s": alone, "samples_s": grid_times}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
