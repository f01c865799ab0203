"""Training by several processes: the cost model on numbers that are known, and the report."""

import pytest
from matplotlib.figure import Figure

from nanogpt.benchmarks.cost_model import Link, compare, elsewhere, link_of, step_seconds
from nanogpt.benchmarks.processes import Work, losses_apart, one_of_them
from nanogpt.cli import bench_processes
from nanogpt.notebook import plots

LINK = Link(latency=1e-3, bandwidth=1e6)
BYTES = 8000


def timings(n: int) -> dict:
    """What n processes would measure on two cores, if the model were the truth."""
    step = step_seconds(0.08 / n, BYTES, n, LINK, 2)
    if n == 1:
        return {"step": [step] * 3} | {f"share 1/{k}": [0.08 / k] * 3 for k in (2, 4)}
    sizes = (4, BYTES, 8 * BYTES)
    scalar = LINK.all_reduce(4, n)
    sends = {f"all-reduce {size}": [LINK.all_reduce(size, n)] * 3 for size in sizes}
    return {"step": [step] * 3, "compute": [0.08 / n * max(1, n / 2) + scalar] * 3} | sends


def test_a_ring_sends_two_parts_in_n_to_each_neighbour():
    assert LINK.all_reduce(BYTES, 1) == 0
    assert LINK.all_reduce(BYTES, 2) == pytest.approx(2 * 1e-3 + 1 * BYTES / 1e6)
    assert LINK.all_reduce(BYTES, 4) == pytest.approx(6 * 1e-3 + 1.5 * BYTES / 1e6)


def test_fewer_cores_than_processes_compute_in_turns():
    free = Link(0.0, 1e30)
    assert step_seconds(0.02, BYTES, 4, free, cores=4) == pytest.approx(0.02)
    assert step_seconds(0.02, BYTES, 4, free, cores=2) == pytest.approx(0.04)


def test_the_link_is_found_and_the_prediction_is_the_truth_where_the_model_is():
    link = link_of(timings(2))
    assert link.latency == pytest.approx(1e-3, rel=1e-2)
    assert link.bandwidth == pytest.approx(1e6, rel=1e-2)
    cost = compare({n: timings(n) for n in (1, 2, 4)}, BYTES, cores=2)
    assert [row["off"] for row in cost["rows"]] == pytest.approx([1, 1, 1], rel=1e-2)
    assert [row["off_at_best"] for row in cost["rows"]] == pytest.approx([1, 1, 1], rel=1e-2)
    assert [row["off_together"] for row in cost["rows"][1:]] == pytest.approx([1, 1], rel=1e-2)


def test_a_slow_network_makes_many_processes_slower_than_one():
    rows = {
        (row["network"], row["processes"]): row["speedup"] for row in elsewhere(0.1, 50_000_000)
    }
    assert rows["1 Gbit/s Ethernet", 8] < 1 < 5 < rows["100 Gbit/s, RDMA", 8]
    assert all(rows[name, 1] == pytest.approx(1) for name, n in rows if n == 1)


def test_one_process_trains_and_measures_and_the_report_says_all():
    run = one_of_them(Work(steps=2, batch_size=8, repeats=1)) | {"agents": 1, "network": "one host"}
    assert len(run["losses"]) == 2
    assert set(run["timings"]) == {"step", "share 1/2", "share 1/4", "share 1/8"}
    other = run | {"processes": 2, "agents": 2, "losses": [x + 1e-7 for x in run["losses"]]}
    apart = losses_apart([run, other])
    assert apart[0] == [0.0, 0.0]
    assert max(apart[1]) == pytest.approx(1e-7, rel=0.1)
    assert isinstance(plots.losses_by_processes([run, other], apart), Figure)
    result = {"runs": [run, other], "apart": apart}
    result["cost"] = compare({n: timings(n) for n in (1, 2)}, BYTES, cores=2)
    killed = {"processes": 2, "killed_rank": 1, "killed_after": 10, "network": "loopback"}
    result["killed"] = [killed | {"tensors": 9, "equal": 9, "largest": 0.0}]
    said = bench_processes.report(result)
    assert "2 processes on two hosts" in said
    assert "9 of 9 saved tensors equal to the bit" in said


@pytest.mark.parametrize("more", [["--processes", "3"], ["--processes", "x"], ["--steps", "0"]])
def test_bad_numbers_are_refused_before_anything_starts(more, capsys):
    assert bench_processes.main(more) == 2
    assert more[1] in capsys.readouterr().err
