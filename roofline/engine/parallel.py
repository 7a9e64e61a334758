"""Tensor parallelism: every rank runs the same engine in step on its shard of the weights; these are the places where they meet."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from roofline.errors import InputError


@dataclass(frozen=True)
class Ranks:
    """One rank among `size`. Sums and gathers are no-ops for one rank. Backends: NCCL for CUDA, gloo for CPU."""

    rank: int = 0
    size: int = 1

    def shard(self, tensor: Tensor, dim: int, parts: int | None = None) -> Tensor:
        """This rank's share of a dimension that is made of `parts` units (heads); fewer units than ranks are copied."""
        if self.size == 1:
            return tensor
        parts = parts or self.size
        units = max(parts // self.size, 1)
        width = tensor.shape[dim] // parts
        first = self.rank * units if parts >= self.size else self.rank * parts // self.size
        return tensor.narrow(dim, first * width, units * width).contiguous()

    def span(self, total: int) -> tuple[int, int]:
        """[first, stop) of this rank among `total` rows, as even as it gets."""
        return total * self.rank // self.size, total * (self.rank + 1) // self.size

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def join(self, tensor: Tensor, total: int) -> Tensor:
        """The last dimension, of which each rank has its `span` of `total`, whole."""
        if self.size == 1:
            return tensor
        widest = -(-total // self.size)
        padded = torch.nn.functional.pad(tensor, (0, widest - tensor.shape[-1])).contiguous()
        gathered = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(gathered, padded)
        widths = [stop - first for first, stop in (Ranks(rank, self.size).span(total) for rank in range(self.size))]
        return torch.cat([part[..., :width] for part, width in zip(gathered, widths, strict=True)], -1)

    def agree(self, value: float) -> float:
        """Rank 0's value, on all ranks: what they decide from a clock they must decide alike."""
        if self.size == 1:
            return value
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        shared = torch.tensor([value], dtype=torch.float64, device=device)
        dist.broadcast(shared, 0)
        return float(shared.item())

    def connect(self, device: str) -> None:
        """Joins the other ranks: NCCL on cuda, gloo on cpu. MASTER_ADDR and MASTER_PORT (and on cuda LOCAL_RANK) are in the environment."""
        if self.size == 1:
            return
        if not dist.is_available():
            raise InputError("this PyTorch was built without torch.distributed; use --tp 1")
        if int(os.environ.get("WORLD_SIZE", "1")) != self.size:
            raise InputError(f"--tp {self.size}, but WORLD_SIZE is {os.environ.get('WORLD_SIZE', 'not set')}: start as many processes")
        if device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", self.rank)))
        dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=self.rank, world_size=self.size)

    def close(self) -> None:
        """Leaves the group."""
        if self.size > 1:
            dist.destroy_process_group()


def launch(size: int, command: Sequence[str]) -> int:
    """Runs `command` as `size` processes on this machine, connected through a free port; only rank 0 keeps its standard output.

    Returns 0, or the first failure's exit code; then the other ranks are ended.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = os.environ | {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            command, env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=None if rank == 0 else subprocess.DEVNULL
        )
        for rank in range(size)
    ]
    try:
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):
                break
            time.sleep(0.05)
        return next((rank.returncode for rank in ranks if rank.returncode), 0)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.terminate()
            rank.wait()


def own_command() -> list[str]:
    """The command line of this process, to be run again as a rank."""
    return [sys.executable, "-c", "from roofline.cli.main import run; run()", *sys.argv[1:]]
