"""Which constants price a kernel on a device: its own, else the nearest that were measured, named and widened.

Nearness: the same kernel on a device of the same generation before another kernel of the same device before constants of all
devices; a block of the same dtype goes before one of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roofline.errors import InputError
from roofline.profiles.calibration import CalibrationBlock, shipped
from roofline.timing.forms.base import DeviceSpec, Form, Key

_GENERATION, _GENERIC = 1.0, 5.0
_SOFTWARE, _KERNEL_KIN, _KERNEL, _DTYPE, _KV_DTYPE, _VARIANT = 2.0, 1.0, 4.0, 6.0, 3.0, 1.0
_WIDEN = 0.25  # of the log quantiles, per unit of distance
_LIBRARIES = (
    ("triton", "triton"), ("trtllm", "trtllm"), ("flashinfer", "flashinfer"), ("fidecode", "flashinfer"),
    ("fiprefill", "flashinfer"), ("torch_flow", "trtllm"), ("flash", "flash"), ("fa", "flash"),
)  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """The constants used for a key. widening: factor on the log quantiles of the interval. used: what they are, in words.

    exact: they were fitted on this kernel of this device.
    """

    block: CalibrationBlock
    constants: dict[str, float]
    form: str
    widening: float
    used: str
    exact: bool


def choose(form: Form, key: Key, spec: DeviceSpec, own: Sequence[CalibrationBlock] = ()) -> Choice:
    """The nearest block for `key` on the device: `own` blocks (of its profile or file) first, then the shipped ones.

    Raises InputError when not even a generic block of the family exists.
    """
    if own:
        return _nearest(form, key, spec, own)
    asked = (form.family, key, spec.id, spec.generation)
    if asked not in _CHOSEN:
        _CHOSEN[asked] = _nearest(form, key, spec, ())
    return _CHOSEN[asked]


_CHOSEN: dict[tuple[str, Key, str, str], Choice] = {}  # shipped blocks do not change while the program runs


def _nearest(form: Form, key: Key, spec: DeviceSpec, own: Sequence[CalibrationBlock]) -> Choice:
    key = form.policy(spec.generation, key)
    best: tuple[float, int, str, CalibrationBlock] | None = None  # distance, tie-break (fewer rows lose), where it is from, block
    for order, (penalty, where, blocks) in enumerate(_shelves(form, spec, own)):
        if best is not None and best[0] <= penalty:
            break  # no further shelf can hold a nearer block, so its file is not read
        found = [
            (penalty + _mismatch(form, key, b), 10**9 * order - b.provenance.rows, where, b) for b in blocks() if b.family == form.family
        ]
        best = min((c for c in (best, *found) if c is not None), key=lambda c: (c[0], c[1]), default=None)
    if best is None:
        raise InputError(f"no calibration of {form.family} at all: hwprofiles/calibration/generic.yaml is missing")
    distance, _, where, block = best
    words = block.label if where == spec.id else f"{block.label} of {where}"
    if block.dtype and block.dtype != key.dtype and form.family != "collective":
        words += f", for {key.dtype}"
    policy = block.form if distance < _DTYPE else key.form
    constants = {c.name: block.constants.get(c.name, c.start) for c in form.constants(_with_form(key, policy))}
    return Choice(block, constants, policy, 1.0 + _WIDEN * distance, words, distance == 0.0)


def _shelves(
    form: Form, spec: DeviceSpec, own: Sequence[CalibrationBlock]
) -> list[tuple[float, str, Callable[[], Sequence[CalibrationBlock]]]]:
    """(least distance, name, blocks) of the places to look in, nearest first; a file is read when its blocks are asked for."""
    return [
        (0.0, spec.id, lambda: own),
        (0.0, spec.id, lambda: shipped(spec.id, form.family)),
        (_GENERATION, f"generation {spec.generation}", lambda: shipped(f"generation-{spec.generation}", form.family)),
        (_GENERIC, "all devices", lambda: shipped("generic", form.family)),
    ]


def _mismatch(form: Form, key: Key, block: CalibrationBlock) -> float:
    if block.family == "collective":  # another operation is no stand-in; the type of the elements hardly matters
        return _SOFTWARE * (key.software != block.software) + 20.0 * (key.kernel != block.kernel) + 0.2 * (key.dtype != block.dtype)
    distance = 0.0
    if key.software != block.software and block.software:
        distance += _SOFTWARE
    if key.kernel != block.kernel and block.kernel:
        distance += _KERNEL_KIN if not key.kernel or kin(key.kernel) == kin(block.kernel) else _KERNEL
    if key.dtype != block.dtype or not form.same_format(key, Key(block.software, block.dtype)):
        distance += _DTYPE
    if key.kv_dtype != block.kv_dtype:
        distance += _KV_DTYPE
    if (key.form == "variant") != (block.form == "variant"):
        distance += _VARIANT
    return distance


def kin(kernel: str) -> str:
    """The library that an attention kernel comes from, so that engines that share one can stand in for each other."""
    return next((library for word, library in _LIBRARIES if word in kernel), kernel)


def _with_form(key: Key, form: str) -> Key:
    return Key(key.software, key.dtype, key.kernel, key.kv_dtype, form)
