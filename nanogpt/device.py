"""Choosing a device, and measuring the available memory."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from .config import ParameterError


@dataclass(frozen=True)
class Device:
    """A device, the dtype of matrix multiplications in training, and why they were chosen."""

    device: torch.device
    dtype: torch.dtype
    reason: str

    def __str__(self) -> str:
        return f"{self.device.type}, {str(self.dtype).removeprefix('torch.')}: {self.reason}"


def pick_device(prefer: str = "auto") -> Device:
    """CUDA if available, else the CPU. Raises ValueError for a missing or unknown device."""
    if prefer not in ("auto", "cpu", "cuda"):
        raise ParameterError(f"device={prefer!r} is unknown: choose auto, cpu or cuda", "device")
    if prefer == "cuda" and not torch.cuda.is_available():
        raise ParameterError(
            "device='cuda', but this torch sees no CUDA device: choose cpu or auto", "device"
        )
    if prefer == "cpu" or not torch.cuda.is_available():
        reason = "as requested" if prefer == "cpu" else "no CUDA device was found"
        reason = f"{reason}; float32 is a CPU's fast type"
        return Device(torch.device("cpu"), torch.float32, reason)
    name = torch.cuda.get_device_name()
    # Without this argument a T4 returns True, and then emulates bfloat16, slowly.
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return Device(torch.device("cuda"), torch.bfloat16, f"{name} multiplies bfloat16 natively")
    reason = f"{name} has no native bfloat16; gradients are scaled so that float16 can hold them"
    return Device(torch.device("cuda"), torch.float16, reason)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work; a no-op on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def forked_random_state(device: Device):
    """A with-block that restores the global random state, including that of this process's GPU."""
    gpu = device.device.type == "cuda"
    return torch.random.fork_rng(devices=[device.device] if gpu else None)


# ------------------------------------------------------------------ memory


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes of RAM available for new tensors; None if the system does not report it.

    The page cache counts as available, because the system can reclaim it. In a container with less
    memory than its machine, the container's limit applies. On macOS this is the total memory.
    `root` is where the system's files are.
    """
    table = _read(root / "proc/meminfo")
    found = re.search(r"^MemAvailable:\s*(\d+) kB", table, re.M)
    if found:
        return max(0, min([int(found[1]) * 1024, *_left_in_groups(root)]))
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):  # macOS: total memory
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _left_in_groups(root: Path) -> list[int]:
    """Bytes left in each Linux control group of this process that has a memory limit."""
    versions = [  # pattern of the group's line, folder, files for limit and use, name of the cache
        (r"^0::(/.*)$", "", "memory.max", "memory.current", "inactive_file"),
        (
            r"^\d+:(?:[^:]*,)?memory(?:,[^:]*)?:(/.*)$",
            "memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ]
    groups = _read(root / "proc/self/cgroup")
    left = []
    for line, folder, limit_name, use_name, cache_name in versions:
        top = root / "sys/fs/cgroup" / folder
        found = re.search(line, groups, re.M)
        inner = top / found[1].strip("/") if found else top
        for group in (inner, *inner.parents):
            limit = _read(group / limit_name).strip()
            use = _read(group / use_name).strip()
            cache = re.search(rf"^{cache_name} (\d+)$", _read(group / "memory.stat"), re.M)
            if limit.isdecimal() and use.isdecimal():  # "max" is no limit
                left.append(int(limit) - int(use) + (int(cache[1]) if cache else 0))
            if group == top:
                break
    return left


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
