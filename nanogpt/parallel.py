"""Several processes that train one model: what torchrun starts. In a process alone nothing happens here.

    torchrun --nproc_per_node=2 -m nanogpt.train --recipe fast

PyTorch's DistributedDataParallel does the work: every process has a copy of the model, takes its
share of each batch, and the gradients are averaged before each update.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .runtime import Device


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this one is."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes, prints and evaluates."""
        return self.rank == 0

    def share(self, batch: Tensor) -> Tensor:
        """This process's rows of a batch.  (B, …) -> (B / size, …)"""
        return batch.chunk(self.size)[self.rank]

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model, or DDP around it: its backward pass averages the gradients of all processes."""
        return nn.parallel.DistributedDataParallel(model) if self.size > 1 else model

    def mean(self, values: Tensor) -> Tensor:
        """The mean over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
            values /= self.size
        return values


def ranks() -> Ranks:
    """This process among those that `joined()` has brought together; alone without it."""
    return Ranks(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else Ranks()


@contextmanager
def joined(device: Device):
    """Meet the other processes that torchrun started, for the length of a with-block: gives the Device.

    NCCL between GPUs, gloo between CPUs. Does nothing in a process that torchrun did not start.
    """
    if "LOCAL_RANK" not in os.environ:
        yield device
        return
    gpu = device.device.type == "cuda"
    if gpu:
        count, local = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
        if local >= count:
            raise ValueError(f"process {local} of this machine has no GPU of its own: there are {count}, so "
                             f"--nproc_per_node={count} at most")  # fmt: skip
        device = Device(torch.device("cuda", local), device.dtype, device.reason)
        torch.cuda.set_device(device.device)
    before = signal.signal(signal.SIGTERM, _told_to_end)
    dist.init_process_group("nccl" if gpu else "gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()
        signal.signal(signal.SIGTERM, before)


def _told_to_end(signum, frame) -> None:  # what torchrun sends to the others when one is lost
    if os.environ.get("RANK") == "0":
        said = ("error: another process was lost, so this one ends too: the same command with --resume goes "
                "on from the last evaluation, with as many processes as you like")  # fmt: skip
        print(said, file=sys.stderr, flush=True)
    os._exit(128 + signum)
