"""An engine in miniature runs the scheduler: memory cells by slot, and every past token is read back through the block table.

The "model" is a function of all tokens so far, so a token that comes from a wrong cell, a stale block or a missed rejection shows.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.scheduling import BlockPool, Request, TokenContent, VllmConfig, VllmScheduler

SIZE = 4


def following(tokens):
    """The next token after these."""
    return (sum((at + 1) * token for at, token in enumerate(tokens)) * 7 + len(tokens)) % 11


def alone(prompt, count):
    """What a request generates by itself."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(following(tokens))
    return tokens


class ToyEngine:
    """Computes batches of one scheduler, one at a time."""

    def __init__(self, scheduler, seed):
        self.scheduler, self.cells, self.random = scheduler, {}, random.Random(seed)
        self.drafts = {}

    def step(self):
        batch = self.scheduler.schedule()
        slots = iter(batch.slot_mapping(SIZE))
        tables = batch.block_tables()
        results = []
        for row, table in zip(batch.rows(), tables, strict=True):
            tokens = row.request.content.tokens
            sequence = tokens + self.drafts.pop(row.request.request_id, [])[: row.drafts]
            for position in range(row.past, row.past + row.new):
                self.cells[next(slots)] = sequence[position]
            read = [self.cells[table[p // SIZE] * SIZE + p % SIZE] for p in range(row.past + row.new)]
            assert read == sequence[: row.past + row.new], row.request
            results.append(self._sample(row, read))
        emitted = results[len(batch.decodes) :]
        finished = self.scheduler.update(batch, [len(tokens) for tokens in emitted])
        self.scheduler.check_integrity()
        return finished

    def _sample(self, row, read):
        if not row.samples:
            return []
        tokens = row.request.content.tokens
        emitted = []
        for draft in [*read[len(read) - row.drafts :], None] if row.drafts else [None]:
            emitted.append(following(tokens + emitted))
            if draft != emitted[-1]:
                break
        emitted = emitted[: row.request.end_tokens - len(tokens)]
        tokens.extend(emitted)
        wish = alone(tokens, 5)[len(tokens) :]
        self.drafts[row.request.request_id] = [token if self.random.random() < 0.7 else token + 1 for token in wish]
        return emitted


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(1, 12), st.integers(1, 15)), min_size=1, max_size=12),
    st.integers(14, 40),
    st.booleans(),
    st.sampled_from([0, 3]),
    st.sampled_from(["fcfs", "priority"]),
    st.integers(0, 1000),
)
@settings(max_examples=250, deadline=None)
def test_everybody_gets_the_tokens_that_it_would_get_alone(script, blocks, caching, drafts, policy, seed):
    config = VllmConfig(16, 6, policy=policy, num_speculative_tokens=drafts)
    scheduler = VllmScheduler(config, BlockPool(blocks, SIZE, prefix_caching=caching))
    engine = ToyEngine(scheduler, seed)
    requests, prompts = [], []
    for number, (family, common, own, output) in enumerate(script):
        prompt = [family + 1] * common + [(number + at) % 5 for at in range(own)]
        request = Request(str(number), len(prompt), output, index=number, priority=number % 3, content=TokenContent(prompt))
        if scheduler.why_never(request):
            continue
        requests.append(request)
        prompts.append(prompt)
        scheduler.add(request)
        engine.step()
    for _ in range(3000):
        if not scheduler.running and not scheduler.waiting:
            break
        engine.step()
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.content.tokens == alone(prompt, request.max_tokens)
    assert scheduler.pool.num_free == scheduler.pool.num_usable
