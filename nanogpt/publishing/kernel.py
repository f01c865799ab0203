"""Kernels that a run starts: each with variables of its own, and a file for what it logs.

On its way out a kernel may log that it was interrupted, or that its parent has gone, though all is
well: jupyter_client interrupts each kernel before it asks it to end. So its log stays off the
screen, in a file that is shown when its notebook fails.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

from jupyter_client.manager import AsyncKernelManager
from traitlets import Dict, Unicode
from traitlets.config import Config

# Kernels that talk through encrypted channels, and print no warning that they do not. At the end
# they are killed: asked to end, they would take another 3 seconds for each notebook.
QUIET = Config(
    {name: {"transport_encryption": "auto"} for name in ("KernelManager", "AsyncKernelManager")}
    | {"NotebookClient": {"shutdown_kernel": "immediate"}}
)
LOG = "kernel.log"

_alive: WeakSet[Kernel] = WeakSet()


class Kernel(AsyncKernelManager):
    """Starts one kernel with `variables` (None: without it); what it logs goes to `log_path`."""

    variables = Dict().tag(config=True)
    log_path = Unicode(os.devnull).tag(config=True)

    async def start_kernel(self, **options) -> None:
        variables = {**os.environ, **self.variables}
        known = {name: value for name, value in variables.items() if value is not None}
        _alive.add(self)
        with open(self.log_path, "ab") as log:
            await super().start_kernel(env=known, stderr=log, **options)


def configured(variables: dict[str, str | None], log: Path) -> Config:
    """What papermill is given for one notebook's kernel."""
    own = Config({"Kernel": {"variables": variables, "log_path": str(log)}})
    own.merge(QUIET)
    return own


def kill_all() -> None:
    """End every kernel of this process at once; those that wait for one see that it is dead."""
    for kernel in list(_alive):
        with suppress(AttributeError, OSError):  # not there yet, or gone by now
            kernel.provisioner.process.kill()


def log_of(folder: Path) -> str:
    """What a kernel has logged into this folder; empty where nothing was."""
    try:
        return (folder / LOG).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
