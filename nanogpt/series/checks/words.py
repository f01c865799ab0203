"""Put a difference between an answer and the right one into words."""

from __future__ import annotations

import inspect
import linecache
import re
import traceback
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .comparing import close, size
from .exercise import Anew, Answer, Case, Exercise
from .observing import ERROR, TIMES, Observed, form

CALLERS = (
    "`x *= …`, `x[…] = …` and methods that end in _ write into a tensor: compute a new one instead."
)
ADVICE = {  # of all exercises
    "belongs to the caller": CALLERS,
    "gradients are off": (
        "@torch.no_grad() above a function turns them on again at its end; set_grad_enabled(False) "
        "does not."
    ),
}
NAN = " exp() of a large number overflows, and 0 times infinity or 0 / 0 is NaN."
KEEP_DTYPE = " Keep the dtype that comes in."
SMALLER = " Is something rounded or added, or computed or kept in a smaller dtype?"
MOST = 12  # integers that a message quotes


def describe(
    exercise: Exercise,
    answer: Answer | Anew,
    case: Case,
    what: str,
    shown: Observed,
    right: Observed,
) -> str:
    """The first difference in words: what, where, the values and the advice of the table."""
    if what not in shown and ERROR in shown:  # it did not come that far
        return raised(exercise, answer, case, shown[ERROR])
    got = shown.get(what)
    wanted = right.get(what)
    what = what.partition(TIMES)[0]
    if isinstance(got, BaseException):
        return raised(exercise, answer, case, got)
    if isinstance(wanted, bool) and isinstance(got, bool):
        words = what  # says what is wrong
    elif isinstance(wanted, Tensor):
        difference, cure = _tensors(got, wanted, exercise.axes, case.tolerance)
        more = cure + _advice(what, exercise)
        return f"{what}: {difference}{_for(case)}.{more}"
    else:
        words = f"{what}: {_two(wanted, got)}"
    return f"{words}{_for(case)}.{_advice(what, exercise)}"


def _for(case: Case) -> str:
    return f" (for {case})" if case.settings else ""


def _advice(what: str, exercise: Exercise) -> str:
    known = {**exercise.advice, **ADVICE}
    return next((f" {words}" for part, words in known.items() if part in what), "")


def _two(wanted: Any, got: Any) -> str:
    """A right value and another one, with as many digits as tell them apart."""
    texts = _value(wanted), _value(got)
    if texts[0] == texts[1]:
        texts = repr(wanted), repr(got)
    are = "are" if isinstance(wanted, (list, tuple)) else "is"
    return f"{texts[0]} {are} right, and yours {are} {texts[1]}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if value == "":
        return "nothing"
    return value if isinstance(value, str) else repr(value)


# ------------------------------------------------------------------ tensors


def _tensors(
    got: Any, wanted: Tensor, axes: Iterable[tuple[str, ...]], tolerance: float | None
) -> tuple[str, str]:
    """How a tensor differs from the right one, and what to do if that says it."""
    if not isinstance(got, Tensor):
        return f"a tensor {form(wanted)} is right, and yours is {form(got)}", ""
    if got.shape != wanted.shape:
        return f"the shape {form(wanted)} is right, and yours is {form(got)}", ""
    if got.dtype != wanted.dtype:
        return f"{wanted.dtype} is right, and yours is {got.dtype}", KEEP_DTYPE
    if not wanted.is_floating_point() and wanted.numel() <= MOST:
        return f"{wanted.tolist()} is right, and yours is {got.tolist()}", ""
    if wanted.isfinite().all() and not got.isfinite().all():
        return "some of yours are NaN or infinite", NAN
    return _numbers(got, wanted, axes, tolerance)


def _numbers(
    got: Tensor, wanted: Tensor, axes: Iterable[tuple[str, ...]], tolerance: float | None
) -> tuple[str, str]:
    """Where two tensors of a shape and dtype differ first, and how."""
    a = got.double()
    b = wanted.double()
    ratio = float((a * b).sum() / (b * b).sum())
    scaled = ratio != 0 and torch.allclose(a, ratio * b, 1e-6, 1e-6 * size(b))
    if b.numel() > 1 and scaled and abs(ratio - 1) > 1e-4:
        return f"all of yours are {ratio:.3g} times as large", ""
    if torch.allclose(a, b, 1e-2, 1e-3 * size(b)):
        return f"yours are off by up to {(a - b).abs().max():.1e}", SMALLER
    place = tuple((~close(got, wanted, tolerance)).nonzero()[0].tolist())
    words = _two(wanted[place].item(), got[place].item())
    return f"first {_place(place, axes)}, {words}" if place else words, ""


def _place(place: tuple[int, ...], axes: Iterable[tuple[str, ...]]) -> str:
    """An index in words, if an exercise names its dimensions."""
    for names in axes:
        if len(names) == len(place):
            return "at " + ", ".join(f"{n} {i}" for n, i in zip(names, place, strict=True))
    return f"at {[*place]}"


# ------------------------------------------------------------------ exceptions


def raised(exercise: Exercise, answer: Answer | Anew, case: Case, error: BaseException) -> str:
    """An exception in words, with the last of the learner's own lines and the shapes in it."""
    words = f"{type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}"
    file = _file(answer)
    steps = [*traceback.walk_tb(error.__traceback__)]
    own = [(frame, number) for frame, number in steps if frame.f_code.co_filename == file]
    advice = _advice(f"your code raised {words}", exercise)
    if not own:
        return f"the check cannot go on with your code ({words}){_for(case)}.{advice}"
    frame, number = own[-1]
    line = linecache.getline(frame.f_code.co_filename, number).strip()
    known = {**frame.f_locals}
    attributes = getattr(frame.f_locals.get("self"), "__dict__", {})
    known.update({f"self.{name}": value for name, value in attributes.items()})
    names = dict.fromkeys(re.findall(r"(?:self\.)?[A-Za-z_]\w*", line))
    tensors = [name for name in names if isinstance(known.get(name), Tensor)]
    shapes = ", ".join(f"{name} {form(known[name])}" for name in tensors)
    where = f", where the shapes are {shapes}" if shapes else ""
    return f"your code raised {words}, in the line `{line}`{where}{_for(case)}.{advice}"


def _file(answer: Answer | Anew) -> str | None:
    """The file of a function, below its decorators, or of the first function in a class."""
    parts = [*vars(answer).values()] if isinstance(answer, type) else [answer]
    codes = (getattr(inspect.unwrap(part), "__code__", None) for part in parts if callable(part))
    return next((code.co_filename for code in codes if code), None)
