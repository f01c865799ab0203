"""Execute one notebook in a fresh kernel; the result holds no ids, no dates, no fragments."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import nbformat
import papermill
from ipykernel.kernelspec import write_kernel_spec
from nbclient.exceptions import CellTimeoutError, DeadKernelError

from ..system.files import ROOT
from .kernel import LOG, Kernel, configured
from .nbfile import (
    METADATA,
    SyncError,
    alt_text,
    filled,
    keep_metadata,
    png_of,
    read,
    write_notebook,
)

START_TIMEOUT = 120  # seconds for a kernel to answer, on a cold disk
MIMES = {"text/plain", "image/png", "text/markdown"}  # what every reader shows, without trust
MAX_BYTES = 1_000_000  # of an executed notebook: the web does not show larger ones

ENVIRONMENT = {
    "TQDM_DISABLE": "1",  # one plain line for each evaluation instead of a bar
    "PYTHONHASHSEED": "0",
    "MPLBACKEND": None,  # removed: the kernel chooses its own
    "JUPYTER_PREFER_ENV_PATH": "1",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # a debugger's warning that no reader can use
}


class NotebookError(Exception):
    """A notebook that failed, or whose output cannot be published; one line says where and why."""


@contextmanager
def kernel_environment(extra: dict[str, str | None]):
    """The environment that kernels inherit, restored afterwards.

    Its `python3` is this very interpreter: a kernel of that name from elsewhere on the machine may
    be another Python, or missing by now. Personal IPython start-up files are left out. What they
    leave in the temporary folder goes with it.
    """
    with tempfile.TemporaryDirectory(prefix="nanogpt-kernel-") as home:
        write_kernel_spec(Path(home, "kernels", "python3"))
        paths = [home] + [path for path in (os.environ.get("JUPYTER_PATH"),) if path]
        own = {"JUPYTER_PATH": os.pathsep.join(paths)}
        for name, folder in (("IPYTHONDIR", "ipython"), ("TMPDIR", "tmp")):
            Path(home, folder).mkdir()
            own[name] = str(Path(home, folder))
        wanted = {**ENVIRONMENT, **own, **extra}
        before = {name: os.environ.get(name) for name in wanted}
        _set(wanted)
        try:
            yield
        finally:
            _set(before)


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def execute(
    source: Path,
    target: Path,
    parameters: dict,
    *,
    variables: dict[str, str | None] | None = None,
    timeout: int = 1800,
    on_cell: Callable[[int, dict], None] = lambda index, cell: None,
) -> None:
    """Run the notebook `source` from the repository's root and write it, normalised, to `target`.

    `variables` are those of its kernel, whose log goes to LOG beside `target`; `timeout` is in
    seconds and for each cell; `on_cell(index, cell)` is called as each cell starts.
    Raises NotebookError when a cell fails, takes too long or kills its kernel, and when some
    reader could not see the output. `target` is written in every case, a Ctrl-C included.
    """
    started = {"id": None}

    def note(cell, cell_index):
        started["id"] = cell.get("id")
        on_cell(cell_index, cell)

    limits = {"start_timeout": START_TIMEOUT, "execution_timeout": timeout}
    options = {"kernel_name": "python3", "cwd": str(ROOT), "progress_bar": False}
    kernel = {
        "kernel_manager_class": Kernel,
        "config": configured(variables or {}, target.with_name(LOG)),
    }
    try:
        write_notebook(target, filled(read(source)))
        papermill.execute_notebook(
            str(target), str(target), parameters, on_cell_start=note, **limits, **options, **kernel
        )
    except Exception as error:
        raise NotebookError(_reason(error, started["id"], timeout)) from error
    finally:
        _tidy(target)
    check_outputs(target)


def _reason(error: Exception, cell: str | None, timeout: int) -> str:
    """Why the notebook stopped at this cell, in one line."""
    if isinstance(error, papermill.PapermillExecutionError):
        lines = [line.strip() for line in f"{error.evalue}".splitlines() if line.strip()]
        return f"cell {cell!r}: {error.ename}: {(lines or ['(no message)'])[0]}"
    if isinstance(error, CellTimeoutError):
        return f"cell {cell!r} ran longer than {timeout} s: give it more with --timeout"
    if isinstance(error, DeadKernelError):
        return f"cell {cell!r} killed its kernel: often the memory was too small"
    # A kernel that does not start, a full disk.
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _tidy(target: Path) -> None:
    """Normalise what was written, if it is whole: a full disk keeps only a part of it."""
    if not target.is_file():
        return
    try:
        write_notebook(target, normalise(read(target)))
    except (SyncError, OSError) as error:
        free = shutil.disk_usage(target.parent).free / 1e6
        raise NotebookError(
            f"{target.name} could not be written whole ({error.__class__.__name__}): "
            f"{free:.1f} MB are free in {target.parent.parent}; make room and run again"
        ) from error


def normalise(nb):
    """The executed notebook without what differs between any two runs: dates, ids, fragments."""
    nb.metadata = nbformat.from_dict(METADATA)
    for i, cell in enumerate(nb.cells):
        tags = cell.metadata.get("tags", [])
        keep_metadata(cell)
        if "injected-parameters" in tags:
            cell.id, cell.source = "injected-parameters", cell.source.strip("\n")
        elif "papermill-error-cell-tag" in tags:
            cell.id = f"error-{i}"
        if cell.cell_type == "code":
            cell.outputs = merge_streams(cell.outputs)
    return nb


def merge_streams(outputs: list) -> list:
    """Neighbouring pieces of one stream as one; of each line, what remains after the last \\r."""
    merged = []
    for output in outputs:
        last = merged[-1] if merged else None
        is_stream = output.output_type == "stream"
        if is_stream and last and last.get("name") == output.name:
            last.text += output.text
        else:
            merged.append(output)
    for output in merged:
        if output.output_type == "stream":
            lines = output.text.replace("\r\n", "\n").split("\n")
            output.text = "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in lines)
    return merged


def check_outputs(path: Path) -> None:
    """Raise NotebookError for outputs that some readers cannot see, or that are too many."""
    for cell in read(path).cells:
        for output in cell.get("outputs", []):
            if foreign := sorted(set(output.get("data", {})) - MIMES):
                shown = ", ".join(sorted(MIMES))
                raise NotebookError(
                    f"cell {cell.id!r} shows {', '.join(foreign)}; every reader sees only {shown}"
                )
            if png_of(output) and not alt_text(output):
                raise NotebookError(
                    f"cell {cell.id!r} shows a picture without alt text: use run.figure(…, alt)"
                )
    if (size := path.stat().st_size) > MAX_BYTES:
        raise NotebookError(
            f"the executed notebook has {size:,} bytes, over {MAX_BYTES:,}: "
            f"draw fewer or smaller figures"
        )
