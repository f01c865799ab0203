"""What several processes cost: the gradients' bytes over the bandwidth, beside the computing.

A ring of n processes sends each gradient 2 (n - 1) / n times, in 2 (n - 1) rounds. Its latency and
bandwidth are measured between two processes, computing in one; the rest is predicted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch
import torch.distributed as dist

from ..config.training import TrainConfig
from ..model.gpt import GPT
from ..system.device import Device, synchronize
from ..training.distributed import ranks
from ..training.loop import prepare
from ..training.trainer import Trainer
from .timing import summary

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


def gradient_bytes(model: GPT) -> int:
    """Bytes that a step averages: a number for each parameter."""
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


# ------------------------------------------------------------------ measured, in each process


def measure(
    model: GPT, data: torch.Tensor, config: TrainConfig, device: Device, repeats: int
) -> dict:
    """Time this group's step and its parts, in turns: {name: [seconds, …]}, of the slowest process.

    "step": a whole training step. Of one process, "share 1/k": a step on 1 / k of the batch. Of
    several, "compute": a step that sends no gradients; "all-reduce N": N bytes summed.
    """
    group = ranks()

    def trainer(divide: int = 1) -> Trainer:
        part = replace(config, batch_size=config.batch_size // divide)
        worker, generator = prepare(GPT(model.config), part, device)
        return Trainer(worker, data, part, generator, device)

    runs = {"step": partial(trainer().step, 0)}
    if group.size == 1:
        shares = [k for k in (2, 4, 8) if config.batch_size % k == 0]
        runs |= {f"share 1/{k}": partial(trainer(k).step, 0) for k in shares}
    else:
        runs |= {"compute": _without_sending(trainer())}
        sizes = (4, gradient_bytes(model), 8 * gradient_bytes(model))
        runs |= {f"all-reduce {n}": _all_reduce(n, device) for n in sizes}
    seconds = {name: [] for name in runs}
    for turn in range(1 + repeats):
        for name, run in runs.items():
            took = _timed(run, device)
            if turn:  # the first one warms up
                seconds[name].append(took)
    return {name: _slowest(values) for name, values in seconds.items()}


def _without_sending(trainer: Trainer) -> Callable:
    def run() -> None:
        with trainer.net.no_sync():
            trainer.step(0)

    return run


def _all_reduce(n_bytes: int, device: Device) -> Callable:
    values = torch.zeros(max(1, n_bytes // 4), device=device.device)
    return lambda: dist.all_reduce(values)


def _timed(run: Callable, device: Device) -> float:
    if ranks().size > 1:
        dist.barrier()  # all begin together
    synchronize(device.device)
    before = time.perf_counter()
    run()
    synchronize(device.device)
    return time.perf_counter() - before


def _slowest(seconds: list[float]) -> list[float]:
    """Turn by turn, the seconds of the process that took longest."""
    return [max(turn) for turn in zip(*ranks().gather(seconds), strict=True)]


# ------------------------------------------------------------------ predicted, and compared


def link_of(timings: dict[str, list[float]]) -> Link:
    """The link that two processes measured: 2 rounds of latency, and bytes beyond it."""
    sizes = sorted(int(name.split()[1]) for name in timings if name.startswith("all-reduce"))
    least, most = (summary(timings[f"all-reduce {n}"])["median"] for n in (sizes[0], sizes[-1]))
    return Link(least / 2, (sizes[-1] - sizes[0]) / max(most - least, 1e-9))


def compare(measured: dict[int, dict], n_bytes: int, cores: int) -> dict:
    """Predicted and measured steps. `measured`: what `measure` gave, by number of processes.

    Needs those of 1 and 2. Returns {"link", "rows"}; a row has the processes, summaries of the
    measured step and of its parts, the `predicted` median with the range that the spread of its
    inputs gives, `off`, predicted over measured, and `off_at_best`, the same of the shortest.
    `off_together` takes the computing as measured while all compute, and predicts the sending
    alone: where it is nearer to 1, processes that share a machine slow each other down.
    """
    link = link_of(measured[2])
    rows = [_row(n, timings, measured[1], link, n_bytes, cores) for n, timings in measured.items()]
    return {"link": asdict(link), "gradient_bytes": n_bytes, "cores": cores, "rows": rows}


def _row(n: int, timings: dict, alone: dict, link: Link, n_bytes: int, cores: int) -> dict:
    share = summary(alone["step" if n == 1 else f"share 1/{n}"])
    predicted = {
        key: step_seconds(share[key], n_bytes, n, link, cores) for key in ("median", "low", "high")
    }
    step = summary(timings["step"])
    row = {"processes": n, "step": step, "predicted": predicted, "share": share}
    row["off"] = predicted["median"] / step["median"]
    row["off_at_best"] = predicted["low"] / step["low"]
    row["sends"] = link.all_reduce(n_bytes, n) + link.all_reduce(4, n)
    for part in ("compute", f"all-reduce {n_bytes}"):
        if part in timings:
            row[part.split()[0]] = summary(timings[part])
    if "compute" in row:  # a step without gradients sends the loss already
        together = row["compute"]["median"] + link.all_reduce(n_bytes, n)
        row["off_together"] = together / step["median"]
    return row


def elsewhere(compute: float, n_bytes: int, processes=(1, 2, 4, 8)) -> list[dict]:
    """Predicted, not measured: how much sooner a step ends on usual networks, a core for each.

    `compute` is the seconds of the whole batch in one process. A row: the network, the processes,
    the step's seconds, and `speedup` over one process.
    """
    rows = []
    for name, numbers in LINKS.items():
        for n in processes:
            seconds = step_seconds(compute / n, n_bytes, n, Link(*numbers), cores=n)
            rows.append({"network": name, "processes": n, "seconds": seconds})
            rows[-1]["speedup"] = compute / seconds
    return rows
