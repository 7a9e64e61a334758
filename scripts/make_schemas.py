"""Writes roofline/schemas/COMMAND.json, the JSON Schemas of --json documents, from what the commands print: python scripts/make_schemas.py

A schema says which keys a document has, their types and units, which may be null and which are always there. It lists no key as the
only ones: new keys may come within a schema_version, so a reader must ignore what it does not know (docs/reference/json.md).
tests/test_schemas.py holds other outputs of the same commands against them, and fails for a key that no schema names.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
SCHEMAS = CHECKOUT / "roofline" / "schemas"
DRAFT = "https://json-schema.org/draft/2020-12/schema"

# what is run for each command; what the tests run is something else
SAMPLES: dict[str, tuple[str, ...]] = {
    "plan": (
        "llama-3.1-8b -H h100-sxm",
        "gemma-3-27b -H h100-sxm --max-model-len 8192 --concurrency 8 --goodput tpot:50",
        "llama-3.1-70b -H rtx-4090",
        "deepseek-v3 -H h200-sxm --tp 8 --ep 8 --users 100 --speedups",
        "llama-3.1-8b -H h100-sxm --request-rate 10 --goodput ttft:500 tpot:30 --search",
        "llama-3.1-8b -H h100-sxm --request-rate 10 --goodput tpot:1 --search",
        "gpt-oss-20b -H dgx-spark-gb10 --engine plain",
        "llama-3.1-8b -H h100-sxm --engine sglang --weights fp8 --kv-dtype fp8 --price 2",
    ),
    "phases": ("llama-3.1-8b -H h100-sxm", "deepseek-v3 -H h200-sxm --tp 8 --batch 4", "gemma-3-27b -H l40s --weights w4a16"),
    "ops": (
        "llama-3.1-8b -H h100-sxm --elementwise",
        "deepseek-v3 -H h200-sxm --tp 8 --ep 8 --phase prefill --context 64",
        "llama-3.1-8b -H l40s --fused --weights w8a16",
    ),
    "kv": ("llama-3.1-8b deepseek-v3 --as mha,gqa:8,mqa,mla --tp 4", "gemma-3-27b gpt-oss-20b --kv-dtype fp8"),
    "simulate": (
        "llama-3.1-8b -H h100-sxm --request-rate 4 --num-requests 60 --band",
        "llama-3.1-8b -H h100-sxm --concurrency 8 --num-requests 60 --goodput ttft:500 tpot:50 e2el:9000",
        "llama-3.1-8b -H l40s --find-max-rate --goodput tpot:60 --num-requests 600",
        "llama-3.1-8b -H l40s --find-max-rate --goodput tpot:1 --num-requests 20",
        "llama-3.1-8b -H rtx-4090 --request-rate 1 --num-requests 3 --isl 60000 --osl 10",
        "llama-3.1-8b -H h100-sxm --request-rate 4 --num-requests 30 --disaggregated 1:1",
        "llama-3.1-8b -H h100-sxm --request-rate 4 --num-requests 30 --speculative 3:0.7",
        "llama-3.1-8b -H h100-sxm --trace {classes} --class-servers interactive:1,batch:1",
    ),
    "diagnose": (
        "--symptom ttft-high",
        "tests/data/metrics/vllm_v1_kv_pressure_0.prom tests/data/metrics/vllm_v1_kv_pressure_1.prom",
        "--observe running=256 --observe prompt_length=1024 --model llama-3.1-8b -H h100-sxm",
        "--observe kv_usage=0.99 --observe preemptions=2 --observe waiting=40 --observe running=64",
    ),
    "doctor": ("",),
}

# objects whose keys are data: command → dotted paths, * for the elements of a list
MAPS: dict[str, tuple[str, ...]] = {
    "phases": ("crossovers.kv_over_weights_context_tokens",),
    "simulate": ("classes", "load.waits", "goodput.levels_s", "rejected"),
    "diagnose": ("observations", "symptom.apart"),
    "loadtest": (
        "stages.*.errors",
        "errors",
        "stages.*.server",
        "environment.software",
        "environment.variables",
        "environment.device",
    ),
    "validate": (
        "environment.software",
        "environment.variables",
        "environment.device",
        "health.facts.device",
        "health.facts.moved",
        "bases.*.constants",
    ),
    "doctor": ("machine.devices.*.caches",),
}
# what may stand there on another machine or in another run, whatever this one says
ELSEWHERE = {"ci.*": ("null",), "variables.*": ("null", "string"), "device.*": ("boolean", "null", "number", "string")}
UNITS = {
    "_bytes": "bytes", "_bytes_per_token": "bytes per token", "_s": "seconds", "_per_s": "per second", "flops": "FLOP",
    "intensity": "FLOP per byte", "ridge": "FLOP per byte", "bytes": "bytes", "_hz": "Hz", "_len": "tokens", "_tokens": "tokens",
    "bandwidth": "bytes per second", "usd_per_hour": "US dollars per hour", "_low": "low end of the 80 % interval",
    "_high": "high end of the 80 % interval",
}  # fmt: skip
ESTIMATE = {"bound", "expected", "low", "high"}
PERCENTILES = {"mean", "p50", "p90", "p99"}
DEFINITIONS = {
    "estimate": {
        "type": "object",
        "description": "bound: the hard bound; expected; low and high: the 80 % interval",
        "properties": {key: {"type": ["number", "null"]} for key in ("bound", "expected", "low", "high")},
        "required": sorted(ESTIMATE),
    },
    "percentiles": {
        "type": "object",
        "description": "mean, median and upper percentiles; null where nothing was counted",
        "properties": {key: {"type": ["number", "null"]} for key in ("mean", "p50", "p90", "p99")},
        "required": sorted(PERCENTILES),
    },
}


def schema_of(command: str, documents: Sequence[Any]) -> dict[str, Any]:
    """The schema of a command's documents, from all of these."""
    head = {"$schema": DRAFT, "$id": f"urn:roofline:schema:{command}:1", "title": f"roofline {command} --json"}
    body = infer(documents, "", MAPS.get(command, ()))
    body["properties"]["schema_version"] = {"const": 1}
    body["properties"]["command"] = {"const": command}
    body["properties"]["inputs"] = {"type": "object", "description": "the options, resolved"}
    body["properties"]["assumptions"] = {"type": "array", "items": {"type": "string"}}
    return head | body | {"$defs": DEFINITIONS}


def infer(values: Sequence[Any], path: str, maps: Iterable[str]) -> dict[str, Any]:
    """A schema that all `values` at `path` fulfil: the union of their types, objects with the keys of any and the required ones of all."""
    others = {kind for ending, more in ELSEWHERE.items() if path.endswith(ending) for kind in more}
    kinds = sorted({_kind(value) for value in values} | others)
    found: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds}
    key = path.rpartition(".")[2]
    if unit := next((text for ending, text in sorted(UNITS.items(), key=lambda item: -len(item[0])) if key.endswith(ending)), ""):
        found["description"] = unit
    objects = [value for value in values if isinstance(value, dict)]
    named = [
        name for name, keys in (("estimate", ESTIMATE), ("percentiles", PERCENTILES)) if objects and all(set(o) == keys for o in objects)
    ]
    if named:
        reference = {"$ref": f"#/$defs/{named[0]}"}
        return reference if kinds == ["object"] else {"anyOf": [reference, {"type": "null"}]}
    if objects and path in maps:
        found["additionalProperties"] = infer([value for each in objects for value in each.values()] or [None], f"{path}.*", maps)
    elif objects:
        keys = dict.fromkeys(key for each in objects for key in each)
        found["properties"] = {
            key: infer([each[key] for each in objects if key in each], f"{path}.{key}".lstrip("."), maps) for key in keys
        }
        found["required"] = [key for key in keys if all(key in each for each in objects)]
    if any(isinstance(value, list) for value in values):
        elements = [element for value in values if isinstance(value, list) for element in value]
        found["items"] = infer(elements, f"{path}.*", maps) if elements else {}
    return found


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    for kind, name in ((bool, "boolean"), ((int, float), "number"), (str, "string"), (dict, "object")):
        if isinstance(value, kind):  # type: ignore[arg-type]
            return name
    return "array"


def run(command: str, words: str) -> Any:
    """The document that a command prints. Raises ValueError when it prints none."""
    from roofline.cli.main import run as cli

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        cli([command, *shlex.split(words), "--json"])
    return json.loads(out.getvalue())


def documents(command: str) -> list[Any]:
    """What the samples of a command print."""
    with tempfile.TemporaryDirectory() as folder:
        classes = Path(folder) / "classes.csv"
        rows = [f"{i},{200 + i},{20 + i},{('interactive', 'batch')[i % 2]}" for i in range(20)]
        classes.write_text("\n".join(["arrival_s,input_tokens,output_tokens,class", *rows]) + "\n", encoding="utf-8")
        return [run(command, words.replace("{classes}", str(classes))) for words in SAMPLES[command]]


def validations() -> list[Any]:
    """The documents of validate: of every second run that is kept under reports, and of a table."""
    envelope = {"schema_version": 1, "command": "validate", "inputs": {}, "folder": "validation", "assumptions": ["text"]}
    kept = sorted((CHECKOUT / "reports").glob("validation_*/*/verdict.json"))[::2]
    runs = [envelope | json.loads(path.read_text(encoding="utf-8")) for path in kept]
    return [*runs, run("validate", "--measurements tests/data/kernels/dev_sample.csv")]


def load_tests() -> list[Any]:
    """The documents of loadtest against the mock server: a ladder with a knee, a rate under a service level, a server that fails."""
    start = [sys.executable, "-c", "from roofline.cli.main import run; run()", "mock", "--port", "0"]
    with subprocess.Popen(start, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as mock:
        assert mock.stdout is not None
        url = mock.stdout.readline().split()[2]
        common = f"{url} --input-len 8 --output-len 8 --warmup 1 --requests-per-stage 12 --model"
        found = [
            run("loadtest", f"{common} 'mock?ttft_ms=20&itl_ms=2' --ladder 1,2,4"),
            run("loadtest", f"{common} 'mock?ttft_ms=20&itl_ms=2' --request-rate 20 --goodput ttft:500 tpot:50"),
            run("loadtest", f"{common} 'mock?err_every=1' --ladder 2"),
        ]
        mock.terminate()
    return found


def main(chosen: Sequence[str]) -> None:
    """Writes the schemas of the chosen commands, or of all."""
    SCHEMAS.mkdir(exist_ok=True)
    special = {"validate": validations, "loadtest": load_tests}
    for command in chosen or (*SAMPLES, *special):
        found = schema_of(command, special[command]() if command in special else documents(command))
        (SCHEMAS / f"{command}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{command}: {len(json.dumps(found)):,} bytes")


if __name__ == "__main__":
    sys.path.insert(0, str(CHECKOUT))
    main(sys.argv[1:])
