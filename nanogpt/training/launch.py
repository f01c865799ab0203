"""Start torchrun from Python: several processes on this machine, with one agent above them.

print(torchrun(["-m", "nanogpt", "train", "--steps", "20", "--resume"], 2))
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from ..system.files import ROOT


def torchrun(words: Sequence[str], processes: int, *, patience: float = 300) -> str:
    """Run `words` in so many processes, and return what they print.

    `words` follow torchrun's own options, as in ["-m", "nanogpt", "train", …]. However it ends, no
    process is left. Raises ChildProcessError, with the last lines printed, for a job that failed or
    takes longer than `patience` seconds.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr=127.0.0.1", f"--nproc-per-node={processes}", *words]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", **os.environ}
    env["PYTHONPATH"] = os.pathsep.join(paths)
    for _, interface in socket.if_nameindex():  # whatever this machine's name resolves to
        if interface in ("lo", "lo0"):
            env.setdefault("GLOO_SOCKET_IFNAME", interface)
    options = {"env": env, "stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        with subprocess.Popen(command, stdout=output, **options) as agent:
            try:
                code = agent.wait(patience)
            except subprocess.TimeoutExpired:
                code = f"none after {patience:g} s"
            finally:
                agent.terminate()  # an agent ends its processes at SIGTERM, and then itself
        output.seek(0)
        printed = output.read()
    if code:
        raise ChildProcessError(f"torchrun failed, exit code {code}:\n{_last_lines(printed)}")
    return printed


def _last_lines(printed: str, n: int = 8) -> str:
    """The last lines that the processes printed, else those of the agent, about them."""
    about = "torch/distributed/elastic/"
    lines = [line for line in printed.splitlines() if line.strip(" =-")]
    end = next((i for i, line in enumerate(lines) if about in line), 0) or len(lines)
    return "\n".join(lines[max(0, end - n) : end])
