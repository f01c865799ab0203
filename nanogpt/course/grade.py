"""Grade a folder of learners' lesson.py files: for teachers.

Each file is graded in its own process (`grade_one`), with limits on time and memory. Its results
come through a pipe and are believed only if they are well-formed; the file, its working folder and
whatever it does there belong to it alone. A file that cannot be graded is reported in one line, and
grading continues with the others. This is not a sandbox: the code runs under your account, with
your files and your network, and the limits only guard against accidents.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
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
from enum import Enum
from pathlib import Path
from typing import Any

from ..bench.tables import table
from ..console import Progress
from ..files import PACKAGE
from ..training.signals import uninterrupted
from .blanks import BLANKS
from .limits import PATIENCE
from .submissions import Submission

LARGEST_LESSON = 1_000_000  # bytes; a lesson has a few thousand
MOST_RESULTS = 1_000_000  # bytes of results that are read from a process
START = 120  # seconds at most until a process has imported torch
POLL = 0.05  # seconds between polls of a process
_SHORT = 160  # characters of a sentence on the terminal
_WIDE = 30  # characters of a name
_HEAD = ("name", "file", "passed", "of", "seconds", "not graded because", "same file as")


class Outcome(Enum):
    """The result of one exercise: its mark in the table, and the words for it everywhere."""

    PASSED = "+", "passed"
    BORROWED = "=", "passed, but with the package's own code"
    MISTAKE = "x", "a mistake"
    MISSING = "-", "not there"
    NOT_GRADED = "?", "not graded"

    def __init__(self, mark: str, words: str) -> None:
        self.mark = mark
        self.words = words


ACCEPTED = {Outcome.PASSED, Outcome.BORROWED}
WRITTEN = ACCEPTED | {Outcome.MISTAKE}


@dataclass(frozen=True)
class ExerciseResult:
    """The outcome of one exercise; for a mistake, the sentence that names it."""

    outcome: Outcome
    sentence: str = ""
    mistake: str = ""  # the matching message from the blank's page, if any

    def __str__(self) -> str:
        return self.sentence or self.outcome.words


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


def read_text(path: Path) -> bytes:
    """Read a lesson as bytes. Raises OSError, and ValueError for a file that cannot be a lesson."""
    size = path.stat().st_size
    if size > LARGEST_LESSON:
        raise ValueError(f"{size:,} bytes: a lesson may have at most {LARGEST_LESSON:,}")
    data = path.read_bytes()
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ValueError("the file is UTF-16: save it as UTF-8")
    if b"\0" in data:
        raise ValueError("a binary file: it contains a zero byte")
    try:
        data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} is not UTF-8: save the file as UTF-8") from None
    return data


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
    begun = time.monotonic()
    if submission.problem:
        return Grade(submission, problem=submission.problem)
    try:
        data = read_text(submission.path)
        with tempfile.TemporaryDirectory(
            prefix="nanogpt-grade-", ignore_cleanup_errors=True
        ) as folder:
            # Two levels down: what a lesson does to its `..` stays in a folder of its own.
            work = Path(folder, "hand-in", "work")
            facts = [str(work), str(limits.seconds), str(limits.gib), *names]
            ending, lines = _run(facts, data, work, limits, stop)
    except (OSError, ValueError) as error:
        return Grade(submission, problem=getattr(error, "strerror", None) or str(error))
    text = "".join(data.decode("utf-8-sig").split())
    grade = Grade(submission, seconds=time.monotonic() - begun, text=text)
    _read_results(grade, lines, names, ending)
    return grade


def _run(
    arguments: list[str], lesson: bytes, work: Path, limits: FileLimits, stop: threading.Event
) -> tuple[str, list[str]]:
    """Run `grade_one` until it ends, or kill it. Returns how it ended, in words, and its lines.

    The lesson is read from a file without a name, which no other lesson can delete.
    """
    paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "CUDA_VISIBLE_DEVICES": "",
        "MPLBACKEND": "agg",
        "NANOGPT_HEADLESS": "1",
        "NANOGPT_MINE": str(work),
        "NANOGPT_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    reading, writing = os.pipe()
    apart = [sys.executable, "-I", str(Path(__file__).with_name("apart.py")), str(writing)]
    with tempfile.TemporaryFile() as text:
        text.write(lesson)
        text.seek(0)
        process = subprocess.Popen(
            [*apart, sys.executable, "-m", f"{__package__}.grade_one", str(writing), *arguments],
            env=environment,
            stdin=text,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[writing],
            start_new_session=True,  # it gets no Ctrl-C of ours; its children are killed with it
        )
    os.close(writing)
    os.set_blocking(reading, False)
    received = b""
    patience: float = START
    since = time.monotonic()
    ending = ""
    try:
        while process.poll() is None and not stop.wait(POLL):
            more = _read(reading, MOST_RESULTS - len(received))
            received += more
            if more:
                since = time.monotonic()
                patience = PATIENCE * limits.seconds + 1  # the process's own limit comes first
            if len(received) >= MOST_RESULTS:
                break  # no check says so much
            if time.monotonic() - since > patience:
                ending = f"did not finish in {patience:.0f} seconds and was stopped"
                break
    finally:
        _kill(process)
        received += _read(reading, MOST_RESULTS - len(received))
        os.close(reading)
    lines = received.decode("utf-8", errors="replace").splitlines()
    if ending:
        return ending, lines
    if process.returncode < 0:
        return f"ended Python with signal {_signal_name(-process.returncode)}", lines
    return f"ended Python with exit code {process.returncode}", lines


def _read(pipe: int, most: int) -> bytes:
    """What is in the pipe now, at most that many bytes."""
    parts: list[bytes] = []
    with suppress(BlockingIOError):
        while most > 0:
            part = os.read(pipe, min(most, 65536))
            if not part:
                break
            parts.append(part)
            most -= len(part)
    return b"".join(parts)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read_results(grade: Grade, lines: list[str], names: Sequence[str], ending: str) -> None:
    """Read the results that a process has written into the grade."""
    running = ""
    last = ""
    for line in lines:
        fact = _fact(line, names)
        if fact is None or not _in_order(fact, running, grade, names):
            grade.problem = "it wrote something else where its results belong"
            break
        last = fact["event"]
        name = fact["name"]
        if last == "stops":
            grade.problem = one_line(fact["words"])
        elif last == "missing":
            grade.results[name] = ExerciseResult(Outcome.MISSING)
        elif last == "begins":
            running = name
        elif last == "judged":
            grade.results[name] = _result(fact)
            running = ""
    if running:
        grade.results[running] = ExerciseResult(Outcome.MISTAKE, f"your {running} {ending}.")
        grade.problem = grade.problem or f"{running} {ending}"
    elif last not in ("done", "stops") and not grade.problem:
        grade.problem = ending
    if grade.results:
        for name in names:
            grade.results.setdefault(name, ExerciseResult(Outcome.NOT_GRADED))


def _in_order(fact: dict[str, str], running: str, grade: Grade, names: Sequence[str]) -> bool:
    """Whether `grade_one` can have written this line here: it begins, judges and ends."""
    if fact["event"] == "judged":
        return fact["name"] == running
    if fact["event"] == "done":
        all_there = all(name in grade.results for name in names)
        return not running and (all_there or grade.problem is not None)  # or the lesson has stopped
    return not running


_EVENTS = {"ready", "stops", "missing", "begins", "judged", "done"}
_FIELDS = ("name", "words", "mistake", "borrowed")


def _fact(line: str, names: Sequence[str]) -> dict[str, str] | None:
    """A line of results; None if `grade_one` cannot have written it."""
    try:
        fact: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fact, dict) or fact.keys() - {"event", *_FIELDS}:
        return None
    if not all(value is None or isinstance(value, str) for value in fact.values()):
        return None
    known = {"event": ""} | dict.fromkeys(_FIELDS, "") | {k: v or "" for k, v in fact.items()}
    about_an_exercise = known["event"] in ("missing", "begins", "judged")
    if known["event"] not in _EVENTS or about_an_exercise and known["name"] not in names:
        return None
    return known


def _result(fact: dict[str, str]) -> ExerciseResult:
    """What the process says of one exercise."""
    if fact["words"]:
        words, mistake = one_line(fact["words"]), one_line(fact["mistake"])
        return ExerciseResult(Outcome.MISTAKE, words, mistake)
    if fact["borrowed"]:
        words = f"{Outcome.BORROWED.words}: {one_line(fact['borrowed'])}"
        return ExerciseResult(Outcome.BORROWED, words)
    return ExerciseResult(Outcome.PASSED)


def one_line(text: str) -> str:
    """A text as one printable line, because a learner's error message may contain anything."""
    words = " ".join(text.split())
    return "".join(char if char.isprintable() else "?" for char in words)[:1000]


# ------------------------------------------------------------------ the report


def report(grades: Sequence[Grade], names: Sequence[str]) -> str:
    """The table of all learners, equal files, and the mistakes by exercise."""
    rows = []
    for one in grades:
        graded = bool(one.results)
        row: dict[str, object] = {
            "name": _cut(one_line(one.submission.name), _WIDE),
            "passed": f"{one.passed}/{len(names)}" if graded else "-",
            "seconds": f"{one.seconds:.1f}",
        }
        for number, name in enumerate(names, 1):
            row[str(number)] = one.results[name].outcome.mark if graded else " "
        row[" "] = f"not graded: {_cut(one.problem, _SHORT)}" if one.problem else ""
        rows.append(row)
    numbered = ", ".join(f"{number} {name}" for number, name in enumerate(names, 1))
    key = "   ".join(f"{outcome.mark} {outcome.words}" for outcome in Outcome)
    groups = [f"the same file: {', '.join(group)}" for group in same_files(grades)]
    parts = [table(rows), f"exercises: {numbered}\n{key}", *groups, *borrowings(grades, names)]
    return "\n\n".join([*parts, *mistakes(grades, names)])


def same_files(grades: Iterable[Grade]) -> list[list[str]]:
    """The names of learners who handed in the same text, group by group."""
    groups: dict[str, list[str]] = {}
    for one in grades:
        if any(result.outcome in WRITTEN for result in one.results.values()):
            groups.setdefault(one.text, []).append(one_line(one.submission.name))
    return [group for group in groups.values() if len(group) > 1]


def borrowings(grades: Iterable[Grade], names: Sequence[str]) -> list[str]:
    """A paragraph: who uses the package's own code where the exercise asks for their own."""
    lines = [
        f"  {one_line(one.submission.name)}: {name} {one.results[name]}"
        for one in grades
        for name in names
        if name in one.results and one.results[name].outcome is Outcome.BORROWED
    ]
    return ["\n".join(["look at these:", *lines])] if lines else []


def mistakes(grades: Iterable[Grade], names: Sequence[str]) -> list[str]:
    """A paragraph per exercise: how often each mistake occurs, and whose; most frequent first.

    Sentences that differ only in numbers and quoted code are counted together.
    """
    paragraphs = []
    found = list(grades)
    for name in names:
        sentences: dict[str, str] = {}
        whose: dict[str, list[str]] = {}
        for one in found:
            result = one.results.get(name)
            if result and result.outcome is Outcome.MISTAKE:
                sentence = result.mistake or result.sentence
                kind = kind_of(sentence)
                sentences.setdefault(kind, sentence)
                whose.setdefault(kind, []).append(one_line(one.submission.name))
        if not whose:
            continue
        wrote = sum(one.results[name].outcome in WRITTEN for one in found if one.results)
        total = sum(map(len, whose.values()))
        lines = [f"{name}: a mistake in {total} of {wrote} answers"]
        for kind in sorted(whose, key=lambda kind: (-len(whose[kind]), kind)):
            lines.append(f"  {len(whose[kind])} × {_cut(sentences[kind], _SHORT)}")
            lines.append(f"      {', '.join(whose[kind])}")
        paragraphs.append("\n".join(lines))
    return paragraphs


def kind_of(sentence: str) -> str:
    """A sentence without its numbers, quoted code and quoted values."""
    return re.sub(r"`[^`]*`|\[[^\]]*\]|\d[\d.,e+-]*", "…", sentence)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def as_csv(grades: Sequence[Grade], names: Sequence[str]) -> bytes:
    """The table as CSV in UTF-8, with a byte-order mark for spreadsheets."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*_HEAD, *names])
    groups = same_files(grades)
    for one in grades:
        results = [str(one.results[name]) if one.results else "" for name in names]
        name = one_line(one.submission.name)
        same = next((group for group in groups if name in group), [])
        others = ", ".join(other for other in same if other != name)
        passed = one.passed if one.results else ""
        row = [name, one.submission.path, passed, len(names), f"{one.seconds:.1f}"]
        words = [*row, one.problem or "", others, *results]
        writer.writerow([_cell(str(word)) for word in words])
    return text.getvalue().encode("utf-8-sig")


def _cell(text: str) -> str:
    """A cell that spreadsheets do not interpret as a formula."""
    words = one_line(text)
    return f"'{words}" if words[:1] in tuple("=+-@") else words
