"""Collectives between processes: `torchrun … -m microbench.collectives`, on one machine or several, NCCL or gloo.

All ranks run the same calls back to back; a sample is the slowest rank's time of a burst, per call. Rank 0 writes the records.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from microbench import METHOD
from microbench.device import Device, open_device
from microbench.stopping import flags
from microbench.timers import Call
from roofline.errors import RooflineError, UntrustworthyError
from roofline.ledger.collectives import collective
from roofline.records import JsonlWriter, Measurement

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
SIZES = {"cpu": (2**12, 2**16, 2**20, 2**24), "cuda": (2**12, 2**16, 2**20, 2**24, 2**28)}
START_S = 8.0  # of torchrun and torch in each rank on a slow machine
END_S = 1.5
_END_OF_RANKS_S = 10.0
SAMPLES, BURST_S = 15, 0.01


def operation(name: str, size: int, device: str) -> tuple[Call, Callable[[], bool]]:
    """The call and whether its result is right. size: bytes of the whole tensor (all_to_all: of a rank's own rows), fp32.

    Each rank fills its input with its number + 1, so every result is known.
    """
    ranks, rank = dist.get_world_size(), dist.get_rank()
    whole, part = size // 4, size // 4 // ranks
    value = float(rank + 1)
    if name == "all_reduce":
        data = torch.full((whole,), value, device=device)  # the maximum: a sum in place would grow with each call
        return lambda: dist.all_reduce(data, op=dist.ReduceOp.MAX), lambda: bool((data == ranks).all())
    if name == "all_gather":
        data, out = torch.full((part,), value, device=device), torch.empty(part * ranks, device=device)
        return lambda: dist.all_gather_into_tensor(out, data), lambda: _steps(out, ranks)
    data = torch.full((part * ranks,), value, device=device)
    if name == "reduce_scatter":
        out = torch.empty(part, device=device)
        return lambda: dist.reduce_scatter_tensor(out, data), lambda: bool((out == ranks * (ranks + 1) / 2).all())
    out = torch.empty_like(data)
    return lambda: dist.all_to_all_single(out, data), lambda: _steps(out, ranks)


def _steps(out: torch.Tensor, ranks: int) -> bool:
    """Whether the parts of `out` are filled with 1, 2, …"""
    expected = torch.arange(1, ranks + 1, device=out.device, dtype=out.dtype)
    return bool((out.view(ranks, -1) == expected[:, None]).all())


def measure_collective(name: str, size: int, device: Device, environment: str, budget_s: float) -> Measurement:
    """Time of one collective on all ranks. Raises UntrustworthyError for a wrong result."""
    ranks = dist.get_world_size()
    call, right = operation(name, size, device.kind)
    first = _burst(call, 1, device)
    wrong = torch.tensor([0.0 if right() else 1.0], device=device.kind)
    dist.all_reduce(wrong)
    if wrong.item():
        raise UntrustworthyError(f"{name} of {ranks} ranks over {size} B: wrong result on {int(wrong.item())} ranks")
    rough = _slowest([_burst(call, 2, device)], device)[0]  # the same on all ranks, so that all run the same calls
    calls = max(1, min(math.ceil(BURST_S / rough), 1000))
    count = max(3, min(SAMPLES, int(budget_s / (calls * rough))))
    samples = _slowest([_burst(call, calls, device) for _ in range(count)], device)
    op = collective(name, "", 1, ranks, np.asarray(float(size)))
    backend = dist.get_backend()
    notes = {
        "case": f"collective/{name}/ranks={ranks},bytes={size}/{backend}", "first_call_s": first, "flops": 0.0, "compute": "",
        "bytes": float(op.link_bytes_each), "stop": "budget" if count < SAMPLES else "samples", **flags(samples),
    }  # fmt: skip
    shape: dict[str, int | float | str] = {"collective": name, "ranks": ranks, "bytes": size, "backend": backend}
    return Measurement(
        "collective",
        shape,
        device.id,
        "fp32",
        tuple(samples),
        f"{METHOD}, {backend} bursts",
        environment,
        software={"torch": torch.__version__},
        notes=notes,
    )


def _burst(call: Call, calls: int, device: Device) -> float:
    dist.barrier()
    _wait(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    _wait(device)
    return (time.perf_counter() - start) / calls


def _wait(device: Device) -> None:
    if device.kind == "cuda":
        torch.cuda.synchronize()


def _slowest(samples: Sequence[float], device: Device) -> list[float]:
    times = torch.tensor(samples, dtype=torch.float64, device=device.kind)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return [float(t) for t in times]


def _agreed(value: float, device: Device) -> float:
    """Rank 0's value on every rank."""
    shared = torch.tensor([value], dtype=torch.float64, device=device.kind)
    dist.broadcast(shared, 0)
    return float(shared)


def run_ranks(kind: str, ranks: int, records: Path, budget_s: float) -> str:
    """Starts `ranks` processes on this machine with torchrun, which add their records to a file; "" or what went wrong."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
        "-m",
        "microbench.collectives",
    ]
    command += ["--device", kind, "--records", str(records), "--until", f"{time.time() + budget_s - END_S:.1f}"]
    local = {"OMP_NUM_THREADS": "1"} | ({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" and kind == "cpu" else {})
    launcher = subprocess.Popen(command, env=local | os.environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _, errors = launcher.communicate(timeout=max(budget_s, 1.0))
    except subprocess.TimeoutExpired:
        return f"collectives of {ranks} ranks took longer than their budget"
    finally:
        _end(launcher)
    if launcher.returncode:
        reason = next((line for line in reversed(errors.splitlines()) if "Error" in line), "see torchrun's output")
        return f"collectives of {ranks} ranks failed: {reason.strip()}"
    return ""


def _end(launcher: subprocess.Popen[str]) -> None:
    """Asks torchrun to end its ranks and itself, which it cannot do once it is killed."""
    if launcher.poll() is None:
        launcher.terminate()
        try:
            launcher.wait(_END_OF_RANKS_S)
        except subprocess.TimeoutExpired:
            launcher.kill()
    launcher.communicate()


def _end_with(launcher: int) -> None:
    """Ends this rank once its launcher is gone: a torchrun that was killed cannot end the ranks that it started."""
    while os.getppid() == launcher:
        time.sleep(0.5)
    os._exit(1)


def main(arguments: Sequence[str] | None = None) -> None:
    """What each rank runs."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    parser = argparse.ArgumentParser(prog="microbench.collectives", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--until", type=float, help="seconds since 1970 at which to stop (default: 30 s from now)")
    options, begun = parser.parse_args(arguments), time.time()
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    device = open_device(options.device)
    environment = device.environment()
    cases = [(name, size) for size in SIZES[options.device] for name in OPS]
    writer = JsonlWriter(options.records) if dist.get_rank() == 0 else None
    try:
        if writer:
            writer.write(environment.to_json())
        for number, (name, size) in enumerate(cases):
            left = _agreed((options.until or begun + 30.0) - time.time(), device)
            if left <= 0:
                break
            found = measure_collective(name, size, device, environment.id, left / (len(cases) - number))
            if writer:
                writer.write(found.to_json())
                writer.flush()
    except RooflineError as error:
        sys.exit(f"Error: {error}")
    finally:
        if writer:
            writer.close()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
