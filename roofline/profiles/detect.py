"""Which devices this machine has, and which profile each one is: by name and PCI id, never by memory size alone.

nvidia-ml-py if a driver answers, else torch, else only the CPU. What cannot be read is None and named, never guessed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from roofline import units
from roofline.errors import InputError
from roofline.profiles import catalog
from roofline.profiles.hardware import Hardware

MEMORY_TOLERANCE = 0.10  # variants under one name differ by 20 % or more, reserved memory by a few percent


@dataclass(frozen=True)
class Detected:
    """One device of this machine.

    memory_bytes: as the driver reports it. evidence: why `profile_id`, or why none. unknown: what could not be read.
    """

    name: str
    kind: str = "gpu"
    profile_id: str | None = None
    memory_bytes: float | None = None
    sm_count: int | None = None
    compute_capability: str | None = None
    pci_id: str | None = None
    cores: int | None = None
    threads: int | None = None
    caches: dict[str, float] = field(default_factory=dict)
    probe: str = ""
    evidence: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def detect(*, ask_torch: bool = True) -> tuple[Detected, ...]:
    """All accelerators of this machine with their profiles, then its CPU. ask_torch: import torch where the driver says nothing."""
    found = _from_nvml() or (_from_torch() if ask_torch else [])
    return (*(identify(device) for device in found), cpu())


def hardware_from_this_machine() -> Hardware:
    """The profile of the first accelerator, its capacity as the driver reports it (`-H auto`).

    Raises InputError when there is none, or when no profile is certainly the device's.
    """
    first = detect()[0]
    if first.kind == "cpu":
        raise InputError(
            f"no accelerator was found here (only the CPU: {first.name}), and a CPU's peak and bandwidth are not known without measuring: "
            "name a device with -H, or measure with `roofline hardware detect --measure`"
        )
    if first.profile_id is None:
        raise InputError(f"{first.name}: {'; '.join(first.evidence)}; name a device with -H or give a YAML path")
    hardware = catalog.load_hardware(first.profile_id)
    return hardware.model_copy(update={"memory_reported_bytes": first.memory_bytes}) if first.memory_bytes else hardware


def identify(device: Detected) -> Detected:
    """`device` with the profile that its name and PCI id belong to, or None with the reason as evidence."""
    entries = list(_entries())
    wanted = _driver_name(device.name)
    named = [stem for stem, entry in entries if wanted in map(_driver_name, entry["names"])]
    by_pci = sorted({stem for stem, entry in entries if device.pci_id in entry.get("pci_ids", ())}) if device.pci_id else []
    if not named:
        hints = [f"PCI id {device.pci_id} is that of {stem}, but that alone does not decide" for stem in by_pci]
        return replace(device, evidence=(f"no profile has the driver's name {device.name!r}", *hints))
    if by_pci and not set(by_pci) & set(named):
        contradiction = f"the name {device.name!r} is that of {named[0]}, but PCI id {device.pci_id} is that of {by_pci[0]}"
        return replace(device, evidence=(contradiction,))
    refused: list[str] = []
    for stem, entry in entries:
        if stem not in named or wanted not in map(_driver_name, entry["names"]):
            continue
        profile = catalog.load_hardware(stem)
        doubts = [doubt for fact in entry.get("must_agree", ()) if (doubt := _doubt(device, profile, fact))]
        if not doubts:
            return replace(device, profile_id=stem, evidence=_evidence(device, profile, stem in by_pci))
        refused += [f"{stem} has the same name, but {doubt}" for doubt in doubts]
    return replace(device, evidence=tuple(dict.fromkeys(refused)))


def _entries() -> Iterator[tuple[str, dict[str, Any]]]:
    for stem, entries in catalog.scan(catalog.HARDWARE, "detect", catalog.files(catalog.HARDWARE)):
        for entry in entries:
            yield stem, entry


def _driver_name(name: str) -> str:
    """Driver names without what versions of drivers change: the vendor in front, case, spaces against underscores."""
    return " ".join(name.replace("_", " ").lower().split()).removeprefix("nvidia ")


def _doubt(device: Detected, profile: Hardware, fact: str) -> str | None:
    """Why a fact does not confirm that `device` is `profile`, or None when it does."""
    if fact == "memory":
        theirs, ours = profile.memory_reported_bytes or profile.memory_bytes, device.memory_bytes
        if ours is not None and abs(ours / theirs - 1) <= MEMORY_TOLERANCE:
            return None
        expected, seen = (units.format(size, "bytes", binary=True) for size in (theirs, ours))
        return f"its memory is {expected}, not {seen}" if ours else "the memory size could not be read"
    theirs, ours = getattr(profile, fact), getattr(device, fact)
    if ours is not None and ours == theirs:
        return None
    word = fact.replace("_", " ")
    return f"its {word} is {theirs}, not {ours}" if ours is not None else f"the {word} could not be read"


def _evidence(device: Detected, profile: Hardware, pci_agrees: bool) -> tuple[str, ...]:
    lines = [f"name {device.name!r} ({device.probe})"]
    if device.pci_id:
        lines.append(f"PCI id {device.pci_id}" + ("" if pci_agrees else ", which no profile lists"))
    reported = profile.memory_reported_bytes
    if device.memory_bytes and reported and abs(device.memory_bytes / reported - 1) > 0.01:
        seen, usual = (units.format(b, "bytes", binary=True, digits=4) for b in (device.memory_bytes, reported))
        lines.append(f"{seen} of memory where the profile has {usual}: the probe's figure is used")
    return tuple(lines)


def _from_nvml() -> list[Detected]:
    """Devices of the NVIDIA driver; none when nvidia-ml-py or the driver is absent."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_nvml_device(pynvml, pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _nvml_device(nvml: Any, handle: Any) -> Detected:
    unknown: list[str] = []

    def ask(what: str, read: Any) -> Any:
        try:
            return read(handle)
        except nvml.NVMLError:
            unknown.append(what)
            return None

    name = nvml.nvmlDeviceGetName(handle)
    pci = ask("PCI id", nvml.nvmlDeviceGetPciInfo)
    memory = ask("memory size", nvml.nvmlDeviceGetMemoryInfo)
    capability = ask("compute capability", nvml.nvmlDeviceGetCudaComputeCapability)
    return Detected(
        name=name.decode() if isinstance(name, bytes) else name,
        memory_bytes=float(memory.total) if memory and memory.total else None,
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        pci_id=f"{pci.pciDeviceId >> 16:04X}" if pci else None,
        probe="NVML",
        unknown=(*unknown, "SM count"),
    )


def _from_torch() -> list[Detected]:
    """Devices that torch sees (CUDA and ROCm builds); none when torch is absent or has no device."""
    try:
        import torch
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        amd = getattr(properties, "gcnArchName", "") if torch.version.hip else ""
        found.append(
            Detected(
                name=properties.name,
                memory_bytes=float(properties.total_memory),
                sm_count=properties.multi_processor_count,
                compute_capability=amd.split(":")[0] or f"{properties.major}.{properties.minor}",
                probe="torch",
                unknown=("PCI id",),
            )
        )
    return found


def cpu(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> Detected:
    """The CPU of this machine: name, cores, threads that this process may use, caches in bytes (of one core; shared ones whole), RAM.

    Its peak FLOP/s and its memory bandwidth are not in any table here and are left unknown.
    """
    info = _read(proc / "cpuinfo")
    fields = [tuple(part.strip() for part in line.split(":", 1)) for line in info.splitlines() if ":" in line]
    name = next((value for key, value in fields if key in ("model name", "Processor", "Model")), "unknown CPU")
    sockets = [value for key, value in fields if key == "physical id"]
    cores = [value for key, value in fields if key == "core id"]
    memory = next((line.split()[1] for line in _read(proc / "meminfo").splitlines() if line.startswith("MemTotal:")), None)
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    physical = len(set(zip(sockets, cores, strict=False))) or None
    missing = [what for what, value in (("cores", physical), ("memory size", memory)) if value is None]
    return Detected(
        name=name,
        kind="cpu",
        memory_bytes=float(memory) * 1024 if memory else None,
        cores=physical,
        threads=threads,
        caches=_caches(sys / "devices/system/cpu/cpu0/cache"),
        probe=str(proc / "cpuinfo"),
        evidence=("a CPU has no profile here",),
        unknown=(*missing, "peak FLOP/s", "memory bandwidth"),
    )


def _caches(folder: Path) -> dict[str, float]:
    """Cache name ("L1d", "L2", "L3") → bytes."""
    found = {}
    for index in sorted(folder.glob("index*")):
        level, kind, size = (_read(index / name).strip() for name in ("level", "type", "size"))
        factor = {"K": 2**10, "M": 2**20, "G": 2**30}.get(size[-1:])
        if level and factor and size[:-1].isdigit():
            letter = {"Data": "d", "Instruction": "i"}.get(kind, "")
            found[f"L{level}{letter}"] = float(int(size[:-1]) * factor)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
