"""Several processes that train one model: what torchrun starts. In a process alone nothing happens here.

    torchrun --nproc_per_node=2 -m nanogpt train --recipe fast

PyTorch's DistributedDataParallel does the work: every process has a copy of the model, takes its
share of each batch, and the gradients are averaged before each update.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..system.device import Device

# How long a process waits for another. A lost one is not waited for: torchrun ends the job. This is for the
# first one's evaluations, which NCCL's own 10 minutes may be too short for.
PATIENCE = timedelta(hours=2)


_ending = threading.Lock()


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

    def agree(self, what: str, value) -> None:
        """Raises ValueError, in every process, when they do not all have the same value."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value)
        if other := next((rank for rank in range(self.size) if values[rank] != values[0]), None):
            raise ValueError(
                f"process 0 has {what} {values[0]}, process {other} has {values[other]}: all must read the "
                f"same files, so put them where all can"
            )


def ranks() -> Ranks:
    """This process among those that `joined()` has brought together; alone without it."""
    met = dist.is_available() and dist.is_initialized()
    return Ranks(dist.get_rank(), dist.get_world_size()) if met else Ranks()


def speaks() -> bool:
    """Whether this process is the one of its machine that reports what went wrong: all would say the same."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


@contextmanager
def joined(device: Device):
    """Meet the other processes that torchrun started, for the length of a with-block: gives the Device.

    NCCL between GPUs, gloo between CPUs. Does nothing in a process that torchrun did not start. When
    another process is lost this one says so and ends, with exit code 1. Raises ValueError for more
    processes than GPUs.
    """
    if "LOCAL_RANK" not in os.environ:
        yield device
        return
    gpu = device.device.type == "cuda"
    if gpu:
        device = Device(torch.device("cuda", _own_gpu()), device.dtype, device.reason)
        torch.cuda.set_device(device.device)
    with _ends_when_told():
        try:
            dist.init_process_group("nccl" if gpu else "gloo", timeout=PATIENCE)
            yield device
        except RuntimeError as error:
            if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
                raise
            time.sleep(2)  # so that torchrun notices the lost one first, and names it as the cause
            what = f" ({error})" if isinstance(error, dist.DistError) else ""
            _end(f"the connection to another process broke{what}")
        except KeyboardInterrupt as stopped:
            if (
                stopped.args
            ):  # all stop together; else the others may be waiting, and would be waited for
                dist.destroy_process_group()
            raise
        dist.destroy_process_group()


def _own_gpu() -> int:
    count, local = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
    here = int(os.environ.get("LOCAL_WORLD_SIZE", local + 1))
    if here > count:  # in every process, so that all end before they meet
        raise ValueError(
            f"{here} processes, but {count} GPU{'s' * (count != 1)} on this machine, and each needs its own: "
            f"take --nproc_per_node={count} at most"
        )
    return local


@contextmanager
def _ends_when_told():
    """End at SIGTERM, which torchrun sends to the others when a process is lost.

    A thread does it: the main one may be waiting, deaf, for the very process that was lost.
    """
    ear, mouth = socket.socketpair()
    mouth.setblocking(False)

    def listen():
        while heard := ear.recv(1):
            if heard[0] == signal.SIGTERM:
                _end("told to end (SIGTERM), as torchrun does when another process was lost")

    handler = signal.signal(
        signal.SIGTERM, lambda *_: None
    )  # without one the process would end at once
    wakeup = signal.set_wakeup_fd(mouth.fileno())
    threading.Thread(target=listen, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, handler)
        mouth.close()


def _end(why: str) -> None:
    """Leave now: what a process does on its way out would wait for the one that was lost."""
    _ending.acquire()  # for good: the broken connection and torchrun's signal are one event, told once
    if os.environ.get("RANK") == "0":
        again = "the same command with --resume goes on from the last evaluation"
        said = f"error: {why}: {again}, with as many processes as you like"
        print(said, file=sys.stderr, flush=True)
    os._exit(1)
