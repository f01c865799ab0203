"""The device that tensors live on, and the processes that share a training step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Device:
    """Where tensors live, the dtype that training multiplies in, and why."""

    device: torch.device
    dtype: torch.dtype
    reason: str

    def __str__(self) -> str:
        return f"{self.device.type}, {str(self.dtype).removeprefix('torch.')}: {self.reason}"


def pick_device(prefer: str = "auto") -> Device:
    """CUDA where there is any, else the CPU. Raises ValueError for a device that is missing."""
    if prefer not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device={prefer!r} is unknown: choose auto, cpu or cuda")
    if prefer == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda', but this torch sees no CUDA device: choose cpu or auto")
    if prefer == "cpu" or not torch.cuda.is_available():
        why = "as asked" if prefer == "cpu" else "no CUDA device was found"
        return Device(torch.device("cpu"), torch.float32, f"{why}; float32 is a CPU's fast type")
    name = torch.cuda.get_device_name()
    # Without the argument a T4 answers True, and then emulates bfloat16, slowly.
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return Device(torch.device("cuda"), torch.bfloat16, f"{name} multiplies bfloat16 natively")
    why = f"{name} has no native bfloat16; its gradients are scaled so that float16 can hold them"
    return Device(torch.device("cuda"), torch.float16, why)


def send(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on that device; from the CPU to a GPU without waiting for the queue."""
    if device.type == "cuda" and x.is_cpu:
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def forked_random_state(device: Device):
    """A with-block that leaves the global random state as it was, on this process's own GPU too."""
    gpu = device.device.type == "cuda"
    return torch.random.fork_rng(devices=[device.device] if gpu else None)


# ------------------------------------------------------------------ several processes


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this one is."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes, prints and evaluates."""
        return self.rank == 0

    def mean(self, values: Tensor) -> Tensor:
        """The mean over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(values)
            values /= self.size
        return values

    def gather(self, value) -> list:
        """The value that each process has, in the order of their ranks."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value)
        return values

    def agree(self, what: str, value) -> None:
        """Raises ValueError, in every process, when they do not all have the same value."""
        values = self.gather(value)
        other = next((rank for rank in range(self.size) if values[rank] != values[0]), None)
        if other:
            found = f"process 0 has {what} {values[0]}, process {other} has {values[other]}"
            raise ValueError(f"{found}: all must read the same files, so put them where all can")


def ranks() -> Ranks:
    """This process among those that torch.distributed connects; a single one without it."""
    connected = dist.is_available() and dist.is_initialized()
    return Ranks(dist.get_rank(), dist.get_world_size()) if connected else Ranks()
