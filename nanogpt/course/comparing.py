"""Compare what two answers show, up to rounding."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .observing import Observed

ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-5}  # differences that count as rounding
COARSE = 1e-2  # in any lower-precision dtype


def difference(shown: Observed, wanted: Observed, tolerance: float | None = None) -> str | None:
    """The first observation that is missing, superfluous or different; None if all agree."""
    for what in [*wanted, *(name for name in shown if name not in wanted)]:
        if what not in shown or what not in wanted:
            return what
        if not alike(shown[what], wanted[what], tolerance):
            return what
    return None


def agrees(
    theirs: Observed, shown: Observed, tolerance: float | None = None, until: str | None = None
) -> bool:
    """Whether two answers show the same on a case.

    With `until`, what comes after that observation is not compared.
    """
    for what, value in theirs.items():
        if what not in shown or not alike(value, shown[what], tolerance):
            return False
        if what == until:
            return True
    return len(theirs) == len(shown)


def alike(a: Any, b: Any, tolerance: float | None = None) -> bool:
    """Whether two observed values are equal, up to rounding."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        a, b = a.detach(), b.detach()
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return bool(close(a, b, tolerance).all())
    if type(a) is type(b) and isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(partial(alike, tolerance=tolerance), a, b))
    if isinstance(a, BaseException) and isinstance(b, BaseException):
        return repr(a) == repr(b)
    if is_number(a) and is_number(b):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-300)
    return type(a) is type(b) and bool(a == b)


def is_number(x: Any) -> bool:
    """Whether x is a Python number, other than True and False."""
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def close(a: Tensor, b: Tensor, tolerance: float | None = None) -> Tensor:
    """Where two tensors of the same shape are equal, up to rounding; integers must be equal."""
    if not b.is_floating_point():
        return a == b
    near = tolerance or ROUNDING.get(b.dtype, COARSE)
    return torch.isclose(a, b, rtol=near, atol=near * size(b), equal_nan=True)


def size(x: Tensor) -> float:
    """A tensor's largest finite absolute value; a tiny number if all are 0."""
    if not x.numel() or not x.is_floating_point():
        return 0.0
    return max(1e-300, float(x.double().nan_to_num(0, 0, 0).abs().max()))
