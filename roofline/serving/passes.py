"""Kernel times of the passes that one operating point needs, as curves over the running batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from roofline.batch import Batch
from roofline.ledger import Conventions, Parallel, Precision, build_ledger, kv_bytes_stored, stage_weights
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model
from roofline.timing.bound import step_bound
from roofline.timing.calibrated import as_run, pass_times

Float = NDArray[np.float64]
_AS_LAUNCHED = Conventions(elementwise=True)
KNOTS = np.unique(np.round(2.0 ** np.arange(0, 12.5, 0.5)))  # running sequences of a rank, 1 to 4096


@dataclass(frozen=True)
class Passes:
    """One rank of a layout at one pair of lengths; seconds, cold operands.

    decode_s: kernels of a decode step over KNOTS sequences; mixed_s: of the same step with one whole prompt in it; prompt_s: of a
    prompt alone. *_bound_s: their hard bounds. layers, ranks, dp: of the layout. weight_bytes: on one GPU. kv_bytes: of a sequence
    on one GPU at (input length, input + output length). memory_bytes: of the device.
    """

    decode_s: Float
    mixed_s: Float
    prompt_s: float
    decode_bound_s: Float
    prompt_bound_s: float
    layers: int
    ranks: int
    dp: int
    weight_bytes: float
    kv_bytes: tuple[float, float]
    memory_bytes: float


def price_passes(
    model: Model, hardware: Hardware, engine: str, parallel: Parallel, precision: Precision, input_len: float, output_len: float
) -> Passes:
    """Prices decode at the mean context (input + output/2), a mixed step and a prompt. Raises ShardError and InputError."""
    context = input_len + output_len / 2
    ones = np.ones_like(KNOTS)
    groups = [np.stack(pair, axis=-1) for pair in ((KNOTS, ones), (ones, ones * input_len), (ones * context, ones * 0))]
    batches = (Batch.decode(KNOTS, context), Batch(*groups), Batch.prefill(1, input_len))
    decode, mixed, prompt = (_kernels(model, batch, hardware, engine, parallel, precision) for batch in batches)
    bounds = [_bound(model, batch, hardware, parallel, precision) for batch in (batches[0], batches[2])]
    kv = kv_bytes_stored(model, np.array([input_len, input_len + output_len]), parallel=parallel, precision=precision)
    return Passes(
        decode, mixed, float(prompt), np.broadcast_to(bounds[0], KNOTS.shape), float(bounds[1]), model.num_layers,
        parallel.tp * parallel.dp, parallel.dp, stage_weights(model, parallel).bytes, (float(kv[0]), float(kv[1])),
        hardware.memory_reported_bytes or hardware.memory_bytes,
    )  # fmt: skip


def _kernels(model: Model, batch: Batch, hardware: Hardware, engine: str, parallel: Parallel, precision: Precision) -> Float:
    total: Float = np.zeros(())
    for stage in range(parallel.pp):
        ledger = build_ledger(model, batch, parallel=parallel, precision=precision, conventions=_AS_LAUNCHED, stage=stage)
        total = total + pass_times(as_run(ledger), hardware, engine).expected_s
    return total


def _bound(model: Model, batch: Batch, hardware: Hardware, parallel: Parallel, precision: Precision) -> Float:
    stages = (build_ledger(model, batch, parallel=parallel, precision=precision, stage=stage) for stage in range(parallel.pp))
    total: Float = np.zeros(())
    for ledger in stages:
        total = total + step_bound(ledger, hardware).step_s
    return total
