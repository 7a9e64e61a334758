"""What is known of a server: named facts with units and where they come from. What nobody observed stays unknown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from roofline.errors import InputError

Value = float | bool | str

# name → (unit, meaning); kinds: "s", "B", "tok", "tok/s", "1" (a count), "×" (a ratio), "share" (0 … 1), "yes/no", "text"
VOCABULARY: dict[str, tuple[str, str]] = {
    "running": ("1", "requests that run, all engines"),
    "running_before": ("1", "the same at the beginning"),
    "waiting": ("1", "requests that wait in the server"),
    "waiting_before": ("1", "the same at the beginning"),
    "kv_usage": ("share", "KV pool in use"),
    "kv_usage_before": ("share", "the same at the beginning"),
    "kv_tokens": ("tok", "size of the KV pool"),
    "preemptions": ("1", "requests that lost their KV to others (preempted, retracted)"),
    "requests_finished": ("1", "requests that ended"),
    "requests_rejected": ("1", "requests that were turned away or failed"),
    "engines": ("1", "data-parallel engines"),
    "engine_imbalance": ("×", "busiest engine over the mean, by running and waiting requests"),
    "engine_restarts": ("1", "counters that fell"),
    "all_counters_fell": ("yes/no", "no counter rose beside those that fell, as in pages in the wrong order"),
    "max_num_seqs": ("1", "the engine's cap of running sequences"),
    "state_slots": ("1", "sequences for which the engine has state slots (Mamba, linear attention)"),
    "chunk_tokens": ("tok", "token budget of a step (max_num_batched_tokens, chunked prefill size, -b)"),
    "step_tokens": ("tok", "tokens per step, mean"),
    "step_tokens_p99": ("tok", "tokens per step, 99th percentile"),
    "prompt_tokens": ("tok", "prompt tokens in the time observed"),
    "generation_tokens": ("tok", "generated tokens in the time observed"),
    "prompt_length": ("tok", "prompt of a request: the mean, or the long one that is complained about"),
    "output_length": ("tok", "output of a request, mean"),
    "request_tokens": ("tok", "prompt and output of the request that does not run"),
    "waits_forever": ("yes/no", "a request is never scheduled, without an error"),
    "ttft_s": ("s", "time to first token, mean or median"),
    "ttft_p99_s": ("s", "time to first token, 99th percentile"),
    "queue_s": ("s", "time from arrival to the first step, mean"),
    "prefill_s": ("s", "time from the first step to the first token, mean"),
    "tpot_s": ("s", "time per output token after the first, mean or median"),
    "itl_s": ("s", "gap between outputs, mean"),
    "itl_p50_s": ("s", "gap between outputs, median"),
    "itl_p99_s": ("s", "gap between outputs, 99th percentile"),
    "stalls_per_request": ("1", "gaps between outputs of 0.2 s or more and 5 × their median, per finished request"),
    "api_gap_s": ("s", "TTFT less queue and prefill: tokeniser, event loop"),
    "client_gap_s": ("s", "client's TTFT less the server's"),
    "ttft_growth": ("×", "TTFT at the highest load over TTFT at the lowest"),
    "tpot_growth": ("×", "TPOT at the highest load over TPOT at the lowest"),
    "ttft_linear_in_tokens": ("yes/no", "TTFT grows in proportion to the prompt tokens in the batch"),
    "pattern": ("text", "course over time, by name"),
    "generation_tokens_per_s": ("tok/s", "output of the server"),
    "generation_tokens_per_s_before": ("tok/s", "output before it became slow"),
    "generation_tokens_per_s_in_prefill": ("tok/s", "output of the others while a long prompt is computed"),
    "decode_stalls_in_prefill": ("yes/no", "running requests get no tokens while a prompt is computed"),
    "stall_s": ("s", "longest gap in a stream"),
    "stall_at_smaller_chunk_s": ("s", "longest gap in a stream with smaller_chunk_tokens"),
    "smaller_chunk_tokens": ("tok", "a smaller token budget that was tried"),
    "prefix_caching": ("yes/no", "the prefix cache is on"),
    "prefix_hit_rate": ("share", "prompt tokens found in the prefix cache"),
    "shared_prefix": ("yes/no", "prompts begin alike"),
    "prompts_random": ("yes/no", "prompts have nothing in common"),
    "external_tokens_to_load": ("tok", "tokens that a second cache tier has to load for the prompt"),
    "speedup_small_batch": ("×", "speed of the quantised model over the original at a small batch"),
    "speedup_large_batch": ("×", "the same at a large batch"),
    "prefill_speedup": ("×", "TTFT of the original over that of the quantised model"),
    "decode_speedup": ("×", "TPOT of the original over that of the quantised model"),
    "prefill_speedup_second_format": ("×", "the same TTFT ratio for another quantised format"),
    "kernel_speedup": ("×", "time of a single kernel in the usual format over that in the new one"),
    "tp": ("1", "tensor-parallel ranks"),
    "tp_speedup": ("×", "decode speed with tensor parallelism over that of fewer ranks"),
    "tp_prefill_speedup": ("×", "the same in prefill"),
    "all_reduce_s": ("s", "time of one all-reduce in decode"),
    "draft_acceptance": ("share", "drafted tokens that were accepted"),
    "speculation_speedup": ("×", "speed with speculation over that without"),
    "oom_requested_bytes": ("B", "allocation that failed"),
    "oom_free_bytes": ("B", "memory that was free then"),
    "oom_in_long_prefill": ("yes/no", "memory ran out after start-up, in a long prefill"),
    "vocab_size": ("1", "tokens of the vocabulary"),
    "kv_pool_bytes": ("B", "memory that start-up left for KV"),
    "activation_bytes": ("B", "activation peak that start-up profiled"),
    "activation_bytes_limited": ("B", "the same with multimodal inputs or the token budget limited"),
    "client_concurrency": ("1", "requests that the client means to keep in flight"),
    "requests_one_by_one": ("yes/no", "requests are seen to run one after the other"),
    "batching_gain": ("×", "answers per second at client_concurrency over those of a single stream"),
    "client_trustworthy": ("yes/no", "the load client passed its own check"),
    "cuda_graph": ("yes/no", "decode runs from captured graphs"),
    "expected_tpot_s": ("s", "a decode step as planned"),
    "bound_tpot_s": ("s", "hard bound of that step"),
    "tpot_over_expected": ("×", "TPOT over the planned one"),
    "prefill_over_expected": ("×", "prefill time over the planned one"),
    "interval_s": ("s", "time observed"),
}  # fmt: skip


# What took no time, or has no size, did not happen: an idle server's histograms have no new samples.
_NOTHING_IF_ZERO = frozenset({
    "ttft_s", "ttft_p99_s", "prefill_s", "tpot_s", "itl_s", "itl_p50_s", "itl_p99_s", "kernel_speedup", "chunk_tokens", "max_num_seqs",
    "kv_tokens", "vocab_size", "expected_tpot_s", "bound_tpot_s",
})  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """One thing that was observed. source: where it comes from, for people."""

    name: str
    value: Value
    source: str

    @property
    def unit(self) -> str:
        """As in VOCABULARY."""
        return VOCABULARY[self.name][0]


class Observations:
    """A bag of facts by name. A later fact of the same name replaces an earlier one."""

    def __init__(self, facts: Mapping[str, Value | None] | None = None, source: str = "") -> None:
        self._facts: dict[str, Fact] = {}
        for name, value in (facts or {}).items():
            self.add(name, value, source)

    def add(self, name: str, value: Value | None, source: str) -> None:
        """Adds a fact; None and NaN stay unknown, and so does a latency or a size of zero.

        Raises InputError for a name or type that VOCABULARY does not have.
        """
        if name not in VOCABULARY:
            raise InputError(f"{source}: no observation is called {name}; see `roofline diagnose --list-observations`")
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return
        unit = VOCABULARY[name][0]
        wanted = {"yes/no": bool, "text": str}.get(unit, float)
        if wanted is float and isinstance(value, int | float) and not isinstance(value, bool):
            if value < 0 or math.isinf(value):
                raise InputError(f"{source}: {name}: {value} is negative or infinite")
            value = float(value)
        if not isinstance(value, wanted):
            raise InputError(f"{source}: {name}: {value!r} is not {'a number' if wanted is float else unit}")
        if not (value == 0 and name in _NOTHING_IF_ZERO):
            self._facts[name] = Fact(name, value, source)

    def update(self, other: Observations) -> None:
        """Adds all facts of another bag."""
        self._facts |= other._facts

    def number(self, name: str) -> float:
        """A quantity in base units; NaN if unknown, so that no comparison with it holds."""
        fact = self._facts.get(name)
        return fact.value if fact is not None and isinstance(fact.value, float) else math.nan

    def says(self, name: str, value: bool) -> bool:
        """Whether a yes/no fact is known and has this value."""
        fact = self._facts.get(name)
        return fact is not None and fact.value is value

    def text(self, name: str) -> str:
        """A text fact; empty if unknown."""
        fact = self._facts.get(name)
        return fact.value if fact is not None and isinstance(fact.value, str) else ""

    def __contains__(self, name: object) -> bool:
        return name in self._facts

    def __iter__(self) -> Iterator[Fact]:
        return iter(self._facts.values())

    def __len__(self) -> int:
        return len(self._facts)


def read_value(name: str, text: str, source: str) -> Value:
    """`text` as the type that VOCABULARY gives `name`: a number in base units, yes or no, or text. Raises InputError."""
    unit = VOCABULARY.get(name, ("", ""))[0]
    if unit == "text":
        return text
    if unit == "yes/no":
        if text.lower() not in ("yes", "no", "true", "false"):
            raise InputError(f"{source}: {name} is yes or no, not {text!r}")
        return text.lower() in ("yes", "true")
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{source}: {name} is a number ({unit}), not {text!r}") from None
    if unit == "share" and value > 1:
        raise InputError(f"{source}: {name} is a share from 0 to 1, not {text}; 93 % is 0.93")
    return value
