"""How far logits may differ before it is a bug, measured on the model itself.

Rounding errors shrink in a finer dtype; a bug does not. If a float64 model uses float32 inside, its
logits may move by several times as much as float32 moves the plain pass; float64 rounds far less.

The unit is the difference between two logits of tokens that can be chosen. A constant added to all
logits changes no text, and neither does the value with which unused ids are padded.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .report import LogitTurn

ULPS = 4  # units in the last place of the largest logit, up to which logits count as equal
TIMES = 4  # a difference may be this many times the largest one that was sampled
_ALONE = 16  # times more if float32 is the only dtype: nothing else measures its rounding
NARROW = (torch.float32, torch.bfloat16, torch.float16)
STEP = 8192  # most logits compared per token; of a larger vocabulary every second, and so on
CEILING = 0.05  # of the spread: a float64 copy that is further from float32 is another model
NATS = 40.0  # a token this far below the likeliest one is never sampled: exp(-40) is 4e-18
GAP = 10.0  # … and it is padding if it is also this many times further below than any other token
FEWEST = 4  # tokens that always count, however far below the likeliest one


class Yardstick:
    """The differences that are equal, explained, or declared; each measurement may widen them.

    `limit` is the difference that rounding explains in this dtype. `inside` also allows for float32
    inside the model, for its own noise, and for a declared lossy cache.
    """

    def __init__(self, dtype: torch.dtype, other: torch.dtype | None, expects: float | None):
        self.dtype = dtype
        self.other = other  # a coarser dtype in which the model also runs
        self.expects = expects
        self.eps = torch.finfo(dtype).eps
        self.columns: Tensor | None = None  # of the vocabulary: tokens that can be chosen
        self.largest = 0.0  # logit
        self.spread = 0.0  # from the lowest to the highest logit of a token: the median
        # The largest differences of plain passes: in the other dtype, when repeated, and in other
        # shapes, such as a batch.
        self.moved = 0.0
        self.most = 0.0  # `moved`, of the token that is moved most
        self.noise = 0.0
        self.shapes = 0.0

    def add(self, plain: Tensor, coarse: Tensor | None = None) -> None:
        """Learn from a plain pass, and the same in a coarser dtype.  (B, T, V)"""
        if self.columns is None:
            self.columns = choosable(plain)
        # The logits may be rounded once more at the end, to fewer bits than the model has.
        self.eps = max(self.eps, torch.finfo(plain.dtype).eps)
        chosen = plain.double()[..., self.columns].nan_to_num(nan=0, posinf=0, neginf=0)
        self.largest = max(self.largest, float(chosen.abs().max()))
        self.spread = max(self.spread, float((chosen.amax(-1) - chosen.amin(-1)).median()))
        if coarse is None:
            return
        moved = self.sizes(coarse, plain)
        # A router that switches at one token must not excuse all the others.
        usual = 32 * float(moved.median()) or math.inf
        self.most = max(self.most, float(moved.max()))
        self.moved = max(self.moved, min(float(moved.max()), usual))

    def sizes(self, got: Tensor, expected: Tensor) -> Tensor:
        """How far two logits moved relative to each other, among tokens that can be chosen.

        (B, T, V) twice -> (B, T). Infinite where only one pass has -inf, or one has NaN. 0 where
        one pass does not return the logits: there all are +inf.
        """
        columns = slice(None) if self.columns is None else self.columns
        a = got.double()[..., columns]
        b = expected.double()[..., columns]
        moved = a - b
        moved = torch.where(a == b, 0.0, moved)  # also where both are -inf
        sizes = (moved.amax(-1) - moved.amin(-1)).nan_to_num(nan=math.inf)
        if a.shape[-1] == 1:  # a vocabulary of one: there are no two logits to compare
            sizes = moved.abs().amax(-1).nan_to_num(nan=math.inf)
        sizes = torch.where(moved.isfinite().all(-1), sizes, math.inf)
        return torch.where(absent(got) | absent(expected), 0.0, sizes)

    @property
    def ulp(self) -> float:
        return self.eps * self.largest

    @property
    def base(self) -> float:
        """The effect of rounding on sums in any order: 64 ulp of the largest logit, 8 in 16 bits.

        In 16 bits, sums are accumulated in float32 and rounded once. Measured with random models:
        sound caches change logits by at most 5.2 ulp in float32 and 1.6 in bfloat16.
        """
        return (64 if self.eps < 1e-4 else 8) * self.ulp

    @property
    def ceiling(self) -> float:
        return CEILING * self.spread

    @property
    def another_model(self) -> bool:
        """Whether float32 moves the plain pass further than rounding can."""
        return self.other == torch.float32 and self.moved > self.ceiling

    @property
    def limit(self) -> float:
        if self.other is None:
            base = self.base * (_ALONE if self.eps < 1e-4 else 1)
            return max(base, TIMES * self.moved, TIMES * self.shapes, 6 * self.noise)
        shrinks = math.sqrt(self.eps / torch.finfo(self.other).eps)  # half-way, on a log scale
        return max(TIMES * self.moved * shrinks, ULPS * self.ulp, 6 * self.noise)

    @property
    def inside(self) -> float:
        moved = min(self.moved, self.ceiling)
        float32 = TIMES * moved if self.other == torch.float32 else 0.0
        return max(self.limit, float32, self.declared)

    @property
    def declared(self) -> float:
        """How far a lossy cache may move logits: `expects`, as a fraction of the spread."""
        return (self.expects or 0) * self.spread

    @property
    def lossy(self) -> bool:
        """Whether the declared difference is the widest of all."""
        return bool(self.expects) and self.inside == self.declared

    @property
    def words(self) -> str:
        if self.lossy:
            return f"{self.inside:.1e} was declared, {self.expects:.1e} of the spread"
        if self.noise:
            return f"the plain pass varies by {self.noise:.1e}"
        if self.other is None:
            return f"rounding explains {self.limit:.1e}"
        return f"{name_of(self.other)} alone shifts the uncached logits by {self.moved:.1e}"


def choosable(plain: Tensor) -> Tensor:
    """Which tokens can be chosen: all but those that are padding or masked.  (B, T, V) -> (V,)

    Padding is far below the likeliest token everywhere, beyond a gap that has no other token.
    """
    logits = plain.double().nan_to_num(nan=-math.inf, posinf=-math.inf)
    gaps = (logits.amax(-1, keepdim=True) - logits).nan_to_num(nan=math.inf)
    gap = gaps.flatten(0, -2).amin(0)  # (V,)
    ordered = gap[gap.isfinite()].sort().values
    if not len(ordered):
        return torch.ones_like(gap, dtype=torch.bool)
    highest = ordered[: min(FEWEST, len(ordered))][-1]
    for one in ordered[FEWEST:]:
        if one > NATS and one > GAP * max(float(highest), FEWEST):
            break
        highest = one
    return gap <= highest


def absent(logits: Tensor) -> Tensor:
    """Where a pass returns no logits, for example all but the last.  (B, T, V) -> (B, T)"""
    return (logits == math.inf).all(-1)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def thinned(logits: Tensor) -> Tensor:
    """A subset of a large vocabulary's logits: a wrong cache moves nearly all.  (…, V)"""
    return logits[..., :: -(-logits.shape[-1] // STEP)]


class _Trace(TorchDispatchMode):
    """Watches the operations of a pass: their dtypes, and the choices that a tie would decide."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = 0  # operations whose results are floats of float32 or fewer bits
        self.products = 0  # of matrices: without one, the model's arithmetic was not seen
        self.ties = 0  # choices among equal numbers

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = out if isinstance(out, (tuple, list)) else [out]
        self.narrow += any(
            isinstance(x, Tensor) and x.dtype in NARROW and x.numel() > 0 for x in tensors
        )
        name = str(func)
        self.products += any(part in name for part in _PRODUCTS)
        if "topk" in name:
            self.ties += _is_tied(args[0], out[0])
        return out


_LEAVES = ("numpy", "from_numpy", "__array__")
_PRODUCTS = ("mm", "matmul", "linear", "dot", "attention", "mv")  # in the names of operations


def _is_tied(values: Tensor, chosen: Tensor) -> bool:
    """Whether topk left out a number that equals one that it chose.  (…, n), (…, k)"""
    if not chosen.shape[-1]:  # of a text that is shorter than what it chooses from (DeepSeek V4)
        return False
    least = chosen.amin(-1, keepdim=True)
    alike = (values == least) & values.isfinite()
    return bool((alike.sum(-1) > (chosen == least).sum(-1)).any())


@dataclass(frozen=True)
class Traced:
    """What the operations of a pass show."""

    narrow: int  # how many compute in float32 or less
    seen: bool  # whether the model's arithmetic is among them
    ties: int  # choices among equal numbers


def traced(run: Callable[[], object]) -> Traced:
    """Watch the operations of run().

    They are not seen in code outside torch, such as NumPy, nor where higher-order operations such
    as FlexAttention refuse to run while they are traced.
    """
    mode = _Trace()
    left: list[str] = []  # calls that turn tensors into arrays, or arrays into tensors

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ in _LEAVES:
            left.append(argument.__name__)

    watched = sys.getprofile() is not None  # by a profiler, which is left alone
    if not watched:
        sys.setprofile(profile)
    try:
        with mode:
            run()
    except (RuntimeError, NotImplementedError, AssertionError, TypeError):
        return Traced(mode.narrow, False, mode.ties)
    finally:
        if not watched:
            sys.setprofile(None)
    return Traced(mode.narrow, mode.products > 0 and not left, mode.ties)


def turn_of(got: Tensor, expected: Tensor, sizes: Tensor, at: int) -> LogitTurn:
    """The text that is wrong at token `at`, with the expected one.  (B, T, V) twice, (B, T)"""
    row = int(sizes[:, at].argmax())
    rows = [logits[row].nan_to_num(nan=0, posinf=0, neginf=-1e300) for logits in (expected, got)]
    wanted, found = (torch.where(one.any(-1), one.argmax(-1), -1).tolist() for one in rows)
    return LogitTurn(wanted, found, sizes[row].tolist())
