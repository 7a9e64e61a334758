"""Measures the demonstrations of the reference engine: `python scripts/demonstrate_engine.py FOLDER [NAME…]`.

Records go to FOLDER/NAME.jsonl; report_engine.py draws them.

Times are CPU seconds of one thread, so that other work on the machine does not count as waiting (it still takes memory bandwidth).
Speculation and the KV error need a target and a draft that know some text: train_draft_pair.py makes them, ROOFLINE_PAIR names
their folder.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roofline.engine.build import Options, Setup, Speculation, build_engine, check
from roofline.engine.driver import Driver, Run, summary
from roofline.engine.runner import Row, Runner
from roofline.engine.sampler import Sampling
from roofline.profiles.catalog import load_model
from roofline.records import JsonlWriter, capture_environment
from roofline.scheduling import Scheduler, VllmConfig
from roofline.serving.arrivals import Arrivals
from roofline.serving.workloads import Workload, fixed_length, lognormal_length, merged, open_loop, uniform_length

Record = dict[str, Any]
SMALL, MEDIUM, LARGE = "tiny-llama-15m", "tiny-qwen3-60m", "tiny-llama-110m"


def drive(setup: Setup, scheduler: Scheduler, workload: Workload, sampling: Callable[[int], Sampling] | None = None) -> Run:
    """A run in CPU seconds."""
    engine = build_engine(setup, scheduler)
    engine.add_request("warm-up", [1] * 8, 2)
    while engine.step() is not None:
        pass
    return Driver(engine, workload, Arrivals(workload), sampling=sampling, clock=time.process_time, wait=lambda _: None).run()


def batching() -> Iterator[Record]:
    """S15: continuous against static batching, the same requests, batch limit and KV pool."""
    workload = open_loop(48, float("inf"), uniform_length(8, 48), lognormal_length(24, 1.0, high=120), seed=1)
    limit = 8
    setup = check(load_model(SMALL), Options(num_blocks=limit * 12 + 1), max_model_len=192)
    static = setup.static_scheduler(limit, 192)
    for name, scheduler in (("static", static), ("continuous", setup.scheduler(VllmConfig(512, limit)))):
        run = drive(setup, scheduler, workload)
        yield {"case": name, **summary(run)}
        for step in run.steps:
            yield {"case": name, **step.to_json()}


def chunks() -> Iterator[Record]:
    """S14: decodes beside long prompts, over the token budget of a step."""
    chat = open_loop(12, float("inf"), fixed_length(16), fixed_length(100), seed=2)
    documents = open_loop(10, 3.0, fixed_length(700), fixed_length(4), seed=3)
    workload = merged({"chat": chat, "documents": documents})
    model = load_model(SMALL).model_copy(update={"max_position_embeddings": 1024})
    setup = check(model, Options(num_blocks=1200))
    for budget in (32, 64, 128, 256, 512, 1024):
        run = drive(setup, setup.scheduler(VllmConfig(budget, 24), prefix_caching=False), workload)
        of = {
            name: [r for i, r in run.requests.items() if workload.classes and workload.classes[i] == name] for name in ("chat", "documents")
        }
        gaps = [gap for record in of["chat"] for gap in record.gaps_s]
        ttft = [record.ttft_s for record in of["documents"]]
        yield {
            "budget": budget, "chat_itl_p50_s": float(np.percentile(gaps, 50)), "chat_itl_p99_s": float(np.percentile(gaps, 99)),
            "document_ttft_p50_s": float(np.percentile(ttft, 50)), **summary(run),
        }  # fmt: skip


def prefix() -> Iterator[Record]:
    """S12: 1,500 shared tokens in front of 100 own ones, with and without the prefix cache, one request after another."""
    count, shared, own = 6, 1500, 100
    workload = Workload(np.zeros(count), np.full(count, shared + own), np.full(count, 4), concurrency=1, segments=[((shared, 2),)] * count)
    setup = check(load_model(MEDIUM), Options(num_blocks=400))
    for on in (False, True):
        run = drive(setup, setup.scheduler(VllmConfig(2048, 4), prefix_caching=on), workload)
        yield {"prefix_caching": on, "ttft_each_s": [run.requests[i].ttft_s for i in range(count)], **summary(run)}


def memory() -> Iterator[Record]:
    """S11: a pool of 2,048 tokens; paged, or with the longest sequence reserved for each request."""
    longest, blocks = 256, 129
    workload = open_loop(64, float("inf"), uniform_length(8, 60), lognormal_length(28, 0.8, high=150), seed=4)
    setup = check(load_model(SMALL), Options(num_blocks=blocks), max_model_len=longest)
    for name, seqs in (("reserved", (blocks - 1) * 16 // longest), ("paged", 64)):
        run = drive(setup, setup.scheduler(VllmConfig(512, seqs), prefix_caching=False), workload)
        stored = [(step.context + step.decodes + sum(new + past for new, past, _ in step.chunks), step.seconds) for step in run.steps]
        busy = sum(seconds for _, seconds in stored)
        held = sum(tokens * seconds for tokens, seconds in stored) / busy
        yield {"case": name, "max_num_seqs": seqs, "pool_tokens": (blocks - 1) * 16, "mean_tokens_stored": held, **summary(run)}
        for step in run.steps:
            yield {"case": name, **step.to_json()}


def timed(runner: Runner, rows: list[Row]) -> float:
    """CPU seconds of one pass."""
    began = time.process_time()
    runner.run(rows)
    return time.process_time() - began


def reading(buffer: torch.Tensor) -> float:
    """Bytes per CPU second of reading a buffer that no cache holds."""
    began = time.process_time()
    buffer.sum()
    return buffer.nbytes / (time.process_time() - began)


def formats() -> Iterator[Record]:
    """S17: one model, prefill and decode, by weight format; beside each round what the memory gives."""
    buffer = torch.ones(1 << 29)
    kinds = (("fp32", ""), ("bf16", ""), ("fp32", "w8a16"), ("fp32", "int4"), ("fp32", "int8"))
    setups = {kind: check(load_model(LARGE), Options(dtype=kind[0], weights=kind[1], num_blocks=140)) for kind in kinds}
    runners = {kind: build_engine(setup, setup.scheduler()).runner for kind, setup in setups.items()}
    table = list(range(1, 33))
    phases = {
        "decode, batch 1": [Row([5], 128, table, 1)],
        "decode, batch 8": [Row([5 + at], 128, [1 + 12 * at + block for block in range(9)], 1) for at in range(8)],
        "prefill 256": [Row(list(range(256)), 0, table, 1)],
    }
    for kind in kinds:
        timed(runners[kind], phases["decode, batch 1"])
    for number in range(7):
        roof = max(reading(buffer) for _ in range(2))
        for kind in kinds:
            for phase, rows in phases.items():
                for _ in range(1 if phase.startswith("prefill") else 3):
                    seconds = timed(runners[kind], rows)
                    yield {
                        "round": number, "dtype": kind[0], "weights": kind[1], "phase": phase, "seconds": seconds,
                        "weight_bytes": weight_bytes(*kind), "read_bytes_per_s": roof, "load": os.getloadavg()[0],
                    }  # fmt: skip


def weight_bytes(dtype: str, weights: str) -> float:
    """Bytes of weights that a step of the 110M model reads: 12 layers of matrices, and the head (tied to the embedding)."""
    plain = 4 if dtype == "fp32" else 2
    matrices = 12 * (4 * 768 * 768 + 3 * 768 * 2048)
    each = {"": plain, "w8a16": 1, "int8": 1, "int4": 0.5 + 4 / 128}[weights]
    return matrices * each + 32000 * 768 * plain


def pair() -> Path:
    """The folder with `target` and `draft`."""
    if "ROOFLINE_PAIR" not in os.environ:
        sys.exit("set ROOFLINE_PAIR to the folder that train_draft_pair.py wrote")
    return Path(os.environ["ROOFLINE_PAIR"])


def held_out(length: int, count: int) -> list[list[int]]:
    """Stretches of text that the pair was not trained on."""
    text = list((pair() / "held_out.txt").read_bytes())
    return [text[at : at + length] for at in range(0, count * length, length)]


def nats_per_byte(name: str) -> float:
    """Mean loss of a model of the pair on text that it was not trained on."""
    setup = check(load_model(str(pair() / name)), Options(num_blocks=40), folder=pair() / name)
    runner = build_engine(setup, setup.scheduler()).runner
    losses = []
    for text in held_out(400, 6):
        logits = runner.run([Row(text[:-1], 0, range(1, 40), len(text) - 1)])[0]
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(text[1:])).item())
    return float(np.mean(losses))


class Texts:
    """A workload of given prompts for the driver."""

    def __init__(self, prompts: list[list[int]], output: int) -> None:
        self.prompts, self.segments = prompts, None
        self.input_tokens, self.output_tokens = [len(each) for each in prompts], [output] * len(prompts)


class TextDriver(Driver):
    """Sends real text."""

    def prompt(self, index: int) -> list[int]:
        """See Driver."""
        workload: Any = self.workload
        return list(workload.prompts[index])


def speculation() -> Iterator[Record]:
    """S18: a target and a real draft, and n-grams, over the number of drafts and of sequences; greedy and sampled."""
    target, draft = (load_model(str(pair() / name)) for name in ("target", "draft"))
    kinds: list[Speculation | None] = [None]
    kinds += [Speculation("model", k, draft, pair() / "draft") for k in (1, 2, 3, 5)] + [Speculation("ngram", k) for k in (2, 4, 8)]
    texts = Texts(held_out(192, 8), 64)
    losses = {f"{name}_nats_per_byte": nats_per_byte(name) for name in ("target", "draft")}
    for rows in (1, 8):
        for temperature in (0.0, 0.8):
            for how in kinds:
                setup = check(target, Options(num_blocks=600), folder=pair() / "target", speculation=how)
                times = Workload(np.zeros(8), np.array(texts.input_tokens), np.array(texts.output_tokens), concurrency=rows)
                engine = build_engine(setup, setup.scheduler(VllmConfig(2048, rows)))
                sampling = [Sampling(temperature, seed=index) for index in range(8)]
                driver = TextDriver(
                    engine, texts, Arrivals(times), sampling=sampling.__getitem__, clock=time.process_time, wait=lambda _: None
                )
                run = driver.run()
                decodes = [step for step in run.steps if not any(new > 64 for new, *_ in step.chunks)]
                seconds, emitted = sum(step.seconds for step in decodes), sum(step.emitted for step in decodes)
                yield {
                    "drafter": how.kind if how else "none", "drafts": how.tokens if how else 0, "rows": rows, "temperature": temperature,
                    "decode_tokens_per_s": emitted / seconds, "decode_steps": len(decodes), **losses, **summary(run),
                }  # fmt: skip


def kv_error() -> Iterator[Record]:
    """S10: what int8 and fp8 KV change, over the length of the context; trained byte model and a random 110M one."""
    cases = [("trained byte model", load_model(str(pair() / "target")), pair() / "target", held_out(1000, 6))]
    random = torch.randint(0, 32000, (2, 1000), generator=torch.Generator().manual_seed(0)).tolist()
    cases.append((f"random weights, {LARGE}", load_model(LARGE), None, random))
    for name, model, folder, texts in cases:
        logits: dict[str, list[torch.Tensor]] = {}
        for kv in ("", "int8", "fp8"):
            setup = check(model, Options(kv=kv, num_blocks=80), folder=folder)
            runner = build_engine(setup, setup.scheduler()).runner
            logits[kv] = [runner.run([Row(text, 0, range(1, 64), len(text))])[0] for text in texts]
        for kv in ("int8", "fp8"):
            for first, last in ((0, 16), (16, 32), (32, 64), (64, 128), (128, 256), (256, 512), (512, 1000)):
                plain = torch.cat([each[first:last] for each in logits[""]]).double()
                found = torch.cat([each[first:last] for each in logits[kv]]).double()
                p, q = plain.log_softmax(-1), found.log_softmax(-1)
                yield {
                    "model": name, "kv": kv, "first": first, "last": last, "positions": len(plain),
                    "relative_error": float((found - plain).norm() / plain.norm()),
                    "kl_nats": float((p.exp() * (p - q)).sum(-1).mean()),
                    "same_choice": float((plain.argmax(-1) == found.argmax(-1)).double().mean()),
                }  # fmt: skip


DEMONSTRATIONS: dict[str, Callable[[], Iterator[Record]]] = {
    each.__name__: each for each in (batching, chunks, prefix, memory, formats, speculation, kv_error)
}


def main() -> None:
    """Measures what was asked for."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or DEMONSTRATIONS:
        path = folder / f"{name}.jsonl"
        path.unlink(missing_ok=True)
        began = time.process_time()
        environment = replace(capture_environment({"threads": 1, "clock": "CPU seconds of one thread"}), variables={})
        with JsonlWriter(path) as writer:
            writer.write(environment.to_json())
            for record in DEMONSTRATIONS[name]():
                writer.write({"kind": "demonstration"} | record)
                writer.flush()
        print(f"{name}: {time.process_time() - began:.0f} CPU seconds", file=sys.stderr)


if __name__ == "__main__":
    main()
