"""An output folder: one run at a time holds it, and only what is whole changes it. Runs nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing keeps two runs apart there
    fcntl = None

from ..system.files import write_json
from .manifest import read_manifest
from .parameters import RunError


@contextmanager
def locked(out: Path):
    """Hold the output folder: it exists, can be written, and no other run is using it.

    The lock ends with the process, however that ends; the file that it hangs on stays. What a
    killed run left unfinished is removed. Raises RunError.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = open(out / ".lock", "a+")  # noqa: SIM115
    except OSError as error:
        raise RunError(
            f"cannot write into {out} ({error.strerror}): choose another folder with --out"
        ) from None
    with file:
        _lock(file, out)
        for left in out.glob(".running-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _lock(file, out: Path) -> None:
    """Lock the open file and write this process's number into it. Raises RunError."""
    try:
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        raise RunError(
            f"another run (process {file.read().strip()}) is writing into {out}: "
            f"wait for it, or choose another folder with --out"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()


class Folder:
    """An output folder and its manifest, which is rewritten after each notebook."""

    def __init__(self, out: Path, card: dict, weights: Path | None = None):
        self.out, self.card, self.weights = out, card, weights
        self.entries = {entry["notebook"]: entry for entry in read_manifest(out)["notebooks"]}

    def environment(self, staged: Path) -> dict[str, str | None]:
        """The kernels' variables: where to write, what the run has made, what not to fetch."""
        variables = {"NANOGPT_OUT": str(staged), "NANOGPT_RUN": str(self.out)}
        if not self.card["corpus"]["real"]:
            # The download has failed once: do not wait for it in each kernel.
            variables["NANOGPT_OFFLINE"] = "1"
            variables["NANOGPT_OFFLINE_REASON"] = self.card["corpus"].get("note")
        if self.weights:
            there = str(self.weights) if self.weights.is_file() else None
            variables["NANOGPT_CHECKPOINT"] = there
        return variables

    @contextmanager
    def staging(self, name: str):
        """A new folder beside the good files; what is still in it at the end is removed."""
        path = Path(tempfile.mkdtemp(prefix=f".running-{name}-", dir=self.out))
        path.chmod(0o755)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def keep(self, name: str, staged: Path) -> list[str]:
        """Move a passed notebook's files into place; drop what its earlier run alone made.

        Weights are never dropped: a notebook that trained them once finds them the next time. Nor
        is anything outside of the output folder, whatever the manifest names.
        """
        found = [path for path in staged.rglob("*") if path.is_file()]
        files = sorted(path.relative_to(staged).as_posix() for path in found)
        for file in files:
            (self.out / file).parent.mkdir(parents=True, exist_ok=True)
            os.replace(staged / file, self.out / file)
        kept = {(self.out / file).resolve() for file in files}
        for file in self.entries.get(name, {}).get("files", []):
            self._drop(file, kept)
        shutil.rmtree(self.out / "failed" / name, ignore_errors=True)
        return files

    def _drop(self, file: str, kept: set[Path]) -> None:
        """Remove what an earlier run made, if it lies in this folder once links are followed."""
        root = self.out.resolve()
        with suppress(OSError, ValueError, RuntimeError):  # a name that no file can have
            path = (root / file).resolve()
            ours = root in path.parents and root / "checkpoints" not in path.parents
            if ours and path not in kept and path.is_file():
                path.unlink()

    def set_aside(self, name: str, staged: Path) -> list[str]:
        """Keep a failed notebook's files below failed/; returns what an earlier run made."""
        shutil.rmtree(self.out / "failed" / name, ignore_errors=True)
        (self.out / "failed").mkdir(exist_ok=True)
        os.replace(staged, self.out / "failed" / name)
        return self.entries.get(name, {}).get("files", [])

    def note(self, entry: dict) -> None:
        """Write the manifest with this entry."""
        self.entries[entry["notebook"]] = entry
        notebooks = [self.entries[name] for name in sorted(self.entries)]
        write_json(self.out / "manifest.json", {**self.card, "notebooks": notebooks})
