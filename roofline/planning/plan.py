"""The plan of one configuration: memory, phases, batch curve, load, cost and what to change next, as one object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from roofline import units
from roofline.capacity import Gain, MemoryPlan, first_limit, knob_gains, memory_plan
from roofline.phases import BatchCurve, Phase, Setup, batch_curve, latency_limited_batch, phase
from roofline.planning.load import Load, Need, operate, replicas_needed
from roofline.profiles.hardware import Hardware, Price
from roofline.serving.measured import measured_note


@dataclass(frozen=True)
class CurvePoint:
    """One batch size of the decode curve. fits: so many sequences of the load's full length fit in memory and engine limits."""

    batch: int
    bound_s: float
    expected_s: float
    low_s: float
    high_s: float
    tokens_per_s: float
    fits: bool


@dataclass(frozen=True)
class Limit:
    """Something that caps the batch: its name, the batch it allows (None: no cap), and a sentence."""

    name: str
    batch: int | None
    text: str


@dataclass(frozen=True)
class Cost:
    """What the needed GPUs cost at a dated price. per_million_output_tokens at the expected throughput of the load."""

    usd_per_hour: float
    usd_per_million_output_tokens: float
    price: Price


@dataclass(frozen=True)
class Plan:
    """Everything that `roofline plan` says; times are of one replica, memory of one GPU.

    prefill: one request's prompt. decode: one step at `batch` sequences with the mean context. curve: decode over batch.
    largest_batch: sequences of the full length that memory and the engine's limits allow (0: does not fit).
    """

    setup: Setup
    load: Load
    memory: MemoryPlan
    prefill: Phase
    decode: Phase
    batch: int
    curve: tuple[CurvePoint, ...]
    shape: BatchCurve
    largest_batch: int
    limits: tuple[Limit, ...]
    gains: tuple[Gain, ...]
    need: Need | None
    cost: Cost | None
    assumptions: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether the model loads and at least one request of the load's full length fits."""
        return self.largest_batch >= 1

    @property
    def too_long(self) -> str:
        """A sentence when the load's sequences are longer than the engine accepts, else ""."""
        longest, limit = self.load.longest, self.memory.settings.max_model_len
        if longest <= limit:
            return ""
        return f"sequences of {longest:,} tokens are longer than max_model_len {limit:,}: an engine refuses them unless it is raised"

    @property
    def meets_load(self) -> bool:
        """Whether the stated load and service levels can be met by some number of replicas (True when none is stated)."""
        stated = any(x is not None for x in (self.load.concurrency, self.load.request_rate, self.load.users))
        if not stated and self.load.ttft_s is None and self.load.tpot_s is None:
            return True
        return self.fits and self._within_levels

    @property
    def _within_levels(self) -> bool:
        point = operate(self.setup, self.load, 1)
        return (self.load.ttft_s is None or point.ttft_s <= self.load.ttft_s) and (
            self.load.tpot_s is None or point.tpot_s <= self.load.tpot_s
        )


CLOSED_FORM = (
    "the load in closed form: each prompt computed on its own between decode steps, where engines mix them. Near the most that a "
    "replica can take this says up to twice the TPOT and requests in flight that `roofline simulate` does"
)


def make_plan(setup: Setup, load: Load, *, price: Price | None = None, **memory_options: Any) -> Plan:
    """The plan of a setup for a load. memory_options: those of capacity.memory_plan (engine comes from the setup).

    price: dollars per GPU and hour (default: the cheapest dated on-demand price in the profile). Never raises because something
    does not fit: see Plan.fits and Plan.meets_load.
    """
    options: Mapping[str, Any] = {"engine": setup.engine} | memory_options
    memory = memory_plan(setup.model, setup.hardware, setup.parallel, setup.precision, **options)
    cap = memory.settings.max_num_seqs * setup.parallel.dp
    in_memory = memory.max_sequences(load.longest) if memory.fits else 0
    largest = min(in_memory, cap)
    batch = min(load.concurrency or 1, largest) if largest else (load.concurrency or 1)
    shape = batch_curve(setup, load.mean_context, _batches(largest))
    prefill = phase(setup, "prefill", batch=1, new_tokens=load.input_len, past=0)
    decode = phase(setup, "decode", batch=batch, new_tokens=1, past=load.mean_context)
    need = replicas_needed(setup, load, kv_limit=in_memory, slot_limit=cap)
    assumed = (*memory.assumptions, *decode.assumptions, *prefill.assumptions, *setup.model.assumptions, *((CLOSED_FORM,) if need else ()))
    notes = filter(None, (*assumed, measured_note(setup)))
    return Plan(
        setup=setup,
        load=load,
        memory=memory,
        prefill=prefill,
        decode=decode,
        batch=batch,
        curve=tuple(_points(shape, largest)),
        shape=shape,
        largest_batch=largest,
        limits=tuple(_limits(setup, load, memory, in_memory, shape)),
        gains=tuple(knob_gains(setup.model, setup.hardware, setup.parallel, setup.precision, length=load.longest, **options)),
        need=need,
        cost=_cost(setup, need, load, price),
        assumptions=tuple(dict.fromkeys(notes)),
    )


def _batches(largest: int) -> list[int]:
    """Powers of two up to what fits and the limit itself; without a fit, powers of two to 64 for orientation."""
    top = largest or 64
    sizes = [1 << i for i in range(top.bit_length()) if 1 << i <= top]
    return sizes if top in sizes else [*sizes, top]


def _points(shape: BatchCurve, largest: int) -> list[CurvePoint]:
    columns = (shape.tpot.bound_s, shape.tpot.expected_s, shape.tpot.low_s, shape.tpot.high_s, shape.tokens_per_s)
    rows = np.column_stack([np.broadcast_to(np.asarray(column, dtype=np.float64), shape.batch.shape) for column in columns])
    return [
        CurvePoint(int(size), float(bound), float(expected), float(low), float(high), float(rate), fits=bool(size <= largest))
        for size, (bound, expected, low, high, rate) in zip(shape.batch, rows, strict=True)
    ]


def _limits(setup: Setup, load: Load, memory: MemoryPlan, in_memory: int, shape: BatchCurve) -> list[Limit]:
    """What caps the batch, tightest first."""
    name, text = first_limit(memory, load.longest)
    cap = memory.settings.max_num_seqs * setup.parallel.dp
    found = [Limit("kv", in_memory, text if name != "max_num_seqs" else f"KV memory: {in_memory:,} sequences of {load.longest:,} tokens")]
    found.append(Limit("max_num_seqs", cap, f"the engine runs at most {cap:,} sequences"))
    if load.tpot_s is not None:
        batch = latency_limited_batch(setup, load.mean_context, load.tpot_s)
        goal = f"under {units.plain(load.tpot_s * 1e3)} ms"
        met = f"a decode step alone stays {goal} up to batch {batch:,}" if batch else f"a decode step is not {goal} even at batch 1"
        found.append(Limit("tpot", batch, met))
    if shape.eighty is not None:
        found.append(Limit("plateau", shape.eighty, f"80 % of the throughput that any batch can reach comes at batch {shape.eighty:,}"))
    return sorted(found, key=lambda limit: limit.batch if limit.batch is not None else 1 << 60)


def price_of(hardware: Hardware, given: Price | None = None) -> Price | None:
    """The price that costs are counted with: the one given, else the profile's cheapest dated on-demand price, None without one."""
    on_demand = [p for p in hardware.prices if "demand" in p.terms and p.as_of[:4].isdigit()]
    return given or min(on_demand, key=lambda p: p.usd_per_gpu_hour, default=None)


def _cost(setup: Setup, need: Need | None, load: Load, price: Price | None) -> Cost | None:
    """Dollars per hour and per million output tokens; None without a price or a load."""
    chosen = price_of(setup.hardware, price)
    if chosen is None or need is None:
        return None
    hourly = need.gpus * chosen.usd_per_gpu_hour
    return Cost(hourly, hourly / (need.request_rate * load.output_len * 3600) * 1e6, chosen)
