"""Step times for simulation: everything that a step's time depends on is tabulated once, and a step is a few look-ups."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from roofline.batch import Batch
from roofline.errors import InputError
from roofline.ledger import AS_SHIPPED, SINGLE, Conventions, Ledger, Op, Parallel, Precision, build_ledger
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model
from roofline.timing.calibrated import as_run, pass_times
from roofline.timing.engines import engine_step

Float = NDArray[np.float64]
_AS_LAUNCHED = Conventions(elementwise=True)
_FOREVER = 1 << 60
_FEW = 16  # new tokens up to which attention on a longer past reads its KV once, as a decode does: drafts to verify


class StepTimer:
    """Seconds of a step of `model` on `hardware` under an engine, for a simulator or the closed forms.

    Rows of linear layers, contexts of decodes and chunks of prompts are looked up in tables of the calibrated kernel times and
    interpolated between their knots. band: which of the three numbers to give ("expected", "low" or "high").
    max_tokens: the most tokens in a step; max_context: the longest sequence. graph_sizes: token counts of captured graphs: a step of
    decodes alone runs as the next larger one. Weights and KV are cold. Not in it: queueing, tokenisation, the network.
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
        graph_sizes: Sequence[int] = (),
    ) -> None:
        self._engine = engine_step(engine)
        self._graph_sizes = sorted(graph_sizes)
        ranks = float(np.log2(parallel.tp * parallel.dp))
        self._fixed = self._engine.fixed_s + self._engine.per_layer_rank_s * model.num_layers * ranks
        tables = _Tables(model, hardware, parallel, precision, engine, band)
        self._rows = _Line(_knots(max_tokens, 4), tables.linear)
        self._head = _Line(_knots(max_tokens, 2), tables.head)
        self._decode = _Plane(_knots(max_tokens, 2), _knots(max_context, 2), tables.decode_attention)
        self._prefill = _Plane(_knots(max_tokens, 2), np.append(0.0, _knots(max_context, 1)), tables.prefill_attention)
        self._whole = self._prefill.first_column()
        self._lines: dict[int, _Pieces] = {}

    def step_time(self, decodes: int, context: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Seconds of one step: `decodes` sequences with one new token each and `context` cached tokens in all, and prompt
        chunks given as (new tokens, tokens cached before). A few tokens on a longer past are priced as one decode row."""
        if not chunks:
            base, slope, _ = self.decode_line(decodes, context)
            return base + slope * context
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
            attention += (self._lines.get(decodes) or self._pieces(decodes)).attention_at(context)
        if few:
            attention += (self._lines.get(few) or self._pieces(few)).attention_at(past_of_few)
        sequences = decodes + len(chunks)
        kernels = self._rows.at(tokens) + self._head.at(sequences) + attention
        return self._fixed + self._engine.prefill_scale * kernels + self._engine.per_sequence_s * sequences

    def decode_line(self, decodes: int, context: int) -> tuple[float, float, int]:
        """(base s, slope s per token, last): a step of decodes alone takes base + slope · context from `context` to `last`
        cached tokens in all; the line goes on beyond the largest tabulated context."""
        pieces = self._lines.get(decodes) or self._pieces(decodes)
        at = bisect_right(pieces.starts, context) - 1
        return pieces.base[at], pieces.slope[at], pieces.last[at]

    def host_time(self, rows: int) -> float:
        """CPU seconds of scheduling `rows` sequences and taking in their outputs; an asynchronous engine hides it behind the device."""
        return self._engine.host_s + self._engine.host_per_sequence_s * rows

    def _pieces(self, decodes: int) -> _Pieces:
        """The lines of a batch size, made once."""
        scale, tokens = self._engine.decode_scale, decodes
        if self._graph_sizes and decodes <= self._graph_sizes[-1]:
            tokens = self._graph_sizes[bisect_right(self._graph_sizes, decodes - 1)]
        rest = self._fixed + scale * (self._rows.at(tokens) + self._head.at(decodes)) + self._engine.per_sequence_s * decodes
        self._lines[decodes] = pieces = _Pieces(self._decode, decodes, rest, scale)
        return pieces


class _Pieces:
    """Decode steps of one batch size as lines over the cached tokens of all sequences: piece i holds from starts[i] to last[i]."""

    def __init__(self, plane: _Plane, decodes: int, rest: float, scale: float) -> None:
        at = plane.row_at(decodes)
        knots = plane.y
        self._slope = [(high - low) / (b - a) / decodes for low, high, a, b in zip(at, at[1:], knots, knots[1:], strict=False)]
        self._base = [low - slope * decodes * a for low, slope, a in zip(at, self._slope, knots, strict=False)]
        self.starts = [0, *(int(np.ceil(knot * decodes)) for knot in knots[1:-1])]
        self.last = [*(start - 1 for start in self.starts[1:]), _FOREVER]
        self.slope = [scale * slope for slope in self._slope]
        self.base = [rest + scale * base for base in self._base]

    def attention_at(self, context: int) -> float:
        """Seconds of the attention kernels alone."""
        at = bisect_right(self.starts, context) - 1
        return self._base[at] + self._slope[at] * context


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
        """The language-model head and the gathering of its logits."""
        return self._times(Batch.decode(sequences, 0), _is_head)

    def decode_attention(self, sequences: Float, context: Float) -> Float:
        """Attention of one-token sequences over a grid of batch and context."""
        return self._times(Batch.decode(sequences, context), lambda op: op.kind.endswith("attention"))

    def prefill_attention(self, new: Float, past: Float) -> Float:
        """Attention of one chunk over a grid of new and cached tokens."""
        return self._times(Batch.prefill(1, np.maximum(new, 2.0), past), lambda op: op.kind.endswith("attention"))

    def _times(self, batch: Batch, wanted: Callable[[Op], bool]) -> Float:
        total: Float = np.zeros(())
        for stage in range(self.parallel.pp):
            ledger = build_ledger(
                self.model, batch, parallel=self.parallel, precision=self.precision, conventions=_AS_LAUNCHED, stage=stage
            )
            part = Ledger(tuple(op for op in as_run(ledger) if wanted(op)))
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
    return not op.layer and (op.name == "lm_head" or op.name == "all_gather")


def _knots(largest: int, per_octave: int) -> Float:
    """1, 2, 4 … to at least `largest`, with per_octave knots in each doubling (whole numbers, each once)."""
    octaves = int(np.ceil(np.log2(max(largest, 2))))
    return np.unique(np.round(2.0 ** np.linspace(0, octaves, octaves * per_octave + 1)))


class _Line:
    """Linear interpolation between knots; beyond the last it goes on as between the last two. Whole numbers are looked up."""

    def __init__(self, knots: Float, values: Callable[[Float], Float]) -> None:
        y = np.broadcast_to(values(knots), knots.shape)
        last = int(knots[-1])
        self._slope = float(y[-1] - y[-2]) / float(knots[-1] - knots[-2])
        self._table: list[float] = [0.0, *np.interp(np.arange(1, last + 1), knots, y).tolist()]

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
