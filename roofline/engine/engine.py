"""The engine: requests in, tokens out. It runs a scheduler of roofline.scheduling unchanged and computes what this decides on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from roofline.engine.runner import Row, Runner
from roofline.engine.sampler import Sampling, sample
from roofline.engine.speculation import Asked, Drafter, Sequence, verify
from roofline.errors import InputError
from roofline.scheduling import Chunk, Request, ScheduledBatch, Scheduler, TokenContent


@dataclass
class Step:
    """What one step did. rows: of the batch, in order of execution; emitted: tokens by request id; finished: who ended."""

    batch: ScheduledBatch
    rows: list[Chunk]
    emitted: dict[str, list[int]] = field(default_factory=dict)
    finished: list[Request] = field(default_factory=list)


class Engine:
    """add_request, abort and step; nothing else changes its state.

    scheduler: any policy whose requests have block tables, on a pool with as many blocks as the runner's cache.
    debug: check the integrity of all blocks after each step.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, vocab: int, drafter: Drafter | None = None, *, debug: bool = False) -> None:
        self.scheduler, self.runner, self.vocab, self.drafter, self.debug = scheduler, runner, vocab, drafter, debug
        self.sequences: dict[str, Sequence] = {}
        self._requests: dict[str, Request] = {}

    @property
    def busy(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._requests)

    def not_a_token(self, tokens: Iterable[int]) -> str | None:
        """The first of `tokens` that the vocabulary does not have, in words; None if it has them all."""
        wrong = next((token for token in tokens if not 0 <= token < self.vocab), None)
        return None if wrong is None else f"token {wrong} is not in the vocabulary of {self.vocab}"

    def why_never(self, prompt: list[int], max_tokens: int) -> str | None:
        """Why this prompt could never run here, or None. Reads only what never changes: any thread may ask."""
        return self.not_a_token(prompt) or self.scheduler.why_never(Request("", len(prompt), max_tokens))

    def add_request(
        self, request_id: str, prompt: list[int], max_tokens: int, sampling: Sampling | None = None, *, index: int = 0, priority: int = 0
    ) -> Request:
        """Queues a prompt. Raises InputError, and changes nothing, for one that can never run here."""
        if request_id in self._requests:
            raise InputError(f"request {request_id}: is here already")
        if wrong := self.not_a_token(prompt):
            raise InputError(f"request {request_id}: {wrong}")
        content = TokenContent(prompt)
        request = Request(request_id, len(prompt), max_tokens, index=index, priority=priority, content=content)
        self.scheduler.add(request)
        self._requests[request_id] = request
        self.sequences[request_id] = Sequence(content.tokens, sampling or Sampling())
        return request

    def abort(self, request_id: str) -> None:
        """Ends a request between two steps; what it had generated is dropped. Raises InputError for one that is not here."""
        request = self._requests.pop(request_id, None)
        if request is None:
            raise InputError(f"request {request_id}: no such request, or it has ended")
        del self.sequences[request_id]
        self.scheduler.update(ScheduledBatch(), stopped=(request,))

    def step(self) -> Step | None:
        """Schedules, computes and takes in one batch; None when there is nothing to do. Who finishes is forgotten."""
        batch = self.scheduler.schedule()
        if not batch:
            return None
        for request in batch.preempted:
            self.sequences[request.request_id].drafts = []
        step = Step(batch, batch.rows())
        inputs = [self._row(row) for row in step.rows]
        logits = self.runner.run(inputs + [Row([0], 0, [0], 0)] * batch.num_padding)
        emitted, stopped = self._emit(step, logits)
        step.finished = self.scheduler.update(batch, emitted[len(batch.decodes) :], stopped)
        self._draft(step.rows)
        for request in step.finished:
            del self._requests[request.request_id], self.sequences[request.request_id]
        if self.debug:
            self.scheduler.check_integrity()
        return step

    def _row(self, row: Chunk) -> Row:
        sequence = self.sequences[row.request.request_id]
        known = sequence.tokens[row.past : row.past + row.new]
        drafts = [draft.token for draft in sequence.drafts[: row.drafts]]
        return Row(known + drafts, row.past, row.request.block_ids, row.drafts + 1 if row.samples else 0)

    def _emit(self, step: Step, logits: list[Tensor]) -> tuple[list[int], tuple[Request, ...]]:
        """Appends the new tokens of each row; how many each emitted, and whose last one ends its text."""
        plain = [at for at, row in enumerate(step.rows) if row.samples and not row.drafts]
        chosen: dict[int, list[int]] = {}
        if plain:
            sequences = [self.sequences[step.rows[at].request.request_id] for at in plain]
            samplings, positions = [each.sampling for each in sequences], [len(each.tokens) for each in sequences]
            tokens = sample(torch.cat([logits[at] for at in plain]), samplings, positions)
            chosen = {at: [token] for at, token in zip(plain, tokens, strict=True)}
        stopped: list[Request] = []
        counts: list[int] = []
        for at, row in enumerate(step.rows):
            counts.append(0)
            if not row.samples:
                continue
            sequence = self.sequences[row.request.request_id]
            if row.drafts:
                chosen[at] = verify(logits[at], sequence.drafts[: row.drafts], sequence.sampling, len(sequence.tokens))
            tokens, ended = self._cut(chosen[at], row.request, sequence)
            sequence.tokens += tokens
            sequence.drafts = []
            counts[-1] = len(tokens)
            step.emitted[row.request.request_id] = tokens
            if ended:
                stopped.append(row.request)
        return counts, tuple(stopped)

    def _cut(self, tokens: list[int], request: Request, sequence: Sequence) -> tuple[list[int], bool]:
        """What is left of the emitted tokens within the request's length, up to the first that ends its text."""
        how, generated = sequence.sampling, len(sequence.tokens) - request.num_prompt_tokens
        tokens = tokens[: request.end_tokens - len(sequence.tokens)]
        end = next((at for at, token in enumerate(tokens) if token in how.stop and generated + at + 1 >= how.min_tokens), None)
        return (tokens, False) if end is None else (tokens[: end + 1], True)

    def _draft(self, rows: list[Chunk]) -> None:
        """Asks the drafter for the next pass; prompts that are not whole yet are only read by it."""
        if self.drafter is None:
            return
        asked, requests = [], []
        for row in rows:
            request = row.request
            if request.num_blocks:  # finished ones have let go of theirs
                known = self.sequences[request.request_id]
                if not row.samples:
                    known = Sequence(known.tokens[: row.past + row.new], known.sampling)
                count = request.num_spec_tokens if row.samples else 0
                asked.append(Asked(known, row.past, request.block_ids, count))
                requests.append(request)
        for request, each, drafts in zip(requests, asked, self.drafter.propose(asked) if asked else [], strict=True):
            each.sequence.drafts = drafts
            request.num_spec_tokens = len(drafts)
