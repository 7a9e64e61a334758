"""The device under test: what cases need to know of it, its timers, and its state before and after each case."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from microbench.caches import FACTOR, Arena
from microbench.timers import CpuTimer, CudaEventTimer, CudaGraphTimer, Timer
from roofline.errors import InputError
from roofline.profiles import catalog, detect
from roofline.profiles.hardware import Hardware
from roofline.records import Environment, capture_environment

MEMORY_SHARE = 0.25  # of free memory that an arena may take
SLOW_FILL = 1e-9  # seconds per byte, until an arena has been filled for a while
FIRST_FILL = 2**28
DTYPES: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}
ATTENTION_BACKENDS = ("flash", "mem_efficient", "math", "cudnn")  # of scaled_dot_product_attention
_THROTTLE = {  # bits of nvmlDeviceGetCurrentClocksEventReasons, in NVML's words
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


def attention_backends(*names: str) -> None:
    """Lets scaled_dot_product_attention take these backends only, in the whole process, until it is called again."""
    for each in ATTENTION_BACKENDS:
        getattr(torch.backends.cuda, f"enable_{each}_sdp")(each in names)


@dataclass
class Device:
    """One CPU or GPU.

    kind: cpu or cuda. id: profile id, or the device's own name. cache_bytes: last-level cache. levels: bytes of each level
    by name, smallest first. profile: its datasheet, None when none is known. dtypes: what it multiplies. cpu_time: time the
    thread's own CPU seconds, which leave out what other processes took (one thread only), in place of the wall clock.
    """

    kind: str
    id: str
    cache_bytes: float
    levels: Mapping[str, float]
    dtypes: tuple[str, ...]
    profile: Hardware | None = None
    threads: int = 1
    cpu_time: bool = False
    _arenas: dict[tuple[str, torch.dtype], Arena] = field(default_factory=dict, repr=False)

    def take(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """Random operands that do not come back before the caches have been passed (see Arena).

        A CPU's types share an arena: it takes gigabytes to pass its caches, and fresh memory is slow to come.
        """
        shared = self.kind == "cpu" and dtype != DTYPES["fp8"]
        return self._arena("operands", torch.bfloat16 if shared else dtype).take(dtype, *shape)

    def output(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """Memory to write results into, apart from the operands, which stay random. Its pages exist: the first touch of fresh
        memory would be timed with the first call."""
        return self._arena("results", torch.bfloat16).take(dtype, *shape)

    def _arena(self, use: str, drawn: torch.dtype) -> Arena:
        if (use, drawn) not in self._arenas:
            cold = min((FACTOR[self.kind] + 0.5) * self.cache_bytes, MEMORY_SHARE * self.free_bytes())
            self._arenas[use, drawn] = Arena(self.kind, int(cold), drawn)
        return self._arenas[use, drawn]

    def passes_caches(self) -> bool:
        """Whether the operands' memory is long enough that none is in a cache when it comes back."""
        arenas = [arena for (use, _), arena in self._arenas.items() if use == "operands"]
        return all(arena.size >= FACTOR[self.kind] * self.cache_bytes for arena in arenas)

    def filling_s(self) -> float:
        """About how long the operands of a cold case take to be filled: what is not there yet, at the pace so far."""
        done = sum(arena.filled_bytes for arena in self._arenas.values())
        pace = sum(arena.filling_s for arena in self._arenas.values()) / done if done > FIRST_FILL else SLOW_FILL
        there = max((arena.filled_bytes for (use, _), arena in self._arenas.items() if use == "operands"), default=0)
        return max(FACTOR[self.kind] * self.cache_bytes - there, 0.0) * pace

    def release(self) -> None:
        """Gives the operands' memory back, and torch the choice among its attention backends: who comes next finds both as they were."""
        self._arenas.clear()
        attention_backends(*ATTENTION_BACKENDS)
        if self.kind == "cuda":
            torch.cuda.empty_cache()

    def free_bytes(self) -> float:
        """Memory that is free now."""
        if self.kind == "cuda":
            return float(torch.cuda.mem_get_info()[0])
        try:
            with open("/proc/meminfo", encoding="ascii") as file:
                found = next(line for line in file if line.startswith("MemAvailable"))
            return float(found.split()[1]) * 1024
        except (OSError, StopIteration):
            return float(4 * 2**30)

    def timer(self, *, eager: bool = False, flush: bool = False) -> Timer:
        """The timer for kernels of this device, launches hidden; eager: launches are part of what is measured.

        flush: the caches are emptied before each burst (CUDA), for operands too small to rotate.
        """
        if self.kind == "cpu":
            return CpuTimer(time.thread_time_ns, "thread CPU time", 1e-4) if self.cpu_time else CpuTimer()
        if flush:
            ballast = torch.empty(int(2 * self.cache_bytes), dtype=torch.int8, device="cuda")
            return CudaEventTimer(torch.cuda, flush=ballast.zero_)
        return CudaEventTimer(torch.cuda, spin_cycles=0, least_s=2e-3) if eager else CudaGraphTimer(torch.cuda)

    def state(self) -> dict[str, Any]:
        """Clocks, power, temperature and throttle reasons (CUDA), or the load of the machine (CPU), at this moment."""
        if self.kind == "cpu":
            return {"load": round(os.getloadavg()[0], 2)} if hasattr(os, "getloadavg") else {}
        return _nvml_state(torch.cuda.current_device())

    def environment(self) -> Environment:
        """The record of machine and software, with the facts of this device."""
        facts: dict[str, Any] = {
            "kind": self.kind,
            "name": self.id,
            "cache_bytes": self.cache_bytes,
            "threads": self.threads,
            "cpu_time": self.cpu_time,
        }
        if self.kind == "cuda":
            facts |= {"cuda": torch.version.cuda, **_nvml_facts(torch.cuda.current_device())}
        return capture_environment(facts)


def open_device(kind: str = "auto", threads: int | None = None, hardware: Hardware | None = None, *, cpu_time: bool = False) -> Device:
    """The device `kind` ("cpu", "cuda", or "auto": CUDA if there is one) of this machine.

    threads: of the CPU's kernels (None: as torch chooses). hardware: a profile to use in place of the detected one. cpu_time: see
    Device. Raises InputError when there is no such device.
    """
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise InputError(f"no CUDA device here (torch {torch.__version__}): use --device cpu, or install a CUDA build of torch")
        return _cuda(hardware)
    if hardware and (hardware.compute_capability or hardware.sm_count):
        raise InputError(f"{hardware.id} is a GPU, what is measured here is the CPU: its records and bounds would carry a wrong name")
    if threads:
        torch.set_num_threads(threads)
    if cpu_time and torch.get_num_threads() > 1:
        raise InputError("CPU time is that of one thread: add --threads 1")
    found = detect.cpu()
    levels = {name: size for name, size in found.caches.items() if not name.endswith("i")} or {"L2": float(2**21)}
    return Device(
        kind="cpu",
        id=hardware.id if hardware else found.name,
        cache_bytes=max(levels.values()),
        levels=levels,
        dtypes=("fp32", "bf16", "fp16", "int8", "w8a16", "int4"),
        profile=hardware,
        threads=torch.get_num_threads(),
        cpu_time=cpu_time,
    )


def _cuda(hardware: Hardware | None) -> Device:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    if hardware is None:
        known = next((d.profile_id for d in detect.detect() if d.kind == "gpu"), None)
        hardware = catalog.load_hardware(known) if known else None
    generation = (properties.major, properties.minor)
    dtypes = ["fp32", "fp16", "w8a16", "int4"]
    dtypes += ["tf32", "bf16", "int8"] if generation >= (8, 0) else []
    dtypes += ["fp8"] if generation >= (8, 9) else []
    l2 = float(properties.L2_cache_size)
    return Device("cuda", hardware.id if hardware else properties.name, l2, {"L2": l2}, tuple(dtypes), hardware)


def _nvml_state(index: int) -> dict[str, Any]:
    nvml, handle = _nvml(index)
    if nvml is None:
        return {}
    reasons = _ask(nvml, lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)) or 0
    found = {
        "sm_mhz": _ask(nvml, lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "memory_mhz": _ask(nvml, lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "power_w": _ask(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        "temperature_c": _ask(nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        "throttled": [text for bit, text in _THROTTLE.items() if reasons & bit],
    }
    return {key: value for key, value in found.items() if value not in (None, [])}


def _nvml_facts(index: int) -> dict[str, Any]:
    nvml, handle = _nvml(index)
    if nvml is None:
        return {}
    return {
        "driver": _ask(nvml, nvml.nvmlSystemGetDriverVersion),
        "power_limit_w": _ask(nvml, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
        "ecc": _ask(nvml, lambda: nvml.nvmlDeviceGetEccMode(handle)[0]),
        "mig": _ask(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0]),
        "max_sm_mhz": _ask(nvml, lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "max_memory_mhz": _ask(nvml, lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "pcie_width": _ask(nvml, lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
    }


def _nvml(index: int) -> tuple[Any, Any]:
    """nvidia-ml-py and the handle of torch's current device, or (None, None)."""
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(index).uuid}"  # CUDA_VISIBLE_DEVICES renumbers devices, NVML does not
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except (ImportError, AttributeError):
        return None, None
    except pynvml.NVMLError:
        return None, None


def _ask(nvml: Any, read: Any) -> Any:
    try:
        return read()
    except (nvml.NVMLError, AttributeError):  # not on this device, or not in this version of the bindings
        return None
