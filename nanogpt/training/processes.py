"""Train one model in several processes, started by torchrun. A single process is unaffected.

    torchrun --nproc_per_node=2 -m nanogpt train --recipe fast

PyTorch's DistributedDataParallel does the work: every process has a copy of the model, takes its
share of each batch, and the gradients are averaged before each update. If a process dies, torchrun
stops the others; the same command with --resume continues from the last evaluation.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

import torch
import torch.distributed as dist
import torch.nn as nn
from torch import Tensor

from ..device import Device, forked_random_state
from ..files import ROOT, sha256
from .trainer import Trainer

# How long a process waits for another one, for example for the first to evaluate: NCCL's default
# of 10 minutes may be too short.
_TIMEOUT = timedelta(hours=2)
# Keep process groups alive until the process exits. Otherwise DDP's Reducer may destroy the last
# reference to one while it holds the GIL, and wait for a gloo thread that waits for the GIL: 1 %
# hung.
_KEPT: list[dist.ProcessGroup | None] = []


@dataclass(eq=False)
class TeamTrainer(Trainer):
    """The trainer of one of several processes, each of which computes its share of every batch.

    The batches are the same for any number of processes, and so is the run, except for rounding.
    """

    rank: ClassVar[int]  # this process's, from 0

    def __post_init__(self) -> None:
        """Average gradients over all processes, in an order fixed before the first step.

        DDP rebuilds its gradient buckets after the first backward pass, which changes the order of
        summation. So every run, new or resumed, begins with one discarded pass, and both compute
        the same bits.
        """
        self.agree("a text of sha256", sha256(self.data.numpy().tobytes())[:12])
        super().__post_init__()
        self.shared = nn.parallel.DistributedDataParallel(self.net)
        self.net = self.shared
        block, n = self.window(0)
        zeros = torch.zeros(n // self.size, block, dtype=torch.int64, device=self.device.device)
        with forked_random_state(self.device):
            self.gradients(zeros, zeros)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """This process's share of the batch.  2 × (B / processes, T)

        Dropout differs between processes. The first has the same random state as a single process;
        the others derive theirs from the step, so that a resumed run repeats the same dropout.
        """
        if self.rank:
            torch.manual_seed(self.config.seed + 1_000_003 * self.rank + step)
        x, y = super().batch(step)
        return x.chunk(self.size)[self.rank], y.chunk(self.size)[self.rank]

    def backward(self, x: Tensor, y: Tensor, step: int, last: bool) -> Tensor:
        with nullcontext() if last else self.shared.no_sync():  # averaged after the last part
            return super().backward(x, y, step, last)

    def gradients(self, x: Tensor, y: Tensor, step: int = 0) -> Tensor:
        return self._mean(super().gradients(x, y, step))

    def stops(self, request: bool, step: int, last: bool) -> bool:
        """Whether any process has a request to stop."""
        device = self.device.device
        if device.type == "cuda" and step % 10 and not last:
            return False  # agreeing would wait for the GPU's queue
        return float(self._mean(torch.tensor(float(request), device=device))) > 0

    def agree(self, name: str, value: object) -> None:
        values = [value] * self.size
        dist.all_gather_object(values, value)
        for rank, other in enumerate(values):
            if other != values[0]:
                raise ValueError(
                    f"process 0 has {name} {values[0]}, process {rank} has {other}: "
                    "all must read the same files, so put them where all processes can read them"
                )

    def _mean(self, values: Tensor) -> Tensor:
        """The mean over all processes."""
        dist.all_reduce(values)
        return values.div_(self.size)


def trainer_of(rank: int, size: int) -> type[TeamTrainer]:
    """The trainer class for process `rank` (from 0) of `size`."""
    return type("TeamTrainer", (TeamTrainer,), {"rank": rank, "size": size, "first": rank == 0})


@contextmanager
def joined(device: Device) -> Iterator[tuple[Device, type[Trainer]]]:
    """Connect to torchrun's other processes; a context manager for Device and Trainer class.

    Uses NCCL between GPUs and gloo between CPUs. In a process that torchrun did not start, returns
    the given device and `Trainer`. Raises ValueError for more processes than GPUs, and
    ConnectionError if another process is lost.
    """
    if "LOCAL_RANK" not in os.environ:
        yield device, Trainer
        return
    gpu = device.device.type == "cuda"
    if gpu:
        device = Device(torch.device("cuda", _local_gpu()), device.dtype, device.reason)
        torch.cuda.set_device(device.device)
    dist.init_process_group("nccl" if gpu else "gloo", timeout=_TIMEOUT)
    _KEPT.append(dist.group.WORLD)
    try:
        yield device, trainer_of(dist.get_rank(), dist.get_world_size())
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        raise ConnectionError(
            f"the connection to another process was lost ({error}): the same command with --resume "
            f"resumes from the last evaluation, with any number of processes"
        ) from error
    except KeyboardInterrupt as stopped:
        # With a message, all stop at the same step and can disconnect. Without one, the others may
        # be in the middle of a step, and disconnecting would wait for them.
        if stopped.args:
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def _local_gpu() -> int:
    """The index of this process's GPU. Raises ValueError if there are too few."""
    count = torch.cuda.device_count()
    local = int(os.environ["LOCAL_RANK"])
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", local + 1))
    if processes > count:  # in every process, so that all exit before they connect
        raise ValueError(
            f"{processes} processes, but {count} GPUs on this machine: "
            f"use --nproc_per_node={count} at most"
        )
    return local


def torchrun(words: Sequence[str], processes: int) -> str:
    """Run `words` in that many processes, and return their output.

    `words` follow torchrun's own options, for example ["-m", "nanogpt", "train", …]. No process
    is left running, however it ends. Raises ChildProcessError, with the end of the output, if the
    job fails, and subprocess.TimeoutExpired after 300 seconds.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr=127.0.0.1", f"--nproc-per-node={processes}", *words]
    env = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", **os.environ}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    for _, interface in socket.if_nameindex():  # whatever this machine's name resolves to
        if interface in ("lo", "lo0"):
            env.setdefault("GLOO_SOCKET_IFNAME", interface)
    with subprocess.Popen(
        command,
        env=env,
        encoding="utf-8",
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as agent:
        try:
            printed, _ = agent.communicate(timeout=300)
        finally:
            agent.terminate()  # on SIGTERM an agent ends its processes, then itself
    if agent.returncode:
        raise ChildProcessError(
            f"torchrun failed, exit code {agent.returncode}:\n{printed[-4000:]}"
        )
    return printed
