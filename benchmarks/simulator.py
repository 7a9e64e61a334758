"""The simulator's speed and memory over the number of requests, without and with the prefix cache, and against stepping.

Run from the checkout: python benchmarks/simulator.py [--largest N] [--plot FILE]. Requests are like the Azure conversation trace
(5.5 per second, 1,150 tokens in and 210 out on average, log-normal), the step timer is one line, so what is measured is the
simulator. Each size runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Sequence

from roofline.scheduling import CountingPool, RunPool, VllmConfig, VllmScheduler
from roofline.serving.simulator import simulate
from roofline.serving.workloads import lognormal_length, open_loop

FLOOR_S, ROW_S, CONTEXT_S, PROMPT_S = 6e-3, 2.7e-5, 4.9e-8, 3.0e-5


class Line:
    """A step as one line: floor + rows + context + prompt tokens."""

    def step_time(self, decodes: int, context: int, chunks: Sequence[tuple[int, int]]) -> float:
        """See StepTimer."""
        return FLOOR_S + ROW_S * decodes + CONTEXT_S * context + (PROMPT_S * sum([new for new, _ in chunks]) if chunks else 0.0)

    def decode_line(self, decodes: int, context: int) -> tuple[float, float, int]:
        """See StepTimer."""
        del context
        return FLOOR_S + ROW_S * decodes, CONTEXT_S, 1 << 60

    def host_time(self, rows: int) -> float:
        """See StepTimer."""
        del rows
        return 5e-4


def measure(count: int, caching: bool, asynchronous: bool, fast_forward: bool) -> dict[str, float]:
    """Requests per CPU second of one run, and the peak memory of this process in bytes."""
    workload = open_loop(count, 5.5, lognormal_length(1150, 1.0, high=8000), lognormal_length(210, 0.8, high=2000), seed=1)
    scheduler = VllmScheduler(VllmConfig(8192, 1024), RunPool(24_000) if caching else CountingPool(24_000))
    result = simulate(workload, scheduler, Line(), asynchronous=asynchronous, fast_forward=fast_forward)
    assert result.completed.all()
    return {
        "requests": count,
        "requests_per_cpu_s": count / result.cpu_s,
        "cpu_s": result.cpu_s,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
    }


def main(largest: int, plot: str | None) -> None:
    """Prints a table and, last, one line of JSON."""
    modes = {
        "counting": (False, False, True),
        "prefix cache": (True, False, True),
        "asynchronous": (False, True, True),
        "stepping": (False, False, False),
    }
    rows = []
    for name, mode in modes.items():
        count = 1000
        while count <= (largest if name != "stepping" else min(largest, 10_000)):
            command = [sys.executable, __file__, "--one", json.dumps([count, *mode])]
            row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            rows.append({"mode": name, **row})
            print(f"{name:14s} {count:9,d} requests  {row['requests_per_cpu_s']:9,.0f}/CPU-s  {row['peak_bytes'] / 1e6:7,.0f} MB")
            count *= 10
    if plot:
        _plot(rows, plot)
    print(json.dumps({"benchmark": "simulator", "rows": rows}))


def _plot(rows: list[dict[str, float]], path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for mode in dict.fromkeys(row["mode"] for row in rows):
        mine = [row for row in rows if row["mode"] == mode]
        axes.loglog([row["requests"] for row in mine], [row["cpu_s"] for row in mine], marker="o", label=str(mode))
    axes.set(xlabel="requests", ylabel="CPU time (s)", title="The cost of a simulation is linear in its requests")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=100_000)
    parser.add_argument("--plot")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(*json.loads(arguments.one))))
    else:
        main(arguments.largest, arguments.plot)
