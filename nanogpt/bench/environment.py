"""The environment card: everything a run's results depend on besides its code."""

from __future__ import annotations

import platform
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ..device import Device, pick_device
from ..files import IN_CHECKOUT, ROOT


def environment(device: Device | None = None) -> dict[str, Any]:
    """The environment card as plain data."""
    device = device or pick_device()
    card: dict[str, Any] = {
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
        card["device_name"] = torch.cuda.get_device_name()
        card["cuda"] = torch.version.cuda
    return card


def conditions(card: dict[str, Any]) -> str:
    """The card in one line, for a figure's footer."""
    if card["device"] == "cuda":
        return f"{card['device_name']}, torch {card['torch']}"
    n = card["threads"]
    return f"CPU, {n} thread{'s' * (n != 1)}, torch {card['torch']}"


def _cpu_name() -> str:
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
        model = re.search(r"^model name\s*: (.+)", text, re.M)
        if model:
            return model[1]
    return platform.processor() or platform.machine()


def _git_state() -> dict[str, str | bool | None]:
    """The commit, and whether there are uncommitted changes; None if unknown."""
    command = ["git", "-C", str(ROOT), "status", "--porcelain=2", "--branch"]
    if IN_CHECKOUT:  # a repository around an installed copy belongs to another project
        with suppress(OSError, subprocess.SubprocessError):  # no git
            done = subprocess.run(
                command,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=10,
                check=True,
            )
            lines = done.stdout.splitlines()
            return {"commit": lines[0].split()[-1], "dirty": any(line[0] != "#" for line in lines)}
    return {"commit": None, "dirty": None}
