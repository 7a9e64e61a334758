"""Prices of kernels: `predict` on 60,000 GEMM rows, and StepTimer, set-up and one step.

Run from the checkout: python benchmarks/kernel_times.py [ROUNDS]. The smallest of the rounds counts: a busy machine only adds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np
import pandas as pd

from roofline.calibration.predict import predict_table
from roofline.ledger import Parallel
from roofline.profiles.catalog import load_hardware, load_model
from roofline.timing.step_timer import StepTimer

ROWS, STEPS = 60_000, 20_000


def smallest(work: Callable[[], object], rounds: int) -> float:
    """CPU seconds of the quickest of `rounds` runs."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def gemm_rows() -> pd.DataFrame:
    """ROWS products over ten devices and the dtypes that all engines have, sizes spread evenly in logs."""
    random = np.random.default_rng(0)
    sizes = {name: (2 ** random.uniform(low, high, ROWS)).astype(int) for name, low, high in (("m", 0, 15), ("n", 8, 16), ("k", 8, 16))}
    devices = ["h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm", "gb200", "gb300", "l40s", "a100-sxm-80gb", "rtx-pro-6000-server", "mi300x"]
    words = {"hardware": random.choice(devices, ROWS), "software": random.choice(["vllm", "sglang", "trtllm"], ROWS)}
    return pd.DataFrame({"op": "gemm", **words, "dtype": random.choice(["bf16", "fp8"], ROWS), **sizes})


def main(rounds: int) -> dict[str, float]:
    """Figures by name, seconds."""
    rows = gemm_rows()
    model, device = load_model("llama-3.1-70b"), load_hardware("h100-sxm")
    timer = StepTimer(model, device, parallel=Parallel(tp=4))
    contexts = np.random.default_rng(1).integers(1_000, 400_000, STEPS).tolist()

    def steps() -> None:
        for context in contexts:
            timer.step_time(64, context, ((512, 1024),))

    return {
        "predict_60000_gemm_rows_s": smallest(lambda: predict_table(rows), rounds),
        "step_timer_set_up_70b_s": smallest(lambda: StepTimer(model, device, parallel=Parallel(tp=4)), rounds),
        "step_timer_step_s": smallest(steps, rounds) / STEPS,
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5), indent=1))
