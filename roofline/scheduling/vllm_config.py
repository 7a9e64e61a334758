"""Options of vLLM's scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.errors import InputError


@dataclass(frozen=True)
class VllmConfig:
    """Options by vLLM's names, with its defaults for small devices.

    num_speculative_tokens: drafts per step; num_lookahead_tokens: extra slots for the drafter (None = as many as drafts; 0 for n-gram).
    draft_slots: extra rows that a drafter puts into the batch per request (1 for a separate draft model).
    reserve_full_isl: admit only if the whole current sequence would fit. watermark: share of the pool that admission leaves free.
    long_prompt_tokens, max_long_prompts: at most so many prompts above that length prefill at once (0 = no limit); others may pass them.
    """

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    max_model_len: int | None = None
    enable_chunked_prefill: bool = True
    policy: str = "fcfs"
    long_prefill_token_threshold: int = 0
    reserve_full_isl: bool = True
    watermark: float = 0.0
    num_speculative_tokens: int = 0
    num_lookahead_tokens: int | None = None
    draft_slots: int = 0
    long_prompt_tokens: int = 0
    max_long_prompts: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.max_num_seqs <= self.max_num_batched_tokens:
            raise InputError(f"1 ≤ max_num_seqs {self.max_num_seqs} ≤ max_num_batched_tokens {self.max_num_batched_tokens} does not hold")
        if self.policy not in ("fcfs", "priority"):
            raise InputError(f"policy {self.policy!r}: fcfs or priority")
        if not 0 <= self.watermark < 1:
            raise InputError(f"watermark {self.watermark} is a share of the blocks: 0 ≤ watermark < 1")

    @property
    def lookahead(self) -> int:
        """Slots kept for drafts beyond the scheduled tokens."""
        return self.num_speculative_tokens if self.num_lookahead_tokens is None else self.num_lookahead_tokens
