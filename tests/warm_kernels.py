"""Kernels that start at once: forked from one process that has imported what every notebook does.

A kernel of its own process, environment and folder, as any other, but without the seconds that
importing torch and matplotlib takes. The package itself is left to the notebook to import.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from jupyter_client.provisioning import local_provisioner


class Forked:
    """A process that another one forked, with as much of Popen as jupyter_client asks for."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int):
        self.pid, self.end = pid, os.pidfd_open(pid)

    def poll(self) -> int | None:
        return 0 if select.select([self.end], [], [], 0)[0] else None

    def wait(self, timeout: float | None = None) -> int:
        select.select([self.end], [], [], timeout)
        return 0

    def send_signal(self, number: int) -> None:
        signal.pidfd_send_signal(self.end, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@contextmanager
def warm_kernels():
    """Within the with-block, what jupyter_client starts are forks; elsewhere than on Linux, not."""
    if not hasattr(os, "pidfd_open"):
        yield
        return
    # Here, as the stem runs this file without the folder of the package on its path.
    from nanogpt.publishing.execute import ENVIRONMENT

    environment = {**os.environ, **{k: v for k, v in ENVIRONMENT.items() if v is not None}}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    pipes["start_new_session"] = True  # a Ctrl-C is for the tests
    with subprocess.Popen([sys.executable, __file__], env=environment, **pipes) as stem:

        def launch(command, *, env, cwd=None, **_):
            assert command[1:3] == ["-m", "ipykernel_launcher"], command
            env = {**env, "JPY_PARENT_PID": str(stem.pid)}
            stem.stdin.write(json.dumps([command[2:], env, cwd or os.getcwd()]) + "\n")
            return Forked(int(stem.stdout.readline()))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local_provisioner, "launch_kernel", launch)
            yield
        stem.stdin.close()


def main() -> None:
    """Fork a kernel for each line [arguments, environment, folder]; print its process number."""
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # read on import: a kernel ends with its parent
    import matplotlib.figure  # noqa: F401
    import torch  # noqa: F401
    from ipykernel import kernelapp

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a kernel that ends is not waited for
    for line in sys.stdin:
        arguments, environment, folder = json.loads(line)
        if os.fork() == 0:
            break
    else:
        return
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    print(os.getpid(), flush=True)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    kernelapp.launch_new_instance()


if __name__ == "__main__":
    del sys.path[0]
    main()
