"""Find the learners' lessons in a folder of hand-ins, one for each learner.

What platforms export is understood: NAME.py, a folder for each learner, Moodle's names
(NAME_1234_assignsubmission_file_), nbgrader's submitted/NAME/ASSIGNMENT, and clones of this
repository, whose lesson is outputs/mine/lesson.py. The package's own files are never taken.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

DEPTH = 4  # folder levels that are searched
# lesson.py, and what browsers and editors make of it: "lesson (1).py", "lesson.py.txt", "LESSON.PY"
LESSON = re.compile(r"lesson([ _-]?\(?\d+\)?)?\.py(\.txt)?", re.I)
MOODLE = re.compile(r"_\d+_assignsubmission_file_?(.*)$")
SKIPPED = {"__pycache__", "__MACOSX", "node_modules", "site-packages"}
LESSON_PLACE = Path("outputs", "mine", "lesson.py")  # where the notebooks keep it
_UNPACK = "an archive: unpack it into a folder with the learner's name"
CURES = {  # the suffix of what was handed in instead: what to do
    ".zip": _UNPACK,
    ".gz": _UNPACK,
    ".7z": _UNPACK,
    ".rar": _UNPACK,
    ".tar": _UNPACK,
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
            found += _in_folder(path, name, DEPTH)
        elif _is_python(path):
            short = path.name.removesuffix(".txt").rpartition(".")[0]  # of anna.py, anna.py.txt
            found.append(_submission(name if name != path.name else short, path))
        elif path.suffix in CURES:
            found.append(Submission(path.stem, path, CURES[path.suffix]))
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
    """A folder's contents, sorted by name, without hidden files, environments and the package."""
    paths = [folder / name for name in sorted(os.listdir(folder))]
    return [path for path in paths if path.name[0] != "." and not _is_foreign(path)]


def _is_foreign(path: Path) -> bool:
    """Whether a path cannot hold a lesson: caches, environments, and this package."""
    return (
        path.name in SKIPPED or (path / "pyvenv.cfg").is_file() or (path / "__init__.py").is_file()
    )


def _is_python(path: Path) -> bool:
    return path.suffix.lower() == ".py" or path.name.lower().endswith(".py.txt")


def _in_folder(folder: Path, name: str, depth: int) -> list[Submission]:
    """The submissions in the folder of that name, up to `depth` levels down."""
    try:
        paths = _visible(folder)
    except OSError as error:
        return [Submission(name, folder, f"the folder cannot be read ({error.strerror})")]
    files = [path for path in paths if _is_python(path)]
    lessons = [path for path in files if LESSON.fullmatch(path.name)]
    exact = [path for path in lessons if path.name == "lesson.py"]
    is_clone = (folder / "nanogpt" / "__init__.py").is_file()

    # 1. The file itself, here or where the notebooks keep it.
    if len(exact or lessons) == 1:
        return [_submission(name, (exact or lessons)[0])]
    if len(lessons) > 1:
        names = ", ".join(path.name for path in lessons)
        return [Submission(name, folder, f"{len(lessons)} lessons ({names}): keep one")]
    if (folder / LESSON_PLACE).is_file():
        return [_submission(name, folder / LESSON_PLACE)]
    if is_clone:
        words = f"a clone without {LESSON_PLACE}, which git ignores: git add -f {LESSON_PLACE}"
        return [Submission(name, folder, words)]

    # 2. A folder with one file, or below it a folder for an assignment or for each learner.
    if files:
        if len(files) == 1:
            return [_submission(name, files[0])]
        return [_submission(f"{name}/{path.stem}", path) for path in files]
    folders = [path for path in paths if path.is_dir() and not path.is_symlink()]
    if depth > 1:
        below = [(path, _in_folder(path, path.name, depth - 1)) for path in folders]
        with_lesson = [one for one in below if any(not x.problem for x in one[1])]
        chosen = with_lesson or below[:1]
        if len(chosen) == 1:
            return _in_folder(chosen[0][0], name, depth - 1)
        if chosen:
            return [
                Submission(f"{name}/{one.name}", one.path, one.problem)
                for _, found in chosen
                for one in found
            ]

    # 3. None: what else is there, and what to do with it.
    cures = [CURES[path.suffix] for path in paths if path.suffix in CURES]
    return [Submission(name, folder, cures[0] if cures else "the folder contains no lesson.py")]


def _submission(name: str, path: Path) -> Submission:
    """The submission in a file of that name; links, folders and pipes are not opened."""
    if path.is_symlink():
        return Submission(name, path, "a link, which is not followed: copy the file itself")
    if not path.is_file():
        return Submission(name, path, "not a file")
    return Submission(name, path)
