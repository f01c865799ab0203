"""Blanks: functions that the learner fills in, and a judge that runs them and says what is wrong.

A blank is a code cell tagged "blank". The cell after it, folded, calls `judge`. A hint and the
solution follow in the text. A run without a reader fills in the solution: publishing.blanks.
"""

from __future__ import annotations

import dis
import linecache
import traceback
from collections.abc import Callable
from types import FunctionType

EMPTY = {"RESUME", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE", "NOP", "COPY_FREE_VARS"}


def judge(
    problem: Callable[[object], str | None], answer: Callable, *, body: Callable | None = None
) -> bool:
    """Whether the learner's answer is right; prints that, or what is wrong with it.

    `problem(answer)` tries it and returns None, or one sentence that says what is wrong and where.
    `body` is the function to fill in, where it is not the answer itself but a method of it. An
    error in the learner's code is reported by its line, without a traceback.
    """
    name = getattr(answer, "__name__", "it")
    if _is_empty(body or answer):
        print(f"Not yet: {name} is still empty. Write its body, run its cell, then run this one.")
        return False
    try:
        why = problem(answer)
    except Exception as error:
        why = _where(error, body or answer)
    print(f"Not yet: {why}" if why else f"Right: {name} does what it should.")
    return not why


def _is_empty(function: Callable) -> bool:
    """Whether a function has no body but a docstring, `pass` or `...`."""
    if not isinstance(function, FunctionType):
        return False
    steps = list(dis.get_instructions(function))
    values = {step.argval for step in steps if step.opname in ("LOAD_CONST", "RETURN_CONST")}
    return {step.opname for step in steps} <= EMPTY and values <= {None}


def _where(error: Exception, function: Callable) -> str:
    """An exception as one sentence, with the last line of the learner's own code on its way."""
    said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    code = getattr(function, "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame.lineno for frame in frames if code and frame.filename == code.co_filename]
    line = linecache.getline(code.co_filename, own[-1]).strip() if own else ""
    at = f", in the line `{line}`" if line else ""
    return f"your code raised {said}{at}."
