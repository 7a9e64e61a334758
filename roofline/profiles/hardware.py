"""What is known of one device: plain numbers in SI base units, each with its source and how far to trust it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from roofline import units
from roofline.errors import InputError, UnitError
from roofline.profiles import yamlfile
from roofline.profiles.calibration import CalibrationBlock

Kind = Literal["datasheet", "whitepaper", "computed", "measured", "unverified"]
COMPUTE_TYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4", "int4")
_FIGURE = '{value: "… unit", source: …, kind: ' + "|".join(get_args(Kind)) + "}"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Figure(_Frozen):
    """One number of a profile as written, with where it comes from.

    source: a key of hwprofiles/_sources.yaml or the name of a document. kind: datasheet and whitepaper are the vendor's own
    figures (read there or in a table that quotes them: the source says which); computed follows from other figures;
    measured was read on a device; unverified was recalled or could not be checked.
    """

    value: str | int
    source: str = Field(min_length=1)
    kind: Kind
    note: str = ""


def _figure_value(value: Mapping[str, Any]) -> str | int:
    try:
        return Figure.model_validate(value).value
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}; write {_FIGURE}") from None


def _quantity(unit: str) -> BeforeValidator:
    """Reads a Figure's text in `unit` (a key of units.UNITS, or "count"); Python callers may pass a plain float in base units."""

    def read(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, Mapping):
            value = _figure_value(value)
        elif info.context and info.context.get("from_file") and value is not None:
            raise ValueError(f"a number needs its source: write {_FIGURE}")
        if unit == "count":
            return value
        if isinstance(value, str) or (info.context and value is not None):
            try:
                return units.parse(value, unit)
            except UnitError as error:
                raise yamlfile.as_value_error(error) from None
        return value

    return BeforeValidator(read)


Bytes = Annotated[float, Field(ge=1), _quantity("bytes")]
Bandwidth = Annotated[float, Field(ge=1), _quantity("bandwidth")]
FlopRate = Annotated[float, Field(ge=1), _quantity("flop_rate")]
Hertz = Annotated[float, Field(ge=1), _quantity("frequency")]
Watt = Annotated[float, Field(gt=0), _quantity("power")]
Count = Annotated[int, Field(gt=0), _quantity("count")]


def _compute_type(name: str) -> str:
    if name not in COMPUTE_TYPES:
        raise ValueError(f"unknown compute type {name!r}; known: {', '.join(COMPUTE_TYPES)}")
    return name


class Detection(_Frozen):
    """How a driver names the device.

    names: as NVML, nvidia-smi or torch print it. pci_ids: four hex digits each. must_agree: facts besides the name that tell
    this device from others of the same name.
    """

    names: tuple[str, ...] = Field(min_length=1)
    pci_ids: tuple[str, ...] = ()
    must_agree: tuple[Literal["memory", "sm_count", "compute_capability"], ...] = ()
    source: str = Field(min_length=1)
    note: str = ""


class Achieved(_Frozen):
    """What a public benchmark reached. value: FLOP/s or B/s. fraction: of the figure in this profile at that time."""

    metric: str
    dtype: str = ""
    value: float = Field(gt=0)
    fraction: float | None = Field(default=None, gt=0)
    source: str = Field(min_length=1)
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _read_value(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and isinstance(data.get("value"), str):
            text = data["value"]
            try:
                return {**data, "value": units.parse(text, "bandwidth" if text.endswith("B/s") else "flop_rate")}
            except UnitError as error:
                raise yamlfile.as_value_error(error) from None
        return data


class Price(_Frozen):
    """A price seen somewhere on some day: US dollars per device and hour, no quotation."""

    provider: str
    usd_per_gpu_hour: float = Field(gt=0)
    terms: str
    as_of: str
    source: str = Field(min_length=1)
    note: str = ""


class Hardware(_Frozen):
    """One device. All numbers in base units: bytes, B/s, FLOP/s, Hz, watt; None where nothing is known.

    memory_bytes: as marketed; memory_reported_bytes: as the driver reports it. peaks: dense, FP32 accumulation where the
    device has it, by compute type. boost_hz: the clock of the vector units' printed peak; peak_clock_hz: the clock at which
    SM × rate gives the printed tensor peaks. l2_bandwidth: reads of all SMs together that hit the L2. link_bandwidth,
    pcie_bandwidth: one direction, all links of the device.
    """

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    vendor: str
    name: str
    aliases: tuple[str, ...] = ()
    architecture: str = ""
    compute_capability: str = ""
    form_factor: str = ""
    launch_year: int | None = None
    confidence: Literal["high", "medium", "low"] = "medium"
    notes: str = ""

    memory_type: str = ""
    unified_memory: bool = False
    memory_bytes: Bytes
    memory_reported_bytes: Bytes | None = None
    memory_bandwidth: Bandwidth
    l2_bytes: Bytes | None = None
    l2_bandwidth: Bandwidth | None = None
    sm_count: Count | None = None
    boost_hz: Hertz | None = None
    peak_clock_hz: Hertz | None = None
    tdp_w: Watt | None = None

    sparsity: Literal["dense"] = "dense"
    peaks: dict[Annotated[str, AfterValidator(_compute_type)], FlopRate] = Field(min_length=1)

    link: str = ""
    link_bandwidth: Bandwidth | None = None
    pcie: str = ""
    pcie_bandwidth: Bandwidth | None = None

    detect: tuple[Detection, ...] = ()
    achieved: tuple[Achieved, ...] = ()
    prices: tuple[Price, ...] = ()
    calibration: tuple[CalibrationBlock, ...] = ()

    figures: dict[str, Figure] = Field(default={}, repr=False)
    path: Path | None = None

    @model_validator(mode="before")
    @classmethod
    def _keep_figures(cls, data: Any, info: ValidationInfo) -> Any:
        """Keeps every {value, source, kind} beside the number that is made of it."""
        if not (info.context and info.context.get("from_file") and isinstance(data, Mapping)):
            return data
        for key in ("figures", "path"):
            if key in data:
                raise ValueError(f"the key {key!r} is filled by the program; remove it")
        if "sparsity" not in data:
            raise ValueError("the key 'sparsity' is missing: write 'sparsity: dense' after checking that no peak is a 2:4-sparse figure")
        return {**data, "figures": dict(_figures(data)), "path": info.context["path"]}

    @field_validator("sparsity", mode="before")
    @classmethod
    def _dense_only(cls, value: Any) -> Any:
        if value != "dense":
            raise ValueError("peaks must be dense: halve a 2:4-sparse figure and write 'sparsity: dense'")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Hardware:
        if self.link_bandwidth is not None and not self.link:
            raise ValueError("link_bandwidth is given but not the link's name: add 'link: …'")
        ratio = (self.memory_reported_bytes or self.memory_bytes) / self.memory_bytes
        if not 0.5 < ratio < 1.2:  # 48 GB conversions of a 24 GB card exist, but then the marketed figure is 48 GB
            raise ValueError(f"memory_reported_bytes is {ratio:.2f} of memory_bytes: one of them is of another device")
        return self

    def peak(self, compute: str) -> float:
        """Dense peak in FLOP/s of a compute type (a key of `peaks`). Raises InputError that lists what this device has."""
        found: dict[str, float] = {**self.peaks}
        if compute not in found:
            raise InputError(f"{self.id} has no {compute} peak; it has {', '.join(found)}")
        return found[compute]

    def provenance(self, key: str) -> Figure:
        """The figure as written in the profile, for "memory_bandwidth" or "peaks.fp8". Raises InputError when there is none."""
        if key not in self.figures:
            raise InputError(f"{self.id} has no sourced figure {key!r}; {yamlfile.nearest(key, list(self.figures))}")
        return self.figures[key]


def _figures(data: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """All (dotted key, mapping with value and source) at the top level and under peaks."""
    found = []
    for key, value in data.items():
        if isinstance(value, Mapping) and "value" in value:
            found.append((prefix + key, value))
        elif key == "peaks" and isinstance(value, Mapping):
            found += _figures(value, "peaks.")
    return found


def load(path: Path | str) -> Hardware:
    """The Hardware in a YAML file. Raises ProfileError (file:line:key) for anything that cannot be used."""
    document = yamlfile.read(path)
    return document.validate(Hardware, {"from_file": True, "path": document.path})
