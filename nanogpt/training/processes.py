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
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch import Tensor

from ..device import Device, forked_random_state
from ..files import ROOT, sha256

# How long a process waits for another one, for example for the first to evaluate: NCCL's default
# of 10 minutes may be too short.
_TIMEOUT = timedelta(hours=2)
# The process groups that this process has left: `disconnect` says why they are kept.
_KEPT: list[dist.ProcessGroup | None] = []


@dataclass(frozen=True)
class Team:
    """The processes that train one model together, and which of them this one is."""

    rank: int = 0  # of this process
    size: int = 1  # how many processes; each computes an equal share of every batch

    @property
    def first(self) -> bool:
        """Whether this process evaluates, prints and writes for all of them."""
        return self.rank == 0

    def averaging(self, net: nn.Module, shape: tuple[int, int], device: Device) -> nn.Module:
        """The network, wrapped so that its backward pass averages gradients over all processes.

        All begin with the weights of process 0. `shape` is that of a process's windows.  (B, T)
        """
        shared = nn.parallel.DistributedDataParallel(net)
        # DDP groups gradients into buckets again after its first backward pass, which changes the
        # order of summation. So every run, new or resumed, begins with one pass whose gradients are
        # discarded, and both compute the same bits.
        zeros = torch.zeros(shape, dtype=torch.int64, device=device.device)
        with forked_random_state(device):
            shared(zeros, zeros)[1].backward()
        shared.zero_grad(set_to_none=True)
        return shared

    def mean(self, values: Tensor) -> Tensor:
        """The mean over all processes, in place."""
        dist.all_reduce(values)
        return values.div_(self.size)

    def any_process(self, condition: bool, device: torch.device) -> bool:
        """Whether the condition holds in any process; it waits for the others, and for a GPU."""
        if self.size == 1:
            return condition
        return float(self.mean(torch.tensor(float(condition), device=device))) > 0

    def agree(self, name: str, value: object) -> None:
        """Raise ValueError unless all processes have the same value."""
        if self.size == 1:
            return
        values = [value] * self.size
        dist.all_gather_object(values, value)
        for rank, other in enumerate(values):
            if other != values[0]:
                raise ValueError(
                    f"process 0 has {name} {values[0]}, process {rank} has {other}: "
                    "all must read the same files, so put them where all processes can read them"
                )

    def agree_on_text(self, data: Tensor) -> None:
        """Raise ValueError unless all processes have read the same text."""
        if self.size > 1:
            self.agree("a text of sha256", sha256(data.numpy().tobytes())[:12])


ALONE = Team()


@contextmanager
def joined(device: Device) -> Iterator[tuple[Device, Team]]:
    """Connect to torchrun's other processes; a context manager for the device and the team.

    Uses NCCL between GPUs and gloo between CPUs. In a process that torchrun did not start, returns
    the given device and `ALONE`. Raises ValueError for more processes than GPUs, and
    ConnectionError if another process is lost.
    """
    # 1. Not started by torchrun, which sets these variables: there is nobody to join.
    if "LOCAL_RANK" not in os.environ:
        yield device, ALONE
        return
    # 2. Each process of a machine has a GPU of its own, before it connects.
    gpu = device.device.type == "cuda"
    if gpu:
        device = Device(torch.device("cuda", _local_gpu()), device.dtype, device.reason)
        torch.cuda.set_device(device.device)
    # 3. Connect: waits until all processes are here.
    dist.init_process_group("nccl" if gpu else "gloo", timeout=_TIMEOUT)
    # 4. The caller trains. If another process is lost, say how to go on; torchrun ends this one.
    try:
        yield device, Team(dist.get_rank(), dist.get_world_size())
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
            disconnect()
        raise
    disconnect()


def disconnect() -> None:
    """Leave the other processes. The process group stays in memory until this process exits."""
    # Otherwise the group is destroyed with its last reference, while gloo's threads still run. One
    # of a hundred training runs hung there, when DDP's Reducer held the GIL that a thread waited
    # for; and under load the second process of notebook 10 was aborted.
    _KEPT.append(dist.group.WORLD)
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
    # 1. The command: torchrun on this machine alone.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr=127.0.0.1", f"--nproc-per-node={processes}", *words]
    # 2. One thread a process, no progress bars, and this package importable from any folder.
    env = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", **os.environ}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    for _, interface in socket.if_nameindex():  # whatever this machine's name resolves to
        if interface in ("lo", "lo0"):
            env.setdefault("GLOO_SOCKET_IFNAME", interface)
    # 3. Run it, and leave no process behind, however it ends.
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
    # 4. Its own error is the last thing that a failed process prints.
    if agent.returncode:
        raise ChildProcessError(
            f"torchrun failed, exit code {agent.returncode}:\n{printed[-4000:]}"
        )
    return printed
