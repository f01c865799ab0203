"""How far logits may differ before it is a bug: measured in the model itself.

Rounding shrinks when the dtype grows, and a bug does not. A float32 inside a model of float64 may
move logits by as much as float32 moves the plain pass, several times; float64 rounds far less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..comparison import rounding
from .report import LogitTurn

ULPS = 4  # units in the last place of the largest logit, up to which logits are called equal
TIMES = 4  # so far beyond the largest difference of a sample may another one lie
ALONE = 16  # the same where float32 is the only dtype: nothing else measures its rounding
NARROW = (torch.float32, torch.bfloat16, torch.float16)
STEP = 8192  # logits of a token that are compared; of a larger vocabulary every second, and so on


class Yardstick:
    """The differences that are equal, explained, and declared; each measurement may widen them.

    `limit` is the difference that rounding explains in this dtype, `inside` the one where float32
    is inside the model, where it varies by itself, or where a lossy cache was declared.
    """

    def __init__(self, dtype: torch.dtype, other: torch.dtype | None, expects: float | None):
        self.dtype = dtype
        self.other = other  # a coarser dtype, in which the model runs too
        self.expects = expects
        self.eps = torch.finfo(dtype).eps
        self.largest = 0.0  # logit
        self.base = 0.0  # the change by rounding that `comparison.rounding` expects
        # The largest differences of plain passes: in the other dtype or with jitter, of one that
        # is repeated, of other shapes, as a batch.
        self.moved = 0.0
        self.most = 0.0  # `moved`, of the token that is moved most
        self.noise = 0.0
        self.shapes = 0.0

    def add(
        self, plain: Tensor, coarse: Tensor | None = None, jittered: Tensor | None = None
    ) -> None:
        """Learn from a plain pass, and the same in a coarser dtype or with jitter.  (B, T, V)"""
        plain = plain.double().nan_to_num()
        self.largest = max(self.largest, float(plain.abs().max()))
        self.base = max(self.base, rounding(plain.to(self.dtype)))
        for other in (coarse, jittered):
            if other is not None:
                moved = (other.double() - plain).abs().nan_to_num().amax(-1)
                # A router that falls to another side at one token must not excuse all others.
                usual = 32 * float(moved.median()) or math.inf
                self.most = max(self.most, float(moved.max()))
                self.moved = max(self.moved, min(float(moved.max()), usual))

    @property
    def ulp(self) -> float:
        return self.eps * self.largest

    @property
    def limit(self) -> float:
        if self.other is None:
            base = self.base * (ALONE if self.eps < 1e-4 else 1)
            return max(base, TIMES * self.moved, TIMES * self.shapes, 6 * self.noise)
        shrinks = math.sqrt(self.eps / torch.finfo(self.other).eps)  # half-way, in magnitudes
        return max(TIMES * self.moved * shrinks, ULPS * self.ulp, 6 * self.noise)

    @property
    def inside(self) -> float:
        float32 = TIMES * self.moved if self.other == torch.float32 else 0.0
        return max(self.limit, float32, (self.expects or 0) * self.largest)

    @property
    def lossy(self) -> bool:
        """Whether the declared difference is the widest of all."""
        return bool(self.expects) and self.inside == (self.expects or 0) * self.largest

    @property
    def words(self) -> str:
        if self.lossy:
            return f"{self.inside:.1e} was declared"
        if self.noise:
            return f"the plain pass varies by {self.noise:.1e}"
        if self.other is None:
            return f"rounding explains {self.limit:.1e}"
        return f"{name_of(self.other)} moves the plain pass by {self.moved:.1e}"


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def thinned(logits: Tensor) -> Tensor:
    """Some logits of a large vocabulary: a wrong cache moves nearly all.  (…, V)"""
    return logits[..., :: -(-logits.shape[-1] // STEP)]


class _Narrow(TorchDispatchMode):
    """Counts operations whose results are floats of fewer bits."""

    count = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = out if isinstance(out, (tuple, list)) else [out]
        self.count += any(isinstance(x, Tensor) and x.dtype in NARROW for x in tensors)
        return out


def narrowed(run: Callable[[], Tensor]) -> int:
    """How many operations of run() compute in float32 or less."""
    mode = _Narrow()
    with mode:
        run()
    return mode.count


@contextmanager
def jitter(model: nn.Module, eps: float, seed: int) -> Iterator[None]:
    """Move the outputs of all layers as far as rounding may, for the length of a with-block."""
    generator = torch.Generator().manual_seed(seed)

    def move(module: nn.Module, inputs: object, out: object) -> Tensor | None:
        if isinstance(out, Tensor) and out.is_floating_point():
            signs = torch.rand(out.shape, generator=generator, dtype=torch.float64) * 2 - 1
            return (out * (1 + eps * signs)).to(out.dtype)
        return None

    layers = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Embedding, nn.LayerNorm))]
    hooks = [layer.register_forward_hook(move) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def turn_of(got: Tensor, expected: Tensor, at: int) -> LogitTurn:
    """The text that is wrong at token `at`, beside the right one.  (B, T, V) twice"""
    diffs = (got.double() - expected.double()).abs().amax(-1).nan_to_num(math.inf)  # (B, T)
    row = int(diffs[:, at].argmax())
    rows = [logits[row].nan_to_num(nan=0, posinf=0, neginf=0) for logits in (expected, got)]
    wanted, found = (torch.where(one.any(-1), one.argmax(-1), -1).tolist() for one in rows)
    return LogitTurn(wanted, found, diffs[row].tolist())
