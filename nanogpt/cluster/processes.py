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
import threading
import time
import uuid
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
    When another process is lost, this one ends with a message and exit code 1. Raises ValueError
    for more processes than GPUs.
    """
    if "LOCAL_RANK" not in os.environ:
        yield device
        return
    gpu = device.device.type == "cuda"
    if gpu:
        device = Device(torch.device("cuda", _own_gpu()), device.dtype, device.reason)
        torch.cuda.set_device(device.device)
    with _exits_at_sigterm():
        try:
            _connect("nccl" if gpu else "gloo")
            _KEPT.append(dist.group.WORLD)
            yield device
        except RuntimeError as error:
            if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
                raise
            time.sleep(2)  # torchrun notices the lost process first, and names it as the cause
            _exit(f"the connection to another process broke ({error})")
        except KeyboardInterrupt as stopped:
            # With a message, all stop at the same step and can disconnect. Without one the others
            # may be in the middle of a step, and to disconnect would wait for them.
            if stopped.args:
                dist.destroy_process_group()
            raise
        dist.destroy_process_group()


def _connect(backend: str) -> None:
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        dist.init_process_group(backend, timeout=TIMEOUT)
        return
    # torchrun's store outlives a restart, and with it the addresses of processes that are gone.
    store, rank, size = next(dist.rendezvous("env://", timeout=TIMEOUT))
    store = dist.PrefixStore(_fresh_name(store, rank, size), store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)


def _fresh_name(store: dist.Store, rank: int, size: int) -> str:
    """A name that exactly the processes that run now have in common, from the first of them.

    Each other one asks under a name of its own and waits for an answer to that. So what an earlier
    process has left in the store is answered at most, and never taken for an answer.
    """
    own = uuid.uuid4().hex
    if rank:
        store.set(f"asks/{rank}", own)
        name = store.get(f"answer/{own}").decode()
        store.set(f"heard/{name}/{rank}", "")
        return name
    silent = set(range(1, size))
    while silent:
        for other in silent:
            if store.check([f"asks/{other}"]):
                store.set(f"answer/{store.get(f'asks/{other}').decode()}", own)
        silent = {other for other in silent if not store.check([f"heard/{own}/{other}"])}
        time.sleep(0.005)
    return own


def _own_gpu() -> int:
    count, local = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
    here = int(os.environ.get("LOCAL_WORLD_SIZE", local + 1))
    if here > count:  # in every process, so that all end before they connect
        why = f"{here} processes, but {count} GPUs on this machine"
        raise ValueError(f"{why}: use --nproc_per_node={count} at most")
    return local


@contextmanager
def _exits_at_sigterm():
    """Exit at SIGTERM, which torchrun sends to the others when a process is lost.

    A thread does it: the main one may be waiting for the very process that was lost, and Python
    runs signal handlers in the main thread only. The wakeup file descriptor reaches the thread.
    """
    receiver, sender = socket.socketpair()
    sender.setblocking(False)

    def listen():
        while number := receiver.recv(1):
            if number[0] == signal.SIGTERM:
                _exit("ended by SIGTERM, which torchrun sends when another process was lost")

    # Without a handler of Python's the process would end at once.
    handler = signal.signal(signal.SIGTERM, lambda *_: None)
    wakeup = signal.set_wakeup_fd(sender.fileno())
    threading.Thread(target=listen, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, handler)
        sender.close()


_exiting = threading.Lock()


def _exit(why: str) -> None:
    """Leave now: the usual way out of a process would wait for the one that was lost."""
    # Never released: the broken connection and torchrun's signal are one event, reported once.
    _exiting.acquire()
    if os.environ.get("RANK") == "0":
        advice = "the same command with --resume resumes from the last evaluation"
        message = f"error: {why}: {advice}, with any number of processes"
        if _number("RESTART_COUNT") < _number("MAX_RESTARTS"):
            message = f"{why}: torchrun starts all again, from the last evaluation"
        print(message, file=sys.stderr, flush=True)
    os._exit(1)


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
