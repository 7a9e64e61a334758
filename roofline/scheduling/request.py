"""A request as the scheduler sees it: counts of tokens and the blocks that hold them. Names are vLLM's."""

from __future__ import annotations

import enum

from roofline.errors import InputError
from roofline.scheduling.content import Content, Segments


def ensure(condition: bool, what: object) -> None:
    """The test of every `check_integrity`: raises AssertionError, also under `python -O`."""
    if not condition:
        raise AssertionError(what)


class Status(enum.Enum):
    """Where a request is. PREEMPTED waits like WAITING; WAITING_FOR_REMOTE_KVS has its blocks but not yet their content."""

    WAITING = "waiting"
    WAITING_FOR_REMOTE_KVS = "waiting for remote KVs"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Request:
    """One sequence. There is no prefill or decode state: each step brings `num_computed_tokens` up towards `num_tokens`.

    num_tokens: prompt + generated so far; end_tokens: num_tokens at which the request is complete.
    num_spec_tokens: drafts to verify next; num_output_placeholders: tokens scheduled but not sampled yet.
    block_ids: blocks in order of position (empty where the pool only counts), num_blocks of them; num_hashed_blocks: how many have a key.
    pool_mark: as long as no more than this many tokens are computed, the block pool need not be asked.
    num_cached_tokens: prefix hits of the first admission (−1 before it). index: the caller's own number for the request;
    arrival: its place in the order of `add`.
    remote_kv: the prompt's KV is computed elsewhere and has to be fetched. hold_blocks: blocks outlive the request until
    `release` is called, because somebody still has to read them.
    """

    __slots__ = (
        "_content",
        "arrival",
        "block_ids",
        "end_tokens",
        "hold_blocks",
        "index",
        "max_tokens",
        "num_blocks",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_hashed_blocks",
        "num_output_placeholders",
        "num_preemptions",
        "num_prompt_tokens",
        "num_spec_tokens",
        "num_tokens",
        "pool_mark",
        "priority",
        "remote_kv",
        "request_id",
        "status",
    )

    def __init__(
        self, request_id: str, num_prompt_tokens: int, max_tokens: int, *, index: int = 0, priority: int = 0, content: Content | None = None
    ) -> None:
        """priority: smaller runs first (policy "priority"). content: None = shared with nobody. Raises InputError for counts below 1."""
        if num_prompt_tokens < 1 or max_tokens < 1:
            raise InputError(f"request {request_id}: {num_prompt_tokens} prompt and {max_tokens} output tokens: both must be at least 1")
        self.request_id, self.index, self.priority = request_id, index, priority
        self.num_prompt_tokens = self.num_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.end_tokens = num_prompt_tokens + max_tokens
        self._content = content
        self.status = Status.WAITING
        self.num_computed_tokens = self.num_spec_tokens = self.num_output_placeholders = 0
        self.num_preemptions = self.num_hashed_blocks = self.num_blocks = self.pool_mark = 0
        self.num_cached_tokens = -1
        self.arrival = 0
        self.block_ids: list[int] = []
        self.remote_kv = self.hold_blocks = False

    @property
    def content(self) -> Content:
        """What it says, for a prefix cache."""
        if self._content is None:
            self._content = Segments(2 * self.index + 1)
        return self._content

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return self.num_tokens - self.num_prompt_tokens

    def __repr__(self) -> str:
        return f"Request({self.request_id}, {self.num_computed_tokens}/{self.num_tokens} of {self.end_tokens}, {self.status.value})"
