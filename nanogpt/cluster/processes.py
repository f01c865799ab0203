"""Several processes that train one model, started by torchrun. For a single one nothing changes.

    torchrun --nproc_per_node=2 -m nanogpt train --recipe fast
    torchrun --nproc_per_node=2 --max-restarts=3 -m nanogpt train --recipe fast --resume

PyTorch's DistributedDataParallel does the work: every process has a copy of the model, takes its
share of each batch, and the gradients are averaged before each update. With --max-restarts a lost
process costs the steps since the last evaluation: all start again, and resume from its state.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from ..device import Device, ranks
from ..files import ROOT

# How long a process waits for another one, such as the first while it evaluates: NCCL's own 10
# minutes may be too short for that. When a process is lost, torchrun ends the others much sooner.
TIMEOUT = timedelta(hours=2)
# Process groups live as long as the process. Otherwise DDP's Reducer may destroy the last reference
# to one while it holds the GIL, and wait for a thread of gloo that waits for the GIL: 1 % hung.
_KEPT: list[dist.ProcessGroup] = []


def started_again() -> bool:
    """Whether torchrun started these processes again, after one was lost; the same in all.

    An agent counts the restarts that its own processes caused, so one count may be 0.
    """
    return any(ranks().gather(_number("RESTART_COUNT")))


def _number(name: str) -> int:
    """A number that torchrun tells its processes; 0 where it did not start them."""
    return int(os.environ.get(f"TORCHELASTIC_{name}", "0"))


@contextmanager
def joined(device: Device):
    """Connect to the other processes of torchrun, for a with-block: gives this one's Device.

    NCCL between GPUs, gloo between CPUs. Does nothing in a process that torchrun did not start.
    When another process is lost, torchrun ends this one. Raises ValueError for more processes than
    GPUs, and ChildProcessError where the connection breaks first.
    """
    if "LOCAL_RANK" not in os.environ:
        yield device
        return
    gpu = device.device.type == "cuda"
    if gpu:
        device = Device(torch.device("cuda", _own_gpu()), device.dtype, device.reason)
        torch.cuda.set_device(device.device)
    # torchrun sends it when a process is lost. This one may wait for that very process, in C++,
    # where no handler of Python's runs.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    dist.init_process_group("nccl" if gpu else "gloo", timeout=TIMEOUT)
    _KEPT.append(dist.group.WORLD)
    try:
        yield device
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        cure = "the same command with --resume resumes from the last evaluation"
        raise ChildProcessError(
            f"the connection to another process broke ({error}): {cure}"
        ) from error
    except KeyboardInterrupt as stopped:
        if stopped.args:  # all stopped at the same step, and saved
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def _own_gpu() -> int:
    count, local = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
    here = int(os.environ.get("LOCAL_WORLD_SIZE", local + 1))
    if here > count:  # in every process, so that all end before they connect
        why = f"{here} processes, but {count} GPUs on this machine"
        raise ValueError(f"{why}: use --nproc_per_node={count} at most")
    return local


def torchrun(words: Sequence[str], processes: int) -> str:
    """Run `words` in so many processes, and return what they print.

    `words` follow torchrun's own options, as in ["-m", "nanogpt", "train", …]. However it ends, no
    process is left. Raises ChildProcessError, with the last of what they print, for a job that
    failed, and subprocess.TimeoutExpired after 300 seconds.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr=127.0.0.1", f"--nproc-per-node={processes}", *words]
    env = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", **os.environ}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    for _, interface in socket.if_nameindex():  # whatever this machine's name resolves to
        if interface in ("lo", "lo0"):
            env.setdefault("GLOO_SOCKET_IFNAME", interface)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, env=env, errors="replace", **pipes) as agent:
        try:
            printed, _ = agent.communicate(timeout=300)
        finally:
            agent.terminate()  # an agent ends its processes at SIGTERM, and then itself
    if agent.returncode:
        why = f"torchrun failed, exit code {agent.returncode}:"
        raise ChildProcessError(f"{why}\n{printed[-4000:]}")
    return printed
