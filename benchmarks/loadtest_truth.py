"""The load client beside a server that knows the truth, each on a core of its own: how far p99 TTFT and mean TPOT are off.

    python benchmarks/loadtest_truth.py [--streams 256] [--runs 5] [--client-core 0] [--server-core 1]

Prints a line per run and the range of all. The machine should be idle; a run that the client itself does not trust is marked.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import urllib.request
from typing import Any

import numpy as np

PROGRAM = [sys.executable, "-c", "from roofline.cli.main import run; run()"]
TOKENS = 32


def one_run(streams: int, client_core: int, server_core: int) -> dict[str, Any]:
    """Difference to the truth: p99 TTFT in ms, mean TPOT in percent; share of the client's core; whether it trusts itself."""
    server = subprocess.Popen(
        [*PROGRAM, "mock", "--port", "0"], stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.sched_setaffinity(0, {server_core})
    )
    assert server.stdout is not None
    url = server.stdout.readline().split()[2]
    load = ["--ladder", str(streams), "--requests-per-stage", str(3 * streams), "--output-len", str(TOKENS), "--warmup", "0"]
    try:
        done = subprocess.run(
            [*PROGRAM, "loadtest", url, *load, "--json"],
            capture_output=True,
            check=False,
            preexec_fn=lambda: os.sched_setaffinity(0, {client_core}),
        )
        with urllib.request.urlopen(f"{url}/mock/truth") as page:  # noqa: S310 - our own server
            served = [request for request in json.load(page)["requests"] if request.get("end") == "ok"]
    finally:
        server.terminate()
        server.communicate()
    result = json.loads(done.stdout)
    stage = result["stages"][0]
    first = np.array([request["t_first_write"] - request["t0"] for request in served])
    between = np.array([(request["t_last_write"] - request["t_first_write"]) / (TOKENS - 1) for request in served])
    return {
        "ttft_ms": 1e3 * (stage["ttft_s"]["p99"] - np.percentile(first, 99)),
        "tpot_percent": 100 * (stage["tpot_s"]["mean"] / between.mean() - 1),
        "cpu": stage["client"]["cpu_share"],
        "trusted": result["client"]["trustworthy"],
    }


def main() -> None:
    """Parses, runs, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--client-core", type=int, default=0)
    parser.add_argument("--server-core", type=int, default=1)
    args = parser.parse_args()
    runs = []
    for _ in range(args.runs):
        run = one_run(args.streams, args.client_core, args.server_core)
        runs.append(run)
        verdict = "" if run["trusted"] else "  client-bound"
        print(
            f"p99 TTFT {run['ttft_ms']:+.2f} ms  mean TPOT {run['tpot_percent']:+.2f} %  core {100 * run['cpu']:.0f} %{verdict}", flush=True
        )
    for key, unit in (("ttft_ms", "ms"), ("tpot_percent", "%")):
        values = [run[key] for run in runs]
        print(f"{key}: {min(values):+.2f} to {max(values):+.2f} {unit} in {len(runs)} runs at {args.streams} streams")


if __name__ == "__main__":
    main()
