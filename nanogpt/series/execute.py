"""Run one notebook strictly, in a fresh kernel, and remove the parts that differ between runs."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any
from weakref import WeakSet

import nbformat
import papermill
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbconvert.preprocessors import CoalesceStreamsPreprocessor
from nbformat import NotebookNode
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines
from traitlets import TraitError

from ..files import ROOT, write_whole
from ..site import nbfile
from ..site.nbfile import METADATA, alt_text, png_of, read

START_TIMEOUT = 120  # seconds for a kernel to answer, on a cold disk
MIMES = {
    "text/plain",
    "image/png",
    "text/markdown",
}  # every viewer shows these, even for untrusted notebooks
MAX_BYTES = 1_000_000  # limit for an executed notebook: GitHub does not show larger ones
LOG = "kernel.log"
ENVIRONMENT = {
    "TQDM_DISABLE": "1",  # one plain line per evaluation instead of a bar
    "PYTHONHASHSEED": "0",
    "NANOGPT_HEADLESS": "1",  # run the solutions, and keep nothing as the reader's
    "MPLBACKEND": None,  # removed: the kernel chooses its own
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # hides a debugger warning that does not help readers
}

BeforeCell = Callable[[int, NotebookNode], None]  # the index of a cell (from 0), and the cell

_alive: WeakSet[AsyncKernelManager] = WeakSet()


class NotebookError(Exception):
    """A notebook failed, or its output cannot be published; one line says where and why."""


def execute(
    source: Path,
    target: Path,
    parameters: dict[str, Any],
    *,
    variables: dict[str, str | None] | None = None,
    timeout: int = 1800,
    before_cell: BeforeCell = lambda index, cell: None,
) -> None:
    """Run the notebook `source` from the repository's root and write it, normalised, to `target`.

    `variables` are the kernel's environment variables (None removes one), and its log is LOG next
    to `target`. `timeout` is in seconds per cell, and `before_cell(index, cell)` is called before
    each. Raises NotebookError if a cell fails, takes too long or kills its kernel, and if some
    viewers could not show the output. `target` is written in every case.
    """
    papermill.execute_notebook(
        nbfile.filled(read(source)),
        None,  # otherwise papermill writes the whole notebook before and after each cell
        parameters,
        engine_name="nanogpt",
        kernel_name="python3",
        progress_bar=False,
        options=(variables or {}, target, timeout, before_cell),
    )
    check_outputs(target)


class Strict(NBClientEngine):
    """papermill's own engine, with our kernel, a callback before each cell, and our errors.

    The kernel is this very interpreter, because a `python3` kernel found elsewhere may be another
    one. Personal IPython start-up files are ignored, and a kernel's temporary files are deleted
    with it. A kernel may log an interruption on exit even if all is well, so its log goes to a
    file, which is shown only if the notebook fails.
    """

    @staticmethod
    def execute_managed_notebook(
        nb_man: Any,
        kernel_name: str,
        *,
        options: tuple[dict[str, str | None], Path, int, BeforeCell],
        **_: Any,
    ) -> None:
        """Run all cells in a new kernel, storing their outputs. Raises NotebookError."""
        variables, target, timeout, before_cell = options
        kernel = AsyncKernelManager(kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
        with suppress(TraitError):  # newer versions warn if channels are not encrypted
            kernel.transport_encryption = "auto"
        client = Cells(nb_man, kernel, timeout=timeout, startup_timeout=START_TIMEOUT)
        client.resources = {"metadata": {"path": str(ROOT)}}
        client.before_cell = before_cell
        # Killed at the end: a regular shutdown would take another 3 seconds.
        client.record_timing = False
        client.shutdown_kernel = "immediate"
        _alive.add(kernel)
        with (
            tempfile.TemporaryDirectory(prefix="nanogpt-kernel-") as home,
            open(target.with_name(LOG), "ab") as errors,
        ):
            settings = {"IPYTHONDIR": home, "TMPDIR": home, **ENVIRONMENT, **variables}
            env = {name: x for name, x in {**os.environ, **settings}.items() if x is not None}
            try:
                # nbclient shuts down only managers that it has made itself, unless it is asked to.
                client.execute(env=env, stderr=errors, cleanup_kc=True)
            finally:
                save(nb_man.nb, target)


papermill_engines.register("nanogpt", Strict)


class Cells(PapermillNotebookClient):
    """Runs each code cell after `before_cell(index, cell)`; an error names the cell."""

    before_cell: BeforeCell

    def execute_cell(self, cell: NotebookNode, index: int, **more: Any) -> NotebookNode:
        if cell.cell_type != "code":
            return cell
        try:
            self.before_cell(index, cell)
            done: NotebookNode = super().execute_cell(cell, index, **more)
            return done
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            if isinstance(error, CellTimeoutError):
                raise NotebookError(
                    f"cell {cell.id!r} ran longer than {self.timeout} s: allow more with --timeout"
                ) from error
            if isinstance(error, DeadKernelError):
                raise NotebookError(
                    f"cell {cell.id!r} killed its kernel: usually it ran out of memory"
                ) from error
            words = f"{error.ename}: {str(error.evalue).strip()}".partition("\n")[0]
            raise NotebookError(f"cell {cell.id!r}: {words}") from error


def kill_all() -> None:
    """Kill every kernel of this process; whoever waits for one sees that it is dead."""
    for kernel in list(_alive):
        started = kernel.provisioner
        if not isinstance(started, LocalProvisioner) or started.process is None:
            continue  # not started yet, or already gone
        with suppress(OSError):
            if started.pgid:
                os.killpg(started.pgid, signal.SIGKILL)  # including processes started by its cells
            else:
                started.process.kill()


def save(nb: NotebookNode, target: Path) -> None:
    """Write an executed notebook atomically and normalised; papermill keeps using `nb` itself."""
    write_whole(target, nbfile.to_text(normalise(deepcopy(nb))).encode())


def normalise(nb: NotebookNode) -> NotebookNode:
    """The executed notebook without the parts that differ between runs: dates, ids, folders."""
    nb.metadata = nbformat.from_dict(METADATA)
    for cell in nb.cells:
        if nbfile.tagged(cell, "injected-parameters"):
            cell.id = "injected-parameters"
            cell.source = cell.source.strip("\n")
        cell.source = nbfile.ours(cell).pop("blank", cell.source)
        nbfile.keep_metadata(cell)
        CoalesceStreamsPreprocessor().preprocess_cell(cell, {}, 0)
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":  # a warning names its file
                output.text = output.text.replace(f"{sys.prefix}{os.sep}", "")
    return nb


def check_outputs(path: Path) -> None:
    """Raise NotebookError for outputs that some viewers cannot show, or that are too large."""
    for cell in read(path).cells:
        for output in cell.get("outputs", []):
            foreign = sorted(set(output.get("data", {})) - MIMES)
            if foreign:
                raise NotebookError(
                    f"cell {cell.id!r} shows {', '.join(foreign)}; all viewers support only "
                    f"{', '.join(sorted(MIMES))}"
                )
            if png_of(output) and not alt_text(output):
                raise NotebookError(
                    f"cell {cell.id!r} shows a picture without alt text: use run.figure(…, alt)"
                )
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise NotebookError(
            f"the executed notebook has {size:,} bytes, over {MAX_BYTES:,}: "
            f"use fewer or smaller figures"
        )
