"""Kernel times of the passes that one operating point needs, as curves over the running batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from roofline.batch import Batch
from roofline.ledger import Conventions, Op, Parallel, Precision, build_ledger, kv_bytes_stored, stage_weights
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model
from roofline.timing.bound import op_bound_s, step_bound
from roofline.timing.calibrated import as_run, op_times
from roofline.timing.forms import Key
from roofline.timing.forms.moe import SERVED
from roofline.timing.kernels import kernel_times
from roofline.timing.spec import device_spec

Float = NDArray[np.float64]
_AS_LAUNCHED = Conventions(elementwise=True)
# The engines join the all-reduce behind a projection with the norm after it in TensorRT-LLM's one-shot kernel, which vLLM and SGLang
# take from FlashInfer; their own all-reduce, as measured alone, is two to six times slower on small messages.
_FUSED_ALL_REDUCE = "trtllm"
# Engines whose norms, activations and all-reduces write static-scale FP8 and FP4 themselves; products were measured with scales taken
# at run time, which TensorRT-LLM's kernel tables show as a start of 14 µs instead of 2 (FP8 on a B200).
_QUANTISE_AHEAD = {"trtllm": {"fp8": "fp8", "nvfp4": "fp4"}}  # weight format → the unit that runs it
_DRAFT_LAYERS = 2.0  # of the model, that one draft costs: a layer and the head
KNOTS = np.unique(np.round(2.0 ** np.arange(0, 12.5, 0.5)))  # running sequences of a rank, 1 to 4096


@dataclass(frozen=True)
class Passes:
    """One rank of a layout at one pair of lengths; seconds, cold operands.

    decode_s: kernels of a decode step over KNOTS sequences, drafts included, and experts_s: those of routed experts among them;
    mixed_s: of the same step with one whole prompt in it; prompt_s: of a prompt alone. *_bound_s: their hard bounds, of a token
    where a step emits several. layers, ranks, dp: of the layout. weight_bytes: on one GPU. kv_bytes: of a sequence on one GPU at
    (input length, input + output length). memory_bytes: of the device.
    """

    decode_s: Float
    experts_s: Float
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
    model: Model,
    hardware: Hardware,
    engine: str,
    parallel: Parallel,
    precision: Precision,
    input_len: float,
    output_len: float,
    drafts: int = 0,
) -> Passes:
    """Prices decode at the mean context (input + output/2), a mixed step and a prompt. Raises ShardError and InputError.

    Experts are as unequally popular as under real prompts (forms.moe.SERVED), so a step reads fewer than under uniform routing.

    drafts: tokens that a step verifies beside the one it owes.
    """
    context = input_len + output_len / 2

    def kernels(batch: Batch, attending: Batch | None = None) -> tuple[Float, Float]:
        return _kernels(model, batch, attending or batch, hardware, engine, parallel, precision)

    steps, mixed = Batch.decode(KNOTS, context), _with_prompt(KNOTS, context, input_len)
    prompt = Batch.prefill(1, input_len)
    decode_s, experts_s = kernels(steps)
    mixed_s, drafting_s = kernels(mixed)[0], np.zeros(())
    if drafts:  # a draft is a row of its own, but its attention reads the sequence together with the others'
        drafting_s = drafts * _DRAFT_LAYERS / model.num_layers * decode_s
        decode_s, experts_s = kernels(Batch.decode((1 + drafts) * KNOTS, context), steps)
        mixed_s = kernels(_with_prompt((1 + drafts) * KNOTS, context, input_len), mixed)[0]
    bounds = [_bound(model, batch, hardware, parallel, precision) for batch in (steps, prompt)]
    kv = kv_bytes_stored(model, np.array([input_len, input_len + output_len]), parallel=parallel, precision=precision)
    return Passes(
        decode_s + drafting_s, np.broadcast_to(experts_s, KNOTS.shape), mixed_s + drafting_s, float(kernels(prompt)[0]),
        np.broadcast_to(bounds[0] / (1 + drafts), KNOTS.shape), float(bounds[1]), model.num_layers,
        parallel.tp * parallel.dp, parallel.dp, stage_weights(model, parallel).bytes, (float(kv[0]), float(kv[1])),
        hardware.memory_reported_bytes or hardware.memory_bytes,
    )  # fmt: skip


def _with_prompt(sequences: Float, context: float, input_len: float) -> Batch:
    ones = np.ones_like(sequences)
    groups = ((sequences, ones), (ones, ones * input_len), (ones * context, ones * 0))
    return Batch(*(np.stack(pair, axis=-1) for pair in groups))


def _kernels(
    model: Model, batch: Batch, attending: Batch, hardware: Hardware, engine: str, parallel: Parallel, precision: Precision
) -> tuple[Float, Float]:
    """(all kernels, those of routed experts) of a pass, seconds; attention and recurrent states as for `attending`."""
    total, experts = np.zeros(()), np.zeros(())
    rows = list(_launched(model, batch, parallel, precision))
    ahead = _quantising_s(hardware, engine)
    seen = rows if attending is batch else list(_launched(model, attending, parallel, precision))
    for row, same in zip(rows, seen, strict=True):
        op = same if row.kind.endswith("attention") or row.kind == "state" else row
        seconds = op_times(op, hardware, _FUSED_ALL_REDUCE if op.name == "all_reduce" else engine, SERVED).expected_s
        if op.kind == "gemm" and op.weight_dtype in ahead:
            seconds = np.maximum(seconds - ahead[op.weight_dtype], op_bound_s(op, hardware))
        seconds = op.count * seconds
        total = total + seconds
        if op.kind == "moe":
            experts = experts + seconds
    return np.asarray(total), np.asarray(experts)


def _quantising_s(hardware: Hardware, engine: str) -> dict[str, float]:
    """Seconds that measured products of a format start later than 16-bit ones, where the engine quantises before them."""
    spec, least = device_spec(hardware), {"m": 1.0, "n": 16.0, "k": 16.0}
    formats = [name for name, unit in _QUANTISE_AHEAD.get(engine, {}).items() if unit in hardware.peaks]

    def start(name: str) -> float:
        times, _ = kernel_times("gemm", least, Key(engine, name), spec, hot=False, own=hardware.calibration, corrected=False)
        return float(np.ravel(times.expected_s)[0])

    return {name: max(start(name) - start("bf16"), 0.0) for name in formats}


def _launched(model: Model, batch: Batch, parallel: Parallel, precision: Precision) -> Iterator[Op]:
    for stage in range(parallel.pp):
        yield from as_run(build_ledger(model, batch, parallel=parallel, precision=precision, conventions=_AS_LAUNCHED, stage=stage))


def _bound(model: Model, batch: Batch, hardware: Hardware, parallel: Parallel, precision: Precision) -> Float:
    stages = (build_ledger(model, batch, parallel=parallel, precision=precision, stage=stage) for stage in range(parallel.pp))
    total: Float = np.zeros(())
    for ledger in stages:
        total = total + step_bound(ledger, hardware).step_s
    return total
