"""Step times for simulation: everything that a step's time depends on is tabulated once, and a step is a few look-ups."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from roofline.batch import Batch
from roofline.errors import InputError
from roofline.ledger import AS_SHIPPED, SINGLE, Conventions, Ledger, Op, Parallel, Precision, build_ledger
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model
from roofline.timing.calibrated import pass_times
from roofline.timing.engines import LAUNCH_SPREAD, engine_step
from roofline.timing.graphs import captured_sizes, engine_ops, least_eager_s, padded

Float = NDArray[np.float64]
_AS_LAUNCHED = Conventions(elementwise=True)
_FOREVER = 1 << 60
_FEW = 16  # new tokens up to which attention on a longer past reads its KV once, as a decode does: drafts to verify


class StepTimer:
    """Seconds of a step of `model` on `hardware` under an engine, for a simulator or the closed forms.

    Rows of linear layers, contexts of decodes and chunks of prompts are looked up in tables of the calibrated kernel times and
    interpolated between their knots. band: which of the three numbers to give ("expected", "low" or "high").
    max_tokens: the most tokens in a step; max_context: the longest sequence. graph_sizes: token counts of captured graphs (None:
    what the engine captures by default; empty: any). A step runs as the next larger one; above the largest, and with prompts
    where the engine captures none, it takes at least as long as the host needs to launch its kernels. Weights and KV are cold.
    Not in it: queueing, tokenisation, the network, top-k and top-p filters.
    """

    def __init__(
        self,
        model: Model,
        hardware: Hardware,
        *,
        parallel: Parallel = SINGLE,
        precision: Precision = AS_SHIPPED,
        engine: str = "vllm",
        band: str = "expected",
        max_tokens: int = 16384,
        max_context: int = 131072,
        graph_sizes: Sequence[int] | None = None,
    ) -> None:
        self._engine = engine_step(engine)
        sizes = captured_sizes(engine, hardware, parallel.tp) if graph_sizes is None else sorted(graph_sizes)
        self._captured = sizes[-1] if sizes else _FOREVER
        self._captured_prompt = self._captured if self._engine.prompts_captured or not sizes else 0
        ranks = float(np.log2(parallel.tp * parallel.dp))
        self._fixed = self._engine.fixed_s + self._engine.per_layer_rank_s * model.num_layers * ranks
        tables = _Tables(model, hardware, parallel, precision, engine, band)
        self._eager = tables.least_eager_s()
        self._rows = _Line(_knots(max_tokens, 4), tables.linear, sizes)
        self._head = _Line(_knots(max_tokens, 2), tables.head)
        self._decode = _Plane(_knots(max_tokens, 2), _knots(max_context, 2), tables.decode_attention)
        self._prefill = _Plane(_knots(max_tokens, 2), np.append(0.0, _knots(max_context, 1)), tables.prefill_attention)
        self._whole = self._prefill.first_column()
        self._attention: dict[int, _Lines] = {}
        self._steps: dict[int, _Lines] = {}

    def step_time(self, decodes: int, context: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Seconds of one step: `decodes` sequences with one new token each and `context` cached tokens in all, and prompt
        chunks given as (new tokens, tokens cached before). A few tokens on a longer past are priced as one decode row."""
        if not chunks:
            return (self._steps.get(decodes) or self._decode_steps(decodes)).at(context)
        tokens, attention, few, past_of_few = decodes, 0.0, 0, 0
        for new, past in chunks:
            tokens += new
            if past == 0 and new < len(self._whole):
                attention += self._whole[new]
            elif new <= _FEW and past > new:
                few, past_of_few = few + 1, past_of_few + past
            else:
                attention += self._prefill.at(new, past)
        if decodes:
            attention += (self._attention.get(decodes) or self._decode_attention(decodes)).at(context)
        if few:
            attention += (self._attention.get(few) or self._decode_attention(few)).at(past_of_few)
        sequences = decodes + len(chunks)
        device = self._engine.prefill_scale * (self._rows.at(tokens) + self._head.at(sequences) + attention)
        if tokens > self._captured_prompt and device < self._eager:
            device = self._eager
        return self._fixed + device + self._engine.per_sequence_s * sequences

    def decode_line(self, decodes: int, context: int) -> tuple[float, float, int]:
        """(base s, slope s per token, last): a step of decodes alone takes base + slope · context from `context` to `last`
        cached tokens in all; the line goes on beyond the largest tabulated context."""
        return (self._steps.get(decodes) or self._decode_steps(decodes)).piece(context)

    def host_time(self, rows: int) -> float:
        """CPU seconds of scheduling `rows` sequences and taking in their outputs; an asynchronous engine hides it behind the device."""
        return self._engine.host_s + self._engine.host_per_sequence_s * rows

    def _decode_attention(self, decodes: int) -> _Lines:
        """Attention kernels of a batch size over the cached tokens of all its sequences, made once."""
        at, knots = self._decode.row_at(decodes), self._decode.y
        slopes = [(high - low) / (b - a) / decodes for low, high, a, b in zip(at, at[1:], knots, knots[1:], strict=False)]
        bases = [low - slope * decodes * a for low, slope, a in zip(at, slopes, knots, strict=False)]
        self._attention[decodes] = lines = _Lines([0, *(int(np.ceil(knot * decodes)) for knot in knots[1:-1])], bases, slopes)
        return lines

    def _decode_steps(self, decodes: int) -> _Lines:
        """Decode steps of a batch size over the cached tokens of all its sequences, made once."""
        scale, attention = self._engine.decode_scale, self._decode_attention(decodes)
        rest = scale * (self._rows.at(decodes) + self._head.at(decodes))
        device = _Lines(attention.starts, [rest + scale * base for base in attention.base], [scale * s for s in attention.slope])
        if decodes > self._captured:
            device = device.at_least(self._eager)
        host = self._fixed + self._engine.per_sequence_s * decodes
        self._steps[decodes] = lines = _Lines(device.starts, [host + base for base in device.base], device.slope)
        return lines


class _Lines:
    """Lines over whole numbers: piece i, base[i] + slope[i] · x, holds from starts[i] to last[i]; the last one goes on."""

    def __init__(self, starts: list[int], base: list[float], slope: list[float]) -> None:
        self.starts, self.base, self.slope = starts, base, slope
        self.last = [*(start - 1 for start in starts[1:]), _FOREVER]

    def at(self, x: int) -> float:
        """The value at x."""
        i = bisect_right(self.starts, x) - 1
        return self.base[i] + self.slope[i] * x

    def piece(self, x: int) -> tuple[float, float, int]:
        """(base, slope, last) of the piece that x lies in."""
        i = bisect_right(self.starts, x) - 1
        return self.base[i], self.slope[i], self.last[i]

    def at_least(self, least: float) -> _Lines:
        """max(these, least): a rising piece that crosses it is parted where it does."""
        parts: list[tuple[int, float, float]] = []
        for start, last, base, slope in zip(self.starts, self.last, self.base, self.slope, strict=True):
            above = start if base + slope * start >= least else int(np.ceil((least - base) / slope)) if slope > 0 else last + 1
            if above > start:
                parts.append((start, least, 0.0))
            if above <= last:
                parts.append((above, base, slope))
        return _Lines([p[0] for p in parts], [p[1] for p in parts], [p[2] for p in parts])


class _Tables:
    """Kernel times of the parts of a pass over grids of shapes, all pipeline stages summed."""

    def __init__(self, model: Model, hardware: Hardware, parallel: Parallel, precision: Precision, engine: str, band: str) -> None:
        if band not in ("expected", "low", "high"):
            raise InputError(f"band {band!r}: expected, low or high")
        self.model, self.hardware, self.parallel, self.precision, self.engine, self.band = (
            model,
            hardware,
            parallel,
            precision,
            engine,
            band,
        )

    def linear(self, tokens: Float) -> Float:
        """All that depends on the number of rows alone: GEMMs, experts, element-wise work, all-reduces."""
        return self._times(Batch.decode(tokens, 0), lambda op: not op.kind.endswith("attention") and not _is_head(op))

    def head(self, sequences: Float) -> Float:
        """The language-model head, the gathering of its logits, and sampling."""
        return self._times(Batch.decode(sequences, 0), _is_head)

    def decode_attention(self, sequences: Float, context: Float) -> Float:
        """Attention of one-token sequences over a grid of batch and context."""
        return self._times(Batch.decode(sequences, context), lambda op: op.kind.endswith("attention"))

    def prefill_attention(self, new: Float, past: Float) -> Float:
        """Attention of one chunk over a grid of new and cached tokens."""
        return self._times(Batch.prefill(1, np.maximum(new, 2.0), past), lambda op: op.kind.endswith("attention"))

    def least_eager_s(self) -> float:
        """What launching the kernels of a step one by one takes the host, at the asked end of its interval."""
        least = sum(least_eager_s(ledger, engine_step(self.engine)) for ledger in self._ledgers(Batch.decode(1, 1)))
        return least * {"low": 1 - LAUNCH_SPREAD[0], "expected": 1.0, "high": 1 + LAUNCH_SPREAD[1]}[self.band]

    def _ledgers(self, batch: Batch) -> Iterator[Ledger]:
        for stage in range(self.parallel.pp):
            ledger = build_ledger(
                self.model, batch, parallel=self.parallel, precision=self.precision, conventions=_AS_LAUNCHED, stage=stage
            )
            yield engine_ops(ledger, self.model, self.engine)

    def _times(self, batch: Batch, wanted: Callable[[Op], bool]) -> Float:
        total: Float = np.zeros(())
        for ledger in self._ledgers(batch):
            part = Ledger(tuple(op for op in ledger if wanted(op)))
            times = pass_times(part, self.hardware, self.engine)
            total = total + self._banded(np.asarray(times.expected_s), np.asarray(getattr(times, f"{self.band}_s")))
        return total

    def _banded(self, expected: Float, end: Float) -> Float:
        """The asked end of the interval: the kernels' own width and the engine's spread in quadrature."""
        if self.band == "expected":
            return expected
        below, above = engine_step(self.engine).spread
        width = np.divide(np.abs(end - expected), expected, out=np.zeros(np.shape(expected)), where=expected > 0)
        factor = 1 - np.hypot(width, below) if self.band == "low" else 1 + np.hypot(width, above)
        return np.asarray(expected * factor)


def _is_head(op: Op) -> bool:
    return not op.layer and op.name in ("lm_head", "all_gather", "sampling")


def _knots(largest: int, per_octave: int) -> Float:
    """1, 2, 4 … to at least `largest`, with per_octave knots in each doubling (whole numbers, each once)."""
    octaves = int(np.ceil(np.log2(max(largest, 2))))
    return np.unique(np.round(2.0 ** np.linspace(0, octaves, octaves * per_octave + 1)))


class _Line:
    """Linear interpolation between knots; beyond the last it goes on as between the last two. Whole numbers are looked up.

    sizes: numbers that stand in for all below them, down to the next (captured graphs).
    """

    def __init__(self, knots: Float, values: Callable[[Float], Float], sizes: Sequence[int] = ()) -> None:
        y = np.broadcast_to(values(knots), knots.shape)
        last = int(knots[-1])
        self._slope = float(y[-1] - y[-2]) / float(knots[-1] - knots[-2])
        table: list[float] = [0.0, *np.interp(np.arange(1, last + 1), knots, y).tolist()]
        upto = min(sizes[-1] if sizes else 0, last)
        self._table = [0.0, *(table[min(padded(x, sizes), last)] for x in range(1, upto + 1)), *table[upto + 1 :]]

    def at(self, x: int) -> float:
        """The value at x; 0 at 0."""
        table = self._table
        return table[x] if x < len(table) else table[-1] + self._slope * (x - len(table) + 1)


class _Plane:
    """Bilinear interpolation between knots, going on beyond the last ones."""

    def __init__(self, x: Float, y: Float, values: Callable[[Float, Float], Float]) -> None:
        self.x: list[float] = x.tolist()
        self.y: list[float] = y.tolist()
        grid = np.broadcast_to(values(x[:, None], y[None, :]), (x.size, y.size))
        self.z: list[list[float]] = grid.tolist()

    def at(self, x: float, y: float) -> float:
        i = min(max(bisect_right(self.x, x) - 1, 0), len(self.x) - 2)
        j = min(max(bisect_right(self.y, y) - 1, 0), len(self.y) - 2)
        u = (x - self.x[i]) / (self.x[i + 1] - self.x[i])
        v = max((y - self.y[j]) / (self.y[j + 1] - self.y[j]), 0.0)
        low, high = self.z[i], self.z[i + 1]
        near = low[j] + v * (low[j + 1] - low[j])
        return near + u * (high[j] + v * (high[j + 1] - high[j]) - near)

    def first_column(self) -> list[float]:
        """The values at the whole numbers 0, 1, … up to the last x knot, at the first y knot (x = 0: nothing)."""
        column = [row[0] for row in self.z]
        return [0.0, *np.interp(np.arange(1, int(self.x[-1]) + 1), self.x, column).tolist()]

    def row_at(self, x: float) -> list[float]:
        """The values over the y knots at one x."""
        i = min(max(bisect_right(self.x, x) - 1, 0), len(self.x) - 2)
        u = (x - self.x[i]) / (self.x[i + 1] - self.x[i])
        return [low + u * (high - low) for low, high in zip(self.z[i], self.z[i + 1], strict=True)]
