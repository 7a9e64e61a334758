"""Tables as groups of rows that share one set of constants: a device, a key, and the shapes measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from roofline.calibration.fit import Rows, site_ids
from roofline.calibration.tables import shape_errors
from roofline.timing.forms import Form, Key
from roofline.timing.forms.base import DeviceSpec

SpecOf = Callable[[str], DeviceSpec]


@dataclass(frozen=True)
class Group:
    """Rows of one key on one device. suspect: rows faster than the hot bound, taken out; version: of the software."""

    device: str
    rows: Rows
    version: str = ""
    suspect: int = 0

    @property
    def key(self) -> Key:
        """The key of the rows."""
        return self.rows.key

    @property
    def generation(self) -> str:
        """Generation of the device."""
        return self.rows.spec.generation


def groups(form: Form, table: pd.DataFrame, spec_of: SpecOf) -> list[Group]:
    """Groups of the rows of `form`'s family in a normalised table with `seconds`; unusable rows are left out.

    Rows faster than the hot bound cannot be what they say and are counted as suspect, never returned.
    """
    found = []
    mine = table[table["op"] == form.family]
    columns = ["hardware", *(name for name in form.keys if name in mine)]
    for values, part in mine.groupby(columns, sort=True):
        words = dict(zip(columns, map(str, values), strict=True))
        spec = spec_of(words.pop("hardware"))
        key = form.policy(spec.generation, Key(**{"software": "", **words}))
        versions = part["software_version"].mode().tolist() if "software_version" in part else [""]
        for rows in _split(form, _rows(form, part, key, spec)):
            fast = rows.seconds < form.bound(rows.shape, rows.key, rows.spec, True)
            if (~fast).any():
                found.append(Group(spec.id, rows.take(~fast), str(versions[0]), int(fast.sum())))
    return found


def _rows(form: Form, part: pd.DataFrame, key: Key, spec: DeviceSpec) -> Rows:
    shape, errors = shape_errors(form, part)
    seconds = pd.to_numeric(part["seconds"], errors="coerce").to_numpy(dtype=np.float64)
    good = (errors == "").to_numpy() & np.isfinite(seconds) & (seconds > 0)
    shape = {name: values[good] for name, values in shape.items()}
    return Rows(key, spec, form.prepare(shape), seconds[good], site_ids([shape[name] for name in form.site]))


def _split(form: Form, rows: Rows) -> Iterator[Rows]:
    """The rows, or those of the main kernel and of its variant apart."""
    if form.variant is None:
        yield rows
        return
    mask = form.variant(rows.shape, rows.key, rows.spec.generation)
    if (~mask).any():
        yield rows.take(~mask)
    if mask.any():
        yield replace(rows.take(mask), key=replace(rows.key, form="variant"))
