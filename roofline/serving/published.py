"""What published sweeps passed to their engines and their tables leave out.

SemiAnalysis InferenceX (Apache-2.0) publishes the scripts and the sweep of every result: benchmarks/*.sh, .github/configs and
perf-changelog.yaml of its repository. Here stand the arguments that move a time by more than the noise between two runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MODELS = {"qwen3.5": "qwen3.5", "deepseek": "deepseek", "llama-3.1-70b": "llama"}


def arguments(row: Mapping[Any, Any], engine: str) -> dict[str, float]:
    """Values of the columns receive_interval, batch_wait_steps and speculative_tokens that a row's origin implies.

    {} for rows of other origins and for disaggregated ones. A column that the row states goes before these.
    """
    if not str(row.get("origin") or "").startswith("inferencex") or row.get("mode") == "disagg":
        return {}
    name = str(row.get("model")).lower()
    model = next((word for key, word in _MODELS.items() if key in name), "")
    if engine == "sglang" and str(row.get("hardware")) in ("b200-sxm", "b300-sxm"):
        return _sglang_on_blackwell(row, model)
    lengths = (row.get("isl"), row.get("osl"))
    if engine == "trtllm" and model == "llama" and lengths == (1024, 1024) and float(row.get("tp") or 1) < 8:
        return {"batch_wait_steps": 20}  # batch_wait_timeout_iters of 70b_*_b200_trt_slurm.sh
    return {}


def _sglang_on_blackwell(row: Mapping[Any, Any], model: str) -> dict[str, float]:
    found: dict[str, float] = {}
    concurrency, version = float(row["concurrency"]), str(row.get("software_version"))
    if model:  # --scheduler-recv-interval
        found["receive_interval"] = 30 if concurrency >= 16 else 10
    layout = (row.get("precision"), row.get("tp"), row.get("ep"))
    if model == "qwen3.5" and version == "0.5.9" and layout == ("fp8", 4, 1):
        found["speculative_tokens"] = 3  # TP 4 without EP is in the sweep of qwen3.5_fp8_*_mtp.sh alone
    return found
