"""Records healthy servers: python scripts/record_controls.py MODEL SECONDS NAME... writes to tests/data/engine_controls.

`roofline serve` and `roofline loadtest` as anybody would run them; of each load the two readings of /metrics, SECONDS apart, and what
the load was (controls.json). NAME: of LOADS, in this order. Run it when nothing else runs. machine.yaml, for the plan to
set beside, is what `roofline bench --threads 1 --profile` fits to the same machine's reports/microbench_xeon-vm_202611/run_1.jsonl.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from roofline.diagnosis import families

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "data" / "engine_controls"
PROGRAM = [sys.executable, "-c", "from roofline.cli.main import run; run()"]
SERVER = ["--port", "0", "--threads", "1", "--kv-blocks", "2048", "--max-num-batched-tokens", "128", "--max-num-seqs", "64"]
SETTLE_S = 3.0


@dataclass(frozen=True)
class Load:
    """So many streams in a closed loop; lengths in tokens; shared: of the prompt, the same for all."""

    streams: int
    input_len: int = 0
    output_len: int = 0
    shared: int = 0


LOADS = {
    "idle": Load(0),
    **{f"short-{streams}": Load(streams, 32, 64) for streams in (1, 2, 4, 8)},
    **{f"long-{streams}": Load(streams, 192, 48) for streams in (1, 2, 4)},
    "alike-4": Load(4, 192, 48, shared=128),
    **{f"longer-{streams}": Load(streams, 448, 64) for streams in (1, 2)},
}


def main(model: str, window_s: float, names: list[str]) -> None:
    """One server, load after load."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with serving(model) as url:
        for name in names:
            keep(f"{model}_{name}", record(url, LOADS[name], window_s) | {"model": model})


@contextmanager
def serving(model: str) -> Iterator[str]:
    """The server's address."""
    process = subprocess.Popen([*PROGRAM, "serve", model, *SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split(" on ")[1].split()[0]
    finally:
        process.kill()
        process.wait()


def record(url: str, load: Load, window_s: float) -> dict[str, Any]:
    """Both pages and the time between them, while the load runs."""
    with loaded(url, load):
        began, before = time.monotonic(), page(url)
        time.sleep(window_s)
        return {"load": asdict(load), "interval_s": round(time.monotonic() - began, 3), "pages": [before, page(url)], "server": SERVER}


@contextmanager
def loaded(url: str, load: Load) -> Iterator[None]:
    """A client that has enough to send until it is stopped; ends when no request is left in the server."""
    if not load.streams:
        yield
        return
    seed = list(LOADS.values()).index(load)  # no prompt of an earlier load comes again
    lengths = ["--input-len", str(load.input_len), "--output-len", str(load.output_len), "--shared-prefix-len", str(load.shared)]
    lengths += ["--seed", str(seed)]
    how = ["--ladder", str(load.streams), "--requests-per-stage", "4000", "--warmup", "1", "--processes", "1", "--json"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    client = subprocess.Popen([*PROGRAM, "loadtest", url, *how, *lengths], **quiet)
    try:
        while requests(page(url)) < load.streams:
            time.sleep(0.1)
        time.sleep(SETTLE_S)
        yield
    finally:
        client.kill()
        client.wait()
    while requests(page(url)):
        time.sleep(0.1)


def page(url: str) -> str:
    """The families on /metrics that a diagnosis reads, without their help."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:  # noqa: S310 - our own server
        lines = answer.read().decode().splitlines()
    known = families.read(lines, url)
    read = {*known.values, *known.histograms, *known.labels}
    return "".join(f"{line}\n" for line in lines if _family(line) in read)


def _family(line: str) -> str:
    """The name that a sample or a TYPE line belongs to."""
    if line.startswith("#"):
        words = line.split()
        return words[2] if words[1] == "TYPE" else ""
    return re.sub(r"_(bucket|sum|count)$", "", line.split("{")[0])


def requests(text: str) -> float:
    """Requests that run or wait."""
    states = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(states))


def keep(name: str, found: dict[str, Any]) -> None:
    """Writes the pages and adds the load to controls.json."""
    for number, text in enumerate(found.pop("pages")):
        (FOLDER / f"{name}_{number}.prom").write_text(text, encoding="utf-8")
    index = FOLDER / "controls.json"
    known = json.loads(index.read_text(encoding="utf-8")) if index.exists() else {}
    known[name] = found
    index.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", encoding="utf-8")
    print(f"{name}: {found['load']} for {found['interval_s']} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
