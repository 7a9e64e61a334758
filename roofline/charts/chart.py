"""A figure before it is drawn: its finding, its data, and how to paint it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import FigureBase

from roofline import __version__
from roofline.batch import Batch
from roofline.capacity import MemoryPlan, memory_plan
from roofline.charts import pricing
from roofline.errors import InputError
from roofline.ledger import AS_SHIPPED, DEFAULT, SINGLE, Conventions, Parallel, Precision
from roofline.phases import Setup
from roofline.planning.load import Load
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """What a figure is asked to show.

    devices: the first is the one that everything is computed for, others share the axes where a figure can compare.
    batch: sequences in a decode step. load: lengths, service levels and, for a simulated run, the requests in flight.
    memory_options: those of capacity.memory_plan. table: a CSV with measurements or predictions.
    command: what the footer says reproduces the figure.
    """

    model: Model | None
    devices: tuple[Hardware, ...] = ()
    parallel: Parallel = SINGLE
    precision: Precision = AS_SHIPPED
    conventions: Conventions = DEFAULT
    engine: str = "vllm"
    batch: int = 1
    load: Load = field(default_factory=Load)
    memory_options: Mapping[str, Any] = field(default_factory=dict)
    table: Path | None = None
    command: str = ""

    @property
    def the_model(self) -> Model:
        """The model. Raises InputError when none was named."""
        if self.model is None:
            raise InputError("this chart needs a MODEL: `roofline models list` shows the known ones")
        return self.model

    @property
    def setup(self) -> Setup:
        """Model and first device as phases and plans take them. Raises InputError when no device was named."""
        if not self.devices:
            raise InputError("this chart needs a device: add -H NAME (`roofline hardware list` shows the known ones)")
        return Setup(self.the_model, self.devices[0], self.parallel, self.precision, self.engine, self.conventions)

    @property
    def basis(self) -> str:
        """What the expected times rest on, in a sentence."""
        return pricing.basis(self.setup.price(Batch.decode(1, 1)))

    def memory(self) -> MemoryPlan:
        """What fits on the first device. Raises InputError when no device was named."""
        setup = self.setup
        return memory_plan(setup.model, setup.hardware, setup.parallel, setup.precision, **{"engine": self.engine, **self.memory_options})

    @property
    def shown(self) -> str:
        """Model, precision, device and layout in a few words."""
        parts = [self.model.name] if self.model else []
        if self.precision.weights:
            parts.append(f"{self.precision.weights} weights")
        if self.precision.kv:
            parts.append(f"{self.precision.kv} KV")
        if self.devices:
            parts.append(f"{self.parallel.gpus} × {self.devices[0].name}" if self.parallel.gpus > 1 else self.devices[0].name)
        layout = [f"{name.upper()}{size}" for name in ("tp", "pp", "ep", "dp") if (size := getattr(self.parallel, name)) > 1]
        return " · ".join([*parts, *([" ".join(layout)] if layout else [])])


@dataclass(frozen=True)
class Chart:
    """A figure: one finding (title), what is shown (subtitle), its data as rows, and the function that paints it in a frame.

    Rows are in SI base units with the unit in the key; all have the same keys. basis: what the times rest on, for the footer.
    notes: what was chosen where nothing was asked for, and how to ask for it.
    """

    kind: str
    title: str
    subtitle: str
    rows: tuple[Row, ...]
    paint: Callable[[FigureBase], None]
    request: Request
    basis: str = ""
    notes: tuple[str, ...] = ()

    @property
    def footer(self) -> tuple[str, ...]:
        """Device, version and basis; the command."""
        names = ", ".join(dict.fromkeys(device.name for device in self.request.devices))
        first = " · ".join(part for part in (names, f"roofline {__version__}", self.basis) if part)
        return (first, self.request.command) if self.request.command else (first,)
