"""A server that runs as a process of its own, from its start to the end of all that it started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .client import status

PATIENCE = 10.0  # seconds between asking a process to end and ending it
LINES = 15  # of a log, when something went wrong


class Died(Exception):
    """A server that ended by itself, or did not come up; the message has its last lines."""


def free_port() -> int:
    """A port of 127.0.0.1 at which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Child:
    """Runs a command, its output in a file, in a process group that ends with the with-block."""

    def __init__(self, name: str, command: list[str], variables: dict[str, str], log: Path):
        self.name, self.log = name, log
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | variables,
                cwd=tempfile.gettempdir(),
                start_new_session=True,
            )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error) -> None:
        self._signal(signal.SIGTERM)
        try:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE)
        finally:  # after a second Ctrl-C, too
            self._signal(signal.SIGKILL)  # what it had started, and left
            self.process.wait()

    def wait_until_ready(self, url: str, limit: float, say: Callable[[float], None]) -> None:
        """Return when /health answers 200. Raises Died."""
        begun = time.monotonic()
        while status(url, "/health") != 200:
            passed = time.monotonic() - begun
            self.check("while it started")
            if passed > limit:
                raise Died(f"{self.name} was not ready after {limit:g} s:\n{self.last_lines()}")
            say(passed)
            time.sleep(0.2)
        self.check("while it started")  # somebody else may have answered

    def check(self, when: str, wait: float = 0.0) -> None:
        """Raises Died unless it runs, and still does after so many seconds."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(wait)
        if (code := self.process.poll()) is not None:
            raise Died(f"{self.name} ended with code {code} {when}:\n{self.last_lines()}")

    def last_lines(self) -> str:
        """The end of what it printed."""
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return "\n".join(f"  {line[:200]}" for line in lines[-LINES:])

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)
