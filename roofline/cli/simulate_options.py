"""Options of `roofline simulate` that others make meaningless: refused, since a run that ignores one answers another question."""

from __future__ import annotations

from typing import Any

from roofline.errors import InputError

NEEDS = {
    "speed": ("trace",),
    "burstiness": ("request_rate", "find_max_rate"),
    "think_time": ("users",),
    "kv_link": ("disaggregated",),
    "draft": ("speculative",),
    "attainment": ("goodput",),
    "prefix_groups": ("shared_prefix_len",),
}
_VLLM_ALONE = ("watermark", "long_prefill_token_threshold")
SETS_ASIDE = {
    "trace": ("input_len", "output_len", "length_variation", "shared_prefix_len", "prefix_groups", "burstiness"),
    "disaggregated": ("replicas", "router", "class_servers"),
    "class_servers": ("replicas", "router"),
    "find_max_rate": ("band", "speed"),
    "static_batching": ("prefix_caching", *_VLLM_ALONE),
    "engine=sglang": _VLLM_ALONE,
}


def check_effects(context: Any) -> None:
    """Raises InputError that names both for an option of the command line that does nothing beside another, or without one."""
    given = {parameter.name for parameter in context.command.params if _is_given(context, parameter.name)}
    said = {parameter.name: "/".join(parameter.opts) for parameter in context.command.params}
    for other, ignored in SETS_ASIDE.items():
        name, _, value = other.partition("=")
        if name in given and value in ("", str(context.params[name])):
            for option in ignored:
                if option in given:
                    raise InputError(f"{said[option]} has no effect with {f'{said[name]} {value}'.strip()}: leave one of them out")
    for option, others in NEEDS.items():
        if option in given and not given & set(others):
            raise InputError(f"{said[option]} has no effect without {' or '.join(said[other] for other in others)}")


def _is_given(context: Any, name: str) -> bool:
    return bool(context.get_parameter_source(name).name == "COMMANDLINE")
