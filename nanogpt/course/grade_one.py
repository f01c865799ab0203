"""Grade one learner's lesson in a separate process, which `course.grade` starts and may kill.

    python -m nanogpt.course.grade_one PIPE FOLDER SECONDS GIB NAME... < LESSON

The lesson is read before anything of it can run, and executed once; then each exercise is checked
once. Each result is immediately written to the pipe as a line of JSON, so a killed process leaves
its results so far.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import IO, Any

from .blanks import BLANKS
from .borrowed import borrowed
from .editing import execute
from .finding import objection
from .lesson import MODULE, Scope, put_solution
from .limits import limit
from .solutions import lesson_names

FILE = "lesson.py"  # what messages call the lesson


def main() -> None:
    """Grade the lesson given by the arguments, and end this process."""
    pipe, folder, seconds, gib, *names = sys.argv[1:]
    text = sys.stdin.buffer.read().decode("utf-8-sig", errors="surrogateescape")
    enter(folder)
    with open(int(pipe), "w", encoding="utf-8") as results:
        # Before the limits, because importing torch and its optimizers takes seconds.
        importlib.import_module("torch._dynamo")
        solved = lesson_names()
        set_limits(float(gib))
        report(results, event="ready")
        judge_text(text, solved, names, float(seconds), results)
        report(results, event="done")
        os._exit(0)  # ignore the lesson's threads and exit handlers


def enter(folder: str) -> None:
    """Work in that folder, which another lesson may just have deleted."""
    for _ in range(5):
        with suppress(OSError):
            os.makedirs(folder, exist_ok=True)
            os.chdir(folder)
            return


def set_limits(gib: float) -> None:
    """Limit this process to one thread, `gib` more GiB of memory, and no large files.

    Limits that the system does not support are skipped.
    """
    import torch

    torch.set_num_threads(1)
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000_000, 100_000_000))
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + int(gib * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def report(results: IO[str], **facts: str | None) -> None:
    """Send a line of results now."""
    results.write(json.dumps(facts) + "\n")
    results.flush()


def judge_text(
    text: str, solved: Scope, names: list[str], seconds: float, results: IO[str]
) -> None:
    """Execute a lesson, and check the exercises `names` in it, each for at most `seconds`."""
    module = ModuleType(MODULE)
    sys.modules[MODULE] = module
    scope = vars(module)
    scope.update(solved)
    scope.update({"__name__": MODULE, "__file__": FILE})
    stops = run(text, scope, seconds)
    if stops:
        report(results, event="stops", words=stops)
        return
    answers: dict[str, Any] = {name: scope.get(name) for name in names}
    scope.update({name: solved[name] for name in BLANKS if name not in names})
    for name, answer in answers.items():
        if answer is None or answer is solved[name]:
            scope[name] = solved[name]
            report(results, event="missing", name=name)
            continue
        report(results, event="begins", name=name)
        found = objection(BLANKS[name], answer, seconds)
        words = str(found) if found else None
        mistake = found.mistake if found else None
        used = borrowed(text, scope, name)
        report(results, event="judged", name=name, words=words, mistake=mistake, borrowed=used)
        if found:  # check its users with the solution
            put_solution(scope, name)


def run(text: str, scope: Scope, seconds: float) -> str | None:
    """Execute a lesson. Returns where and why it stops, or None if it reaches its end."""
    try:
        with limit(seconds, f"{FILE} did not finish"):
            execute(text, FILE, scope)
    except BaseException as error:  # also exit(), and TooLong is no Exception
        lines = [
            frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == FILE
        ]
        line = lines[-1] if lines else getattr(error, "lineno", None)
        at = f" at line {line}" if line else ""
        reason = str(getattr(error, "msg", error)).partition("\n")[
            0
        ]  # of a SyntaxError: without the location
        return f"stops{at} ({type(error).__name__}{f': {reason}' if reason else ''})"
    return None


if __name__ == "__main__":
    main()
