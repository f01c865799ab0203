"""The profiles: how much work a run of the series does.

A profile has counts, never seconds. The same counts give bit-identical results on the same machine,
however busy it is; a slow machine takes longer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..config import SIZES, ParameterError
from ..training.recipes import TrainConfig, recipe_for


@dataclass(frozen=True)
class Profile:
    """The amount of work in a run of the series: the same cells, different counts."""

    name: str
    size: str  # the model that notebook 01 trains and the others use: a key of SIZES
    train: TrainConfig
    seeds: int  # seeds for counting equal texts
    lengths: tuple[int, ...]  # new tokens, for speed against length
    sizes: tuple[str, ...]  # models, for speed against size
    batches: tuple[int, ...]  # batch sizes, for speed against batch size
    repeats: int  # of every timing, interleaved, after one warm-up
    # CPU threads; None: torch's default. For decoding these models, a second thread gains
    # little, costs a lot on a shared machine, and changes the last bits.
    threads: int | None = None
    # For training, it gains 1.4×. A fixed count, so that bits do not depend on the core count.
    train_threads: int | None = None  # None: as many as `threads`


def _fast(size: str, **changes: Any) -> TrainConfig:
    """The recipe `fast` for a model of that size, with some changes."""
    return replace(recipe_for("fast", SIZES[size])[0], **changes)


# The published run.
_FULL = Profile(
    "full",
    "medium",
    _fast("medium", steps=3400, batch_size=5, weight_decay=0.1, eval_every=200),
    seeds=20,
    lengths=(1, 2, 8, 32, 64, 128, 255),
    sizes=("article", "medium", "lecture"),
    batches=(1, 4, 16),
    repeats=5,
    threads=1,
    train_threads=2,
)
# `make run`: a smaller model, and just enough seeds, lengths and repeats for the findings.
_LAPTOP = replace(
    _FULL,
    name="laptop",
    size="small",
    train=_fast("small"),
    sizes=("article", "small"),
)
# For tests: every cell, with minimal work.
SMOKE = replace(
    _LAPTOP,
    name="smoke",
    train=_fast("small", steps=40, eval_every=20, eval_batches=1),
    seeds=3,
    lengths=(1, 8, 32),
    batches=(1, 4),
    repeats=2,
    train_threads=None,
)
# A CUDA GPU: 01 trains Karpathy's large model.
_GPU = replace(
    _FULL,
    name="gpu",
    size="lecture",
    train=_fast("lecture", steps=1000, batch_size=64, eval_every=100, eval_batches=8),
    batches=(1, 8, 64),
)
PROFILES = {profile.name: profile for profile in (SMOKE, _LAPTOP, _FULL, _GPU)}


def get_profile(name: str, *, cuda: bool = False) -> Profile:
    """The profile of that name; "auto" is "gpu" if CUDA is available, else "laptop".

    Raises ValueError for a name that is not in PROFILES.
    """
    if name == "auto":
        name = "gpu" if cuda else "laptop"
    if name not in PROFILES:
        raise ParameterError(
            f"profile={name!r} is unknown: choose auto, {', '.join(PROFILES)}", "profile"
        )
    return PROFILES[name]


def beside_published(profile: Profile) -> str:
    """One line that lists the counts that differ from the published run's profile."""
    if profile == _FULL:
        return "the published run used this profile"
    names = ("size", "seeds", "lengths", "sizes", "batches", "repeats")
    pairs = [(name, getattr(profile, name), getattr(_FULL, name)) for name in names]
    pairs.insert(1, ("steps", profile.train.steps, _FULL.train.steps))
    differences = []
    for name, count, published in pairs:
        if count != published:
            differences.append(f"{name} {_short(count)} instead of {_short(published)}")
    return f"compared with the published run: {', '.join(differences) or 'the same counts'}"


def _short(value: object) -> str:
    return "/".join(map(str, value)) if isinstance(value, tuple) else f"{value}"
