"""The same training by 1, 2 and 4 processes, on one host and two, with one of them killed."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..config.checks import check_int
from ..config.shapes import SIZES
from ..config.training import TrainConfig
from ..data.batches import split
from ..data.corpus import Corpus, practice_corpus
from ..data.tokenizer import CharTokenizer
from ..model.checkpoint import read_tensors
from ..model.gpt import GPT
from ..system.device import Device, pick_device
from ..system.hosts import two_hosts
from ..training.distributed import ranks
from ..training.launch import Job, torchrun
from ..training.log import log_path
from ..training.loop import train
from ..training.state import state_path
from .cost_model import gradient_bytes, measure

COMMAND = ("-m", "nanogpt", "bench", "processes")


@dataclass(frozen=True)
class Work:
    """What is trained: a tiny model on the practice corpus, by AdamW. Raises ValueError.

    Not by Muon: it makes 1e-3 of a difference in the last bit within 60 steps.
    """

    steps: int = 20
    batch_size: int = 16
    repeats: int = 8  # of each timing

    def __post_init__(self):
        check_int("steps", self.steps, 1)
        check_int("batch_size", self.batch_size, 1)
        check_int("repeats", self.repeats, 1)

    @property
    def config(self) -> TrainConfig:
        few = {"eval_every": self.steps, "eval_batches": 1, "muon_lr": None, "lr": 1e-3}
        return TrainConfig(steps=self.steps, batch_size=self.batch_size, **few)

    @property
    def options(self) -> list[str]:
        """The same on the command line of `bench processes`."""
        named = {"steps": self.steps, "batch-size": self.batch_size, "repeats": self.repeats}
        return [word for name, value in named.items() for word in (f"--{name}", str(value))]


def one_of_them(work: Work, device: Device | None = None) -> dict:
    """The run and the timings of the group that this process belongs to; the same in all of them.

    {"processes", "losses": the loss of each step's batch, "gradient_bytes", "timings": what
    `cost_model.measure` gives}. Without torchrun it is the run of one process.
    """
    corpus, device = _little_corpus(), device or pick_device("cpu")
    tokenizer = CharTokenizer(corpus.text)
    shape = SIZES["article"]
    model = GPT(shape, generator=torch.Generator().manual_seed(work.config.seed))
    losses = train(model, corpus, work.config, tokenizer=tokenizer, device=device)["batch_loss"]
    data, _ = split(tokenizer.encode(corpus.text), shape.block_size)
    timings = measure(model, data, work.config, device, work.repeats)
    return {
        "processes": ranks().size,
        "losses": losses,
        "gradient_bytes": gradient_bytes(model),
        "timings": timings,
    }


def _little_corpus() -> Corpus:
    """As short as it may be: the loss over all of it is measured once a run."""
    whole = practice_corpus()
    return replace(whole, text=whole.text[:20_000])


def by_torchrun(
    processes: int, work: Work | None = None, *, agents: int = 1, network: str = "auto"
) -> dict:
    """What `one_of_them` returns, of so many processes that torchrun starts on this machine.

    With agents=2 they are spread over two hosts: network namespaces, or loopback where none can be
    made. Adds "agents" and "network". Raises ValueError, and ChildProcessError for a failed run.
    """
    with tempfile.TemporaryDirectory() as folder, _hosts(agents, network) as (hosts, where):
        path = Path(folder) / "result.json"
        words = [*COMMAND, *(work or Work()).options, "--json", str(path)]
        torchrun(words, processes, hosts=hosts)
        result = json.loads(path.read_text(encoding="utf-8"))
    return result | {"agents": agents, "network": where}


def losses_apart(runs: Sequence[dict]) -> list[list[float]]:
    """For each run, how far the loss of each step is from that of the first run."""
    return [
        [abs(a - b) for a, b in zip(run["losses"], runs[0]["losses"], strict=True)] for run in runs
    ]


def killed_and_not(
    processes: int = 2,
    *,
    agents: int = 1,
    network: str = "auto",
    steps: int = 30,
    folder: Path | None = None,
) -> dict:
    """Train twice by `python -m nanogpt train`: undisturbed, and with a process killed (SIGKILL).

    torchrun starts all again, and they resume from the state of the last evaluation. Compares all
    that was saved at the end: weights, moments, random states, losses. Returns {"processes",
    "agents", "network", "killed_rank", "killed_after": the step last logged, "tensors": how many,
    "equal": how many of them to the bit, "largest": difference}. Finds the process in /proc, so
    raises OSError where there is none; ChildProcessError for a run that fails.
    """
    check_int("steps", steps, 10)
    if not Path("/proc/self/environ").exists():
        raise OSError("a process of torchrun is found in /proc, which is not there")
    rank, killed = processes - 1, []
    with _place(folder) as place, _hosts(agents, network) as (hosts, where):
        torchrun(_train_words(place / "whole", steps), processes, hosts=hosts)

        def kill(job: Job) -> None:
            logged = _logged(place / "killed")
            if not killed and logged >= steps // 3 and (pid := job.process(rank)):
                killed.append(logged)
                os.kill(pid, signal.SIGKILL)

        words = _train_words(place / "killed", steps)
        torchrun(words, processes, hosts=hosts, restarts=3, meanwhile=kill)
        compared = _compared(place / "whole", place / "killed")
    about = {"processes": processes, "agents": agents, "network": where}
    return about | {"killed_rank": rank, "killed_after": killed[0] if killed else None} | compared


def _train_words(out: Path, steps: int) -> list[str]:
    text = out.with_name("text.txt")
    if not text.is_file():
        text.write_text(_little_corpus().text, encoding="utf-8")
    words = ["-m", "nanogpt", "train", "--size", "article", "--no-muon", "--lr", "1e-3"]
    words += ["--steps", steps, "--eval-every", max(1, steps // 6), "--eval-batches", 1]
    words += ["--batch-size", 8, "--device", "cpu", "--data", text, "--out", out]
    return [str(word) for word in words]


def _logged(out: Path) -> int:
    """The step of the last evaluation that the run has logged; -1 before the first."""
    try:
        return json.loads(log_path(out).read_text(encoding="utf-8").splitlines()[-1])["step"]
    except (OSError, ValueError, IndexError):
        return -1


def _compared(a: Path, b: Path) -> dict:
    one, other = (read_tensors(state_path(out))[0] for out in (a, b))
    gaps = [float((one[name].double() - other[name].double()).abs().max()) for name in one]
    return {"tensors": len(gaps), "equal": gaps.count(0.0), "largest": max(gaps)}


@contextmanager
def _hosts(agents: int, network: str):
    """The hosts for torchrun, None for this machine alone, and what they are."""
    check_int("agents", agents, 1, 2)
    if agents == 1:
        yield None, "one host"
        return
    with two_hosts(network) as (hosts, where):
        yield hosts, where


@contextmanager
def _place(folder: Path | None):
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(folder or temporary)
