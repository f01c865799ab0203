"""Start torchrun from Python: n processes under one agent or two, as on one host or two.

    print(torchrun(["-m", "nanogpt", "train", "--steps", "20", "--resume"], 2))

An agent is what torchrun starts on each host. It starts that host's processes, and when one is
lost, all agents end theirs and start them again, at most `restarts` times.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..config.checks import check_int
from ..system.files import PACKAGE

PATIENCE = 300.0  # seconds


def torchrun(
    words: Sequence[str],
    processes: int,
    *,
    agents: int = 1,
    restarts: int = 0,
    patience: float = PATIENCE,
    meanwhile: Callable[[Job], None] | None = None,
) -> str:
    """Run `words` in so many processes, spread evenly over the agents, and return what they print.

    `words` follow torchrun's own options, as in ["-m", "nanogpt", "train", …]. With several agents
    this machine acts as several hosts. `meanwhile` is called with the job every 20 ms.
    However it ends, no process is left. Raises ValueError for processes that cannot be spread, and
    ChildProcessError, with the last lines printed, for a job that failed or takes longer than
    `patience` seconds.
    """
    end = time.monotonic() + patience
    with started(words, processes, agents=agents, restarts=restarts) as job:
        while None in (codes := job.codes()):
            if time.monotonic() > end:
                raise ChildProcessError(f"stopped after {patience:g} s:\n{job.last_lines()}")
            if meanwhile:
                meanwhile(job)
            time.sleep(0.02)
        if any(codes):
            raise ChildProcessError(f"torchrun failed, exit codes {codes}:\n{job.last_lines()}")
        return job.printed()


@contextmanager
def started(words: Sequence[str], processes: int, *, agents: int = 1, restarts: int = 0):
    """Gives the Job that runs during a with-block; `torchrun` says what the arguments are."""
    commands = command_lines(words, processes, agents=agents, restarts=restarts)
    job = Job()
    try:
        for command in commands:
            job.start(command)
        yield job
    finally:
        job.stop()


def command_lines(
    words: Sequence[str], processes: int, *, agents: int = 1, restarts: int = 0
) -> list[list[str]]:
    """The command for each agent. Raises ValueError for processes that cannot be spread evenly."""
    check_int("agents", agents, 1)
    check_int("processes", processes, 1)
    check_int("restarts", restarts, 0)
    if processes % agents:
        raise ValueError(f"processes={processes}: take a multiple of the {agents} agents")
    shared = [f"--nnodes={agents}", f"--nproc-per-node={processes // agents}"]
    shared += [f"--max-restarts={restarts}", "--rdzv-backend=c10d", "--rdzv-id=nanogpt"]
    shared += [f"--rdzv-endpoint=127.0.0.1:{_free_port()}", "--local-addr=127.0.0.1"]
    start = [sys.executable, "-m", "torch.distributed.run", *shared]
    return [
        # Without is_host both agents wait for the other one: neither knows that it is meant.
        [*start, f"--rdzv-conf=is_host={'true' if agent == 0 else 'false'}", *words]
        for agent in range(agents)
    ]


class Job:
    """The agents of one job, and what they and their processes print."""

    def __init__(self):
        self.agents: list[subprocess.Popen] = []
        self.files = []

    def start(self, command: Sequence[str]) -> None:
        """Start an agent, with traffic on this machine's loopback interface alone."""
        paths = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", **os.environ}
        env["PYTHONPATH"] = os.pathsep.join(paths)
        names = {name for _, name in socket.if_nameindex()}
        if loopback := names & {"lo", "lo0"}:
            env["GLOO_SOCKET_IFNAME"] = loopback.pop()
        self.files.append(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))  # noqa: SIM115
        output = {"stdout": self.files[-1], "stderr": subprocess.STDOUT}
        self.agents.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, **output))

    def codes(self) -> list[int | None]:
        """The exit code of each agent; None while it runs."""
        return [agent.poll() for agent in self.agents]

    def printed(self) -> str:
        """All that was printed so far, agent by agent."""
        text = []
        for file in self.files:
            file.seek(0)
            text.append(file.read())
            file.seek(0, os.SEEK_END)
        return "".join(text)

    def last_lines(self, n: int = 8) -> str:
        """The last lines that the processes printed, else those of the agents, about them."""
        about = "torch/distributed/elastic/"
        lines = [line for line in self.printed().splitlines() if line.strip(" =-")]
        end = next((i for i, line in enumerate(lines) if about in line), 0) or len(lines)
        return "\n".join(lines[max(0, end - n) : end])

    def process(self, rank: int) -> int | None:
        """The process id of a rank, while it runs; found in /proc."""
        for agent in self.agents:
            for pid in _children(agent.pid):
                if _variable(pid, "RANK") == str(rank):
                    return pid
        return None

    def stop(self) -> None:
        """End what still runs: an agent ends its processes at SIGTERM, and then itself."""
        for agent in self.agents:
            if agent.poll() is None:
                agent.terminate()
        for agent in self.agents:
            try:
                agent.wait(60)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        for file in self.files:
            file.close()


def _children(pid: int) -> list[int]:
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _variable(pid: int, name: str) -> str:
    """A variable of a process's environment; empty where there is none."""
    try:
        parts = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    except OSError:
        return ""
    return dict(part.split("=", 1) for part in parts if "=" in part).get(name, "")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
