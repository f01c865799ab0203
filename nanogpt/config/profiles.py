"""How much work one run of the series does."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    repeats: int  # interleaved repeats of every timing, after one warm-up
    size: str = field(default="small", kw_only=True)  # the model of all other notebooks
    # CPU threads; None: as many as torch takes. At these sizes a second thread gains little, loses
    # much where the machine is shared, and makes the last bits depend on the number of cores.
    threads: int | None = field(default=None, kw_only=True)


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
        repeats=2,
        threads=1,
    ),
    # A laptop: the whole series in a few minutes on two cores.
    "cpu": Profile(
        "cpu",
        "small",
        TrainConfig(steps=3000, eval_every=250, eval_batches=4),
        seeds=20,
        lengths=(1, 2, 8, 32, 64, 128, 255),
        sizes=("article", "small", "lecture"),
        batches=(1, 4, 16),
        repeats=5,
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
        repeats=5,
    ),
}


def get_profile(name: str, *, cuda: bool = False) -> Profile:
    """The profile of that name; "auto" is "gpu" where CUDA is, else "cpu". Raises ValueError."""
    key = ("gpu" if cuda else "cpu") if name == "auto" else name
    if key not in PROFILES:
        raise ValueError(f"profile={name!r} is unknown: choose auto, {', '.join(PROFILES)}")
    return PROFILES[key]
