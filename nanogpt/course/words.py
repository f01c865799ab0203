"""Describe in words how an answer differs from the reference solution."""

from __future__ import annotations

import inspect
import linecache
import math
import re
import traceback
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .comparing import close, is_number, size
from .drivers import form
from .observing import ERROR, REPEATED, Observed
from .page import Anew, Answer, Blank, Case

CALLERS = (
    "`x *= …`, `x[…] = …` and methods that end in _ modify a tensor in place: compute a new one "
    "instead."
)
ADVICE = {  # shared by all blanks
    "belongs to the caller": CALLERS,
    "gradients are off": (
        "@torch.no_grad() above a function turns them back on when it returns; "
        "set_grad_enabled(False) does not."
    ),
    # What Python says where a tensor meets `and`, `or`, `not`, `if`, or a chain like a < b < c.
    "Boolean value of Tensor": (
        "`and`, `or`, `not` and `if` need one True or False, and a tensor of several numbers has "
        "none: join comparisons with &, | and ~, each comparison in its own parentheses, and ask "
        "`if x is not None` of a tensor that may be missing."
    ),
    # The same slip without parentheses, where it does not raise that.
    "unsupported operand type(s) for &": "Put each comparison into its own parentheses.",
}
FACTORS = (2, 1000, 10**6)  # seen in answers: FLOPs for multiplications, milliseconds, megabytes
NAN = " exp() of a large number overflows, and 0 times infinity or 0 / 0 is NaN."
KEEP_DTYPE = " Keep the dtype of the input."
SMALLER = (
    " Is something rounded, or a small constant added, or is something computed or stored in a "
    "lower-precision dtype?"
)
_COUNTED = 1000  # integers from here on are amounts, such as bytes
_QUOTED = 12  # integers quoted in a message


def describe(
    blank: Blank,
    answer: Answer | Anew,
    case: Case,
    what: str,
    shown: Observed,
    right: Observed,
) -> str:
    """Describe the first difference: what, where, the values, and the table's advice."""
    if what not in shown and ERROR in shown:  # it did not get that far
        return raised(blank, answer, case, shown[ERROR])
    got = shown.get(what)
    wanted = right.get(what)
    what = what.partition(REPEATED)[0]
    if isinstance(got, BaseException):
        return raised(blank, answer, case, got)
    if isinstance(wanted, bool) and isinstance(got, bool):
        words = what  # already says what is wrong
    elif isinstance(wanted, Tensor):
        difference, cure = _tensors(got, wanted, blank.axes, case.tolerance)
        more = cure + _advice(what, blank)
        return f"{what}: {difference}{_for(case)}.{more}"
    else:
        words = f"{what}: {_two(wanted, got)}"
    return f"{words}{_for(case)}.{_advice(what, blank)}"


def _for(case: Case) -> str:
    return f" (for {case})" if case.settings else ""


def _advice(what: str, blank: Blank) -> str:
    known = [*blank.advice.items(), *ADVICE.items()]  # a page knows more than what all share
    return next((f" {words}" for part, words in known if part in what), "")


def _two(wanted: Any, got: Any) -> str:
    """The expected and the actual value, with enough digits to tell them apart."""
    texts = _value(wanted), _value(got)
    if texts[0] == texts[1]:
        texts = repr(wanted), repr(got)
    return f"expected {texts[0]}, got {texts[1]}{_factor(wanted, got)}"


def _factor(wanted: Any, got: Any) -> str:
    """How many times too large or too small a number is, if that says what is wrong with it."""
    if not (is_number(wanted) and is_number(got)) or not wanted or not got:
        return ""
    if isinstance(wanted, int) and abs(wanted) < _COUNTED:
        return ""  # a token or a count, of which "2 times as much" says nothing
    for factor in FACTORS:
        if math.isclose(got, factor * wanted, rel_tol=1e-9):
            return f", {factor:,} times as much"
        if math.isclose(wanted, factor * got, rel_tol=1e-9):
            return f", which is 1/{factor:,} of it"
    return ""


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
    """How a tensor differs from the expected one, and what to do about it if that is clear."""
    if not isinstance(got, Tensor):
        return f"expected a tensor {form(wanted)}, got {form(got)}", ""
    if got.shape != wanted.shape:
        return f"expected shape {form(wanted)}, got {form(got)}", ""
    if got.dtype != wanted.dtype:
        return f"expected {wanted.dtype}, got {got.dtype}", KEEP_DTYPE
    if not wanted.is_floating_point() and wanted.numel() <= _QUOTED:
        return f"expected {wanted.tolist()}, got {got.tolist()}", ""
    if wanted.isfinite().all() and not got.isfinite().all():
        return "some of your values are NaN or infinite", NAN
    return _numbers(got, wanted, axes, tolerance)


def _numbers(
    got: Tensor, wanted: Tensor, axes: Iterable[tuple[str, ...]], tolerance: float | None
) -> tuple[str, str]:
    """Where and how two tensors of the same shape and dtype first differ."""
    a = got.double()
    b = wanted.double()
    ratio = float((a * b).sum() / (b * b).sum())
    scaled = ratio != 0 and torch.allclose(a, ratio * b, 1e-6, 1e-6 * size(b))
    if b.numel() > 1 and scaled and abs(ratio - 1) > 1e-4:
        return f"your values are all {ratio:.3g} times the expected ones", ""
    if torch.allclose(a, b, 1e-2, 1e-3 * size(b)):
        return f"your values are off by up to {(a - b).abs().max():.1e}", SMALLER
    place = tuple((~close(got, wanted, tolerance)).nonzero()[0].tolist())
    words = _two(wanted[place].item(), got[place].item())
    return f"first difference {_place(place, axes)}: {words}" if place else words, ""


def _place(place: tuple[int, ...], axes: Iterable[tuple[str, ...]]) -> str:
    """An index in words, if the page names its dimensions."""
    for names in axes:
        if len(names) == len(place):
            return "at " + ", ".join(f"{n} {i}" for n, i in zip(names, place, strict=True))
    return f"at {[*place]}"


# ------------------------------------------------------------------ exceptions


def raised(blank: Blank, answer: Answer | Anew, case: Case, error: BaseException) -> str:
    """An exception in words, with the last line of the learner's own code and the shapes on it."""
    words = f"{type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}"
    file = _file(answer)
    steps = [*traceback.walk_tb(error.__traceback__)]
    own = [(frame, number) for frame, number in steps if frame.f_code.co_filename == file]
    advice = _advice(f"your code raised {words}", blank)
    if not own:
        return f"the check cannot continue with your code ({words}){_for(case)}.{advice}"
    frame, number = own[-1]
    line = linecache.getline(frame.f_code.co_filename, number).strip()
    known = {**frame.f_locals}
    attributes = getattr(frame.f_locals.get("self"), "__dict__", {})
    known.update({f"self.{name}": value for name, value in attributes.items()})
    names = dict.fromkeys(re.findall(r"(?:self\.)?[A-Za-z_]\w*", line))
    tensors = [name for name in names if isinstance(known.get(name), Tensor)]
    shapes = ", ".join(f"{name} {form(known[name])}" for name in tensors)
    where = f", with shapes {shapes}" if shapes else ""
    return f"your code raised {words}, on the line `{line}`{where}{_for(case)}.{advice}"


def _file(answer: Answer | Anew) -> str | None:
    """The source file of a function, unwrapped, or of the first function in a class."""
    parts = [*vars(answer).values()] if isinstance(answer, type) else [answer]
    codes = (getattr(inspect.unwrap(part), "__code__", None) for part in parts if callable(part))
    return next((code.co_filename for code in codes if code), None)
