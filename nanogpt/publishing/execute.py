"""Execute one notebook in a fresh kernel and make what comes out plain: no ids, no dates, no surprises."""

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
from traitlets.config import Config

from ..system.files import ROOT
from .nbfile import METADATA, SyncError, read, write_notebook

START_TIMEOUT = 120  # seconds for a kernel to answer, on a cold disk


MIMES = {"text/plain", "image/png", "text/markdown"}  # what every reader shows, without trust


MAX_BYTES = 1_000_000  # of an executed notebook: larger ones are no longer shown on the web


# Kernels that talk through encrypted channels, and print no warning that they do not.
QUIET = Config(
    {name: {"transport_encryption": "auto"} for name in ("KernelManager", "AsyncKernelManager")}
)


ENVIRONMENT = {
    "TQDM_DISABLE": "1",  # one plain line for each evaluation instead of a bar
    "PYTHONHASHSEED": "0",
    "MPLBACKEND": None,  # the kernel's own: a None removes
    "JUPYTER_PREFER_ENV_PATH": "1",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # a debugger's warning that no reader can use
}


class NotebookError(Exception):
    """A notebook that failed, or whose output cannot be published; one line that says where and why."""


@contextmanager
def kernel_environment(extra: dict[str, str | None]):
    """The environment that kernels inherit, put back afterwards.

    Its `python3` is this very interpreter: a kernel of that name from elsewhere on the machine may
    be another Python, or none any more. Personal IPython start-up files are left out.
    """
    with tempfile.TemporaryDirectory(prefix="nanogpt-kernel-") as home:
        write_kernel_spec(Path(home, "kernels", "python3"))
        paths = [home] + [path for path in (os.environ.get("JUPYTER_PATH"),) if path]
        own = {"JUPYTER_PATH": os.pathsep.join(paths), "IPYTHONDIR": str(Path(home, "ipython"))}
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
    timeout: int = 1800,
    on_cell: Callable[[int], None] = lambda index: None,
) -> None:
    """Run the notebook `source` from the repository's root and write it, normalised, to `target`.

    `timeout` is in seconds and for each cell; `on_cell(index)` is called as each cell starts.
    Raises NotebookError when a cell fails, takes too long or kills its kernel, and when the output
    is none that can be shown everywhere. `target` is written in every case, a Ctrl-C included.
    """
    started = {"id": None}

    def note(cell, cell_index):
        started["id"] = cell.get("id")
        on_cell(cell_index)

    try:
        papermill.execute_notebook(
            str(source),
            str(target),
            parameters,
            kernel_name="python3",
            cwd=str(ROOT),
            progress_bar=False,
            start_timeout=START_TIMEOUT,
            execution_timeout=timeout,
            config=QUIET,
            on_cell_start=note,
        )
    except papermill.PapermillExecutionError as error:
        said = [line for line in f"{error.evalue}".splitlines() if line.strip()] or ["(no message)"]
        what = f"{error.ename}: {said[0].strip()}"
        raise NotebookError(f"cell {started['id']!r}: {what}") from error
    except CellTimeoutError as error:
        raise NotebookError(
            f"cell {started['id']!r} ran longer than {timeout} s: give it more with --timeout"
        ) from error
    except DeadKernelError as error:
        raise NotebookError(
            f"cell {started['id']!r} killed its kernel: often the memory was too small"
        ) from error
    except Exception as error:  # a kernel that does not start, a disk that is full
        raise NotebookError(
            f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        ) from error
    finally:
        _tidy(target)
    check_outputs(target)


def _tidy(target: Path) -> None:
    """Normalise what was written, if it is whole: a disk that is full leaves a part of it."""
    if not target.is_file():
        return
    try:
        write_notebook(target, normalise(read(target)))
    except (SyncError, OSError) as error:
        room = shutil.disk_usage(target.parent).free
        raise NotebookError(
            f"{target.name} could not be written whole ({error.__class__.__name__}): {room / 1e6:.1f} MB "
            f"are free in {target.parent.parent}; make room and run again"
        ) from error


def normalise(nb):
    """The executed notebook without what differs from run to run by itself: dates, ids, fragments."""
    nb.metadata = nbformat.from_dict({**METADATA, "language_info": {"name": "python"}})
    for cell in nb.cells:
        tags = cell.metadata.get("tags", [])
        cell.metadata = {
            k: v for k, v in cell.metadata.items() if k in ("tags", "nanogpt", "jupyter") and v
        }
        if "injected-parameters" in tags:
            cell.id, cell.source = "injected-parameters", cell.source.strip("\n")
        elif "papermill-error-cell-tag" in tags:
            cell.id = f"error-{nb.cells.index(cell)}"
        if cell.cell_type == "code":
            cell.outputs = merge_streams(cell.outputs)
    return nb


def merge_streams(outputs: list) -> list:
    """Neighbouring pieces of one stream as one, each line in the last state that \\r left it in."""
    merged = []
    for output in outputs:
        last = merged[-1] if merged else None
        if (
            output.output_type == "stream"
            and last
            and last.output_type == "stream"
            and last.name == output.name
        ):
            last.text += output.text
        else:
            merged.append(output)
    for output in merged:
        if output.output_type == "stream":
            lines = output.text.replace("\r\n", "\n").split("\n")
            output.text = "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in lines)
    return merged


def check_outputs(path: Path) -> None:
    """Raise NotebookError for outputs that some readers cannot show, or that are too many."""
    for cell in read(path).cells:
        for output in cell.get("outputs", []):
            if foreign := sorted(set(output.get("data", {})) - MIMES):
                shown = ", ".join(sorted(MIMES))
                raise NotebookError(
                    f"cell {cell.id!r} shows {', '.join(foreign)}; every reader sees only {shown}"
                )
            if "image/png" in output.get("data", {}) and not alt_text(output):
                raise NotebookError(
                    f"cell {cell.id!r} shows a picture without alt text: use run.figure(…, alt)"
                )
    if (size := path.stat().st_size) > MAX_BYTES:
        raise NotebookError(
            f"the executed notebook has {size:,} bytes, over {MAX_BYTES:,}: draw fewer or smaller figures"
        )


def alt_text(output) -> str:
    """The alt text of a picture: beside the picture, or for its type."""
    metadata = output.get("metadata", {})
    return metadata.get("image/png", {}).get("alt") or metadata.get("alt") or ""
