"""What one `schedule()` call decided: who runs how many tokens in the next forward pass."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from roofline.scheduling.request import Request


class Chunk(NamedTuple):
    """A row that is not a plain decode: a piece of a prompt, or a token with drafts to verify.

    new, past: tokens to compute and tokens already cached; drafts: how many of the new ones are drafts;
    samples: whether the row reaches the end of its sequence and so emits a token.
    """

    request: Request
    new: int
    past: int
    drafts: int
    samples: bool


class ScheduledBatch:
    """decodes: rows of one new token each, decode_context: their past tokens in all; chunks: the other rows.

    num_ending: running requests that are not in it because a batch in flight completes them; full: whether all others sample.
    num_padding: rows that are computed for nothing (their context counts). preempted: who lost its blocks in this call;
    loading: who got blocks and now waits for KV from elsewhere.
    Tables and slots are views of the requests: an engine reads them before it calls `schedule()` again.
    """

    __slots__ = ("chunks", "decode_context", "decodes", "full", "loading", "num_ending", "num_padding", "preempted")

    def __init__(self) -> None:
        self.decodes: list[Request] = []
        self.chunks: list[Chunk] = []
        self.preempted: list[Request] = []
        self.loading: list[Request] = []
        self.decode_context = self.num_ending = self.num_padding = 0
        self.full = False

    def __bool__(self) -> bool:
        return bool(self.decodes or self.chunks)

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this pass, over all rows."""
        return len(self.decodes) + sum(chunk.new for chunk in self.chunks)

    def turn_plain(self, running: list[Request]) -> None:
        """Becomes the batch in which all of `running` decode one token; the context is not known."""
        self.decodes, self.chunks, self.preempted, self.full = running.copy(), [], [], True

    @property
    def sampling(self) -> list[Request]:
        """Who emits tokens."""
        if not self.chunks:
            return self.decodes
        return self.decodes + [chunk.request for chunk in self.chunks if chunk.samples]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(new, past) of each chunk."""
        return [(chunk.new, chunk.past) for chunk in self.chunks]

    def rows(self) -> list[Chunk]:
        """All rows in the order of execution, decodes first."""
        return [Chunk(request, 1, request.num_computed_tokens - 1, 0, True) for request in self.decodes] + self.chunks

    def block_tables(self) -> list[list[int]]:
        """Per row the block ids of its sequence, in order of position."""
        return [row.request.block_ids for row in self.rows()]

    def slot_mapping(self, block_size: int) -> list[int]:
        """Where the KV of each new token goes: block id · block_size + offset, over all rows in order."""
        return [
            row.request.block_ids[position // block_size] * block_size + position % block_size
            for row in self.rows()
            for position in range(row.past, row.past + row.new)
        ]


class Scheduler(Protocol):
    """A policy of continuous batching: a pure state machine without a clock, run by the simulator and by the engine alike.

    The loop is: `batch = schedule()`, compute it, `update(batch)`. Two batches may be in flight if the policy says so.
    """

    running: list[Request]

    @property
    def num_waiting(self) -> int:
        """Requests that hold no place in the batch."""

    @property
    def gauges(self) -> tuple[int, int, float]:
        """(running requests, waiting ones, share of the KV pool in use 0 … 1)."""

    def why_never(self, request: Request) -> str | None:
        """Why this request could never run here, or None."""

    def add(self, request: Request) -> None:
        """Queues a request. Raises InputError with the reason where `why_never` has one."""

    def schedule(self) -> ScheduledBatch:
        """The next batch; empty when nothing can run. Counts its tokens as computed from here on."""

    def update(self, batch: ScheduledBatch, emitted: list[int] | None = None, stopped: tuple[Request, ...] = ()) -> list[Request]:
        """Takes in the outputs of a batch and returns who finished.

        emitted: tokens that each chunk of the batch emitted (accepted drafts + 1); None: one for each that samples.
        stopped: requests whose last emitted token ends them early (end of text).
        """

    def steady_decode(self) -> tuple[int, int, int]:
        """(steps, rows, context) of a stretch: so many next batches will be plain decodes of the same `rows`, as long as nobody
        arrives, the first with `context` past tokens in all. It holds after an `update`, or with one batch in flight that is
        `full`; rows are all running requests but those that the batch in flight completes. steps is 0 if it is not so.
        Who asks lets counts and blocks of running requests stand still until they end or `check_integrity` is called.
        """

    def advance(self, steps: int) -> list[Request]:
        """Does what `steps` rounds of schedule and update would do; returns who finished: where a batch is in flight, those that
        it completes (in the first round), otherwise those for whom the last round does.
        """

    def check_integrity(self) -> None:
        """Raises AssertionError if a count or a block is out of place (used by tests and by an engine in debug mode)."""
