"""Grade a folder of learners' lesson.py files: for teachers.

Each file is graded in its own process (`grade_one`), with limits on time and memory. A file that
cannot be graded is reported in one line, and grading continues with the others. This is not a
sandbox: the code runs under your account, with your files and your network, and the limits only
guard against accidents.
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
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from ..bench.tables import table
from ..console import Progress
from ..files import PACKAGE
from ..training.signals import uninterrupted
from .blanks import BLANKS
from .limits import PATIENCE

LARGEST_LESSON = 1_000_000  # bytes; a lesson has a few thousand
START = 120  # seconds at most until a process has imported torch
POLL = 0.05  # seconds between polls of a process
_DEPTH = 2  # folder levels that are searched
_SHORT = 160  # characters of a sentence on the terminal
_WIDE = 30  # characters of a name
SKIPPED = {"__pycache__", "__MACOSX"}
_HEAD = ("name", "file", "passed", "of", "seconds", "not judged because")  # of the CSV


class Outcome(Enum):
    """The result of one exercise; the value is its mark in the table."""

    PASSED = "+"
    MISTAKE = "x"
    MISSING = "-"
    NOT_JUDGED = "?"


WRITTEN = {Outcome.PASSED, Outcome.MISTAKE}
_WORDS = {
    Outcome.PASSED: "passed",
    Outcome.MISSING: "not there",
    Outcome.NOT_JUDGED: "not judged",
}


@dataclass(frozen=True)
class Submission:
    """A learner's file, and the reason if it is not even opened."""

    name: str
    path: Path
    problem: str | None = None


@dataclass(frozen=True)
class ExerciseResult:
    """The outcome of one exercise; for a mistake, the sentence that names it."""

    outcome: Outcome
    sentence: str = ""
    mistake: str = ""  # the matching message from the check's table, if any

    def __str__(self) -> str:
        return _WORDS.get(self.outcome, self.sentence)


@dataclass
class Grade:
    """The results of a submission by exercise, and the reason if it could not be fully graded."""

    submission: Submission
    results: dict[str, ExerciseResult] = field(default_factory=dict)
    problem: str | None = None
    seconds: float = 0.0

    @property
    def passed(self) -> int:
        """How many exercises passed."""
        return sum(result.outcome is Outcome.PASSED for result in self.results.values())


@dataclass(frozen=True)
class FileLimits:
    """Limits for a file: `seconds` of computing for each exercise, and memory in GiB."""

    seconds: float = 20
    gib: float = 4


# ------------------------------------------------------------------ the files


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
    missing = {Outcome.MISSING, Outcome.NOT_JUDGED}
    there = set()
    for one in grades:
        there |= {name for name, result in one.results.items() if result.outcome not in missing}
    return [name for name in names if name in there or not there]


def submissions(folder: Path) -> tuple[list[Submission], list[str]]:
    """The learners' files in a folder, and the names of other files at its top level.

    NAME.py, NAME/lesson.py, or one folder deeper. In a folder without a lesson.py, every Python
    file is a submission. Links are not followed. Raises OSError if the folder cannot be read,
    ValueError if it contains no submission.
    """
    found: list[Submission] = []
    others: list[str] = []
    for path in _visible(folder):
        if path.is_dir() and not path.is_symlink():
            found += _in_folder(path, path.name, _DEPTH)
        elif path.suffix == ".py":
            found.append(_submission(path.stem, path))
        else:
            others.append(path.name)
    if not found:
        raise ValueError(
            f"{folder} contains no submission: it needs files NAME.py, or folders with a lesson.py"
        )
    names = Counter(one.name for one in found)
    for i, one in enumerate(found):
        if names[one.name] > 1:  # anna.py next to anna/lesson.py
            name = one.path.relative_to(folder).as_posix()
            found[i] = Submission(name, one.path, one.problem)
    return found, others


def _visible(folder: Path) -> list[Path]:
    """A folder's contents, sorted by name, without hidden files and system files."""
    names = sorted(os.listdir(folder))
    return [folder / name for name in names if name[0] != "." and name not in SKIPPED]


def _in_folder(folder: Path, name: str, depth: int) -> list[Submission]:
    """The submissions in the folder of that name, up to `depth` levels down."""
    try:
        paths = _visible(folder)
    except OSError as error:
        return [Submission(name, folder, f"the folder cannot be read ({error.strerror})")]
    files = [path for path in paths if path.suffix == ".py"]
    named = [path for path in files if path.name == "lesson.py"]
    if named or len(files) == 1:
        return [_submission(name, (named or files)[0])]
    found = [_submission(f"{name}/{path.stem}", path) for path in files]
    folders = [path for path in paths if path.is_dir() and not path.is_symlink()]
    if depth > 1:
        for path in folders:
            inner = name if len(folders) == 1 and not files else f"{name}/{path.name}"
            found += _in_folder(path, inner, depth - 1)
    return found or [Submission(name, folder, "the folder contains no lesson.py")]


def _submission(name: str, path: Path) -> Submission:
    """The submission in a file of that name; links, folders and pipes are not opened."""
    if path.is_symlink():
        return Submission(name, path, "a link, which is not followed: copy the file itself")
    if not path.is_file():
        return Submission(name, path, "not a file")
    return Submission(name, path)


def read_text(path: Path) -> bytes:
    """Read a lesson as bytes. Raises OSError, and ValueError for a file that cannot be a lesson."""
    size = path.stat().st_size
    if size > LARGEST_LESSON:
        raise ValueError(f"{size:,} bytes: a lesson may have at most {LARGEST_LESSON:,}")
    data = path.read_bytes()
    if b"\0" in data:
        raise ValueError("a binary file: it contains a zero byte")
    try:
        data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} is not UTF-8: save the file as UTF-8") from None
    return data


# ------------------------------------------------------------------ judging


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
    except (OSError, ValueError) as error:
        return Grade(submission, problem=getattr(error, "strerror", None) or str(error))
    with tempfile.TemporaryDirectory(prefix="nanogpt-grade-", ignore_cleanup_errors=True) as folder:
        work = Path(folder, "work")  # working directory of the learner's code
        results = Path(folder, "results.jsonl")
        work.mkdir()
        results.touch()
        lesson = work / "lesson.py"
        lesson.write_bytes(data)
        facts = [str(lesson), str(results), str(limits.seconds), str(limits.gib), *names]
        ending = _run(facts, work, results, limits, stop)
        lines = results.read_text(encoding="utf-8").splitlines()
    grade = Grade(submission, seconds=time.monotonic() - begun)
    _read_results(grade, lines, names, ending)
    return grade


def _run(
    arguments: list[str], work: Path, results: Path, limits: FileLimits, stop: threading.Event
) -> str:
    """Run `grade_one` until it ends, or kill it. Returns how it ended, in words."""
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
    process = subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.grade_one", *arguments],
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # it does not get our Ctrl-C, and its children are killed with it
    )
    size = 0
    patience: float = START
    since = time.monotonic()
    try:
        while process.poll() is None and not stop.wait(POLL):
            written = results.stat().st_size
            if written != size:
                size = written
                since = time.monotonic()
                patience = PATIENCE * limits.seconds + 1  # the process's own limit comes first
            if time.monotonic() - since > patience:
                return f"did not finish in {patience:.0f} seconds and was stopped"
    finally:
        _kill(process)
    code = process.returncode
    if code < 0:
        return f"ended Python with signal {signal.Signals(-code).name}"
    return f"ended Python with exit code {code}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children."""
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _read_results(grade: Grade, lines: list[str], names: Sequence[str], ending: str) -> None:
    """Read the results that a process has written into the grade."""
    running = ""
    last = ""
    for line in lines:
        fact = json.loads(line)
        last = fact["event"]
        name = fact.get("name")
        if last == "stops":
            grade.problem = one_line(f"{fact['words']}")
        elif last == "missing":
            grade.results[name] = ExerciseResult(Outcome.MISSING)
        elif last == "begins":
            running = name
        elif last == "judged":
            objection = fact["words"]
            outcome = Outcome.MISTAKE if objection else Outcome.PASSED
            mistake = one_line(fact["mistake"] or "")
            grade.results[name] = ExerciseResult(outcome, one_line(objection or ""), mistake)
            running = ""
    if running:
        grade.results[running] = ExerciseResult(Outcome.MISTAKE, f"your {running} {ending}.")
        grade.problem = f"{running} {ending}"
    elif last not in ("done", "stops") and not grade.problem:
        grade.problem = ending
    if grade.results:
        for name in names:
            grade.results.setdefault(name, ExerciseResult(Outcome.NOT_JUDGED))


def one_line(text: str) -> str:
    """A text as one printable line, because a learner's error message may contain anything."""
    words = " ".join(text.split())
    return "".join(char if char.isprintable() else "?" for char in words)[:1000]


# ------------------------------------------------------------------ the report


def report(grades: Sequence[Grade], names: Sequence[str]) -> str:
    """The table of all learners, and the mistakes by exercise, most frequent first."""
    rows = []
    for one in grades:
        judged = bool(one.results)
        row: dict[str, object] = {
            "name": _cut(one_line(one.submission.name), _WIDE),
            "passed": f"{one.passed}/{len(names)}" if judged else "-",
            "seconds": f"{one.seconds:.1f}",
        }
        for number, name in enumerate(names, 1):
            row[str(number)] = one.results[name].outcome.value if judged else " "
        row[" "] = f"not graded: {_cut(one.problem, _SHORT)}" if one.problem else ""
        rows.append(row)
    marks = ", ".join(f"{number} {name}" for number, name in enumerate(names, 1))
    parts = [
        table(rows),
        f"exercises: {marks}\n+ passed   x mistake   - missing   ? not graded",
        *mistakes(grades, names),
    ]
    return "\n\n".join(parts)


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
    for one in grades:
        results = [str(one.results[name]) if one.results else "" for name in names]
        name = one.submission.name
        row = [name, one.submission.path, one.passed, len(names), f"{one.seconds:.1f}"]
        writer.writerow([_cell(str(word)) for word in [*row, one.problem or "", *results]])
    return text.getvalue().encode("utf-8-sig")


def _cell(text: str) -> str:
    """A cell that spreadsheets do not interpret as a formula."""
    words = one_line(text)
    return f"'{words}" if words[:1] in tuple("=+-@") else words
