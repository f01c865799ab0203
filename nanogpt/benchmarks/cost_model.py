"""What several processes cost: the gradients' bytes over the bandwidth, beside the computing.

A ring of n processes sends each gradient 2 (n - 1) / n times, in 2 (n - 1) rounds. A link's latency
and bandwidth are measured between two processes, computing in one; the rest is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LINKS = {  # seconds a round, bytes a second: usual numbers, for a prediction only
    "1 Gbit/s Ethernet": (50e-6, 0.125e9),
    "10 Gbit/s Ethernet": (30e-6, 1.25e9),
    "100 Gbit/s, RDMA": (5e-6, 12.5e9),
}


@dataclass(frozen=True)
class Link:
    """A connection between neighbours of a ring: seconds a round, and bytes a second."""

    latency: float
    bandwidth: float

    def all_reduce(self, n_bytes: float, n: int) -> float:
        """Seconds in which n processes have the sum of so many bytes of each.

        Each process sends 2 (n - 1) parts of n_bytes / n, one a round.
        """
        return 2 * (n - 1) * (self.latency + n_bytes / n / self.bandwidth)


def step_seconds(share: float, n_bytes: int, n: int, link: Link, cores: int) -> float:
    """The seconds of a training step of n processes.

    `share` is what one process, alone on the machine, takes for 1 / n of the batch; fewer cores
    than processes do it in turns. Then the gradients are averaged, and the loss, of 4 bytes.
    Computing and sending may overlap in truth, which this leaves out.
    """
    return share * max(1.0, n / cores) + link.all_reduce(n_bytes, n) + link.all_reduce(4, n)


def elsewhere(compute: float, n_bytes: int, processes: Sequence[int]) -> list[dict]:
    """Predicted, not measured: how much sooner a step ends on usual networks, a core for each.

    `compute` is the seconds of the whole batch in one process. A row: the network, the processes,
    and `speedup` over one process.
    """
    rows = []
    for name, numbers in LINKS.items():
        for n in processes:
            seconds = step_seconds(compute / n, n_bytes, n, Link(*numbers), cores=n)
            rows.append({"network": name, "processes": n, "speedup": compute / seconds})
    return rows
