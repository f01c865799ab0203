"""A reader's lesson in a process of its own, and the names that it must leave as they are.

A lesson may end its process, never end, or change the package that judges it. `apart` makes an
error with a reason of the first two, and `unchanged` finds the third and takes it back.
"""

from __future__ import annotations

import builtins
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from . import blanks

START = 300  # seconds at most until the new process reads the lesson
SPARE = 120  # seconds over its own limit that a step may take, before its process is ended


class Ended(ValueError):
    """A lesson that ended the process of its judge, or did not let it go on."""


def apart(work: Callable, *args):
    """work(*args) in a new process, which prints nothing; its result. Raises Ended, and ValueError
    with the words of a ValueError or an OSError of its own.

    `work` is a function of a module. Before each step it says through blanks.watch how long that
    may take.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_inside, args=(sender, work, args), daemon=True)
    process.start()
    sender.close()
    words = "your lesson has not been read"
    seconds = START
    try:
        while receiver.poll(seconds + SPARE):
            kind, *parts = receiver.recv()
            if kind == "result":
                return parts[0]
            if kind == "refused":
                raise ValueError(parts[0])
            if kind == "stopped":
                raise Ended(f"it stops with {parts[0]}")
            words, seconds = parts
        raise Ended(f"{words} after {seconds:g} seconds, and nothing stops it")
    except EOFError:
        process.join(SPARE)
        code = process.exitcode
        ending = f"by signal {-code}" if code and code < 0 else f"with exit code {code}"
        raise Ended(f"it ends the process of its judge {ending} (at the step: {words})") from None
    finally:
        process.kill()
        process.join()


def _inside(sender, work: Callable, args: tuple) -> None:
    """In the new process: send the result, or the error that no judge has caught."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # the process that started this one prints the verdict
        os.dup2(nowhere, stream)
    blanks.watch = lambda seconds, words: sender.send(("step", words, seconds))
    try:
        sender.send(("result", work(*args)))
    except (ValueError, OSError) as error:
        sender.send(("refused", str(error)))
    except BaseException as error:
        sender.send(("stopped", f"{type(error).__name__}: {error}".partition("\n")[0]))


# ------------------------------------------------------------------ names to leave alone


@contextmanager
def unchanged() -> Iterator[list[str]]:
    """Around a lesson's code: the names that it has changed, which is undone at the end.

    Those are the attributes of the package's modules and classes, the functions of PyTorch or
    Python that the lesson has exchanged, and the default dtype. The list is filled at the end.
    """
    changed: list[str] = []
    before = _surroundings()
    dtype = torch.get_default_dtype()
    try:
        yield changed
    finally:
        now = _surroundings()
        for owner, name in [*before, *(now.keys() - before.keys())]:
            old = before.get((owner, name))
            new = vars(owner).get(name)
            if new is old or not (_of_a_lesson(new) or (old and _ours(owner))):
                continue
            if old:
                setattr(owner, name, old)
            else:
                delattr(owner, name)
            changed.append(f"{getattr(owner, '__qualname__', owner.__name__)}.{name}")
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)
            changed.append("torch's default dtype")


def _surroundings() -> dict[tuple, object]:
    """Every function, class and method that a lesson must leave alone, by its owner and name."""
    inside = [m for name, m in [*sys.modules.items()] if f"{name}.".startswith("nanogpt.") and m]
    outside = [torch, torch.nn, torch.nn.functional, builtins, signal]
    classes = []
    for module in inside:
        classes += [x for x in vars(module).values() if isinstance(x, type) and _ours(x)]
    classes += [x for x in vars(torch.nn).values() if isinstance(x, type)]
    classes.append(torch.Tensor)
    values = {}
    for owner in [*inside, *outside, *classes]:
        for name, value in vars(owner).items():
            if callable(value) or isinstance(value, (property, classmethod, staticmethod)):
                values[owner, name] = value
    return values


def _ours(owner) -> bool:
    """Whether a module or a class is the package's."""
    name = getattr(owner, "__module__", None) or owner.__name__
    return f"{name}.".startswith("nanogpt.")


def _of_a_lesson(value) -> bool:
    return getattr(value, "__module__", None) == "nanogpt_lesson"
