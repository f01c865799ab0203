"""How much work one run of the series does: the profiles, and a part of one.

A profile holds counts, never seconds: the same counts give the same bits on the same machine,
however busy it is. `make run` takes the part of `cpu` that fits the machine, as in cpu/4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, sqrt

from .training import TrainConfig

PARTS = (1, 2, 3, 4, 6, 8, 12, 16)  # of a profile: all of it, a half, a third …


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
    repeats: int  # of every timing, interleaved, after one warm-up
    size: str = "small"  # the model of all other notebooks
    share: float = 1.0  # of the work of `part`
    rungs: str | None = None  # of the ladder; None: all
    # CPU threads; None: as many as torch takes. At these sizes a second thread gains little, loses
    # much where the machine is shared, and makes the last bits depend on the number of cores.
    threads: int | None = None

    def part(self, whole: int) -> int:
        """This profile's share of so many steps of a lesson's own training, or characters."""
        return max(1, round(self.share * whole))

    @property
    def kind(self) -> str:
        """The profile that this is a part of: smoke, cpu or gpu."""
        return self.name.partition("/")[0]

    def scaled(self, n: int) -> Profile:
        """About an n-th of the work, as "cpu/4": fewer steps, seeds and repeats, shorter texts.

        A timing's work is repeats times tokens, so each falls with the root of n. From a third on
        the largest model goes, from a sixth on the rung that torch.compile builds.
        """
        if n == 1:
            return self
        steps, eval_batches = max(40, self.train.steps // n), max(1, self.train.eval_batches // n)
        fewer = {"steps": steps, "eval_every": ceil(steps / 6), "eval_batches": eval_batches}
        longest = 2 * self.lengths[-1] / sqrt(n)
        return replace(
            self,
            name=f"{self.name}/{n}",
            train=replace(self.train, **fewer),
            seeds=max(3, round(self.seeds / n)),
            lengths=tuple(length for length in self.lengths if length <= longest),
            sizes=self.sizes if n < 3 else self.sizes[:2],
            batches=self.batches if n < 3 else self.batches[:2],
            repeats=max(2, ceil(self.repeats / sqrt(n))),
            share=self.share / n,
            rungs=self.rungs if n < 6 else "123457",
        )


# The published run: a quarter of an hour, each timing five times. `make run` takes a part.
CPU = Profile(
    "cpu",
    "small",
    TrainConfig(steps=3000, eval_every=250, eval_batches=4),
    seeds=20,
    lengths=(1, 2, 8, 32, 64, 128, 255),
    sizes=("article", "small", "lecture"),
    batches=(1, 4, 16),
    repeats=5,
    threads=1,
)
# A CUDA GPU: 01 trains Karpathy's large model.
LARGE = TrainConfig(steps=1000, batch_size=64, eval_every=100, eval_batches=8)
GPU = {"train_size": "lecture", "train": LARGE, "batches": (1, 8, 64), "threads": None}
# Every cell, as little work as shows it: for tests.
SMOKE = {"train": TrainConfig(steps=40, eval_every=20, eval_batches=1), "seeds": 3}
SMOKE |= {"lengths": (1, 8, 32), "sizes": CPU.sizes[:2], "batches": (1, 4)}
SMOKE |= {"repeats": 2, "share": 0.03}
PROFILES = {
    "smoke": replace(CPU, name="smoke", **SMOKE),
    "cpu": CPU,
    "gpu": replace(CPU, name="gpu", **GPU),
}


def get_profile(name: str, *, cuda: bool = False) -> Profile:
    """The profile of that name, or a part of it, as in "cpu/4"; PARTS lists them.

    "auto" is "gpu" where CUDA is, else "cpu". Raises ValueError.
    """
    key, slash, n = (("gpu" if cuda else "cpu") if name == "auto" else name).partition("/")
    if key not in PROFILES or (slash and n not in map(str, PARTS)):
        names = ", ".join([*PROFILES, *(f"cpu/{part}" for part in PARTS[1:])])
        raise ValueError(f"profile={name!r} is unknown: choose auto, {names}")
    return PROFILES[key].scaled(int(n or 1))
