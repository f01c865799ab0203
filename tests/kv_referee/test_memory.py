"""The memory that counts is the one that the system calls available, within the group's limit."""

import pytest

from nanogpt.kv_referee.memory import available_memory

GB = 1024**3
MEMINFO = f"MemTotal: {32 * GB // 1024} kB\nMemFree: 500 kB\nMemAvailable: {21 * GB // 1024} kB\n"
INSIDE = "sys/fs/cgroup/a/b"

CASES = {  # files of a system, and what is available there, in GB
    "a warm page cache": ({"proc/meminfo": MEMINFO}, 21),
    "no group": ({"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n"}, 21),
    "a group without a limit": ({f"{INSIDE}/memory.max": "max\n"}, 21),
    "a group's limit": ({f"{INSIDE}/memory.max": 4 * GB, f"{INSIDE}/memory.current": 1 * GB}, 3),
    "its page cache": (
        {
            f"{INSIDE}/memory.max": 4 * GB,
            f"{INSIDE}/memory.current": 4 * GB,
            f"{INSIDE}/memory.stat": f"anon 5\ninactive_file {2 * GB}\n",
        },
        2,
    ),
    "the limit of an outer group": (
        {"sys/fs/cgroup/a/memory.max": 2 * GB, "sys/fs/cgroup/a/memory.current": 0},
        2,
    ),
    "more than the machine has": (
        {f"{INSIDE}/memory.max": 99 * GB, f"{INSIDE}/memory.current": 0},
        21,
    ),
    "over its limit": ({f"{INSIDE}/memory.max": GB, f"{INSIDE}/memory.current": 2 * GB}, 0),
    "groups of version 1": (
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/1\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 3 * GB,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": 2 * GB,
            "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {GB}\n",
        },
        2,
    ),
    "version 1 without a limit": (
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 2**63 - 4096,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": 2 * GB,
        },
        21,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_available_memory(tmp_path, case):
    files, expected = CASES[case]
    usual = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/a/b\n"}
    for name, content in (usual | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(str(content), encoding="utf-8")
    assert available_memory(tmp_path) == expected * GB


def test_of_this_machine_it_is_a_number_or_unknown():
    found = available_memory()
    assert found is None or found > 0
