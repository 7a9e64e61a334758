"""Figures of the product: one function per kind from a Request to a Chart; drawing, saving and style beside them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from importlib import import_module

from roofline.errors import InputError

_log = logging.getLogger("matplotlib")
_level = _log.level
_log.setLevel(logging.ERROR)  # where there is no folder for a cache, the library says so while it is imported
from roofline.charts.chart import Chart, Request  # noqa: E402

_log.setLevel(_level)

# kind → (module, what it shows)
KINDS: Mapping[str, tuple[str, str]] = {
    "roofline": ("roofs", "ops of prefill and decode under the roofs of the device (several -H: on the same axes)"),
    "prefill-split": ("prefill_split", "matrices against attention over prompt length, with the crossover"),
    "batch": ("batch", "TPOT and tokens/s over batch: bound, expected, interval, KV limit, knee, 80 % point"),
    "kv": ("kv", "KV cache over context as MHA, GQA, MQA, MLA and with a window, with the weights as a line"),
    "heatmap": ("heatmap", "batch × context: what limits a decode step, tokens/s, and what does not fit"),
    "pareto": ("pareto", "tokens/s per user against tokens/s per GPU over tp and batch"),
    "waterfall": ("waterfall", "a decode step from its bound to its expected time, cause by cause"),
    "gemm-curve": ("gemm_curve", "time and rate of the largest matrices over rows: where GEMV becomes GEMM"),
    "error": ("error", "predicted against measured times of a table"),
    "chunk": ("chunk", "TTFT, gaps between tokens and tokens/s over the token budget of a step, simulated"),
    "timeline": ("timeline", "TTFT, TPOT, concurrency and KV over time of a simulated run, with the pattern named"),
    "budget": ("budget", "memory of one GPU: weights, activations, runtime, KV, what is left"),
}

SEVERAL_DEVICES = ("roofline", "budget")


def build(kind: str, request: Request) -> Chart:
    """The figure of a kind in KINDS. Raises InputError for another kind, or for what the request lacks."""
    if kind not in KINDS:
        raise InputError(f"unknown chart {kind!r}; known: {', '.join(KINDS)}")
    if len(request.devices) > 1 and kind not in SEVERAL_DEVICES:
        names = ", ".join(device.id for device in request.devices)
        raise InputError(f"chart {kind} draws one device, not {names}: make one of each; {' and '.join(SEVERAL_DEVICES)} compare devices")
    name = KINDS[kind][0]
    module = import_module(f"roofline.charts.{name}")
    draw: Callable[[Request], Chart] = getattr(module, kind.replace("-", "_"))
    return draw(request)


__all__ = ["KINDS", "Chart", "Request", "build"]
