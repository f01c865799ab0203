"""The environment card: what a result depends on beside the code and the seeds."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import torch

from .device import Device, pick_device
from .files import IN_CHECKOUT, ROOT


def environment(device: Device | None = None) -> dict:
    """The environment card as plain data."""
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
        card |= {
            "device_name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "multiprocessors": properties.multi_processor_count,
        }
    return card


def conditions(card: dict) -> str:
    """The card in one line, for the footer of a figure."""
    threads = f"{card['threads']} thread{'s' * (card['threads'] != 1)}"
    where = card["device_name"] if card["device"] == "cuda" else f"CPU, {threads}"
    return f"{where}, torch {card['torch']}"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _git_state() -> dict:
    def git(*args):
        done = subprocess.run(
            ["git", "-C", str(ROOT), *args], capture_output=True, text=True, timeout=10
        )
        return done.stdout.strip() if done.returncode == 0 else None

    if not IN_CHECKOUT:  # a repository around an installed copy is somebody else's
        return {"commit": None, "dirty": None}
    try:
        commit, changes = git("rev-parse", "HEAD"), git("status", "--porcelain")
    except (OSError, subprocess.TimeoutExpired):  # no git on this machine
        commit = changes = None
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}
