"""A chart from command to file, and a report, as multiples of `python -c "import matplotlib.figure"` measured in the same run.

Run from the checkout: python benchmarks/chart.py [ROUNDS]. The smallest time of each counts. matplotlib.figure is what any drawing
imports.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import processes

ROOFLINE = "from roofline.cli.main import run; run()"
UNIT = "import matplotlib.figure"
MODEL = ["llama-3.1-70b", "-H", "h100-sxm", "--tp", "4"]


def commands(folder: Path) -> dict[str, list[str]]:
    """The processes that are timed, by name."""
    chart = ["-c", ROOFLINE, "chart"]
    return {
        "import matplotlib": ["-c", "import matplotlib"],
        UNIT: ["-c", UNIT],
        "import matplotlib.pyplot": ["-c", "import matplotlib.pyplot"],
        "chart roofline, SVG": [*chart, "roofline", *MODEL, "-o", str(folder / "a.svg")],
        "chart roofline, PDF": [*chart, "roofline", *MODEL, "-o", str(folder / "a.pdf")],
        "chart roofline, PNG": [*chart, "roofline", *MODEL, "-o", str(folder / "a.png")],
        "chart heatmap, SVG": [*chart, "heatmap", *MODEL, "-o", str(folder / "b.svg")],
        "chart pareto, SVG": [*chart, "pareto", *MODEL, "-o", str(folder / "c.svg")],
        "report, PDF": ["-c", ROOFLINE, "report", *MODEL, "-o", str(folder / "d.pdf")],
    }


def main(rounds: int) -> None:
    """Prints a table and, last, one line of JSON."""
    with tempfile.TemporaryDirectory() as folder:
        samples = processes.seconds(commands(Path(folder)), rounds)
    best = {name: min(times) for name, times in samples.items()}
    for name, value in best.items():
        print(f"{name:26} {value * 1e3:7.0f} ms  {value / best[UNIT]:5.2f} × {UNIT}")
    result = {name: {"seconds": value, "ratio": value / best[UNIT]} for name, value in best.items()}
    print(json.dumps({"benchmark": "chart", "rounds": rounds, "samples_s": samples, "result": result}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
