"""Start-up: whole processes of `roofline`, as multiples of `python -c "import numpy"` measured in the same run.

Run from the checkout: python benchmarks/startup.py [ROUNDS]. The smallest time of each counts. Memory is the peak of the process.
"""

from __future__ import annotations

import json
import subprocess
import sys

import processes

ROOFLINE = "from roofline.cli.main import run; run()"
COMMANDS: dict[str, list[str]] = {
    "import numpy": ["-c", "import numpy"],
    "roofline --help": ["-c", ROOFLINE, "--help"],
    "roofline plan": ["-c", ROOFLINE, "plan", "llama-3.1-8b", "-H", "h100-sxm"],
    "roofline ops": ["-c", ROOFLINE, "ops", "llama-3.1-8b", "-H", "h100-sxm"],
    "roofline hardware list": ["-c", ROOFLINE, "hardware", "list"],
}


def peak_bytes(args: list[str]) -> int:
    """Largest resident size of one process (its own child accounting, so a fresh parent asks)."""
    code = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
    code += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    out = subprocess.run([sys.executable, "-c", code, sys.executable, *args], check=True, capture_output=True, text=True).stdout
    return int(out) * (1 if sys.platform == "darwin" else 1024)


def main(rounds: int) -> None:
    """Prints a table and, last, one line of JSON."""
    samples = processes.seconds(COMMANDS, rounds)
    best = {name: min(times) for name, times in samples.items()}
    unit = best["import numpy"]
    result = {name: {"seconds": best[name], "ratio": best[name] / unit, "peak_bytes": peak_bytes(COMMANDS[name])} for name in COMMANDS}
    for name, row in result.items():
        print(f"{name:24} {row['seconds'] * 1e3:7.0f} ms  {row['ratio']:5.2f} × import numpy  {row['peak_bytes'] / 1e6:6.1f} MB")
    print(json.dumps({"benchmark": "startup", "rounds": rounds, "samples_s": samples, "result": result}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
