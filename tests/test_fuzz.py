"""Every reader of files is given damaged ones: it reads or refuses them, and never anything else. What was found stays fixed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from roofline.diagnosis.sources import observe
from roofline.errors import ProfileError, RecordError, RooflineError
from roofline.loadtest.compare import compare, load_prediction
from roofline.loadtest.journal import read_journal
from roofline.planning.sweep import load_spec
from roofline.profiles.catalog import load_model
from roofline.profiles.hf.headers import read_header
from roofline.records import read_csv, read_jsonl
from roofline.serving.traces import load_trace
from tests.scripting import load_script

fuzz = load_script("fuzz")
INPUTS = 60
SAFE = 'yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))'


@pytest.mark.parametrize("name", list(fuzz.TARGETS))
def test_damaged_files_are_read_or_refused(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fuzz, "FOUND", tmp_path)
    found = fuzz.fuzz(name, seconds=600, seed=1, most=INPUTS)
    assert found.total() == INPUTS
    assert set(found) <= {"read", "refused"}


@pytest.mark.parametrize("name", list(fuzz.TARGETS))
def test_what_the_damage_starts_from_is_good(name: str, tmp_path: Path) -> None:
    target = fuzz.TARGETS[name]
    for seed in target.seeds()[:3]:
        path = tmp_path / target.name
        path.write_bytes(seed)
        target.read(path)


def _file(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


DEEP = b"[" * 100_000
OWN = b"arrival_s,input_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", OWN + b"0,1\xff,1\n"),
        ("t.csv", OWN + b"0,1e300,1\n"),
        ("t.csv", OWN + b"0," + b"9" * 500 + b",1\n"),
        ("t.csv", OWN + b'0,"' + b"x" * 200_000 + b'",1\n'),
        ("t.jsonl", b'{"arrival_s": 0, "input_tokens": ' + b"9" * 5000 + b', "output_tokens": 1}'),
        ("t.jsonl", b'{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1e999]}'),
        ("t.jsonl", b'{"arrival_s": 0, "input_tokens": 1, "output_tokens": 1, "hash_ids": [1], "hash_block_tokens": "0"}'),
        ("t.jsonl", DEEP),
    ],
)
def test_traces_that_once_ended_in_a_traceback(tmp_path: Path, name: str, content: bytes) -> None:
    with pytest.raises(RecordError):
        load_trace(_file(tmp_path, name, content))


def test_records_that_once_ended_in_a_traceback(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="not JSON"):
        list(read_jsonl(_file(tmp_path, "deep.jsonl", DEEP)))
    with pytest.raises(RecordError, match="not CSV"):
        list(read_csv(_file(tmp_path, "wide.csv", b"a,b\n" + b"x" * 200_000 + b",1\n")))
    begin = b'{"kind": "loadtest", "run_id": "r", "settings": {}}\n'
    for line in (b'{"kind": "stage_end"}', b'{"kind": "request", "stage": 0, "index": 0, "start_s": "soon"}'):
        with pytest.raises(RecordError, match=r"journal\.jsonl:2: "):
            read_journal(_file(tmp_path, "journal.jsonl", begin + line))
    with pytest.raises(RooflineError):
        load_spec(_file(tmp_path, "sweep.yaml", b"axes: \xff"))
    with pytest.raises(RooflineError):
        observe([str(_file(tmp_path, "result.json", DEEP))], None)
    with pytest.raises(RooflineError):
        observe([str(_file(tmp_path, "result.json", b'{"stages": [{"ttft_s": 1}], "client": null}'))], None)
    plan = load_prediction(_file(tmp_path, "plan.json", b'{"command": "plan", "curve": [{"batch": "one"}]}'))
    stage = {"concurrency": 1, "ttft_s": {"p50": 1.0}, "tpot_s": {"p50": 1.0}}
    with pytest.raises(RecordError, match="not as roofline plan --json writes it"):
        compare(plan | {"curve": [{"tpot_s": 1}]}, [stage])


@pytest.mark.parametrize("length", [2**31, 2**32 - 1, 4 * 10**9, 2**63, 2**64 - 1])
def test_headers_that_claim_gigabytes_are_not_believed(tmp_path: Path, length: int) -> None:
    import tracemalloc

    weights = _file(tmp_path, "model.safetensors", struct.pack("<Q", length) + b"{}" + bytes(100))
    text = _file(tmp_path, "model.gguf", b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + struct.pack("<Q", length) + bytes(100))
    many = _file(tmp_path, "many.gguf", b"GGUF" + struct.pack("<IQQ", 3, length, length) + bytes(100))
    tracemalloc.start()
    with pytest.raises(ProfileError):
        read_header(weights)
    for path in (text, many):
        with pytest.raises(ProfileError):
            load_model(str(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    evil = f"!!python/object/apply:os.system ['touch {mark}']\n".encode()
    for name in ("model.yaml", "device.yaml"):
        with pytest.raises(RooflineError):
            load_model(str(_file(tmp_path, name, evil)))
    with pytest.raises(RooflineError):
        load_spec(_file(tmp_path, "sweep.yaml", b"axes: " + evil))
    assert not mark.exists()


def test_no_loader_that_runs_code_is_in_the_package() -> None:
    root = Path(__file__).parents[1]
    for folder in ("roofline", "microbench"):
        for path in (root / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8").replace(SAFE, "")
            for word in ("import pickle", "yaml.load(", "yaml.unsafe_load", "torch.load(", "trust_remote_code=True", "allow_pickle=True"):
                assert word not in text, f"{path}: {word}"


def test_the_budget_is_stated_where_the_findings_are() -> None:
    page = (Path(__file__).parents[1] / "docs" / "robustness.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in fuzz.TARGETS)
