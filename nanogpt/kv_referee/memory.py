"""How much memory is available: of this machine, and of the container that the process runs in.

Asked before something large is allocated: the tensors of a pretrained model, the blocks of a
server, a copy of a model in another dtype.
"""

import os
import re
from pathlib import Path


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
