"""Detection with drivers that are made up here: names and PCI ids as public dumps show them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from roofline.errors import InputError
from roofline.profiles import catalog, detect

MIB = 2**20


class NVMLError(Exception):
    """As pynvml's."""


def fake_nvml(*devices: dict[str, Any], driver: bool = True) -> ModuleType:
    """A pynvml with these devices. A key that is missing raises NVMLError, as "not supported" does."""
    module = ModuleType("pynvml")

    def init() -> None:
        if not driver:
            raise NVMLError

    def read(key: str) -> Any:
        def ask(handle: dict[str, Any]) -> Any:
            if key not in handle:
                raise NVMLError
            return handle[key]

        return ask

    module.__dict__.update(
        NVMLError=NVMLError,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(devices),
        nvmlDeviceGetHandleByIndex=lambda i: devices[i],
        nvmlDeviceGetName=read("name"),
        nvmlDeviceGetPciInfo=read("pci"),
        nvmlDeviceGetMemoryInfo=read("memory"),
        nvmlDeviceGetCudaComputeCapability=read("capability"),
    )
    return module


def device(name: str | bytes, pci: str = "", mib: int | None = None, capability: tuple[int, int] = (9, 0)) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "capability": capability}
    if pci:
        found["pci"] = SimpleNamespace(pciDeviceId=(int(pci, 16) << 16) | 0x10DE)
    if mib:
        found["memory"] = SimpleNamespace(total=mib * MIB)
    return found


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(*devices: dict[str, Any], driver: bool = True) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(*devices, driver=driver))
        monkeypatch.setitem(sys.modules, "torch", None)  # importing it raises ImportError

    return use


@pytest.mark.parametrize(
    ("name", "pci", "mib", "profile"),
    [
        ("Tesla V100-SXM2-32GB", "1DB5", 32768, "v100-sxm-32gb"),
        ("Tesla T4", "1EB8", 15109, "t4"),
        ("A100-SXM4-40GB", "20B0", 40960, "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", "20B2", 81920, "a100-sxm-80gb"),
        ("NVIDIA A100 80GB PCIe", "20B5", 81920, "a100-pcie-80gb"),
        ("NVIDIA A10", "2236", 23028, "a10"),
        ("NVIDIA A10G", "2237", 23028, "a10g"),
        ("NVIDIA L40", "26B5", 46068, "l40"),
        ("NVIDIA L40S", "26B9", 46068, "l40s"),
        ("NVIDIA H100 80GB HBM3", "2330", 81559, "h100-sxm"),
        ("NVIDIA H100 PCIe", "2331", 81559, "h100-pcie"),
        ("NVIDIA H100 NVL", "2321", 95830, "h100-nvl"),
        ("NVIDIA H800", "2324", 81559, "h800-sxm"),
        ("NVIDIA H200", "2335", 143771, "h200-sxm"),
        ("NVIDIA H200 NVL", "233B", 143771, "h200-nvl"),
        ("NVIDIA H20", "2329", 97871, "h20"),
        ("NVIDIA GH200 480GB", "2342", 97871, "gh200-96gb"),
        ("NVIDIA GH200 120GB", "2342", 97871, "gh200-96gb"),
        ("NVIDIA B200", "2901", 183359, "b200-sxm"),
        ("NVIDIA B300 SXM6 AC", "3182", 275040, "b300-sxm"),
        ("NVIDIA GB200", "2941", 189471, "gb200"),
        ("NVIDIA GB300", "31C2", 284208, "gb300"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "2BB1", 97887, "rtx-pro-6000-workstation"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "2BB5", 97887, "rtx-pro-6000-server"),
        ("NVIDIA GeForce RTX 3060", "2504", 12288, "rtx-3060-12gb"),
        ("NVIDIA GeForce RTX 3090", "2204", 24576, "rtx-3090"),
        ("NVIDIA GeForce RTX 4090", "2684", 24564, "rtx-4090"),
        ("NVIDIA GeForce RTX 5090", "2B85", 32607, "rtx-5090"),
        (b"NVIDIA RTX A6000", "2230", 49140, "rtx-a6000"),
        ("NVIDIA GB10", "2E12", None, "dgx-spark-gb10"),
        ("NVIDIA Thor", "", None, "jetson-agx-thor-t5000"),
    ],
)
def test_devices_of_public_dumps(nvml: Any, name: str, pci: str, mib: int | None, profile: str) -> None:
    nvml(device(name, pci, mib))
    found = detect.detect()[0]
    assert found.profile_id == profile
    assert found.memory_bytes == (mib * MIB if mib else None)
    assert ("memory size" in found.unknown) == (mib is None)
    assert found.evidence


@pytest.mark.parametrize(
    ("name", "pci", "mib", "words"),
    [
        ("NVIDIA A2", "25B6", 15356, "alone does not decide"),  # shares PCI id and MiB with the A16
        ("NVIDIA H20-3e", "232C", 143771, "no profile"),
        ("NVIDIA L20", "26BA", 46068, "no profile"),
        ("NVIDIA A800 80GB PCIe", "20F5", 81920, "no profile"),
        ("NVIDIA RTX 6000D", "", 85651, "no profile"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "2BB4", 97887, "no profile"),
        ("NVIDIA Some New Card", "", 81559, "no profile"),  # the memory size of an H100 decides nothing
        ("NVIDIA H100 PCIe", "2330", 81559, "but PCI id 2330 is that of h100-sxm"),
        ("NVIDIA GeForce RTX 3060", "2504", 8192, "memory is 12.0 GiB, not 8.00 GiB"),
        ("NVIDIA GeForce RTX 3080", "220A", 12288, "memory is 10.0 GiB, not 12.0 GiB"),
        ("NVIDIA GeForce RTX 4060 Ti", "2803", 8188, "memory is 16.0 GiB"),
        ("NVIDIA RTX PRO 5000 Blackwell", "2BB3", 73000, "memory is 47.8 GiB"),
        ("Orin (nvgpu)", "", None, "sm count could not be read"),
    ],
)
def test_no_profile_rather_than_a_guess(nvml: Any, name: str, pci: str, mib: int | None, words: str) -> None:
    nvml(device(name, pci, mib))
    found = detect.detect()[0]
    assert found.profile_id is None
    assert words in "; ".join(found.evidence)
    with pytest.raises(InputError, match="name a device with -H"):
        detect.hardware_from_this_machine()


def test_an_unlisted_pci_id_is_told_but_does_not_hinder(nvml: Any) -> None:
    nvml(device("NVIDIA H200", "9999", 143771))
    found = detect.detect()[0]
    assert found.profile_id == "h200-sxm"
    assert "PCI id 9999, which no profile lists" in found.evidence


def test_capacity_comes_from_the_probe(nvml: Any) -> None:
    """A converted 4090 has 48 GB under the same name and PCI id."""
    nvml(device("NVIDIA GeForce RTX 4090", "2684", 49140))
    assert any("47.99 GiB" in line for line in detect.detect()[0].evidence)
    hardware = detect.hardware_from_this_machine()
    assert (hardware.id, hardware.memory_reported_bytes) == ("rtx-4090", 49140 * MIB)
    assert hardware.peaks == catalog.load_hardware("rtx-4090").peaks


def test_a_device_without_memory_figure_keeps_that_of_the_profile(nvml: Any) -> None:
    nvml(device("NVIDIA GB10", "2E12"))
    assert catalog.load_hardware("auto").memory_reported_bytes == 130602405888


def test_all_devices_then_the_cpu(nvml: Any) -> None:
    nvml(device("NVIDIA L4", "27B8", 23034), device("NVIDIA H20", "2329", 97871))
    assert [d.kind for d in detect.detect()] == ["gpu", "gpu", "cpu"]


@pytest.mark.parametrize("present", [True, False])
def test_without_a_driver_only_the_cpu(monkeypatch: pytest.MonkeyPatch, present: bool) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(driver=False) if present else None)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert [d.kind for d in detect.detect()] == ["cpu"]
    with pytest.raises(InputError, match="not known without measuring"):
        catalog.load_hardware("auto")


def fake_torch(hip: str | None, **properties: Any) -> ModuleType:
    module = ModuleType("torch")
    module.__dict__.update(
        version=SimpleNamespace(hip=hip),
        cuda=SimpleNamespace(
            is_available=lambda: True, device_count=lambda: 1, get_device_properties=lambda _: SimpleNamespace(**properties)
        ),
    )
    return module


@pytest.mark.parametrize(
    ("hip", "name", "mib", "units", "arch", "profile"),
    [
        ("6.2", "AMD Instinct MI300X", 196592, 304, "gfx942:sramecc+", "mi300x"),
        ("6.2", "AMD Radeon Graphics", 98304, 40, "gfx1151", "strix-halo-8060s"),
        ("6.2", "AMD Radeon Graphics", 16384, 12, "gfx1036", None),
        ("6.2", "AMD Instinct MI250X", 65536, 110, "gfx90a", None),  # torch sees one of the two halves
        (None, "Orin", 62800, 16, "8.7", "jetson-agx-orin-64gb"),
        (None, "Orin", 30700, 14, "8.7", "jetson-agx-orin-32gb"),
        (None, "Orin", 7600, 8, "8.7", None),
    ],
)
def test_torch_where_nvml_has_nothing(
    monkeypatch: pytest.MonkeyPatch, hip: str | None, name: str, mib: int, units: int, arch: str, profile: str | None
) -> None:
    properties: dict[str, Any] = {"name": name, "total_memory": mib * MIB, "multi_processor_count": units}
    properties |= {"gcnArchName": arch} if hip else {"major": int(arch[0]), "minor": int(arch[2])}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "torch", fake_torch(hip, **properties))
    found = detect.detect()[0]
    assert (found.profile_id, found.probe) == (profile, "torch")
    assert "PCI id" in found.unknown


def test_a_cpu_from_its_files(tmp_path: Path) -> None:
    block = "processor\t: {i}\nmodel name\t: Some CPU @ 2.00GHz\nphysical id\t: 0\ncore id\t\t: {core}\n\n"
    (tmp_path / "cpuinfo").write_text("".join(block.format(i=i, core=i // 2) for i in range(8)))
    (tmp_path / "meminfo").write_text("MemTotal:       16384000 kB\nMemFree: 1 kB\n")
    caches = [(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2048K"), (3, "Unified", "260M")]
    for index, (level, kind, size) in enumerate(caches):
        folder = tmp_path / "devices/system/cpu/cpu0/cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    found = detect.cpu(proc=tmp_path, sys=tmp_path)
    assert (found.name, found.cores, found.memory_bytes) == ("Some CPU @ 2.00GHz", 4, 16384000 * 1024)
    assert found.caches == {"L1d": 48 * 1024, "L1i": 32 * 1024, "L2": 2 * MIB, "L3": 260 * MIB}
    assert found.unknown == ("peak FLOP/s", "memory bandwidth")


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    found = detect.cpu(proc=tmp_path, sys=tmp_path)
    assert (found.name, found.cores, found.memory_bytes, found.caches) == ("unknown CPU", None, None, {})
    assert found.unknown == ("cores", "memory size", "peak FLOP/s", "memory bandwidth")
