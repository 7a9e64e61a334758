"""What scripts/fuzz.py damages: for each kind of file real contents, and the reader that is given it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Target:
    """A reader. name: of the file that it is given; seeds: real contents; read: what is called with the path."""

    name: str
    seeds: Callable[[], list[bytes]]
    read: Callable[[Path], object]


def _files(pattern: str, most: int = 20, largest: int = 60_000) -> Callable[[], list[bytes]]:
    return lambda: [path.read_bytes()[:largest] for path in sorted(CHECKOUT.glob(pattern))[:most]]


def _gguf() -> list[bytes]:
    """A small GGUF file: keys of several kinds, an array, two tensors."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    numbers = {"block_count": 2, "embedding_length": 64, "feed_forward_length": 128, "attention.head_count": 4, "context_length": 512,
               "attention.head_count_kv": 4, "vocab_size": 3}  # fmt: skip
    keys = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    keys += [text(f"llama.{key}") + struct.pack("<II", 4, value) for key, value in numbers.items()]
    keys.append(text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("b") + text("c"))
    keys.append(text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5))
    tensors = [
        text("token_embd.weight") + struct.pack("<IQQIQ", 2, 64, 3, 0, 0),
        text("output_norm.weight") + struct.pack("<IQIQ", 1, 64, 0, 768),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    return [head + b"".join(keys) + b"".join(tensors) + bytes(2048)]


def _safetensors() -> list[bytes]:
    header = {"__metadata__": {"format": "pt"}, "model.norm.weight": {"dtype": "BF16", "shape": [8, 4], "data_offsets": [0, 64]}}
    text = json.dumps(header).encode()
    return [struct.pack("<Q", len(text)) + text + bytes(64)]


def _traces() -> list[bytes]:
    rows = b"arrival_s,input_tokens,output_tokens,class\n0,100,20,chat\n1.5,200,30,batch\n2,1,1,chat\n"
    azure = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,4808,10\n2023-11-16 18:15:50.9951690,3180,8\n"
    return [rows, azure]


def _mooncake() -> list[bytes]:
    rows = [{"timestamp": 1000 * i, "input_length": 1025 + i, "output_length": 9, "hash_ids": [0, i, i + 1]} for i in range(4)]
    own = [{"arrival_s": i, "input_tokens": 64, "output_tokens": 8, "prefix_id": "a", "prefix_tokens": 32} for i in range(4)]
    return ["\n".join(map(json.dumps, each)).encode() for each in (rows, own)]


def _records() -> list[bytes]:
    path = next(iter(sorted(CHECKOUT.glob("reports/microbench_*/run_1.jsonl"))))
    return [b"\n".join(path.read_bytes().splitlines()[:6]) + b"\n"]


def _dataset() -> list[bytes]:
    return [b'{"prompt": "hello", "output_tokens": 4}\n{"messages": [{"role": "user", "content": "hi"}], "output_tokens": 2}\n']


def _journal() -> list[bytes]:
    from roofline.records import RequestRecord

    requests = [RequestRecord(0, i, start_s=i, first_token_s=i + 0.1, end_s=i + 0.5, output_tokens=8, chunks=8).to_json() for i in range(3)]
    rows = [{"kind": "loadtest", "run_id": "r", "settings": {"seed": 0}}, {"kind": "stage_start", "stage": 0}, *requests]
    return ["\n".join(map(json.dumps, [*rows, {"kind": "stage_end", "stage": 0}])).replace("NaN", "null").encode()]


def _results() -> list[bytes]:
    """Small documents of plan, simulate and loadtest."""
    times = {"p50": 0.1, "p99": 0.3, "mean": 0.1, "p90": 0.2}
    estimate = {"bound": 0.01, "expected": 0.02, "low": 0.015, "high": 0.03}
    plan = {"command": "plan", "curve": [{"batch": b, "tpot_s": estimate, "output_tokens_per_s": 50.0 * b, "fits": True} for b in (1, 8)]}
    run = {"command": "simulate", "requests": 9, "ttft_s": times, "tpot_s": times, "e2el_s": times, "output_tokens_per_s": 90.0}
    stage = {"concurrency": 4, "title": "4 streams", "ttft_s": times, "tpot_s": times, "itl_s": times, "e2el_s": times,
             "requests_ok": 9, "requests_failed": 0, "errors": {}, "output_tokens_per_s": 90.0}  # fmt: skip
    client = {"event_loop_lag_s": times, "send_delay_s": times, "trustworthy": True, "reasons": []}
    test = {"command": "loadtest", "stages": [stage, stage | {"concurrency": 8}], "knee": None, "client": client}
    return [json.dumps(each).encode() for each in (plan, run, test)]


def _log() -> list[bytes]:
    stats = (
        "INFO 11-02 10:00:{:02} [loggers.py:118] Engine 000: Avg prompt throughput: 120.5 tokens/s, "
        "Avg generation throughput: 80.1 tokens/s, Running: {} reqs, Waiting: {} reqs, "
        "GPU KV cache usage: 93.5%, Prefix cache hit rate: 12.1%\n"
    )
    start = "INFO 11-02 10:00:00 [kv_cache_utils.py:864] GPU KV cache size: 43,296 tokens\n"
    return [(start + "".join(stats.format(i, 4 + i, i) for i in range(5))).encode()]


def _stream() -> list[bytes]:
    chunk = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": null}]}\r\n\r\n'
    return [chunk * 3 + b": keep\n\n" + b"event: x\ndata: 1\ndata: 2\n\ndata: [DONE]\n\n"]


def _read_model(path: Path) -> object:
    from roofline import Batch, build_ledger, load_model

    model = load_model(str(path))
    return build_ledger(model, Batch.decode(2, 300)).total("flops")


def _read_hardware(path: Path) -> object:
    from roofline import load_hardware

    device = load_hardware(str(path))
    return {name: device.peak(name) for name in device.peaks}


def _read_header(path: Path) -> object:
    from roofline.profiles.hf.headers import read_header

    return read_header(path)


def _read_trace(path: Path) -> object:
    from roofline.serving.traces import load_trace

    return load_trace(path)


def _read_dataset(path: Path) -> object:
    from roofline.loadtest.prompts import load_dataset

    return load_dataset(path)


def _read_records(path: Path) -> object:
    from roofline.records import Measurement, read_jsonl

    return [Measurement.from_json(row, f"{path}:{line}") for line, row in read_jsonl(path) if row.get("kind") == "measurement"]


def _read_journal(path: Path) -> object:
    from roofline.loadtest.journal import read_journal

    return read_journal(path)


def _read_result(path: Path) -> object:
    """A document of another command, as --compare, diagnose and report take it."""
    from roofline.diagnosis.sources import observe
    from roofline.errors import RooflineError
    from roofline.loadtest.compare import compare, load_prediction
    from roofline.report.results import read_result, result_sections

    stage = {"concurrency": 4, "ttft_s": {"p50": 0.1, "p99": 0.2}, "tpot_s": {"p50": 0.01, "p99": 0.02}, "output_tokens_per_s": 100.0}
    refused = []
    for use in (
        lambda: compare(load_prediction(path), [stage]),
        lambda: result_sections([read_result(path)]),
        lambda: observe([str(path)], None),
    ):
        try:
            use()
        except RooflineError as error:
            refused.append(error)
    return refused


def _read_metrics(path: Path) -> object:
    from roofline.diagnosis.sources import observe
    from roofline.loadtest.server_metrics import parse

    return parse(path.read_text(encoding="utf-8", errors="replace")), observe([str(path), str(path)], 10.0), observe([str(path)], None)


def _read_source(path: Path) -> object:
    from roofline.diagnosis.sources import observe

    return observe([str(path)], None)


def _read_stream(path: Path) -> object:
    """The events are the same however the bytes come in pieces."""
    from roofline.loadtest.sse import EventParser

    data = path.read_bytes()
    whole, pieces = EventParser(), EventParser()
    first = [*whole.feed(data), *whole.finish()]
    cut = max(1, len(data) // 7)
    second = [event for at in range(0, len(data), cut) for event in pieces.feed(data[at : at + cut])] + pieces.finish()
    assert first == second, "events depend on how the bytes were cut"
    return first


def _read_table(path: Path) -> object:
    from roofline.calibration.tables import normalised, read

    return normalised(read(path))


def _read_sweep(path: Path) -> object:
    from roofline.planning.sweep import configurations, load_spec

    return configurations(load_spec(path))


TARGETS = {
    "config": Target("config.json", _files("tests/data/configs/*.json"), _read_model),
    "model": Target("model.yaml", _files("modelprofiles/*.yaml"), _read_model),
    "hardware": Target("device.yaml", _files("hwprofiles/*-*.yaml"), _read_hardware),
    "gguf": Target("model.gguf", _gguf, _read_model),
    "safetensors": Target("model.safetensors", _safetensors, _read_header),
    "trace": Target("trace.csv", _traces, _read_trace),
    "trace-json": Target("trace.jsonl", _mooncake, _read_trace),
    "dataset": Target("prompts.jsonl", _dataset, _read_dataset),
    "records": Target("records.jsonl", _records, _read_records),
    "journal": Target("journal.jsonl", _journal, _read_journal),
    "result": Target("result.json", _results, _read_result),
    "metrics": Target("page.prom", _files("tests/data/metrics/*.prom", 4), _read_metrics),
    "log": Target("server.log", _log, _read_source),
    "sse": Target("stream.txt", _stream, _read_stream),
    "table": Target("table.csv", _files("tests/data/kernels/*.csv", largest=4_000), _read_table),
    "sweep": Target("sweep.yaml", _files("docs/how-to/sweep.yaml"), _read_sweep),
}
