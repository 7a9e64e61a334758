"""A demonstration: a server of our own under load, its knee, and four faults that its /metrics alone must give away."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from roofline.diagnosis import families, sources
from roofline.diagnosis.exposition import Scrape
from roofline.diagnosis.observations import Observations
from roofline.diagnosis.rank import Diagnosis, diagnose
from roofline.errors import RooflineError
from roofline.loadtest.run import LoadTest, Outcome
from roofline.loadtest.settings import Settings

MODEL = "tiny-llama-15m"
SERVER = ("--port", "0", "--threads", "1", "--kv-blocks", "2048", "--max-num-batched-tokens", "128", "--max-num-seqs", "64")
LADDER, RUNG_REQUESTS, RUNG_TOKENS = (1, 2, 4, 8, 16, 32), 32, 16
_PROGRAM = (sys.executable, "-c", "from roofline.cli.main import run; run()")
_MANY_REQUESTS = 4000
_START_S, _SETTLE_S, _PAGES = 120.0, 1.5, 8


@dataclass(frozen=True)
class Load:
    """So many streams in a closed loop; lengths in tokens; shared: of the prompt, the same for all."""

    streams: int
    prompt: int
    output: int
    shared: int = 0


@dataclass(frozen=True)
class Case:
    """A server and a load on it. label: what the diagnosis should say; server: options in place of SERVER's; about: for people."""

    label: str
    title: str
    server: tuple[str, ...]
    loads: tuple[Load, ...]
    about: str


HEALTHY = Case("NONE", "as it should be", (), (Load(12, 64, 32, shared=32),), "12 streams whose prompts begin alike")
FAULTS = (
    Case("KV", "KV pool too small", ("--kv-blocks", "49"), (Load(24, 32, 96),), "24 streams of 128 tokens in a pool of 768"),
    Case(
        "PI",
        "chunk too large",
        ("--max-num-batched-tokens", "8192"),
        (Load(16, 16, 200), Load(24, 240, 12)),
        "16 long answers beside prompts of 240 tokens that come 24 at a time, in steps of up to 8192",
    ),
    Case("CAP", "sequence cap", ("--max-num-seqs", "4"), (Load(24, 32, 32),), "24 streams on 4 sequences"),
    Case("PFX", "no prefix cache", ("--no-prefix-caching",), (Load(5, 224, 16, shared=192),), "5 streams, 192 of 224 prompt tokens alike"),
)


@dataclass(frozen=True)
class Finding:
    """What the diagnosis said of a case."""

    case: Case
    found: Diagnosis
    seen: Observations

    @property
    def label(self) -> str:
        """Of the likeliest cause, stated or only suspected."""
        return self.found.first.label

    @property
    def right(self) -> bool:
        """Whether that is the fault that was put in."""
        return self.label == self.case.label


@contextlib.contextmanager
def server(options: tuple[str, ...]) -> Iterator[str]:
    """`roofline serve` on a free port of this machine; its address. Later options take the place of earlier ones."""
    command = [*_PROGRAM, "serve", MODEL, *SERVER, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 - they were asked for
        line = process.stdout.readline()
        if not line:
            raise RooflineError(f"the server did not start: {process.stderr.read().strip()}")
        yield line.split(" on ")[1].split()[0]
    finally:
        process.kill()
        process.communicate()


def find_knee(url: str) -> Outcome:
    """A short ladder with the project's load client."""
    lengths = {"input_tokens": 2 * RUNG_TOKENS, "output_tokens": RUNG_TOKENS}
    return LoadTest(Settings(url, ladder=LADDER, requests_per_stage=RUNG_REQUESTS, **lengths)).run()  # type: ignore[arg-type]


def examine(case: Case, url: str, window_s: float) -> Finding:
    """Puts the case's load on its server, reads /metrics twice while it runs, and asks what is the matter."""
    clients = [_client(load, url) for load in case.loads]
    try:
        before = _under_load(url, sum(load.streams for load in case.loads))
        began = time.monotonic()
        time.sleep(window_s)
        seen = families.observe(before, _scrape(url), time.monotonic() - began)
    finally:
        for client in clients:
            client.kill()
            client.communicate()
    return Finding(case, diagnose(seen), seen)


def _client(load: Load, url: str) -> subprocess.Popen[bytes]:
    """`roofline loadtest`, which has enough to send until it is stopped."""
    how = ["--ladder", str(load.streams), "--requests-per-stage", str(_MANY_REQUESTS), "--warmup", "1", "--processes", "1"]
    lengths = ["--input-len", str(load.prompt), "--output-len", str(load.output), "--shared-prefix-len", str(load.shared)]
    command = [*_PROGRAM, "loadtest", url, *how, *lengths, "--json"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _under_load(url: str, streams: int) -> Scrape:
    """/metrics a moment after most of the streams have come."""
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        if sum(_requests(sources.scrape(url))) >= 0.8 * streams:
            time.sleep(_SETTLE_S)
            return _scrape(url)
        time.sleep(0.1)
    raise RooflineError(f"the load of {streams} streams did not come within {_START_S:g} s: this machine is too busy")


def _scrape(url: str) -> Scrape:
    """The one of a few pages in which most requests run: answers of equal length end together, and the next are not scheduled yet."""
    pages = []
    for _ in range(_PAGES):
        pages.append(sources.scrape(url))
        time.sleep(0.01)
    return max(pages, key=lambda page: _requests(page)[0])


def _requests(page: Scrape) -> tuple[float, float]:
    """Requests that run and that wait, all engines."""
    running, waiting = (sum(page.values.get(f"vllm:num_requests_{state}", {}).values()) for state in ("running", "waiting"))
    return running, waiting


def demonstrate(window_s: float, say: Callable[[str], None]) -> tuple[Outcome, list[Finding]]:
    """The knee of the healthy server, and the findings: the healthy one first. say: told what happens now."""
    say(f"serving {MODEL} on the CPU; a ladder of {', '.join(map(str, LADDER))} streams finds its knee")
    with server(HEALTHY.server) as url:
        outcome = find_knee(url)
        if outcome.interrupted:
            raise KeyboardInterrupt
        say(f"{HEALTHY.title}: {HEALTHY.about}")
        findings = [examine(HEALTHY, url, window_s)]
    _tell(findings[-1], say)
    for case in FAULTS:
        say(f"{case.title}: {case.about}")
        with server(case.server) as url:
            findings.append(examine(case, url, window_s))
        _tell(findings[-1], say)
    return outcome, findings


def _tell(finding: Finding, say: Callable[[str], None]) -> None:
    first = finding.found.first
    say(f"  the diagnosis: {first.label}, {first.confidence:.0%}: {first.rule.title}")
