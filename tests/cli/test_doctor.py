"""`roofline doctor`, and that each command which lacks a package ends with the one line that installs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from roofline.cli import doctor
from tests.cli.conftest import CHECKOUT, Cli
from tests.cli.test_commands import _config

EXTRAS = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
         "head_dim": 16, "vocab_size": 128}  # fmt: skip
CORE = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]


def _names(requirements: list[str]) -> tuple[str, ...]:
    return tuple(re.split(r"[<>=~ \[]", text)[0].lower() for text in requirements)


def test_the_packages_are_those_of_the_project() -> None:
    wanted = {"": _names(CORE)} | {extra: _names(texts) for extra, texts in EXTRAS.items() if extra not in ("test", "docs", "fuzz")}
    assert {extra: sorted(names) for extra, names in doctor.PACKAGES.items()} == {e: sorted(n) for e, n in wanted.items()}
    for need in doctor.NEEDS:
        assert set(need.packages) <= {name for extra in need.extra.split(",") for name in wanted[extra]}


def test_what_is_there_is_ready(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "1.2")
    done = cli("doctor", "--json")
    assert done.code == 0
    assert all(row["missing"] == [] and row["install"] is None for row in done.json["commands"])
    assert {row["version"] for row in done.json["packages"]} == {"1.2"}
    assert "pip install" not in cli("doctor").out


def test_what_is_missing_has_its_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise doctor.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "version", absent)
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    done = cli("doctor", "--json")
    assert done.code == 0
    assert [row["install"] for row in done.json["commands"]] == [f"pip install 'roofline[{need.extra}]'" for need in doctor.NEEDS]
    assert done.json["machine"]["torch_build"] is None
    page = cli("doctor").out
    assert page.count("pip install 'roofline[gpu]'") == 1
    assert "missing  aiconfigurator-core, pyarrow" in page


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("__version__ = '2.9.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n", "cpu"),
        ("__version__ = '2.9.0+cu128'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", "CUDA 12.8"),
        ("cuda = None\nhip = '6.2.41133'\n", "ROCm 6.2.41133"),
        (None, "unknown"),
    ],
)
def test_torch_says_what_it_was_built_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, build: str) -> None:
    if text is not None:
        (tmp_path / "version.py").write_text(text)
    spec = type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
    monkeypatch.setattr(doctor, "find_spec", lambda name: spec)
    assert doctor.torch_build() == build


def test_a_gpu_that_torch_cannot_use_is_said() -> None:
    gpu = doctor.Detected(name="NVIDIA H100 80GB HBM3", profile_id="h100-sxm", memory_bytes=85e9, probe="NVML")
    strange = doctor.Detected(name="Something", evidence=("no profile has that name",), probe="NVML")
    cpu = doctor.Detected(name="Some CPU", kind="cpu", threads=8)
    lines = doctor.machine((gpu, strange, cpu), "cpu")
    assert "profile h100-sxm" in lines[1]
    assert "no profile: no profile has that name" in lines[2]
    assert "must be built for it" in lines[-1]
    assert not any("built for it" in line for line in doctor.machine((gpu, cpu), "CUDA 12.8"))


def test_nothing_heavy_is_imported() -> None:
    code = "import sys\nfrom roofline.cli.main import run\ntry: run(['doctor'])\nexcept SystemExit: pass\nprint(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    loaded = set(out.splitlines()[-1].split())
    assert not loaded & {"matplotlib", "pandas", "scipy", "transformers", "aiohttp"}
    if doctor.torch_build() in (None, "cpu"):
        assert "torch" not in loaded


# module that is blocked, extra that brings it, arguments of a command that needs it; {tmp} has a config.json and an empty t.parquet
BLOCKED = [
    ("torch", "gpu", ["bench", "gemm", "--device", "cpu", "--budget", "1s"]),
    ("torch", "gpu", ["validate", "tiny-llama-15m", "--device", "cpu", "--budget", "30s"]),
    ("torch", "gpu", ["engine", "tiny-llama-15m", "--num-requests", "1"]),
    ("safetensors", "gpu", ["engine", "{tmp}/checkpoint", "--num-requests", "1", "--input-len", "4", "--output-len", "2"]),
    ("torch", "gpu,serve", ["serve", "tiny-llama-15m"]),
    ("aiohttp", "serve", ["serve", "tiny-llama-15m", "--random-weights"]),
    ("huggingface_hub", "hub", ["kv", "hf:nobody/nothing"]),
    ("tokenizers", "hub", ["loadtest", "http://127.0.0.1:9", "--model", "m", "--tokenizer", "{tmp}"]),
    ("pyarrow", "parquet", ["predict", "{tmp}/t.parquet"]),
    ("aiconfigurator_core", "silicon", ["score", "silicon:gemm"]),
    ("joblib", "sweep", ["sweep", "docs/how-to/sweep.yaml", "--records", "{tmp}/records.jsonl"]),
]


@pytest.mark.parametrize(("module", "extra", "args"), BLOCKED, ids=[f"{args[0]}-{module}" for module, _, args in BLOCKED])
def test_a_missing_package_ends_with_the_line_that_installs_it(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, extra: str, args: list[str]
) -> None:
    (tmp_path / "t.parquet").write_bytes(b"")
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text(json.dumps(_config(**SMALL)))
    (tmp_path / "checkpoint" / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    ours = "roofline.engine.server"  # imports aiohttp when it is imported, and another test may have done that
    for name in [name for name in sys.modules if name == module or name.startswith((f"{module}.", ours))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # importing it raises ImportError
    monkeypatch.chdir(CHECKOUT)
    done = cli(*(arg.format(tmp=tmp_path) for arg in args))
    assert done.code == 2, done.err
    last = done.err.strip().splitlines()[-1]
    assert last.endswith(f"pip install 'roofline[{extra}]'")
    assert "Traceback" not in done.err


def test_every_need_is_tried() -> None:
    assert {extra for _, extra, _ in BLOCKED} >= {need.extra for need in doctor.NEEDS}
