"""Step times for simulation: everything that a step's time depends on is tabulated once, and a step is a few look-ups."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from roofline.batch import Batch
from roofline.ledger import AS_SHIPPED, SINGLE, Conventions, Ledger, Op, Parallel, Precision, build_ledger
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model
from roofline.timing.calibrated import as_run, pass_times
from roofline.timing.engines import engine_step

Float = NDArray[np.float64]
_AS_LAUNCHED = Conventions(elementwise=True)


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

    def step_time(self, decodes: int, context: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Seconds of one step: `decodes` sequences with one new token each and `context` cached tokens in all, and prompt
        chunks given as (new tokens, tokens cached before)."""
        tokens = decodes
        if not chunks and self._graph_sizes and decodes <= self._graph_sizes[-1]:
            tokens = self._graph_sizes[bisect_right(self._graph_sizes, decodes - 1)]
        attention = self._decode.at(decodes, context / decodes) if decodes else 0.0
        for new, past in chunks:
            tokens += new
            attention += self._prefill.at(new, past)
        sequences = decodes + len(chunks)
        kernels = self._rows.at(tokens) + self._head.at(sequences) + attention
        scale = self._engine.prefill_scale if chunks else self._engine.decode_scale
        return self._fixed + scale * kernels + self._engine.per_sequence_s * sequences


class _Tables:
    """Kernel times of the parts of a pass over grids of shapes, all pipeline stages summed."""

    def __init__(self, model: Model, hardware: Hardware, parallel: Parallel, precision: Precision, engine: str, band: str) -> None:
        self.model, self.hardware, self.parallel, self.precision, self.engine = model, hardware, parallel, precision, engine
        self.field = f"{band}_s"

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
            total = total + np.asarray(getattr(pass_times(part, self.hardware, self.engine), self.field))
        return total


def _is_head(op: Op) -> bool:
    return not op.layer and (op.name == "lm_head" or op.name == "all_gather")


def _knots(largest: int, per_octave: int) -> Float:
    """1, 2, 4 … to at least `largest`, with per_octave knots in each doubling (whole numbers, each once)."""
    octaves = int(np.ceil(np.log2(max(largest, 2))))
    return np.unique(np.round(2.0 ** np.linspace(0, octaves, octaves * per_octave + 1)))


class _Line:
    """Linear interpolation between knots; beyond the last it goes on as between the last two."""

    def __init__(self, knots: Float, values: Callable[[Float], Float]) -> None:
        self.x: list[float] = knots.tolist()
        self.y: list[float] = np.broadcast_to(values(knots), knots.shape).tolist()

    def at(self, x: float) -> float:
        if x <= 0:
            return 0.0
        i = min(max(bisect_right(self.x, x) - 1, 0), len(self.x) - 2)
        share = (x - self.x[i]) / (self.x[i + 1] - self.x[i])
        return self.y[i] + share * (self.y[i + 1] - self.y[i])


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
