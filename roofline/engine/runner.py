"""Runs the batches of a scheduler through a decoder: builds the tensors of a pass; on CUDA replays decode steps from graphs.

A graph is captured per (sequences, new tokens, width of the block table), each rounded up to a bucket, on first use. The eager
twin runs the same padded pass without a graph, on any device, so that padding is tested where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from roofline.engine.attention import Group, Pass
from roofline.engine.kvcache import LayerKv

Forward = Callable[[Pass, list[LayerKv]], Tensor]
MAX_GRAPH_ROWS = 256


class Row(NamedTuple):
    """Part of a sequence in a pass. tokens: the new ones, at positions past …; table: its block ids; outputs: how many of the last
    new tokens want logits."""

    tokens: Sequence[int]
    past: int
    table: Sequence[int]
    outputs: int


def bucket(number: int) -> int:
    """The size that a count is padded to: powers of two up to 8, then steps of 8 (of sequences and of blocks in a table)."""
    return 1 << (number - 1).bit_length() if number <= 8 else -(-number // 8) * 8


def build_pass(rows: Sequence[Row], block_size: int, device: torch.device) -> tuple[Pass, list[int]]:
    """The tensors of a pass, and for each row in the order given the place of its first output among the logits."""
    order = sorted(range(len(rows)), key=lambda index: len(rows[index].tokens))
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    outputs: list[int] = []
    groups: list[Group] = []
    places = [0] * len(rows)
    at = 0
    while at < len(order):
        new = len(rows[order[at]].tokens)
        members = [index for index in order[at:] if len(rows[index].tokens) == new]
        first = len(tokens)
        for index in members:
            row = rows[index]
            where = range(row.past, row.past + new)
            tokens += row.tokens
            positions += where
            slots += [row.table[position // block_size] * block_size + position % block_size for position in where]
            places[index] = len(outputs)
            outputs += range(len(tokens) - row.outputs, len(tokens))
        groups.append(_group([rows[index] for index in members], first, new, block_size, device))
        at += len(members)
    ids, where_at, slot_ids, wanted = (torch.tensor(each, dtype=torch.int64).to(device) for each in (tokens, positions, slots, outputs))
    for group in groups:
        group.positions = where_at[group.span].unflatten(0, (group.rows, group.new))
    return Pass(ids, where_at, slot_ids, wanted, groups), places


def _group(rows: list[Row], first: int, new: int, block_size: int, device: torch.device) -> Group:
    widths = [-(-(row.past + new) // block_size) for row in rows]
    widest = max(widths)
    tables = [[*row.table[:width], *([0] * (widest - width))] for row, width in zip(rows, widths, strict=True)]
    cold = new > 1 and all(row.past == 0 for row in rows)
    return Group(first, new, torch.tensor(tables, dtype=torch.int64).to(device), torch.empty(0), block_size, cold)


def padded(step: Pass, rows: int, width: int) -> Pass:
    """A pass of one warm group, grown to `rows` sequences and `width` blocks per table. What is added reads and writes the null block."""
    group = step.groups[0]
    more = rows - group.rows

    def grow(tensor: Tensor) -> Tensor:
        return torch.nn.functional.pad(tensor, (0, more * group.new))

    tables = torch.nn.functional.pad(group.tables, (0, width - group.tables.shape[1], 0, more))
    positions = grow(step.positions)
    outputs = torch.arange(rows * group.new, device=tables.device)
    bigger = Group(0, group.new, tables, positions.unflatten(0, (rows, group.new)), group.block_size)
    return Pass(grow(step.tokens), positions, grow(step.slots), outputs, [bigger])


class Runner:
    """mode: "eager" (as it is), "padded" (the eager twin of the graphs) or "graphs" (CUDA). forward may be a compiled decoder."""

    def __init__(self, forward: Forward, cache: list[LayerKv], block_size: int, device: torch.device, mode: str = "eager") -> None:
        self.forward, self.cache, self.block_size, self.device, self.mode = forward, cache, block_size, device, mode
        self._graphs: dict[tuple[int, int, int], _Graph] = {}

    @torch.inference_mode()
    def run(self, rows: Sequence[Row]) -> list[Tensor]:
        """Logits of each row, (its outputs, vocabulary). Writes the KV of all new tokens."""
        step, places = build_pass(rows, self.block_size, self.device)
        logits = self._execute(step) if self.mode != "eager" and self._paddable(step) else self.forward(step, self.cache)
        return [logits[place : place + row.outputs] for place, row in zip(places, rows, strict=True)]

    def _paddable(self, step: Pass) -> bool:
        group = step.groups[0]
        return len(step.groups) == 1 and not group.cold and group.rows * group.new <= MAX_GRAPH_ROWS and group.new <= 16

    def _execute(self, step: Pass) -> Tensor:
        group, outputs = step.groups[0], step.outputs
        step = padded(step, bucket(group.rows), bucket(group.tables.shape[1]))
        if self.mode == "padded":
            return self.forward(step, self.cache)[outputs]
        key = (step.groups[0].rows, group.new, step.groups[0].tables.shape[1])
        if key not in self._graphs:
            self._graphs[key] = _Graph(self.forward, self.cache, step, next(iter(self._graphs.values()), None))
        return self._graphs[key].replay(step)[outputs]


class _Graph:
    """A captured pass with the tensors that it reads and writes; all graphs share one memory pool."""

    def __init__(self, forward: Forward, cache: list[LayerKv], step: Pass, other: _Graph | None) -> None:
        self.step = step
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # lazy initialisation must not happen inside a capture
            for _ in range(2):
                forward(_fresh(step), cache)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=other.graph.pool() if other else None):
            self.logits = forward(_fresh(step), cache)

    def replay(self, step: Pass) -> Tensor:
        """Logits of a pass of the same shape; they hold until the next replay."""
        mine, given = self.step, step
        mine.tokens.copy_(given.tokens)
        mine.positions.copy_(given.positions)
        mine.slots.copy_(given.slots)
        mine.groups[0].tables.copy_(given.groups[0].tables)
        self.graph.replay()
        return self.logits


def _fresh(step: Pass) -> Pass:
    """The same pass without masks of an earlier run: they have to be computed inside the capture."""
    group = step.groups[0]
    positions = step.positions.unflatten(0, (group.rows, group.new))
    return Pass(step.tokens, step.positions, step.slots, step.outputs, [Group(0, group.new, group.tables, positions, group.block_size)])
