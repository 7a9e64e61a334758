"""Is the device what it should be? Facts from records against the profile and what devices of its class are known to reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from roofline import units
from roofline.profiles.hardware import Hardware
from roofline.records import Environment, Measurement

SLACK = 0.9  # of the lowest figure of the class, below which a device is slow
BEYOND = 1.02  # of a datasheet figure, above which the measurement is wrong
USUAL_BANDWIDTH, USUAL_PEAK = (0.80, 0.95), (0.60, 0.97)  # shares of the datasheet, for a class without public figures
MEASURED_PROFILE = (0.85, 1.15)  # a machine against a profile that was measured on it
SLOW_CLOCK = 0.97
LAUNCH_S = {"cuda": 20e-6, "cpu": 50e-6}  # one launch or call; usual are 2 to 8 µs
HOST_LINK = 0.6  # of the PCIe figure per direction that pinned transfers reach at least
LANES = 16
DRIFT = {"cuda": 0.05, "cpu": 0.20}  # within half of the passes of a stage
SPREAD = 0.25  # width of the interval in which another run's figure lies, of half of the rows
NEIGHBOUR = 0.5  # load beyond our own threads, per core, where nothing better is known
OTHERS = 0.15  # of the cores, kept busy by other processes while we measured
UNTRUSTED, FAULT, NOTE = "untrusted", "fault", "note"


@dataclass(frozen=True)
class Change:
    """How much the device changed by itself: slowest / fastest pass − 1, and by stage, within half of its passes, between the moment of
    the constants and that of what was predicted from them."""

    between: float = 0.0
    within: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """What one run saw of its device; None or empty = not known.

    Rates are the best samples: bandwidth of streams out of memory in B/s, gemm in FLOP/s by type, link of pinned transfers in B/s
    per direction. launch_s: median. Clocks in MHz: highest that any state showed, and the device's own maximum. load: highest
    1-minute average; others: cores that other processes kept busy while we measured, on average; threads: ours; cores: that the
    process may use; present: that the machine has. drift, moved: see Change; spread: of half of the rows, how wide the interval is in
    which another run's figure lies. cpu_time: times leave out what other processes took. wrong: messages of rejected cases.
    """

    kind: str
    bandwidth: float | None = None
    gemm: dict[str, float] = field(default_factory=dict)
    launch_s: float | None = None
    link: float | None = None
    sm_mhz: float | None = None
    max_sm_mhz: float | None = None
    memory_mhz: float | None = None
    max_memory_mhz: float | None = None
    power_limit_w: float | None = None
    throttled: tuple[str, ...] = ()
    ecc: int | None = None
    mig: int | None = None
    pcie_width: int | None = None
    load: float | None = None
    others: float | None = None
    threads: int = 1
    cores: int | None = None
    present: int | None = None
    drift: float = 0.0
    moved: Mapping[str, float] = field(default_factory=dict)
    spread: float = 0.0
    cpu_time: bool = False
    wrong: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As one object."""
        return asdict(self)


@dataclass(frozen=True)
class Finding:
    """severity: untrusted (the run decides nothing: exit 4), fault (the device is not what it should be), or note."""

    severity: str
    what: str
    check: str

    def to_json(self) -> dict[str, str]:
        """As one object."""
        return asdict(self)


def facts(
    measurements: Sequence[Measurement], environment: Environment, present: int | None, change: Change, widths: Sequence[float],
    wrong: Sequence[str] = (),
) -> Facts:  # fmt: skip
    """The facts in the records of a run. present: cores of the machine; widths: of rows, see Measured; wrong: messages of cases that
    were rejected."""
    device = environment.device
    streams = [float(m.notes["bytes"]) / m.minimum_s for m in measurements if m.op == "stream" and m.shape.get("level") == "memory"]
    gemm: dict[str, float] = {}
    for m in measurements:
        if m.op == "gemm" and m.dtype == m.notes.get("compute"):
            gemm[m.dtype] = max(gemm.get(m.dtype, 0.0), float(m.notes["flops"]) / m.minimum_s)
    launches = [m.median_s for m in measurements if m.op == "launch"]
    links = [float(m.notes["bytes"]) / m.minimum_s for m in measurements if m.op == "transfer" and m.notes.get("bytes")]
    neighbours = [float(m.notes["others"]) for m in measurements if m.notes.get("others") is not None]
    states = [m.notes[when] for m in measurements for when in ("before", "after") if m.notes.get(when)]
    spreads = sorted(widths)

    def highest(key: str) -> float | None:
        return max((float(state[key]) for state in states if key in state), default=None)

    return Facts(
        kind=str(device.get("kind", "cpu")), bandwidth=max(streams, default=None), gemm=gemm, launch_s=min(launches, default=None),
        link=max(links, default=None), sm_mhz=highest("sm_mhz"), max_sm_mhz=device.get("max_sm_mhz"), memory_mhz=highest("memory_mhz"),
        max_memory_mhz=device.get("max_memory_mhz"), power_limit_w=device.get("power_limit_w"),
        throttled=tuple(sorted({reason for state in states for reason in state.get("throttled", ())})),
        ecc=device.get("ecc"), mig=device.get("mig"), pcie_width=device.get("pcie_width"), load=highest("load"),
        others=sum(neighbours) / len(neighbours) if neighbours else None, threads=int(device.get("threads", 1)), cores=environment.cores,
        present=present, drift=change.between, moved=dict(change.within),
        spread=spreads[len(spreads) // 2] if spreads else 0.0, cpu_time=bool(device.get("cpu_time")), wrong=tuple(wrong),
    )  # fmt: skip


def diagnose(seen: Facts, hardware: Hardware | None) -> list[Finding]:
    """All findings, gravest first. hardware: None when no profile is known: then only the run itself is judged."""
    rules: list[Callable[[], Iterator[Finding]]] = [lambda: _run(seen), lambda: _cores(seen), lambda: _state(seen, hardware)]
    if hardware is not None:
        rules += [lambda: _bandwidth(seen, hardware), lambda: _arithmetic(seen, hardware), lambda: _links(seen, hardware)]
    found = [finding for rule in rules for finding in rule()]
    return sorted(found, key=lambda finding: (UNTRUSTED, FAULT, NOTE).index(finding.severity))


def trustworthy(findings: Sequence[Finding]) -> bool:
    """Whether verdicts of the run may be believed."""
    return all(finding.severity != UNTRUSTED for finding in findings)


def _run(seen: Facts) -> Iterator[Finding]:
    """What speaks against the run itself.

    Every pass has constants of its own moment, so a machine that changes between passes decides nothing wrong: that is stated
    (Facts.drift) and not held against the run. What is held against it: a change between the constants of a pass and what they
    predict, for it looks like an error of the prediction. When half of the passes changed by DRIFT, the middle of five still is known
    to about the aims of 15 and 20 %; beyond that it is not. And how far apart the middles of two runs may lie (SPREAD), for a figure
    that is not known decides nothing. How much single samples scatter is no matter where the median of many is steady.
    """
    for message in seen.wrong:
        yield Finding(UNTRUSTED, message, "compare the shape with the ledger (`roofline ops`) and look for operands that stay in a cache")
    if not seen.cpu_time and (what := _neighbour(seen)):
        yield Finding(UNTRUSTED, f"a busy neighbour: {what}", "stop other work (top shows it), or time CPU seconds: --threads 1 --cpu-time")
    if not seen.moved:
        what = "nothing was measured both with the constants and after what was predicted from them: how the machine changed is not known"
        yield Finding(UNTRUSTED, what, "records of an earlier version have no such measurements, and so has a run that ended early: repeat")
    for stage, share in seen.moved.items():
        if share > DRIFT[seen.kind]:
            what = f"{stage}: the machine changed by {share:.0%} between constants and what was predicted from them, in half of the passes"
            yield Finding(UNTRUSTED, what, "repeat when nothing else runs and the device has its working temperature")
    if seen.spread > SPREAD:
        what = f"the figures of half of the rows are known only within {seen.spread:.0%}"
        yield Finding(UNTRUSTED, what, "repeat when nothing else runs; give a larger --budget")
    if seen.cpu_time:
        what = "times are CPU seconds of one thread: they leave out what other processes took, not what these did to caches and memory"
        yield Finding(NOTE, what, "for wall-clock times leave out --cpu-time on an idle machine")


def _neighbour(seen: Facts) -> str:
    """Who else used the machine, if it was too much: what other processes took is known on Linux, elsewhere the load must do."""
    if not seen.cores:
        return ""
    if seen.others is not None:
        share = seen.others / (seen.present or seen.cores)
        return f"other processes took {share:.0%} of the machine's cores while we measured" if share > OTHERS else ""
    if seen.load is not None and seen.load - seen.threads > NEIGHBOUR * seen.cores:
        return f"load {seen.load:.1f} on {units.counted(seen.cores, 'core')}, with {units.counted(seen.threads, 'thread')} of ours"
    return ""


def _cores(seen: Facts) -> Iterator[Finding]:
    if seen.kind != "cpu" or not seen.cores:
        return
    if seen.present and seen.cores < seen.present:
        what = f"this process may use {seen.cores} of {seen.present} cores"
        yield Finding(FAULT, what, "look at CPU affinity and quotas: taskset -p $$, nproc, cgroup cpu.max")
    if not seen.cpu_time and seen.threads < seen.cores:
        what = f"{units.counted(seen.threads, 'thread')} on {units.counted(seen.cores, 'core')}: the others are not used"
        yield Finding(NOTE, what, "leave out --threads and OMP_NUM_THREADS")


def _state(seen: Facts, hardware: Hardware | None) -> Iterator[Finding]:
    if seen.throttled:
        what = f"throttled while measuring: {', '.join(seen.throttled)}"
        yield Finding(UNTRUSTED, what, "nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE; look at cooling and the power limit")
    if hardware is not None and hardware.tdp_w and seen.power_limit_w and seen.power_limit_w < 0.95 * hardware.tdp_w:
        what = f"power limit {seen.power_limit_w:.0f} W of {hardware.tdp_w:.0f} W"
        yield Finding(FAULT, what, "nvidia-smi -q -d POWER; raise it with nvidia-smi -pl if the machine may draw it")
    if seen.mig:
        yield Finding(
            FAULT, "MIG is on: this is a part of the device, the profile is of the whole", "nvidia-smi -L; compare with the slice's share"
        )
    if seen.ecc == 0:
        yield Finding(NOTE, "ECC is off: bandwidth may be higher than with it", "nvidia-smi -q -d ECC")
    if seen.pcie_width is not None and seen.pcie_width < LANES and hardware is not None and hardware.pcie_bandwidth:
        what = f"PCIe runs with {seen.pcie_width} lanes of {LANES}"
        yield Finding(FAULT, what, "nvidia-smi -q | grep -A3 'Link Width' under load; reseat the card, look at the slot and at risers")


def _bandwidth(seen: Facts, hardware: Hardware) -> Iterator[Finding]:
    if seen.bandwidth is None:
        return
    low, high, source = _class_range(hardware, ("stream_read", "stream_triad", "stream_scale", "weight_streaming"), "")
    rate = units.format(seen.bandwidth, "bandwidth")
    if not _own(hardware) and seen.bandwidth > BEYOND * hardware.memory_bandwidth:
        printed = units.format(hardware.memory_bandwidth, "bandwidth")
        what = f"memory gives {rate} where the datasheet has {printed}: operands stayed in a cache"
        yield Finding(UNTRUSTED, what, "rotate operands over more than the last-level cache (cold cases), or correct the byte count")
    elif seen.bandwidth < SLACK * low:
        clock = _clock("memory clock", seen.memory_mhz, seen.max_memory_mhz)
        half = _near(seen.bandwidth, hardware.memory_bandwidth, 0.5)
        reason = f": {clock}" if clock else "; half of what the profile has, which may be doubled" if half else ""
        usual = _range(low, high, "bandwidth")
        what = f"{hardware.name} gives {rate} where {source} gives {usual}{reason}"
        yield Finding(
            FAULT,
            what,
            "nvidia-smi -q -d CLOCK,ECC; other work on the device"
            if seen.kind == "cuda"
            else "other work; memory channels; the profile's bandwidth",
        )


def _arithmetic(seen: Facts, hardware: Hardware) -> Iterator[Finding]:
    for dtype, rate in seen.gemm.items():
        peak = hardware.peaks.get(dtype)
        if peak is None:
            continue
        low, high, source = _class_range(hardware, ("gemm_max_torch", "gemm_max_framework", "gemm_onemkl"), dtype)
        shown = units.format(rate, "flop_rate")
        if not _own(hardware) and rate > BEYOND * peak:
            factor = (
                "twice the FLOPs that run: is a multiply-add counted twice?"
                if _near(rate, peak, 2.0, 0.45)
                else "the FLOP count or the clock is wrong"
            )
            what = f"{dtype} products reach {shown} where the datasheet has {units.format(peak, 'flop_rate')}: {factor}"
            yield Finding(UNTRUSTED, what, "a product of m·n·k has 2·m·n·k FLOPs; peaks are dense")
        elif rate < SLACK * low:
            usual = _range(low, high, "flop_rate")
            what = f"{dtype} products reach {shown} where {source} reaches {usual}"
            yield Finding(
                FAULT,
                f"{what}: {_why_slow(seen, hardware, rate, peak)}",
                "nvidia-smi -q -d CLOCK,POWER,PERFORMANCE; the profile's peaks"
                if seen.kind == "cuda"
                else "threads, affinity, other work, the profile's peaks",
            )


def _why_slow(seen: Facts, hardware: Hardware, rate: float, peak: float) -> str:
    capped = bool(hardware.tdp_w and seen.power_limit_w and seen.power_limit_w < 0.95 * hardware.tdp_w)
    if capped or seen.throttled:
        return f"power limit {seen.power_limit_w:.0f} W" if capped and seen.power_limit_w else ", ".join(seen.throttled)
    if clock := _clock("SM clock", seen.sm_mhz, seen.max_sm_mhz):
        return clock
    if _near(rate, peak, 0.4, 0.35):
        return "half of what the peak promises with clocks as they should be: a sparse peak in the profile, or FLOPs counted by half"
    return "no clock, power or throttle reason was seen"


def _links(seen: Facts, hardware: Hardware) -> Iterator[Finding]:
    if seen.launch_s is not None and seen.launch_s > LAUNCH_S[seen.kind]:
        what = f"a launch takes {units.format(seen.launch_s, 'time')}, usual are 2 to 8 µs"
        yield Finding(FAULT, what, "a slow or busy host CPU, a debug build, or a profiler that is attached")
    if seen.link is not None and hardware.pcie_bandwidth and seen.link < HOST_LINK * hardware.pcie_bandwidth:
        whole, got = (units.format(x, "bandwidth") for x in (hardware.pcie_bandwidth, seen.link))
        lanes = f": {seen.pcie_width} lanes of {LANES}" if seen.pcie_width and seen.pcie_width < LANES else ""
        yield Finding(
            FAULT,
            f"transfers with the host run at {got} of {whole}{lanes}",
            "the link's width and generation, pinned memory, the NUMA node",
        )


def _class_range(hardware: Hardware, metrics: Sequence[str], dtype: str) -> tuple[float, float, str]:
    """(lowest, highest, who) of the public figures of this class, else usual shares of the profile's own figure."""
    wide = ("bf16", "fp16", "fp32", "")  # 16-bit weights and plain streams: packed formats unpack and are slower
    known = [a.value for a in hardware.achieved if a.metric in metrics and (a.dtype == dtype if dtype else a.dtype in wide)]
    if known:
        return min(known), max(known), "its class"
    figure = hardware.peaks[dtype] if dtype else hardware.memory_bandwidth
    low, high = MEASURED_PROFILE if _own(hardware) else USUAL_PEAK if dtype else USUAL_BANDWIDTH
    return low * figure, high * figure, "its profile" if _own(hardware) else "a device of this datasheet"


def _range(low: float, high: float, kind: str) -> str:
    return units.format(low, kind) if low == high else f"{units.format(low, kind)} to {units.format(high, kind)}"


def _own(hardware: Hardware) -> bool:
    """Whether the profile was measured rather than printed: then a faster sample is no error."""
    return hardware.vendor == "measured"


def _clock(name: str, seen: float | None, most: float | None) -> str:
    return f"{name} {seen:.0f} of {most:.0f} MHz" if seen and most and seen < SLOW_CLOCK * most else ""


def _near(value: float, whole: float, share: float, within: float = 0.2) -> bool:
    return abs(value / (share * whole) - 1) < within
