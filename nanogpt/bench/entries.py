"""What `bench train` trains: a race to a loss, one idea after another, and shared keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any, TypedDict

from ..decoder.config import Positions
from ..timing import Summary
from ..training.recipes import MODERN
from .training import ComparedRow, Entry

# ------------------------------------------------------------------ time to a loss

END = 1.8125  # about where the lecture's recipe ends at block 32
_SMALL = {"block_size": 256, "n_layer": 3, "n_head": 3, "n_embd": 96}

RACE = (
    Entry("lecture", "lecture"),
    Entry("fast", "fast", END, {}, {"steps": 800, "stages": ()}),
    Entry("fast", "fast", 1.72, _SMALL),
)

# ------------------------------------------------------------------ the effect of each idea

# One shape, and 300 steps of 768 characters for every line: an idea changes the loss, the seconds
# of a step, or both.
_SHAPE = {**_SMALL, "block_size": 128}
_PLAIN = {"steps": 300, "batch_size": 6, "batched": True, "fused": True}
ADAMW = {"warmup": 20, "decay": True, "beta2": 0.99, "weight_decay": 0.0}
_RATE = {**ADAMW, "lr": 5e-3}
MUON = {**ADAMW, "lr": 8e-3, "muon_lr": 0.02}
CHANGES: dict[str, dict[str, Any]] = {
    "zero start": {"zero_init": True},
    "look-back": {"previous_token_init": True},
    "short windows first": {"stages": ((0.5, 32), (0.85, 64))},
    "epochs": {"epochs": True},
}
RATES = "rate 5e-3, warm-up, line to zero"
WHOLE = list(CHANGES)[-1]  # the line with every idea for the lecture's architecture
TODAY = "RMSNorm, RoPE, QK-norm, ReLU²"


class Place(str, Enum):
    """Where an idea is added or removed."""

    ON_TOP = "on top"  # compared with the line before it
    ALONE = "alone"  # compared with AdamW with its rate and schedule
    WITHOUT = "without"  # all ideas except this one

    def __str__(self) -> str:
        return self.value


PLACES = tuple(Place)


@dataclass(frozen=True)
class Ablation:
    """An entry with one idea alone, or with all ideas but one."""

    idea: str
    place: Place
    entry: Entry


def _idea(
    name: str,
    base: dict[str, Any],
    *changes: str,
    shape: dict[str, Any] | None = None,
    **more: Any,
) -> Entry:
    """The lecture's recipe and shape, with optimizer settings `base` and some changes."""
    train = {**_PLAIN, **base}
    for change in changes:
        train.update(CHANGES[change])
    train.update(more)
    return Entry(name, "lecture", None, {**_SHAPE, **(shape or {})}, train)


def _ladder() -> tuple[Entry, ...]:
    """Each idea on top of those before it."""
    names = list(CHANGES)
    entries = [
        _idea("the lecture's recipe", {}, batched=False, fused=False),
        _idea("heads in one product, fused AdamW", {}),
        _idea(RATES, _RATE),
        _idea("Muon", MUON),
    ]
    entries += [_idea(name, MUON, *names[: i + 1]) for i, name in enumerate(names)]
    entries.append(_idea(TODAY, MUON, *names, shape=MODERN))
    return tuple(entries)


def _only(idea: str, *changes: str, shape: dict[str, Any] | None = None) -> Ablation:
    return Ablation(idea, Place.ALONE, _idea(f"only {idea}", _RATE, *changes, shape=shape))


def _all_but(idea: str, base: dict[str, Any], *changes: str, **more: Any) -> Ablation:
    return Ablation(idea, Place.WITHOUT, _idea(f"all but {idea}", base, *changes, **more))


def _ablations() -> tuple[Ablation, ...]:
    """Each idea alone, and all ideas but one."""
    names = list(CHANGES)
    ablations = [_only(name, name) for name in names]
    ablations += [
        _only(TODAY, shape=MODERN),
        _all_but("Muon", _RATE, *names),
        _all_but("the falling rate", MUON, *names, decay=False),
        _all_but("the warm-up", MUON, *names, warmup=0),
    ]
    for name in names:
        ablations.append(_all_but(name, MUON, *(x for x in names if x != name)))
    return tuple(ablations)


LADDER = _ladder()
ABLATIONS = _ablations()
IDEAS = (*LADDER, *(ablation.entry for ablation in ABLATIONS))


class Effect(TypedDict):
    """The change of a median, and the larger of the two ranges over seeds."""

    change: float
    range: float
    clear: bool  # whether the change is larger than the range


class Effects(TypedDict):
    """The effects of an idea."""

    loss: Effect
    seconds: Effect


def effects(rows: Sequence[ComparedRow]) -> dict[tuple[str, Place], Effects]:
    """The effects of each idea in each Place, by (idea, place), from the rows of IDEAS.

    The sign of WITHOUT is flipped, so that below zero always means the idea helps. With five seeds
    and normal noise, one comparison in 260 is clear by chance.
    """
    by_name = {row["name"]: row for row in rows}
    names = [entry.name for entry in LADDER]
    sides = {(b, Place.ON_TOP): (a, b) for a, b in pairwise(names)}
    sides["Muon", Place.ALONE] = RATES, "Muon"
    for ablation in ABLATIONS:
        name = ablation.entry.name
        if name not in by_name:
            continue
        pair = (RATES, name) if ablation.place is Place.ALONE else (name, WHOLE)
        sides[ablation.idea, ablation.place] = pair
    found: dict[tuple[str, Place], Effects] = {}
    for key, (before, after) in sides.items():
        a = by_name[before]
        b = by_name[after]
        found[key] = {
            "loss": _effect(a["loss"], b["loss"]),
            "seconds": _effect(a["seconds"], b["seconds"]),
        }
    return found


def _effect(before: Summary, after: Summary) -> Effect:
    """The change of the median between two summaries, and the larger of their ranges."""
    change = after["median"] - before["median"]
    widest = max(s["high"] - s["low"] for s in (before, after))
    return {"change": change, "range": widest, "clear": abs(change) > widest}


# ------------------------------------------------------------------ the cost of shared keys

# The changes of notebook 08, one at a time; all else is equal: block 64, steps, characters.
_STEPS = {
    "steps": 2000,
    "batch_size": 16,
    "previous_token_init": False,
    "epochs": False,
    "stages": (),
}
TABLE = {"block_size": 64, "positions": Positions.LEARNED}
_ROPE = {"block_size": 64, "positions": Positions.ROTARY}
WINDOW = {**_ROPE, "window": 16}

HEADS = (
    Entry("a table of positions", "fast", None, TABLE, _STEPS),
    Entry("rotary positions", "fast", None, _ROPE, _STEPS),
    Entry("2 heads of keys", "fast", None, {**_ROPE, "n_kv_head": 2}, _STEPS),
    Entry("1 head of keys", "fast", None, {**_ROPE, "n_kv_head": 1}, _STEPS),
    Entry("window 16", "fast", None, WINDOW, _STEPS),
    Entry("window 16, every 2nd layer full", "fast", None, {**WINDOW, "full_every": 2}, _STEPS),
    Entry("window 16, 1 head of keys", "fast", None, {**WINDOW, "n_kv_head": 1}, _STEPS),
)

KINDS = {"race": RACE, "ideas": IDEAS, "heads": HEADS}
