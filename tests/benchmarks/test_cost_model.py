"""The cost model of several processes, on numbers that are known."""

import pytest

from nanogpt.benchmarks.cost_model import Link, elsewhere, step_seconds

LINK = Link(latency=1e-3, bandwidth=1e6)
BYTES = 8000


def test_a_ring_sends_two_parts_in_n_to_each_neighbour():
    assert LINK.all_reduce(BYTES, 1) == 0
    assert LINK.all_reduce(BYTES, 2) == pytest.approx(2 * 1e-3 + 1 * BYTES / 1e6)
    assert LINK.all_reduce(BYTES, 4) == pytest.approx(6 * 1e-3 + 1.5 * BYTES / 1e6)


def test_fewer_cores_than_processes_compute_in_turns():
    free = Link(0.0, 1e30)
    assert step_seconds(0.02, BYTES, 4, free, cores=4) == pytest.approx(0.02)
    assert step_seconds(0.02, BYTES, 4, free, cores=2) == pytest.approx(0.04)


def test_a_slow_network_makes_many_processes_slower_than_one():
    rows = elsewhere(0.1, 50_000_000, (1, 8))
    rows = {(row["network"], row["processes"]): row["speedup"] for row in rows}
    assert rows["1 Gbit/s Ethernet", 8] < 1 < 5 < rows["100 Gbit/s, RDMA", 8]
    assert all(rows[name, 1] == pytest.approx(1) for name, n in rows if n == 1)
