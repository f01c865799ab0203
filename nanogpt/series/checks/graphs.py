"""The check of FixedAttention: one graph for all tokens."""

from __future__ import annotations

import logging
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from .. import solutions
from ..traps import compiled, steps
from .exercise import Anew, Answer, Case, Exercise, Pairs
from .observing import Arguments, form, numbers

SLOTS = 32
PARTS = ("q", "k", "v")


def run_fixed(answer: Answer, positions: list[int], factor: float = 1.0) -> Pairs:
    """Two modules that get tokens alternately, at these positions."""
    modules = [answer() for _ in range(2)]
    for turn, position in enumerate(positions):
        for number, module in enumerate(modules):
            tensors = {
                name: numbers(1, 1, 16, seed=100 * turn + 10 * number + i, dtype=torch.float32)
                for i, name in enumerate(PARTS)
            }
            tensors["q"] *= factor
            given = Arguments(**tensors, pos=torch.tensor([position]))
            with torch.no_grad():
                out = module(*given.tensors.values())
            yield from given.changes()
            where = "the first output" if not turn else f"the output of call {turn}"
            where += f" at position {position}" + " of a second module" * number
            yield f"the shape of {where}", form(out)
            if isinstance(out, Tensor):
                nan = bool(out.isnan().any())
                yield "an output is NaN: a row without a visible slot has no softmax", nan
            yield where, out if isinstance(out, Tensor) else form(out)


def run_graphs(answer: Answer, n: int = 3) -> Pairs:
    """Compiled with every shape as a guard: the output, and whether one graph served all tokens."""
    log = logging.getLogger("torch._dynamo")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of graph breaks, and those are counted
    try:
        out, graphs = compiled(answer(), n, dynamic=False)
        right = torch.allclose(out, steps(answer(), n), atol=1e-5)
    finally:
        log.setLevel(level)
    yield f"{n} tokens take more than one graph", graphs > 1
    yield "compiled, the output differs", not right


FIXED: dict[str, Any] = {
    "slot": lambda pos: pos,
    "write": lambda room, slot, new: room.index_copy_(1, slot, new),
    "seen": lambda pos: torch.arange(SLOTS) <= pos,
    "scale": 0.25,
    "hidden": float("-inf"),
    "weigh": lambda scores: scores.softmax(-1),
    "result": lambda out: out,
    "score": lambda q, k: q @ k.mT,
    "values": lambda keys, values: values,
}


class Fixed(nn.Module):
    """The reference solution. Each step can be replaced, which is how mistakes are made."""

    k: Tensor
    v: Tensor
    step: Any

    def __init__(self, **step: Any) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(1, SLOTS, 16))
        self.register_buffer("v", torch.zeros(1, SLOTS, 16))
        self.step = SimpleNamespace(**FIXED | step)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Any:
        step = self.step
        slot = step.slot(pos)
        step.write(self.k, slot, k)
        step.write(self.v, slot, v)
        scores = step.score(q, self.k) * step.scale
        scores = scores.masked_fill(~step.seen(pos), step.hidden)
        return step.result(step.weigh(scores) @ step.values(self.k, self.v))


def fixed_by(**step: Any) -> Answer:
    """Attention with one step replaced."""
    return partial(Fixed, **step)


class Sliced(Fixed):
    """The slots up to pos, by slicing."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Any:
        end = int(pos) + 1
        self.k[:, pos] = k
        self.v[:, pos] = v
        return (q @ self.k[:, :end].mT * 0.25).softmax(-1) @ self.v[:, :end]


class Chosen(Fixed):
    """The slots up to pos, by a boolean index: as many as there are."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Any:
        self.k[:, pos] = k
        self.v[:, pos] = v
        seen = torch.arange(SLOTS) <= pos
        return (q @ self.k[:, seen].mT * 0.25).softmax(-1) @ self.v[:, seen]


class Growing(Fixed):
    """A growing cache, as in the trap."""

    def __init__(self) -> None:
        super().__init__()
        self.held: Any = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Any:
        if self.held is not None:
            k = torch.cat([self.held[0], k], 1)
            v = torch.cat([self.held[1], v], 1)
        self.held = (k, v)
        return (q @ k.mT * 0.25).softmax(-1) @ v


class Counting(Fixed):
    """Slots by the module's own counter."""

    def __init__(self) -> None:
        super().__init__()
        self.n = -1

    def forward(self, q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Any:
        self.n += 1
        self.k[:, self.n % SLOTS] = k[:, 0]
        self.v[:, self.n % SLOTS] = v[:, 0]
        scores = (q @ self.k.mT * 0.25).masked_fill(torch.arange(SLOTS) > pos, float("-inf"))
        return scores.softmax(-1) @ self.v


class Looking(Fixed):
    """All slots that hold something, judged by their keys."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Any:
        self.k[:, pos] = k
        self.v[:, pos] = v
        empty = (self.k == 0).all(-1)[:, None]
        scores = (q @ self.k.mT * 0.25).masked_fill(empty, float("-inf"))
        return scores.softmax(-1) @ self.v


class Late(Fixed):
    """Reads before it writes."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Any:
        scores = (q @ self.k.mT * 0.25).masked_fill(torch.arange(SLOTS) > pos, float("-inf"))
        out = scores.softmax(-1) @ self.v
        self.k.index_copy_(1, pos, k)
        self.v.index_copy_(1, pos, v)
        return out


class OnlyKeys(Fixed):
    """Values are not written."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Any:
        self.k.index_copy_(1, pos, k)
        scores = (q @ self.k.mT * 0.25).masked_fill(torch.arange(SLOTS) > pos, float("-inf"))
        return scores.softmax(-1) @ self.v


class OnlyValues(Fixed):
    """Keys are not written."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Any:
        self.v.index_copy_(1, pos, v)
        scores = (q @ self.k.mT * 0.25).masked_fill(torch.arange(SLOTS) > pos, float("-inf"))
        return scores.softmax(-1) @ self.v


def in_one_memory() -> Answer:
    """A class whose modules all share their buffers."""
    rooms = torch.zeros(1, SLOTS, 16), torch.zeros(1, SLOTS, 16)

    class OneMemory(Fixed):
        def __init__(self) -> None:
            super().__init__()
            self.k, self.v = rooms

    return OneMemory


def by_hand(scores: Tensor) -> Tensor:
    powers = scores.exp()
    return powers / powers.sum(-1, keepdim=True)


SIZED = "some shape still changes"
FIXED_ATTENTION = Exercise(
    notebook="04",
    hints=(
        "Which shapes of GrowingAttention change from one token to the next? What could keep a "
        "length of 32, and how would the empty slots lose their weight?",
        "`self.k.index_copy_(1, pos, k)` writes rows into slots. A mask of fixed length hides the "
        "others: `torch.arange(32) > pos` is True for those not written yet, and `masked_fill(…, "
        'float("-inf"))` removes their weight. A slice like `self.k[:, :pos + 1]` would have '
        "a different shape at every step.",
        "self.k.index_copy_(1, pos, k), self.v likewise; then scores = (q @ self.k.mT * "
        '0.25).masked_fill(torch.arange(32) > pos, float("-inf")), and return scores.softmax(-1) @ '
        "self.v",
    ),
    method="forward",
    right=solutions.FixedAttention,
    cases=[
        Case(run_fixed, positions=[0, 1, 2, 3, 1, 2]),  # a text that continues from slot 1
        Case(run_fixed, positions=[*range(SLOTS)]),
        Case(run_fixed, 1e-3, positions=[0, 1, 2, 3], factor=300.0),  # exp() overflows
        Case(run_graphs),
    ],
    mistakes={
        "the empty slots are visible: a score of 0 also gets weight. Hide them with "
        "-inf.": fixed_by(seen=lambda pos: torch.ones(SLOTS).bool()),
        "the newest token does not see itself: slots 0 to pos are visible, including "
        "pos.": fixed_by(seen=lambda pos: (torch.arange(SLOTS) < pos) | (torch.arange(SLOTS) == 0)),
        "the first token sees no slot at all, not even its own, and its softmax is NaN: hide those "
        "> pos, not >= pos.": fixed_by(seen=lambda pos: torch.arange(SLOTS) < pos),
        "one slot too many is visible, and it is empty: hide those > pos.": fixed_by(
            seen=lambda pos: torch.arange(SLOTS) <= pos + 1
        ),
        "the mask is inverted: hide the slots after pos, not those up to it.": fixed_by(
            seen=lambda pos: torch.arange(SLOTS) >= pos
        ),
        "only the newest slot is visible: attend to all up to it.": fixed_by(
            seen=lambda pos: torch.arange(SLOTS) == pos
        ),
        "every key overwrites the one before: each has its own slot, pos, and the "
        "others stay.": fixed_by(slot=lambda pos: pos * 0),
        "the new key is written one slot too far: its slot is pos.": fixed_by(
            slot=lambda pos: (pos + 1) % SLOTS
        ),
        "the slots are filled from the end: the token's slot is pos.": fixed_by(
            slot=lambda pos: SLOTS - 1 - pos
        ),
        "keys are added to what their slots hold: overwrite it instead.": (
            fixed_by(write=lambda room, slot, new: room.index_add_(1, slot, new))
        ),
        "the scores are not multiplied by 0.25, which is 1 / √16.": fixed_by(scale=1.0),
        "the scores are divided by 16 instead of √16: multiply by 0.25.": fixed_by(scale=1 / 16),
        "the scores are divided by 0.25: multiply.": fixed_by(scale=4.0),
        "the keys are used as values: apply the weights to self.v.": fixed_by(
            values=lambda keys, values: keys
        ),
        "the softmax is missing: weights must sum to 1.": fixed_by(
            weigh=lambda scores: scores.masked_fill(scores.isinf(), 0.0)
        ),
        "exp() of a large score overflows: softmax(-1) subtracts the largest first.": fixed_by(
            weigh=by_hand
        ),
        "the slots are read before the new key and value are written: write first.": Late,
        "the values are not written, so the output is a mean of zeros: also write "
        "self.v.": OnlyKeys,
        "the keys are not written, so all slots get equal weights: also write self.k.": OnlyValues,
        "two modules share memory: each needs its own buffers.": Anew(in_one_memory),
        "the module counts its calls: `pos` says which slot it is.": Counting,
        "slots after pos are visible if they hold something: hide by position, not by "
        "content.": Looking,
        "a dimension is lost: the output is (1, 1, 16).": fixed_by(result=lambda out: out[0]),
        f"the output is right, but needs several graphs: {SIZED}, as with a slice, or Python "
        "asks for the value of pos. Keep 32 slots, and hide with a mask made of tensors.": Sliced,
        "the cache still grows and is compiled for each length: write into the buffers.": Growing,
    },
    advice={
        "the shape of": "It is (1, 1, 16), a mean of values.",
        "the first output": (
            "The first token sees only slot 0: hide the empty ones. Are the scores multiplied by "
            "0.25?"
        ),
        "an output is NaN": "Slot pos itself is visible.",
        "the output of call": (
            "The first token is right. Is each key in its own slot? Are slots 0 to pos visible?"
        ),
        "more than one graph": "Keep 32 slots, and hide with a mask made of tensors.",
        "compiled, the": "Compiled code must not depend on Python state.",
    },
    axes=[("text", "token", "number")],
)
