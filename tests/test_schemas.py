"""The published schemas: valid themselves, true of real output that they were not made from, and complete."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import pytest

from tests.cli.conftest import CHECKOUT, Cli, cli  # noqa: F401 - a fixture
from tests.loadtest.conftest import Mock, mock  # noqa: F401 - a fixture

SCHEMAS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((CHECKOUT / "roofline" / "schemas").glob("*.json"))}
COMMANDS = ["diagnose", "doctor", "kv", "loadtest", "ops", "phases", "plan", "simulate", "validate"]
OUTPUTS = [
    "plan qwen3-8b -H l40s --concurrency 4",
    "plan gpt-oss-20b -H rtx-4090 --engine llamacpp --goodput tpot:1",
    "plan llama-3.1-405b -H a100-sxm-80gb --tp 8 --full-attention --request-rate 0.5",
    "phases mixtral-8x7b -H mi300x --batch 8",
    "ops gemma-3-27b -H b200-sxm --tp 2 --kv-dtype fp8",
    "kv qwen3-30b-a3b kimi-k2 --tokens 4096 --as mqa",
    "simulate qwen3-8b -H l40s --users 10 --think-time 1 --num-requests 30 --goodput ttft:1 tpot:1",
    "simulate qwen3-8b -H l40s --request-rate 3 --num-requests 30 --engine sglang --replicas 2",
    "diagnose --symptom tpot-jitters --observe waiting=3",
    "diagnose tests/data/metrics/vllm_v1_queue_slots_0.prom tests/data/metrics/vllm_v1_queue_slots_1.prom",
    "validate --measurements tests/data/kernels/gemm_h100_trtllm_fp8_fit.csv",
    "doctor",
]

# keys that other programs rely on, from the contract of the command line
CONTRACT = {
    "plan": [
        "fits", "limits", "curve", "model.parameters", "model.weight_bytes", "memory.total_bytes", "memory.usable_bytes",
        "memory.weight_bytes", "memory.activation_bytes", "memory.runtime_bytes", "memory.kv_bytes", "memory.kv_bytes_per_token",
        "memory.kv_tokens", "memory.max_sequences", "prefill.flops", "prefill.bytes", "prefill.intensity", "prefill.time_s",
        "decode.flops", "decode.bytes", "decode.intensity", "decode.time_s", "curve[].batch", "curve[].tpot_s",
        "curve[].output_tokens_per_s", "curve[].fits",
    ],
    "ops": [f"ops[].{key}" for key in ("name", "kind", "count", "m", "n", "k", "flops", "weight_bytes", "kv_bytes", "activation_bytes",
            "intensity", "limited_by", "bound_s", "expected_s", "formula")],
    "kv": ["models[].model", "models[].kv_bytes_per_token"],
    "simulate": ["gpus"],
    "loadtest": ["stages[].concurrency", "stages[].ttft_s", "stages[].tpot_s", "stages[].itl_s", "stages[].requests_ok",
                 "stages[].requests_failed", "stages[].errors", "stages[].output_tokens_per_s", "knee", "client.event_loop_lag_s",
                 "client.send_delay_s", "client.trustworthy"],
}  # fmt: skip


def strict(schema: Any) -> Any:
    """The schema that forbids every key it does not name."""
    found = copy.deepcopy(schema)
    if isinstance(found, dict):
        if "properties" in found and "additionalProperties" not in found:
            found["additionalProperties"] = False
        return {key: strict(value) if key != "inputs" else {} for key, value in found.items()}
    return [strict(each) for each in found] if isinstance(found, list) else found


def check(document: dict[str, Any]) -> None:
    schema = SCHEMAS[document["command"]]
    jsonschema.validate(document, schema)
    try:
        jsonschema.validate(document, strict(schema))
    except jsonschema.ValidationError as error:
        pytest.fail(f"{error.json_path}: {error.message}: is it new? run: python scripts/make_schemas.py {document['command']}")


def test_each_is_a_schema() -> None:
    assert list(SCHEMAS) == COMMANDS
    for name, schema in SCHEMAS.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$id"] == f"urn:roofline:schema:{name}:1"
        assert {"schema_version", "command", "inputs", "assumptions"} <= set(schema["required"])


@pytest.mark.parametrize("line", OUTPUTS)
def test_real_output_is_described(cli: Cli, monkeypatch: pytest.MonkeyPatch, line: str) -> None:  # noqa: F811
    monkeypatch.chdir(CHECKOUT)
    check(cli(*line.split(), "--json").json)


def test_a_load_test_is_described(cli: Cli, mock: Mock) -> None:  # noqa: F811
    words = ["--input-len", "8", "--output-len", "8", "--warmup", "0", "--requests-per-stage", "6"]
    check(cli("loadtest", mock.url, "--model", "mock?ttft_ms=15&itl_ms=3", "--ladder", "2,4", *words, "--json").json)


def test_kept_validations_are_described() -> None:
    envelope = {"schema_version": 1, "command": "validate", "inputs": {}, "folder": "validation", "assumptions": ["text"]}
    kept = sorted((CHECKOUT / "reports").glob("validation_*/*/verdict.json"))[1::2]
    for path in kept:
        check(envelope | json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("command", list(CONTRACT))
def test_the_contract_is_required(command: str) -> None:
    for path in CONTRACT[command]:
        schema = SCHEMAS[command]
        for part in path.split("."):
            key, list_mark = part.removesuffix("[]"), part.endswith("[]")
            assert key in schema["required"], f"{command}: {path}"
            schema = schema["properties"][key]
            schema = schema["items"] if list_mark else schema


def test_wrong_documents_are_refused(cli: Cli) -> None:  # noqa: F811
    good = cli("kv", "llama-3.1-8b", "--json").json
    for wrong in ({"schema_version": 2}, {"models": {}}, {"models": [{"model": 3}]}, {"command": "plan"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(good | wrong, SCHEMAS["kv"])
    jsonschema.validate(good | {"a_new_key": 1}, SCHEMAS["kv"])
