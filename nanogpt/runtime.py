"""Where and with what a run happens: root folder, device, threads, versions. Knows nothing of models."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}  # a full disk or quota
ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "outputs" / "published"


@dataclass(frozen=True)
class Device:
    """What the tensors live on, the dtype that training multiplies in, and why."""

    device: torch.device
    dtype: torch.dtype
    reason: str

    def __str__(self) -> str:
        return f"{self.device.type}, {str(self.dtype).removeprefix('torch.')}: {self.reason}"


def pick_device(prefer: str = "auto") -> Device:
    """CUDA when there is one, else the CPU. Raises ValueError for a device that is not there."""
    if prefer not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device={prefer!r} is unknown: choose auto, cpu or cuda")
    if prefer == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda', but this torch sees no CUDA device: choose cpu or auto")
    if prefer == "cpu" or not torch.cuda.is_available():
        why = "as asked" if prefer == "cpu" else "no CUDA device was found"
        return Device(torch.device("cpu"), torch.float32, f"{why}; float32 is a CPU's fast type")
    name = torch.cuda.get_device_name()
    # A T4 answers True to the bare question and then emulates bfloat16, slowly.
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return Device(torch.device("cuda"), torch.bfloat16, f"{name} multiplies bfloat16 natively")
    why = f"{name} has no native bfloat16; its gradients are scaled so that float16 can hold them"
    return Device(torch.device("cuda"), torch.float16, why)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was given; nothing to do on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def environment(device: Device | None = None) -> dict:
    """The environment card: what a result depends on beside the code and the seeds, as plain data."""
    device = device or pick_device()
    card = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": device.device.type,
        "device_name": _cpu_name(),
        "dtype": str(device.dtype).removeprefix("torch."),
        "why": device.reason,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        **_git_state(),
    }
    if device.device.type == "cuda":
        properties = torch.cuda.get_device_properties(0)
        card |= {"device_name": properties.name, "capability": f"{properties.major}.{properties.minor}",
                 "cuda": torch.version.cuda, "multiprocessors": properties.multi_processor_count}  # fmt: skip
    return card


def conditions(card: dict) -> str:
    """The card in one line, for the footer of a figure."""
    threads = f"{card['threads']} thread{'s' * (card['threads'] != 1)}"
    where = card["device_name"] if card["device"] == "cuda" else f"CPU, {threads}"
    return f"{where}, torch {card['torch']}"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _git_state() -> dict:
    def git(*args):
        done = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, timeout=10)
        return done.stdout.strip() if done.returncode == 0 else None

    try:
        commit, changes = git("rev-parse", "HEAD"), git("status", "--porcelain")
    except (OSError, subprocess.TimeoutExpired):  # no git on this machine
        commit = changes = None
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


# ------------------------------------------------------------------ files that are whole or absent


@contextmanager
def atomic_path(path: Path):
    """A temporary path beside `path`, renamed to it when the block ends well, else removed.

    What stood at `path` before is untouched until then. Raises OSError, with advice, when the
    folder cannot be written.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise type(error)(
            error.errno,
            f"cannot write into {path.parent} ({error.strerror}): choose another folder",
        ) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp made it private
        os.replace(temporary, path)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise OSError(error.errno, f"{path} could not be written whole ({error.strerror}): make room and "
                                   f"try again") from error  # fmt: skip
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raises OSError when no file can be written at `path`."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder; name a file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):
        pass


def write_json(path: Path, data) -> None:
    """Write data as JSON, whole or not at all; keys keep their order, so equal data is equal bytes."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256(data: bytes | Path) -> str:
    """The SHA-256 of some bytes or of a file, in hexadecimal."""
    return hashlib.sha256(data if isinstance(data, bytes) else Path(data).read_bytes()).hexdigest()


def warn_caller(message: str) -> None:
    """A warning that points at the line outside of this package that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and Path(frame.f_code.co_filename).parent == Path(__file__).parent:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def headless() -> bool:
    """Whether progress should be plain lines: no terminal and no notebook, or TQDM_DISABLE is set."""
    if os.environ.get("TQDM_DISABLE", "0") not in ("", "0"):
        return True
    return not sys.stdout.isatty() and "ipykernel" not in sys.modules


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
