"""Find the learners' lessons in a folder of hand-ins, one for each learner.

What platforms export is understood: NAME.py, a folder for each learner, Moodle's names
(NAME_1234_assignsubmission_file_), nbgrader's submitted/NAME/ASSIGNMENT, and clones of this
repository, whose lesson is outputs/mine/lesson.py. The package's own files are never taken.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

DEPTH = 4  # folder levels that are searched: NAME/clone/outputs/mine
# lesson.py, and what browsers and editors make of it: "lesson (1).py", "lesson.py.txt", "LESSON.PY"
LESSON = re.compile(r"lesson([ _-]?\(?\d+\)?)?\.py(\.txt)?", re.I)
MOODLE = re.compile(r"_\d+_assignsubmission_file_?(.*)$")
SKIPPED = {"__pycache__", "__MACOSX", "node_modules", "site-packages"}
LESSON_PLACE = Path("outputs", "mine", "lesson.py")  # where the notebooks keep it
CURES = {  # the suffix of what was handed in instead: what to do
    ".zip": "an archive: unpack it into a folder with the learner's name",
    ".ipynb": f"a notebook: ask for {LESSON_PLACE}, in which its checks keep the learner's code",
}


@dataclass(frozen=True)
class Submission:
    """A learner's file, and the reason if it is not even opened."""

    name: str
    path: Path
    problem: str | None = None


def submissions(folder: Path) -> tuple[list[Submission], list[str]]:
    """The learners' files in a folder, and the names of other files at its top level.

    Links are not followed. Raises OSError if the folder cannot be read, ValueError if it contains
    no submission.
    """
    if (folder / "submitted").is_dir():  # nbgrader's course folder
        folder = folder / "submitted"
    found: list[Submission] = []
    others: list[str] = []
    for path in _visible(folder):
        name = MOODLE.sub("", path.name)
        if path.is_dir() and not path.is_symlink():
            found += _in_folder(path, name)
        elif _is_python(path):
            found.append(_submission(_stem(path) if name == path.name else name, path))
        elif path.suffix.lower() in CURES:
            learner = path.stem if name == path.name else name
            found.append(Submission(learner, path, CURES[path.suffix.lower()]))
        else:
            others.append(path.name)
    if not found:
        raise ValueError(
            f"{folder} contains no submission: it needs files NAME.py, or folders with a lesson.py"
        )
    names = Counter(one.name for one in found)
    for i, one in enumerate(found):
        if names[one.name] > 1:  # anna.py next to anna/lesson.py
            found[i] = replace(one, name=one.path.relative_to(folder).as_posix())
    return found, others


def _in_folder(folder: Path, name: str) -> list[Submission]:
    """The submissions in a learner's folder, or in one that has a folder for each learner."""
    files, is_clone = _files_in(folder)

    # 1. Every file with the lesson's name; if there is none, any program that is not a clone's.
    programs = [path for path in files if _is_python(path)]
    lessons = [path for path in programs if LESSON.fullmatch(path.name)]
    chosen = lessons or ([] if is_clone else programs)
    if len(chosen) == 1:
        return [_submission(name, chosen[0])]
    if chosen:
        return [_submission(f"{name}/{_first_part(folder, path)}", path) for path in chosen]

    # 2. None: what else is there, and what to do with it.
    if is_clone:
        words = f"a clone without {LESSON_PLACE}, which git ignores: git add -f {LESSON_PLACE}"
        return [Submission(name, folder, words)]
    cures = [CURES[path.suffix.lower()] for path in files if path.suffix.lower() in CURES]
    return [Submission(name, folder, cures[0] if cures else "the folder contains no lesson.py")]


def _files_in(folder: Path) -> tuple[list[Path], bool]:
    """The files in a folder, up to DEPTH levels down, and whether it is a clone or has one."""
    found: list[Path] = []
    is_clone = False
    for place, folders, _ in os.walk(folder):
        here = Path(place)
        is_clone |= (here / "nanogpt" / "__init__.py").is_file()
        paths = _visible(here)
        found += [path for path in paths if path.name not in folders]
        deepest = len(here.relative_to(folder).parts) >= DEPTH
        folders[:] = [] if deepest else [path.name for path in paths if path.name in folders]
    return found, is_clone


def _visible(folder: Path) -> list[Path]:
    """A folder's contents, sorted by name, without hidden files, environments and the package."""
    paths = [folder / name for name in sorted(os.listdir(folder))]
    return [path for path in paths if path.name[0] != "." and not _is_foreign(path)]


def _is_foreign(path: Path) -> bool:
    """Whether a path cannot hold a lesson: caches, environments, and this package."""
    marks = (path / "pyvenv.cfg", path / "__init__.py")
    return path.name in SKIPPED or any(mark.is_file() for mark in marks)


def _is_python(path: Path) -> bool:
    return path.name.lower().endswith((".py", ".py.txt"))


def _stem(path: Path) -> str:
    """anna for anna.py and for anna.py.txt."""
    return path.name.removesuffix(".txt").rpartition(".")[0]


def _first_part(folder: Path, path: Path) -> str:
    """The part of a path right below a folder, without a suffix."""
    first = path.relative_to(folder).parts[0]
    return _stem(path) if first == path.name else first


def _submission(name: str, path: Path) -> Submission:
    """The submission in a file of that name; links, folders and pipes are not opened."""
    if path.is_symlink():
        return Submission(name, path, "a link, which is not followed: copy the file itself")
    if not path.is_file():
        return Submission(name, path, "not a file")
    return Submission(name, path)
