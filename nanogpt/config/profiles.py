"""How much work one run of the series does: the profiles, and the rows of the profile cpu.

`make run` measures the machine and takes the row that fits it. A row holds counts, never seconds of
training, so the same row gives the same bits on the same machine, however busy it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .repeats import Repeats
from .training import TrainConfig


@dataclass(frozen=True)
class Profile:
    """How much work one run of the series does: the same cells, other numbers."""

    name: str
    train_size: str  # what notebook 01 trains: a key of SIZES
    train: TrainConfig
    seeds: int  # seeds tried where equality is counted
    lengths: tuple[int, ...]  # new tokens, where speed is drawn against length
    sizes: tuple[str, ...]  # models, where speed is drawn against size
    batches: tuple[int, ...]  # batch sizes, where speed is drawn against batch
    repeats: Repeats  # of every timing, interleaved, after one warm-up
    size: str = field(default="small", kw_only=True)  # the model of all other notebooks
    share: float = field(default=1.0, kw_only=True)  # of the work of `part`
    rungs: str | None = field(default=None, kw_only=True)  # of the ladder; None: all
    fresh: bool = field(default=True, kw_only=True)  # time builds in an empty folder
    # CPU threads; None: as many as torch takes. At these sizes a second thread gains little, loses
    # much where the machine is shared, and makes the last bits depend on the number of cores.
    threads: int | None = field(default=None, kw_only=True)

    def part(self, whole: int) -> int:
        """This profile's share of so many steps of a lesson's own training, or characters."""
        return max(1, round(self.share * whole))

    @property
    def kind(self) -> str:
        """The profile that this is a row of: smoke, cpu or gpu."""
        return self.name.partition("-")[0]


PROFILES = {
    # Every cell, as little work as shows it: for tests.
    "smoke": Profile(
        "smoke",
        "small",
        TrainConfig(steps=40, eval_every=20, eval_batches=1),
        seeds=3,
        lengths=(1, 8, 32),
        sizes=("article", "small"),
        batches=(1, 4),
        repeats=Repeats(2),
        share=0.03,
        threads=1,
    ),
    # The published run: a quarter of an hour, each timing five times. `make run` takes a row below.
    "cpu": Profile(
        "cpu",
        "small",
        TrainConfig(steps=3000, eval_every=250, eval_batches=4),
        seeds=20,
        lengths=(1, 2, 8, 32, 64, 128, 255),
        sizes=("article", "small", "lecture"),
        batches=(1, 4, 16),
        repeats=Repeats(5, least=5),
        threads=1,
    ),
    "cpu-fast": Profile(
        "cpu-fast",
        "small",
        TrainConfig(steps=600, eval_every=100, eval_batches=2),
        seeds=8,
        lengths=(1, 2, 8, 32, 64, 128, 255),
        sizes=("article", "small", "lecture"),
        batches=(1, 4, 16),
        repeats=Repeats(4, spread=0.1, seconds=8),
        share=0.5,
        fresh=False,
        threads=1,
    ),
    "cpu-middle": Profile(
        "cpu-middle",
        "small",
        TrainConfig(steps=300, eval_every=60, eval_batches=2),
        seeds=5,
        lengths=(1, 2, 8, 32, 128, 255),
        sizes=("article", "small"),
        batches=(1, 8),
        repeats=Repeats(3, spread=0.2, seconds=6),
        share=0.3,
        fresh=False,
        threads=1,
    ),
    "cpu-slow": Profile(
        "cpu-slow",
        "small",
        TrainConfig(steps=120, eval_every=40, eval_batches=1),
        seeds=4,
        lengths=(1, 8, 32, 128),
        sizes=("article", "small"),
        batches=(1, 4),
        repeats=Repeats(3, spread=0.2, seconds=4),
        share=0.15,
        rungs="123457",
        fresh=False,
        threads=1,
    ),
    "cpu-least": Profile(
        "cpu-least",
        "small",
        TrainConfig(steps=60, eval_every=30, eval_batches=1),
        seeds=3,
        lengths=(1, 8, 64),
        sizes=("article", "small"),
        batches=(1, 4),
        repeats=Repeats(2, seconds=3),
        share=0.05,
        rungs="12457",
        fresh=False,
        threads=1,
    ),
    # A CUDA GPU: 01 trains Karpathy's large model.
    "gpu": Profile(
        "gpu",
        "lecture",
        TrainConfig(steps=1000, batch_size=64, eval_every=100, eval_batches=8, zero_init=True),
        seeds=20,
        lengths=(1, 2, 8, 32, 64, 128, 255),
        sizes=("article", "small", "lecture"),
        batches=(1, 8, 64),
        repeats=Repeats(5, least=5),
    ),
}


def get_profile(name: str, *, cuda: bool = False) -> Profile:
    """The profile of that name; "auto" is "gpu" where CUDA is, else "cpu". Raises ValueError."""
    key = ("gpu" if cuda else "cpu") if name == "auto" else name
    if key not in PROFILES:
        raise ValueError(f"profile={name!r} is unknown: choose auto, {', '.join(PROFILES)}")
    return PROFILES[key]
