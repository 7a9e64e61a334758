"""The machine and software that a record comes from, and an id under which records refer to it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

_PACKAGES = ("roofline", "numpy", "torch", "aiohttp", "uvloop")
_VARIABLES = ("CUDA_", "OMP_", "MKL_", "OPENBLAS_", "NCCL_", "TORCH_")


@dataclass(frozen=True)
class Environment:
    """Facts of a machine that decide whether two measurements may be compared.

    cores: those this process may run on; memory_bytes: installed; software: package → version; variables: the environment
    variables that change speed; device: what the caller knows of its accelerator (driver, clocks, power limit, …);
    load: 1-minute load average at capture, not part of the id.
    """

    system: str
    cpu: str
    cores: int
    memory_bytes: int
    python: str
    software: dict[str, str]
    variables: dict[str, str]
    device: dict[str, Any]
    load: float

    @cached_property
    def id(self) -> str:
        """Twelve hex digits, equal for equal machines and software."""
        facts = asdict(self)
        del facts["load"]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """The record as one JSON object."""
        return {"kind": "environment", "id": self.id, **asdict(self)}


def capture_environment(device: dict[str, Any] | None = None) -> Environment:
    """The environment of this process. device: facts of the accelerator, from whoever can ask it."""
    return Environment(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=_memory_bytes(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        software={name: version for name in _PACKAGES if (version := _version(name))},
        variables={key: value for key, value in sorted(os.environ.items()) if key.startswith(_VARIABLES)},
        device=device or {},
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan"),
    )


def _version(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith(("model name", "Model")):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
