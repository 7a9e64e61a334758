"""From logits to tokens: greedy, or sampled with a temperature and top-p, reproducible whatever shares the batch."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from roofline.errors import InputError


@dataclass(frozen=True)
class Sampling:
    """How a request's tokens are chosen. temperature 0: greedy. seed: the draw for a position depends on it and the position only,
    so batching, chunking and preemption do not change what is sampled. stop: token ids that end the text; min_tokens: not before so
    many are generated (an earlier one is a token like any other)."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[int, ...] = ()
    min_tokens: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf") or not 0 < self.top_p <= 1:
            raise InputError(f"temperature {self.temperature} and top_p {self.top_p}: 0 ≤ temperature, 0 < top_p ≤ 1")

    def uniform(self, position: int, use: str) -> float:
        """A number in [0, 1) for one use ("sample", "draft", "accept") at one position."""
        return random.Random(f"{self.seed}:{position}:{use}").random()  # noqa: S311 - sampling, not secrets


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """(…, vocabulary) in fp32: softmax at the temperature, cut to the smallest set of tokens that holds top_p. temperature > 0."""
    p = (logits.float() / sampling.temperature).softmax(-1)
    if sampling.top_p < 1:
        ordered, index = p.sort(-1, descending=True)
        ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= sampling.top_p, 0)
        p = torch.zeros_like(p).scatter_(-1, index, ordered)
        p /= p.sum(-1, keepdim=True)
    return p


def pick(p: Tensor, uniform: float) -> int:
    """The token at which the cumulative weight of `p` (vocabulary, need not sum to 1) passes `uniform` of the whole."""
    cumulative = p.double().cumsum(-1)
    at = torch.searchsorted(cumulative, cumulative[-1] * uniform, right=True)
    last = int(torch.nonzero(p)[-1])
    return min(int(at), last)


def sample(logits: Tensor, samplings: list[Sampling], positions: list[int]) -> list[int]:
    """One token per row of `logits` (rows, vocabulary); positions: of the tokens to be chosen."""
    greedy: list[int] = logits.argmax(-1).tolist()
    return [
        best if how.temperature == 0 else pick(probabilities(row, how), how.uniform(position, "sample"))
        for best, row, how, position in zip(greedy, logits, samplings, positions, strict=True)
    ]
