"""Many clients on `roofline serve`, half of whose requests are given up at a random moment: is anything lost, kept or wrong?

    python benchmarks/serve_soak.py [--clients 200] [--seconds 300] [--model MODEL] [--folder FOLDER] [--machine TEXT]

Every stream that is read to its end is compared, token by token, with the same request run offline, alone, without a prefix cache;
in fp64, so that the composition of a batch cannot tip a choice between tokens. The KV pool is small enough for preemptions. While it
runs /metrics is read with prometheus_client: counters must only rise. When the clients have gone, no block may be held. Prints one
JSON object; exit code 1 if anything was wrong. --folder keeps it there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from roofline.engine.build import Options, build_engine, check
from roofline.engine.sampler import Sampling
from roofline.profiles.catalog import load_model

PROGRAM = [sys.executable, "-c", "from roofline.cli.main import run; run()"]
CASES, BLOCKS, BLOCK_SIZE = 64, 160, 16
GIVEN_UP, PATIENCE_S = 0.5, 1.0
SMALL = """
name: soak
model_type: llama
source: "made for this benchmark: small, so that it is the server that is tested"
hidden_size: 64
vocab_size: 512
max_position_embeddings: 256
tie_word_embeddings: true
layers:
  dense:
    mixer: {kind: attention, heads: 4, kv_heads: 2, head_dim: 16}
    ffn: {kind: mlp, intermediate: 128}
order: 2*dense
"""


@dataclass(frozen=True)
class Case:
    """A request and what it must be answered."""

    prompt: list[int]
    sampling: Sampling
    expected: list[int]

    def body(self) -> dict[str, Any]:
        """Of /v1/completions."""
        how = {"temperature": self.sampling.temperature, "top_p": self.sampling.top_p, "seed": self.sampling.seed}
        more = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True, "ignore_eos": True}
        return {"prompt": self.prompt, "max_tokens": len(self.expected), **how, **more}


@dataclass
class Tally:
    """What the clients saw. wrong: what each wrong stream was, first ones only."""

    finished: int = 0
    given_up: int = 0
    tokens: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def offline(model: str) -> list[Case]:
    """Requests of many lengths, half of them with one of four common beginnings, greedy and sampled, and their tokens."""
    profile, rng = load_model(model), random.Random(7)  # noqa: S311 - any will do
    setup = check(profile, Options(dtype="fp64", num_blocks=64))
    engine = build_engine(setup, setup.scheduler(prefix_caching=False))
    room = setup.positions
    shared = [[rng.randrange(profile.vocab_size) for _ in range(room // 4)] for _ in range(4)]
    cases = []
    for index in range(CASES):
        own = [rng.randrange(profile.vocab_size) for _ in range(rng.randint(1, room // 3))]
        prompt = (rng.choice(shared) if index % 2 else []) + own
        sampling = Sampling(*rng.choice([(0.0, 1.0), (0.7, 1.0), (1.0, 0.9)]), seed=index)
        engine.add_request(str(index), prompt, rng.randint(4, room // 4), sampling)
        tokens: list[int] = []
        while (step := engine.step()) is not None:
            tokens += step.emitted.get(str(index), [])
        cases.append(Case(prompt, sampling, tokens))
    return cases


class Server:
    """`roofline serve` as a process on a free port."""

    def __init__(self, model: str, threads: int) -> None:
        options = ["--port", "0", "--dtype", "fp64", "--kv-blocks", str(BLOCKS), "--block-size", str(BLOCK_SIZE), "--threads", str(threads)]
        self.process = subprocess.Popen([*PROGRAM, "serve", model, *options], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split(" on ")[1].split()[0]

    @property
    def resident_bytes(self) -> int:
        """Memory that the process holds now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def descriptors(self) -> int:
        """Open files and connections."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


async def client(session: aiohttp.ClientSession, url: str, cases: list[Case], until: float, number: int, tally: Tally) -> None:
    """Sends one request after the other and gives up half of them: before the answer, or after some tokens."""
    rng = random.Random(number)  # noqa: S311 - any will do
    while time.monotonic() < until:
        case = rng.choice(cases)
        give_up = rng.random() < GIVEN_UP
        patience = rng.uniform(0, PATIENCE_S) if give_up else None
        try:
            async with asyncio.timeout(patience), session.post(f"{url}/v1/completions", json=case.body()) as answer:
                if answer.status != 200:
                    tally.refused[answer.status] += 1
                    await asyncio.sleep(0.1)
                    continue
                _judge(case, [line[6:].strip() async for line in answer.content if line.startswith(b"data: ")], tally)
        except TimeoutError:
            tally.given_up += 1
        except aiohttp.ClientError as error:
            tally.wrong.append(f"{type(error).__name__}: {error}")


def _judge(case: Case, events: list[bytes], tally: Tally) -> None:
    """A finished stream: complete, its tokens the offline ones, its usage right."""
    done = bool(events) and events[-1] == b"[DONE]"
    bodies = [json.loads(event) for event in events[: -1 if done else None]]
    tokens = [token for body in bodies for choice in body.get("choices", ()) for token in choice["token_ids"]]
    usage = bodies[-1].get("usage") if bodies else None
    tally.finished += 1
    tally.tokens += len(tokens)
    if not done or tokens != case.expected:
        at = next((at for at, pair in enumerate(zip(tokens, case.expected, strict=False)) if pair[0] != pair[1]), len(tokens))
        tally.wrong.append(f"done {done}, {len(tokens)} of {len(case.expected)} tokens, first difference at {at}")
    elif not usage or (usage["prompt_tokens"], usage["completion_tokens"]) != (len(case.prompt), len(case.expected)):
        tally.wrong.append(f"usage {usage}")


async def scrape(session: aiohttp.ClientSession, url: str) -> dict[tuple[str, str], tuple[float, bool]]:
    """(value, whether it may only rise) of each sample of /metrics."""
    async with session.get(f"{url}/metrics") as answer:
        page = await answer.text()
    return {
        (sample.name, json.dumps(sample.labels, sort_keys=True)): (sample.value, family.type in ("counter", "histogram"))
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def value(samples: dict[tuple[str, str], tuple[float, bool]], name: str) -> float:
    """A family's value, all its series together."""
    return sum(number for (sample, _), (number, _) in samples.items() if sample == name)


async def watch(session: aiohttp.ClientSession, server: Server, until: float, found: dict[str, Any]) -> None:
    """Memory, descriptors and counters while it runs."""
    before: dict[tuple[str, str], tuple[float, bool]] = {}
    while time.monotonic() < until:
        now = await scrape(session, server.url)
        found["fell"] += [name for (name, labels), (number, rises) in before.items() if rises and now[name, labels][0] < number]
        found["samples"].append((time.monotonic(), server.resident_bytes, server.descriptors, value(now, "vllm:num_requests_running")))
        found["kv_usage_peak"] = max(found["kv_usage_peak"], value(now, "vllm:kv_cache_usage_perc"))
        before = now
        await asyncio.sleep(1.0)


async def settle(session: aiohttp.ClientSession, url: str) -> dict[tuple[str, str], tuple[float, bool]]:
    """/metrics when nothing runs or waits any more, or after ten seconds."""
    for _ in range(100):
        now = await scrape(session, url)
        if value(now, "vllm:num_requests_running") + value(now, "vllm:num_requests_waiting") == 0:
            break
        await asyncio.sleep(0.1)
    return now


async def soak(server: Server, cases: list[Case], clients: int, seconds: float) -> dict[str, Any]:
    """The whole run; what it found."""
    tally, found = Tally(), {"fell": [], "samples": [], "kv_usage_peak": 0.0}
    began = time.monotonic()
    until = began + seconds
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)) as session:
        crowd = [client(session, server.url, cases, until, number, tally) for number in range(clients)]
        await asyncio.gather(watch(session, server, until, found), *crowd)
        last = await settle(session, server.url)
        rest = {"running": "num_requests_running", "waiting": "num_requests_waiting", "kv_usage": "kv_cache_usage_perc"}
        memory = [(at - began, size) for at, size, _, _ in found["samples"]]
        return {
            "clients": clients,
            "seconds": round(time.monotonic() - began, 1),
            "finished": tally.finished,
            "given_up": tally.given_up,
            "tokens_compared": tally.tokens,
            "refused": dict(tally.refused),
            "wrong": len(tally.wrong),
            "wrong_first": tally.wrong[:5],
            "counters_that_fell": found["fell"],
            "kv_usage_peak": round(found["kv_usage_peak"], 3),
            "preemptions": value(last, "vllm:num_preemptions_total"),
            "aborted": sum(n for (name, labels), (n, _) in last.items() if name == "vllm:request_success_total" and "abort" in labels),
            "after": {key: value(last, f"vllm:{name}") for key, name in rest.items()},
            "resident_MB": {
                f"{share:.0%}": round(max(size for at, size in memory if at <= share * seconds) / 1e6, 1) for share in (0.2, 0.5, 1.0)
            },
            "descriptors_peak": max(count for _, _, count, _ in found["samples"]),
        }


def main() -> int:
    """Exit code: 0 if nothing was lost, kept or wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--model", default="", help="a small one of its own unless given")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--machine", default="")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = asked.model or str(Path(folder) / "soak.yaml")
        if not asked.model:
            Path(model).write_text(SMALL, encoding="utf-8")
        cases, server = offline(model), Server(model, asked.threads)
    try:
        idle = server.descriptors
        found = asyncio.run(soak(server, cases, asked.clients, asked.seconds))
        time.sleep(1.0)
        found |= {"descriptors_before": idle, "descriptors_after": server.descriptors}
    finally:
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(60)
    found |= {"model": asked.model or "soak", "machine": asked.machine, "server_exit_code": code}
    text = json.dumps(found, indent=1)
    print(text)
    if asked.folder:
        asked.folder.mkdir(parents=True, exist_ok=True)
        (asked.folder / "soak.json").write_text(text + "\n", encoding="utf-8")
    lost = any(found["after"].values()) or code
    return 1 if found["wrong"] or found["counters_that_fell"] or lost or not found["finished"] else 0


if __name__ == "__main__":
    sys.exit(main())
