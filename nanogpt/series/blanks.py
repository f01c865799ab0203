"""Blanks: functions that the learner fills in, and a judge that runs them and names a mistake.

A blank is a code cell tagged "blank". The cell after it, folded, calls `judge`, or `kept` of
series.mine. A hint and the solution follow in the text. A run without a reader fills in the
solution: series.nbfile.
"""

from __future__ import annotations

import dis
import functools
import inspect
import linecache
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any

EMPTY = {"RESUME", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE", "NOP", "COPY_FREE_VARS"}
FIRST_LINE = "# @title The solution, filled in by a run without a reader"
SOLUTION = re.compile(
    r"<details><summary>Solution</summary>\s*```python\n(.*?)\n```\s*</details>", re.S
)
SHORT = 60  # characters that a message quotes
SECONDS = 60  # that an answer may be judged: a right one takes less than one
PATIENCE = 5  # times as long by the clock, on a machine that has more to do

Answer = Callable[..., Any]  # a reader's function or class
Problem = Callable[[Any], str | None]  # of an answer: what is wrong with it, in a sentence, or None


class TooLong(BaseException):
    """A loop that does not end; no `except Exception` of the reader's holds it back."""


@dataclass
class Call:
    """A call of the learner's function."""

    arguments: tuple[Any, ...]
    returned: bool = False  # whether it came to a result
    result: Any = None


def judge(problem: Problem, answer: Answer, *, body: Answer | str | None = None) -> bool:
    """Whether the learner's answer is right; prints that, or the objection to it.

    `problem(answer)` tries it and returns None, or one sentence that names a mistake and its place.
    `body` is the function to fill in, or its name, if it is a method of the answer. An error in the
    learner's code is reported by its line, without a traceback; one in the check by the result of
    the learner's code.
    """
    objection = wrong(problem, answer, body=body)
    if objection:
        print(f"Not yet: {objection}")
    else:
        print(f"Right: {getattr(answer, '__name__', 'it')} does what it should.")
    return not objection


@contextmanager
def limit(seconds: float, words: str) -> Iterator[None]:
    """Around code of a reader's: raise TooLong after so many seconds, where a signal can do that.

    They are seconds of computing: by the clock it may take PATIENCE times as long. A signal comes
    in the main thread, and not on Windows. Inside another limit that one goes on after it.
    """
    main = threading.current_thread() is threading.main_thread()
    if not (main and hasattr(signal, "setitimer")):
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        waited = time.monotonic() - begun
        if time.process_time() - computed < seconds and waited < PATIENCE * seconds:
            signal.setitimer(signal.ITIMER_REAL, max(0.01, seconds / 10))
            return
        raise TooLong(f"{words} after {seconds:g} seconds: is there a loop that never ends?")

    handler = signal.signal(signal.SIGALRM, stop)
    begun = time.monotonic()
    computed = time.process_time()
    remaining, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        rest = max(0.01, remaining - (time.monotonic() - begun)) if remaining else 0
        signal.setitimer(signal.ITIMER_REAL, rest)


def wrong(
    problem: Problem,
    answer: Answer,
    *,
    body: Answer | str | None = None,
    name: str = "",
    seconds: float | None = None,
) -> str | None:
    """The objection to an answer, as `judge` prints it; None where it is right.

    An answer that computes for more than `seconds` (SECONDS) is wrong.
    """
    name = name or getattr(answer, "__name__", "it")
    if isinstance(body, str):
        body = getattr(answer, body, None)  # an answer may lack it: its check says so
    if _is_empty(body or answer):
        return f"{name} is still empty. Write its body, run its cell, then run this one."
    calls: list[Call] = []
    try:
        with limit(seconds or SECONDS, f"judging your {name} has come to no end"):
            noted = _noted(answer, calls) if isinstance(answer, FunctionType) else answer
            objection = problem(noted)
    except TooLong as error:
        objection = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        objection = _where(error, body or answer, calls)
    if objection and calls and all(call.returned and call.result is None for call in calls):
        objection = f"{objection.rstrip('.')}. It returned None: does it end with `return`?"
    return objection


def _is_empty(function: Answer) -> bool:
    """Whether a function has no body but a docstring, `pass` or `...`."""
    if not isinstance(function, FunctionType):
        return False
    steps = list(dis.get_instructions(function))
    values = {step.argval for step in steps if step.opname in ("LOAD_CONST", "RETURN_CONST")}
    return {step.opname for step in steps} <= EMPTY and values <= {None}


def _noted(function: FunctionType, calls: list[Call]) -> Answer:
    """The function, which adds each of its calls to `calls`."""

    @functools.wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        call = Call(args)
        calls.append(call)
        call.result = function(*args, **kwargs)
        call.returned = True
        return call.result

    return noted


def _where(error: BaseException, function: Answer, calls: list[Call]) -> str:
    """An exception as one sentence, with the last line of the learner's own code on its way."""
    words = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    code: CodeType | None = getattr(inspect.unwrap(function), "__code__", None)  # below decorators
    path = code.co_filename if code else None
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == path]
    line = linecache.getline(own[-1].filename, own[-1].lineno or 0).strip() if own else ""
    at = f", in the line `{line}`" if line else ""
    if calls:
        given = ", ".join(map(repr, calls[-1].arguments))
        if len(given) <= SHORT:
            at += f", for {function.__name__}({given})"
    if own or not (calls and calls[-1].returned):
        return f"your code raised {words}{at}."
    result = f"{calls[-1].result!r}".partition("\n")[0][:SHORT]
    return f"the check cannot use what your code returned, {result} ({words}){at}."
