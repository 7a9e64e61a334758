"""Speculative decoding: where drafts come from, and how many of them the target keeps without changing what it would have said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from roofline.engine.runner import Row, Runner
from roofline.engine.sampler import Sampling, pick, probabilities


class Draft(NamedTuple):
    """A proposed token; p: the distribution that it was drawn from, None where it was not drawn (n-gram, greedy)."""

    token: int
    p: Tensor | None = None


@dataclass
class Sequence:
    """One request as the engine holds it. tokens: prompt and what was generated; drafts: to be verified in the next pass."""

    tokens: list[int]
    sampling: Sampling
    drafts: list[Draft] = field(default_factory=list)


class Asked(NamedTuple):
    """A sequence that wants drafts. past: tokens that the target had computed before its last pass (prompt pieces that came from
    the prefix cache among them); table: its blocks; wanted: drafts."""

    sequence: Sequence
    past: int
    table: list[int]
    wanted: int


class Drafter(Protocol):
    """Proposes tokens. lookahead: KV slots beyond the sequence that it writes."""

    lookahead: int
    tokens: int

    def propose(self, asked: list[Asked]) -> list[list[Draft]]:
        """At most `wanted` drafts for each sequence; with 0 a model only reads what is new."""


class NgramDrafter:
    """Continues as the text did after the latest earlier place where its last n tokens stood, n from `longest` down to 1."""

    lookahead = 0

    def __init__(self, tokens: int, longest: int = 3) -> None:
        self.tokens, self.longest = tokens, longest

    def propose(self, asked: list[Asked]) -> list[list[Draft]]:
        """See Drafter."""
        return [[Draft(token) for token in self._continuation(each.sequence.tokens, each.wanted)] for each in asked]

    def _continuation(self, tokens: list[int], count: int) -> list[int]:
        for n in range(min(self.longest, len(tokens) - 1), 0, -1):
            tail = tokens[-n:]
            for start in range(len(tokens) - n - 1, -1, -1):
                if tokens[start : start + n] == tail:
                    return tokens[start + n : start + n + count]
        return []


class ModelDrafter:
    """A smaller model with a KV cache of its own, in the same blocks as the target's. Runs `tokens` passes per step.

    The first pass reads all that the target read in its last pass and the token that came out of it, so the two caches hold the
    same positions whatever was chunked, shared or rejected.
    """

    def __init__(self, runner: Runner, tokens: int) -> None:
        self.runner, self.tokens, self.lookahead = runner, tokens, tokens

    def propose(self, asked: list[Asked]) -> list[list[Draft]]:
        """See Drafter."""
        drafts: list[list[Draft]] = [[] for _ in asked]
        rows = [Row(each.sequence.tokens[each.past :], each.past, each.table, min(each.wanted, 1)) for each in asked]
        active = list(range(len(asked)))
        while rows:
            logits = self.runner.run(rows)
            active = [index for index, scores in zip(active, logits, strict=True) if self._draw(asked[index], drafts[index], scores)]
            rows = [self._next(asked[index], drafts[index]) for index in active]
        return drafts

    def _draw(self, asked: Asked, drafts: list[Draft], logits: Tensor) -> bool:
        """Adds a draft; whether another one is wanted."""
        if not len(logits):
            return False
        how = asked.sequence.sampling
        if how.temperature == 0:
            drafts.append(Draft(int(logits[0].argmax())))
        else:
            p = probabilities(logits[0], how)
            drafts.append(Draft(pick(p, how.uniform(len(asked.sequence.tokens) + len(drafts), "draft")), p))
        return len(drafts) < asked.wanted

    def _next(self, asked: Asked, drafts: list[Draft]) -> Row:
        return Row([drafts[-1].token], len(asked.sequence.tokens) + len(drafts) - 1, asked.table, 1)


def verify(logits: Tensor, drafts: list[Draft], sampling: Sampling, position: int) -> list[int]:
    """The tokens that a verified row emits: accepted drafts, then one of the target's own.

    logits: (drafts + 1, vocabulary) of the target; position: of the first emitted token. Greedy: drafts are kept as long as they
    are the target's choice. Sampled: draft d is kept with probability min(1, p(d)/q(d)), else one token is drawn from max(p − q, 0);
    what is emitted has the target's distribution p whatever q is. Source: arXiv 2211.17192, section 2.3.
    """
    if sampling.temperature == 0:
        choices: list[int] = logits.argmax(-1).tolist()
        accepted = next((at for at, draft in enumerate(drafts) if draft.token != choices[at]), len(drafts))
        return choices[: accepted + 1]
    target = probabilities(logits, sampling)
    emitted: list[int] = []
    for at, (token, q) in enumerate(drafts):
        p, here = target[at], position + at
        chance = float(p[token]) if q is None else float(p[token] / q[token])
        if sampling.uniform(here, "accept") >= chance:
            rest = p.index_fill(0, torch.tensor([token], device=p.device), 0.0) if q is None else (p - q).clamp(min=0)
            return [*emitted, pick(rest if float(rest.sum()) > 0 else p, sampling.uniform(here, "sample"))]
        emitted.append(token)
    return [*emitted, pick(target[len(drafts)], sampling.uniform(position + len(drafts), "sample"))]
