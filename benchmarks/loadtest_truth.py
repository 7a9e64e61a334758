"""Load clients beside a server that knows the truth, each on a core of its own: how far p99 TTFT and mean TPOT are off.

    python benchmarks/loadtest_truth.py [--streams 256 512] [--runs 3] [--client-core 0] [--server-core 1]
                                        [--aiperf PROGRAM] [--guidellm PROGRAM] [--folder FOLDER] [--machine TEXT]

Clients take turns, each with a new server, at normal priority. aiperf and guidellm (PROGRAM: where they are installed, best in
virtual environments of their own) get the same load; one that is not there is left out, and that is said. --folder keeps the rows
in FOLDER/runs.csv and writes FOLDER/README.md from all that it holds; with --runs 0 nothing is measured. The machine should be idle.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

PROGRAM = [sys.executable, "-c", "from roofline.cli.main import run; run()"]
INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS_PER_STREAM = 64, 32, 3
LIMIT_S = 180.0  # of one client's run
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
WORDS = [f"w{number}" for number in range(4096)]  # of a tokenizer whose tokens are words


@dataclass(frozen=True)
class Row:
    """One client's run: what it reported and what the server knows. in_flight: most requests that the server had at once."""

    client: str
    version: str
    streams: int
    answered: int
    in_flight: int
    ttft_p99_ms: float
    true_ttft_p99_ms: float
    tpot_mean_ms: float
    true_tpot_mean_ms: float
    verdict: str

    @property
    def ttft_off_ms(self) -> float:
        """Reported p99 TTFT − true."""
        return self.ttft_p99_ms - self.true_ttft_p99_ms

    @property
    def tpot_off(self) -> float:
        """Reported mean TPOT / true − 1."""
        return self.tpot_mean_ms / self.true_tpot_mean_ms - 1


@dataclass(frozen=True)
class Reported:
    """p99 TTFT and mean TPOT in ms as a client prints them, and what it says about itself."""

    ttft_p99_ms: float
    tpot_mean_ms: float
    verdict: str = ""


def run_roofline(program: list[str], url: str, streams: int, folder: Path, core: int) -> Reported:
    """`roofline loadtest`."""
    load = ["--ladder", str(streams), "--requests-per-stage", str(REQUESTS_PER_STREAM * streams), "--warmup", "0", "--processes", "1"]
    lengths = ["--input-len", str(INPUT_TOKENS), "--output-len", str(OUTPUT_TOKENS)]
    result = json.loads(_run([*program, "loadtest", url, *load, *lengths, "--json"], core))
    stage = result["stages"][0]
    verdict = "trustworthy" if result["client"]["trustworthy"] else "client-bound"
    return Reported(1e3 * stage["ttft_s"]["p99"], 1e3 * stage["tpot_s"]["mean"], verdict)


def run_aiperf(program: list[str], url: str, streams: int, folder: Path, core: int) -> Reported:
    """`aiperf profile`; its inter-token latency is (last − first) / (tokens − 1) of each request, as our TPOT.

    Offline it takes a tokenizer only from a hub's cache, so the folder gets one.
    """
    cache = folder / "hub" / "models--local--words"
    _tokenizer(cache / "snapshots" / ("0" * 40))
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    load = ["--concurrency", str(streams), "--request-count", str(REQUESTS_PER_STREAM * streams)]
    lengths = ["--isl", str(INPUT_TOKENS), "--osl", str(OUTPUT_TOKENS), "--extra-inputs", f"min_tokens:{OUTPUT_TOKENS}"]
    command = [*program, "profile", "--model", "mock", "--url", url, "--endpoint-type", "chat", "--streaming", *load, *lengths]
    more = ["--extra-inputs", "ignore_eos:true", "--tokenizer", "local/words", "--ui", "none", "--artifact-dir", str(folder / "out")]
    _run([*command, *more], core, HF_HOME=str(folder), **OFFLINE)
    found = json.loads((folder / "out" / "profile_export_aiperf.json").read_text(encoding="utf-8"))
    return Reported(found["time_to_first_token"]["p99"], found["inter_token_latency"]["avg"])


def run_guidellm(program: list[str], url: str, streams: int, folder: Path, core: int) -> Reported:
    """`guidellm run` on a file of prompts; its inter-token latency is as our TPOT."""
    _tokenizer(folder / "words")
    prompt = {"prompt": " ".join(WORDS[:INPUT_TOKENS]), "output_tokens_count": OUTPUT_TOKENS}
    (folder / "prompts.jsonl").write_text(f"{json.dumps(prompt)}\n" * REQUESTS_PER_STREAM * streams, encoding="utf-8")
    server = ["--backend", f"kind=openai_http,target={url},model=mock"]
    count = f"kind=max_requests,count={REQUESTS_PER_STREAM * streams}"
    load = ["--profile", f"kind=concurrent,streams={streams}", "--constraint", count]
    data = ["--data", f"kind=json_file,path={folder / 'prompts.jsonl'}", "--tokenizer", f"kind=hf_auto,model={folder / 'words'}"]
    out = ["--output", f"kind=json,path={folder / 'benchmarks.json'}", "--disable-console"]
    _run([*program, "run", *server, *load, *data, *out], core, **OFFLINE)
    found = json.loads((folder / "benchmarks.json").read_text(encoding="utf-8"))
    metrics = found["benchmarks"][0]["metrics"]
    ttft, itl = (metrics[name]["successful"] for name in ("time_to_first_token_ms", "inter_token_latency_ms"))
    return Reported(ttft["percentiles"]["p99"], itl["mean"])


CLIENTS = {"roofline": run_roofline, "aiperf": run_aiperf, "guidellm": run_guidellm}


def _tokenizer(folder: Path) -> None:
    """A tokenizer whose tokens are WORDS, as transformers load it."""
    folder.mkdir(parents=True)
    vocabulary = {word: number for number, word in enumerate(["[UNK]", "[BOS]", "[EOS]", *WORDS])}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    nothing: dict[str, Any] = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    whole = {"version": "1.0", **nothing, "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}
    special = {"unk_token": "[UNK]", "bos_token": "[BOS]", "eos_token": "[EOS]"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1_000_000, **special}
    (folder / "tokenizer.json").write_text(json.dumps(whole), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def _run(command: list[str], core: int, **environment: str) -> str:
    """Runs a client on one core and returns what it printed. Raises SystemExit with its last words if it leaves nothing."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=os.environ | environment, preexec_fn=_on(core)
    )
    if done.returncode not in (0, 4):
        raise SystemExit(f"{Path(command[0]).name} ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def _on(core: int) -> Any:
    return lambda: os.sched_setaffinity(0, {core})


def one_run(client: str, program: list[str], version: str, streams: int, cores: tuple[int, int]) -> Row:
    """One client against a new server. cores: the client's and the server's."""
    server = subprocess.Popen([*PROGRAM, "mock", "--port", "0"], stdout=subprocess.PIPE, text=True, preexec_fn=_on(cores[1]))
    assert server.stdout is not None
    try:
        url = server.stdout.readline().split()[2]
        with tempfile.TemporaryDirectory() as folder:
            reported = CLIENTS[client](program, url, streams, Path(folder), cores[0])
        with urllib.request.urlopen(f"{url}/mock/truth") as page:  # noqa: S310 - our own server
            truth = json.load(page)
    finally:
        server.terminate()
        server.communicate()
    served = [request for request in truth["requests"] if request.get("end") == "ok"]
    first = np.array([request["t_first_write"] - request["t0"] for request in served])
    between = np.array([(request["t_last_write"] - request["t_first_write"]) / (request["n_out"] - 1) for request in served])
    true_ttft, true_tpot = 1e3 * float(np.percentile(first, 99)), 1e3 * float(between.mean())
    return Row(
        client, version, streams, len(served), truth["max_active"], reported.ttft_p99_ms, true_ttft, reported.tpot_mean_ms, true_tpot,
        reported.verdict,
    )  # fmt: skip


def version_of(program: list[str]) -> str:
    """The last word of `PROGRAM --version`; "" if it cannot be run."""
    try:
        said = subprocess.run([*program, "--version"], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except OSError:
        return ""
    return said.stdout.split()[-1] if said.returncode == 0 and said.stdout.split() else ""


def installed(args: argparse.Namespace) -> dict[str, tuple[list[str], str]]:
    """Client → (command, version), those that can be run; says which cannot."""
    found = {"roofline": (PROGRAM, version_of(PROGRAM))}
    for name in ("aiperf", "guidellm"):
        program = shutil.which(getattr(args, name))
        version = version_of([program]) if program else ""
        if program and version:
            found[name] = ([program], version)
        else:
            print(f"{name}: not installed here, left out (--{name} PROGRAM)", file=sys.stderr)
    return found


def report(rows: Sequence[Row], machine: str) -> str:
    """README.md of a folder of rows."""
    lines = [
        "# Load clients beside the truth",
        "",
        "Written by `python benchmarks/loadtest_truth.py --folder FOLDER` from runs.csv in this folder.",
        "",
        f"- {machine}",
        f"- `roofline mock` with its defaults: first token after 200 ms, then one every 20 ms, {OUTPUT_TOKENS} tokens; "
        f"prompts of {INPUT_TOKENS} tokens, {REQUESTS_PER_STREAM} requests per stream, one after the other on each.",
        "- Client and server on one core each, at normal priority, a new server for each run, clients in turn.",
        "- Truth: the server's own record of when each request had come in and when its tokens were written.",
        "- In flight: the most requests that the server had at once. aiperf and guidellm work with several processes and are at "
        "their best with more cores than the one that each client gets here.",
        "",
        "| streams | client | runs | in flight | p99 TTFT (ms) | truth | off (ms) | mean TPOT off |",
        "|---|---|---|---|---|---|---|---|",
    ]
    groups = {(row.streams, row.client, row.version): None for row in rows}
    for streams, client, version in sorted(groups, key=lambda g: (g[0], g[1] != "roofline", g[1])):
        mine = [row for row in rows if (row.streams, row.client, row.version) == (streams, client, version)]
        cells = [
            _range([row.in_flight for row in mine], ".0f"), _range([row.ttft_p99_ms for row in mine], ".0f"),
            _range([row.true_ttft_p99_ms for row in mine], ".0f"), _range([row.ttft_off_ms for row in mine], "+.1f"),
            f"{_range([100 * row.tpot_off for row in mine], '+.2f')} %",
        ]  # fmt: skip
        lines.append(f"| {streams} | {client} {version} | {len(mine)} | {' | '.join(cells)} |")
    distrusted = sum(row.verdict == "client-bound" for row in rows)
    lines += ["", f"Runs that `roofline loadtest` itself called client-bound: {distrusted}; they are in the table like the others."]
    return "\n".join(lines) + "\n"


def _range(values: Sequence[float], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"


def _read(path: Path) -> list[Row]:
    kinds: dict[str, Any] = {"str": str, "int": int, "float": float}
    with path.open(encoding="utf-8", newline="") as file:
        return [Row(**{field.name: kinds[str(field.type)](row[field.name]) for field in fields(Row)}) for row in csv.DictReader(file)]


def _keep(row: Row, path: Path) -> None:
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow({name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(row).items()})


def main() -> None:
    """Parses, runs, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[256])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--client-core", type=int, default=0)
    parser.add_argument("--server-core", type=int, default=1)
    parser.add_argument("--aiperf", default="aiperf", metavar="PROGRAM")
    parser.add_argument("--guidellm", default="guidellm", metavar="PROGRAM")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--machine", default="", metavar="TEXT", help="what the report says of the machine")
    args = parser.parse_args()
    if args.folder:
        args.folder.mkdir(parents=True, exist_ok=True)
    clients = installed(args) if args.runs else {}
    for _ in range(args.runs):
        for streams in args.streams:
            for client, (program, version) in clients.items():
                row = one_run(client, program, version, streams, (args.client_core, args.server_core))
                print(
                    f"{client} {version}, {streams} streams ({row.in_flight} in flight): p99 TTFT {row.ttft_p99_ms:.1f} ms, truth "
                    f"{row.true_ttft_p99_ms:.1f} ({row.ttft_off_ms:+.1f}); mean TPOT {100 * row.tpot_off:+.2f} % {row.verdict}",
                    flush=True,
                )
                if args.folder:
                    _keep(row, args.folder / "runs.csv")
    if args.folder:
        machine = args.machine or f"A machine with {os.cpu_count()} cores, otherwise idle."
        (args.folder / "README.md").write_text(report(_read(args.folder / "runs.csv"), machine), encoding="utf-8")


if __name__ == "__main__":
    main()
