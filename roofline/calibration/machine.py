"""A profile of a machine that no datasheet describes, from its own microbenchmarks: roofs, and constants for its kernels.

Peaks and bandwidth are the best that any sample reached; constants are fitted to cold cases and judged on shapes left out.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.optimize import least_squares

from roofline import units
from roofline.batch import Batch
from roofline.dtypes import dtype as storage
from roofline.errors import InputError
from roofline.ledger import Op
from roofline.ledger.mixers import CoreContext, core_ops
from roofline.profiles.calibration import CalibrationBlock, Provenance
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Attention
from roofline.records import Measurement
from roofline.timing.host import FORM, PREFIX, host_op_s

FAMILIES = ("gemm", "prefill_attention", "decode_attention")
LEAST_SHAPES = 5
_FOLDS = 5
_SOFT = 0.08
_START = {"t0_us": 3.0, "ec": 0.8, "em": 0.9, "p": 1.5, "extra": 0.7, "few": 0.3}
_RANGE = {"t0_us": (0.1, 300.0), "ec": (0.02, 1.5), "em": (0.05, 1.3), "p": (1.0, 8.0), "extra": (1e-3, 30.0), "few": (0.02, 1.0)}
_PULL = 0.02  # towards the start, in log units, so that a constant that the shapes do not show stays where physics put it


@dataclass(frozen=True)
class Row:
    """One measured shape: the ledger's op, its seconds, and the site (what is left out together)."""

    op: Op
    seconds: float
    site: str
    label: str


@dataclass(frozen=True)
class HeldOut:
    """A shape predicted by a fit that has not seen its site."""

    family: str
    dtype: str
    label: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """|predicted / measured − 1|."""
        return abs(self.predicted_s / self.measured_s - 1)


@dataclass(frozen=True)
class Machine:
    """Roofs and blocks of one device, with the held-out predictions behind them."""

    device: str
    peaks: Mapping[str, float]
    bandwidth: float
    blocks: tuple[CalibrationBlock, ...]
    held_out: tuple[HeldOut, ...]

    def median_error(self, family: str, dtype: str = "") -> float:
        """Median held-out error of a family (of one dtype if given); NaN without rows."""
        errors = [h.error for h in self.held_out if h.family == family and dtype in ("", h.dtype)]
        return float(np.median(errors)) if errors else float("nan")


def fit_machine(measurements: Sequence[Measurement]) -> Machine:
    """Roofs and constants of the one device in `measurements` (those of microbench: stream, gemm, attention).

    A (family, dtype) with fewer than LEAST_SHAPES cold shapes gets no block. Raises InputError for several devices or when
    there is no stream out of memory or no matrix product.
    """
    devices = sorted({m.device for m in measurements})
    if len(devices) != 1:
        raise InputError(f"a calibration is of one device, the records have {', '.join(devices) or 'none'}")
    peaks, bandwidth = _roofs(measurements)
    if not peaks or not bandwidth:
        raise InputError("a calibration needs a stream out of memory and matrix products: run `roofline bench` (all groups) first")
    roofs = _profile(devices[0], peaks, bandwidth)
    blocks, held_out = [], list[HeldOut]()
    for family in FAMILIES:
        for dtype in sorted({m.dtype for m in measurements if m.op == family}):
            mine = [m for m in measurements if m.op == family and m.dtype == dtype and m.cold and not m.notes.get("sentinel") and _main(m)]
            rows = [_row(m) for m in mine]
            if len({row.label for row in rows}) < LEAST_SHAPES or not all(row.op.compute in peaks for row in rows):
                continue
            left_out = _cross_validated(family, dtype, rows, roofs)
            held_out += left_out
            blocks.append(_block(family, dtype, rows, roofs, left_out, mine[0]))
    return Machine(devices[0], peaks, bandwidth, tuple(blocks), tuple(held_out))


def _main(m: Measurement) -> bool:
    """Whether a case is of the main kernel: other backends and paged gathers have constants of their own."""
    return m.shape.get("kernel", "flash") == "flash" and m.shape.get("causal", 1) == 1


def _roofs(measurements: Sequence[Measurement]) -> tuple[dict[str, float], float]:
    peaks: dict[str, float] = {}
    bandwidth = 0.0
    for m in measurements:
        compute = m.notes.get("compute")
        if m.op == "gemm" and m.dtype == compute:  # weight-only formats multiply in another type
            peaks[compute] = max(peaks.get(compute, 0.0), float(m.notes["flops"]) / m.minimum_s)
        if m.op == "stream" and m.shape.get("level") == "memory":
            bandwidth = max(bandwidth, float(m.notes["bytes"]) / m.minimum_s)
    return peaks, bandwidth


def _row(m: Measurement) -> Row:
    shape = {key: value for key, value in m.shape.items() if not isinstance(value, str)}
    label = " ".join(f"{key}={value}" for key, value in shape.items())
    if m.op == "gemm":
        rows, n, k = (int(shape[key]) for key in "mnk")
        weights = storage(m.dtype).matrix_bytes(n, k)
        moved = float(m.notes["bytes"]) - weights
        op = Op(
            "gemm", "gemm", "", 1, str(m.notes["compute"]), "2·m·n·k", rows, n, k, 2.0 * rows * n * k, weights, activation_bytes_each=moved
        )
        return Row(op, m.median_s, f"{n},{k}", label)
    sizes = {key: int(shape[key]) for key in ("heads", "kv_heads", "head_dim")}
    sequences, stored = int(shape["batch"]), storage(m.dtype)
    batch = Batch.decode(sequences, shape["context"]) if m.op == "decode_attention" else Batch.prefill(sequences, shape["new_tokens"])
    context = CoreContext("", 1, sizes["heads"] * sizes["head_dim"], 1, 1, stored, stored, True, False)
    spec = Attention(heads=sizes["heads"], kv_heads=sizes["kv_heads"], head_dim=sizes["head_dim"])
    (op,) = core_ops(spec, batch, context)
    return Row(op, m.median_s, label, label)


def _fit(rows: Sequence[Row], roofs: Hardware) -> dict[str, float]:
    """Constants by a soft-L1 fit of log(measured / predicted), pulled a little towards where they start."""
    names = [name for name in _START if name != "few" or rows[0].op.kind == "gemm"]
    start = np.log([_START[name] for name in names])
    low, high = (np.log([_RANGE[name][side] for name in names]) for side in (0, 1))
    measured = np.log([row.seconds for row in rows])
    pull = _PULL * np.sqrt(len(rows))

    def residual(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate([measured - np.log(_predict(rows, roofs, dict(zip(names, np.exp(x), strict=True)))), pull * (x - start)])

    found = least_squares(residual, start, bounds=(low, high), loss="soft_l1", f_scale=_SOFT)
    return {name: float(f"{value:.4g}") for name, value in zip(names, np.exp(found.x), strict=True)}


def _predict(rows: Sequence[Row], roofs: Hardware, constants: Mapping[str, float]) -> NDArray[np.float64]:
    return np.array([float(host_op_s(row.op, roofs, constants)) for row in rows])


def _cross_validated(family: str, dtype: str, rows: Sequence[Row], roofs: Hardware) -> list[HeldOut]:
    """Each row predicted by a fit to the sites of the other folds."""
    sites = sorted({row.site for row in rows})
    fold = {site: number % min(_FOLDS, len(sites)) for number, site in enumerate(sites)}
    found = []
    for number in range(min(_FOLDS, len(sites))):
        test = [row for row in rows if fold[row.site] == number]
        train = [row for row in rows if fold[row.site] != number]
        if not train:
            return []
        predicted = _predict(test, roofs, _fit(train, roofs))
        found += [HeldOut(family, dtype, row.label, row.seconds, float(p)) for row, p in zip(test, predicted, strict=True)]
    return found


def _block(
    family: str, dtype: str, rows: Sequence[Row], roofs: Hardware, held_out: Sequence[HeldOut], sample: Measurement
) -> CalibrationBlock:
    errors = [h.error for h in held_out]
    logs = [float(np.log(h.measured_s / h.predicted_s)) for h in held_out]
    low, high = (float(np.quantile(logs, q)) for q in (0.1, 0.9)) if logs else (-1.0, 1.0)
    return CalibrationBlock(
        family=PREFIX + family, software="torch", software_version=sample.software.get("torch", ""), dtype=dtype, form=FORM,
        constants=_fit(rows, roofs),
        interval_log_quantiles={"all": (round(low, 4), round(high, 4))},
        provenance=Provenance(
            source=f"roofline bench on this machine ({sample.method}), environment {sample.environment}", rows=len(rows),
            split=f"{_FOLDS} folds by site", held_out_error=round(float(np.median(errors)), 4) if errors else None,
            date=_today(),
        ),
    )  # fmt: skip


def _today() -> str:
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def _profile(device: str, peaks: Mapping[str, float], bandwidth: float) -> Hardware:
    return Hardware(id="this-machine", vendor="measured", name=device, memory_bytes=1.0, memory_bandwidth=bandwidth, peaks=dict(peaks))


def profile_text(machine: Machine, memory_bytes: float) -> str:
    """The machine as a hardware profile in YAML: every figure measured, the blocks with their provenance.

    memory_bytes: of the device, as the driver or the system reports it.
    """
    date = _today()

    def figure(value: float, kind: str) -> dict[str, Any]:
        return {"value": units.format(value, kind, digits=4), "source": f"roofline bench, {date}", "kind": "measured"}

    document = {
        "id": "this-machine",
        "vendor": "measured",
        "name": machine.device,
        "confidence": "medium",
        "notes": "Roofs are the best samples of the microbenchmarks on this machine, no datasheet figures.",
        "memory_bytes": figure(memory_bytes, "bytes"),
        "memory_bandwidth": figure(machine.bandwidth, "bandwidth"),
        "sparsity": "dense",
        "peaks": {name: figure(value, "flop_rate") for name, value in sorted(machine.peaks.items())},
        "calibration": [block.model_dump(mode="json") for block in machine.blocks],
    }
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
