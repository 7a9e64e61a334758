"""The causes that a diagnosis knows, one rule each."""

from roofline.diagnosis.rules import compute, decode, healthy, load, memory
from roofline.diagnosis.rules.rule import Evidence, Rule, idle_at_both_ends, no_traffic, stands_still

RULES: tuple[Rule, ...] = (*load.RULES, *memory.RULES, *decode.RULES, *compute.RULES, *healthy.RULES)
HEALTHY = "NONE"

__all__ = ["HEALTHY", "RULES", "Evidence", "Rule", "idle_at_both_ends", "no_traffic", "stands_still"]
