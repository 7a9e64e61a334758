"""What a simulation leaves behind: times of each request, gaps between tokens, and a log of stretches of steps."""

from __future__ import annotations

import math
from array import array
from math import isnan
from struct import Struct

from roofline.scheduling.request import Request

GAP_FIELDS = ("first_s", "last_s", "steps", "rows")
STRETCH_FIELDS = ("start_s", "end_s", "steps", "decodes", "prefill_tokens", "running", "waiting", "kv_usage", "instance")
gap_row = Struct(f"{len(GAP_FIELDS)}d").pack  # appended with array.frombytes, which is twice as fast as extending by a tuple
stretch_row = Struct(f"{len(STRETCH_FIELDS)}d").pack

STALLED = "the engine stopped with it: requests that hold KV blocks and those that need them wait for each other; give more KV"


class Recorder:
    """Columns by request index, and two flat logs whose rows have GAP_FIELDS and STRETCH_FIELDS.

    A row of `gaps`: `rows` sequences emitted at each of `steps` steps, a time after their previous token that goes evenly from
    first_s to last_s. A row of `stretches`: `steps` steps in a row with the same sequences. last_token_s is kept up only where a
    request may not emit together with all others (see Instance).
    """

    def __init__(self, count: int) -> None:
        nan = array("d", [math.nan])
        self.sent_s, self.scheduled_s, self.first_token_s, self.last_token_s = nan * count, nan * count, nan * count, nan * count
        self.end_s = nan * count
        self.cached_tokens = array("q", bytes(8 * count))
        self.generated_tokens = array("q", bytes(8 * count))
        self.preemptions = array("q", bytes(8 * count))
        self.instance = array("q", [-1]) * count
        self.gaps = array("d")
        self.stretches = array("d")
        self.rejected: dict[int, str] = {}
        self.drafted_tokens = self.accepted_tokens = 0

    def finish(self, request: Request, time: float) -> None:
        """A request ended with its last token at `time`."""
        index = request.index
        self.end_s[index] = time
        self.cached_tokens[index] += request.num_cached_tokens
        self.generated_tokens[index] = request.num_tokens - request.num_prompt_tokens
        self.preemptions[index] += request.num_preemptions

    def close(self) -> None:
        """Nothing happens any more: who was neither served nor rejected counts as rejected, with the reason STALLED."""
        for index, end in enumerate(self.end_s):
            if isnan(end) and index not in self.rejected:
                self.rejected[index] = STALLED

    def emit(self, requests: list[Request], time: float) -> None:
        """Each of the requests emitted at `time`, the first time or after its own last time."""
        last = self.last_token_s
        for request in requests:
            index = request.index
            gap = time - last[index]
            last[index] = time
            if isnan(gap):
                self.first_token_s[index] = time
            else:
                self.gaps.frombytes(gap_row(gap, gap, 1, 1))
