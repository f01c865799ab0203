"""Grade one learner's lesson in a separate process, which `course.grade` starts and may kill.

    python -m nanogpt.course.grade_one FOLDER SECONDS GIB NAME... < LESSON > RESULTS

The lesson is read before anything of it can run, and executed once; then each exercise is checked
once. Each result is written as soon as it is known, so a killed process leaves its results so far.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from .blanks import BLANKS
from .borrowed import borrowed
from .finding import objection
from .lesson import put_solution, run_program
from .outcomes import ExerciseResult, Outcome, to_line
from .solutions import lesson_names

FILE = "lesson.py"  # what messages call the lesson


def main() -> None:
    """Grade the lesson given by the arguments, and end this process."""
    folder, seconds, gib, *names = sys.argv[1:]
    text = sys.stdin.buffer.read().decode()
    os.chdir(folder)

    # 1. Results keep the output to themselves: what a lesson prints goes nowhere.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as results:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

        # 2. Before the limits, because importing torch and its optimizers takes seconds. The empty
        #    line says that the lesson's time begins.
        importlib.import_module("torch._dynamo")
        set_limits(float(gib))
        print(file=results, flush=True)

        # 3. Each result at once.
        for name, result in judge_text(text, names, float(seconds)):
            results.write(to_line(name, result))
            results.flush()
        os._exit(0)  # ignore the lesson's threads and exit handlers


def set_limits(gib: float) -> None:
    """Limit this process to one thread, `gib` more GiB of memory, and files of 100 MB.

    Limits that the system does not support are skipped.
    """
    import torch

    torch.set_num_threads(1)
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000_000, 100_000_000))
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + int(gib * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def judge_text(
    text: str, names: Sequence[str], seconds: float
) -> Iterator[tuple[str, ExerciseResult]]:
    """Execute a lesson, and check the exercises `names` in it, each for at most `seconds`.

    Yields NOT_GRADED when the check of an exercise begins, and later its result; at the end, under
    the name "", whether the whole lesson was graded.
    """
    # 1. The lesson as a module.
    solved = lesson_names()
    scope, stops = run_program(text, FILE, seconds)
    if stops:
        yield "", ExerciseResult(Outcome.NOT_GRADED, stops)
        return

    # 2. What does not count is replaced by its solution.
    for name in BLANKS:
        if name not in names and scope.get(name) is not solved[name]:
            put_solution(scope, name, text)

    # 3. The exercises in the notebooks' order; users of a wrong one are checked with its solution.
    for name in names:
        answer = scope.get(name)
        if answer is None or answer is solved[name]:
            scope[name] = solved[name]
            yield name, ExerciseResult(Outcome.MISSING)
            continue
        yield name, ExerciseResult(Outcome.NOT_GRADED)
        found = objection(BLANKS[name], answer, seconds)
        if found:
            yield name, ExerciseResult(Outcome.MISTAKE, str(found), found.mistake)
            put_solution(scope, name, text)
            continue
        used = borrowed(text, scope, name)
        if used:
            words = f"{Outcome.BORROWED.words}: {used}"
            yield name, ExerciseResult(Outcome.BORROWED, words)
        else:
            yield name, ExerciseResult(Outcome.PASSED)
    yield "", ExerciseResult(Outcome.PASSED)


if __name__ == "__main__":
    main()
