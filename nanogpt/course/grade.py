"""Grade a folder of learners' lesson.py files: for teachers.

Each file is graded in its own process (`grade_one`), with limits on time and memory. The file, the
results and the working folder of a process belong to it alone: what a lesson does to its
surroundings changes no other row. A file that cannot be graded is reported in one line, and grading
continues with the others. This is not a sandbox: the code runs under your account, with your files
and your network, and the limits only guard against accidents.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ..console import Progress
from ..files import PACKAGE
from ..training.signals import uninterrupted
from . import program
from .blanks import BLANKS
from .limits import PATIENCE
from .outcomes import ACCEPTED, ExerciseResult, Outcome, from_line
from .submissions import Submission

MOST_RESULTS = 1_000_000  # bytes of results that are read from a process
START = 120  # seconds at most until a process has imported torch
POLL = 0.05  # seconds between polls of a process


@dataclass
class Grade:
    """The results of a submission by exercise, and the reason if it could not be fully graded."""

    submission: Submission
    results: dict[str, ExerciseResult] = field(default_factory=dict)
    problem: str | None = None
    seconds: float = 0.0
    text: str = ""  # of the lesson, without spaces and line breaks: equal for equal files

    @property
    def passed(self) -> int:
        """How many exercises passed."""
        return sum(result.outcome in ACCEPTED for result in self.results.values())


@dataclass(frozen=True)
class FileLimits:
    """Limits for a file: `seconds` of computing for each exercise, and memory in GiB."""

    seconds: float = 20
    gib: float = 4


# ------------------------------------------------------------------ the exercises


def exercises(only: Sequence[str] = ()) -> list[str]:
    """The exercises to grade, in the notebooks' order; `only` has exercise or notebook names.

    Raises ValueError for any other name.
    """
    known = list(BLANKS)
    numbers = {one.notebook for one in BLANKS.values()}
    unknown = [name for name in only if name not in known and name not in numbers]
    if unknown:
        raise ValueError(
            f"no exercise is called {unknown[0]!r}: choose from the notebooks "
            f"{', '.join(sorted(numbers))}, and from {', '.join(known)}"
        )
    return [name for name in known if {name, BLANKS[name].notebook} & {*only} or not only]


def handed_in(grades: Iterable[Grade], names: Sequence[str]) -> list[str]:
    """The exercises that occur in at least one file; all if none has any."""
    missing = {Outcome.MISSING, Outcome.NOT_GRADED}
    there = set()
    for one in grades:
        there |= {name for name, result in one.results.items() if result.outcome not in missing}
    return [name for name in names if name in there or not there]


# ------------------------------------------------------------------ grading


def grade(
    found: Sequence[Submission], names: Sequence[str], limits: FileLimits, workers: int
) -> list[Grade]:
    """Grade all submissions, `workers` at once; results are in the order of the submissions.

    After a Ctrl-C, raises KeyboardInterrupt, which says how many were graded; no process is left.
    """
    stop = threading.Event()
    futures: list[Future[Grade]] = []
    with Progress(len(found), "grading") as bar, ThreadPoolExecutor(workers) as pool:
        try:
            for one in found:
                futures.append(pool.submit(judge_one, one, names, limits, stop))
            for future in as_completed(futures):
                future.result()
                bar.update()
        except BaseException as error:
            done = sum(future.done() for future in futures)
            with uninterrupted():
                stop.set()
                pool.shutdown(cancel_futures=True)
            if not isinstance(error, KeyboardInterrupt):
                raise
            raise KeyboardInterrupt(
                f"{done} of {len(found)} files were graded, and nothing was written"
            ) from None
    return [future.result() for future in futures]


def judge_one(
    submission: Submission, names: Sequence[str], limits: FileLimits, stop: threading.Event
) -> Grade:
    """Grade a submission in a new process, which is killed once `stop` is set."""
    if submission.problem:
        return Grade(submission, problem=submission.problem)
    begun = time.monotonic()
    try:
        text = program.read(submission.path)
        with tempfile.TemporaryDirectory(
            prefix="nanogpt-grade-", ignore_cleanup_errors=True
        ) as folder:
            # Two levels down: what a lesson does to its `..` stays in a folder of its own.
            work = Path(folder, "hand-in", "work")
            work.mkdir(parents=True)
            arguments = [str(work), str(limits.seconds), str(limits.gib), *names]
            ending, lines = _run(arguments, text, limits, stop)
    except (OSError, ValueError) as error:
        return Grade(submission, problem=getattr(error, "strerror", None) or str(error))
    grade = Grade(submission, seconds=time.monotonic() - begun, text="".join(text.split()))
    _read_results(grade, lines, names, ending)
    return grade


def _run(
    arguments: list[str], text: str, limits: FileLimits, stop: threading.Event
) -> tuple[str, list[str]]:
    """Run `grade_one` until it ends, or kill it. Returns how it ended, in words, and its lines.

    The lesson and the results are files without a name, which no other lesson can reach.
    """
    work = arguments[0]
    paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "CUDA_VISIBLE_DEVICES": "",
        "MPLBACKEND": "agg",
        "NANOGPT_HEADLESS": "1",
        "NANOGPT_MINE": work,
        "NANOGPT_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with tempfile.TemporaryFile() as lesson, tempfile.TemporaryFile() as results:
        lesson.write(text.encode())
        lesson.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.grade_one", *arguments],
            env=environment,
            stdin=lesson,
            stdout=results,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # it gets no Ctrl-C of ours; its children are killed with it
        )
        try:
            ending = _wait(process, results, limits, stop)
        finally:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        results.seek(0)
        received = results.read(MOST_RESULTS).decode(errors="replace")
    *lines, _ = received.split("\n")  # a line without an end was cut off
    return ending, lines


def _wait(
    process: subprocess.Popen[bytes], results: IO[bytes], limits: FileLimits, stop: threading.Event
) -> str:
    """Wait until a process ends, `stop` is set or it writes no result for too long. Says which."""
    patience: float = START
    since = time.monotonic()
    size = 0
    while process.poll() is None:
        if stop.wait(POLL):
            return "was stopped"
        now = os.fstat(results.fileno()).st_size
        if now > size:
            size = now
            since = time.monotonic()
            patience = PATIENCE * limits.seconds + 1  # the process's own limit comes first
        if time.monotonic() - since > patience:
            return f"did not finish in {patience:.0f} seconds and was stopped"
    if process.returncode >= 0:
        return f"ended Python with exit code {process.returncode}"
    return f"ended Python with signal {signal.Signals(-process.returncode).name}"


def _read_results(grade: Grade, lines: list[str], names: Sequence[str], ending: str) -> None:
    """Read the results that a process has written into the grade."""
    problem: str | None = ending  # unless the last line says that all of it was graded
    running = ""
    for line in filter(None, lines):
        try:
            name, result = from_line(line)
        except ValueError:
            name = line
        if name and name not in names:
            problem = "it wrote something else where its results belong"
            break
        if name:
            grade.results[name] = result
            running = name if result.outcome is Outcome.NOT_GRADED else ""
        else:
            problem = result.sentence or None
    if running:
        grade.results[running] = ExerciseResult(Outcome.MISTAKE, f"your {running} {ending}.")
        problem = f"{running} {ending}" if problem == ending else problem
    grade.problem = problem
    if grade.results:
        for name in names:
            grade.results.setdefault(name, ExerciseResult(Outcome.NOT_GRADED))
