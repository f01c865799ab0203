"""What a teacher reads after grading: the table, equal files, the mistakes, and the CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from ..bench.tables import table
from .grade import Grade
from .outcomes import WRITTEN, Outcome, one_line

_SHORT = 160  # characters of a sentence on the terminal
_WIDE = 30  # characters of a name
_HEAD = ("name", "file", "passed", "of", "seconds", "not graded because", "same file as")


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
    """A cell that spreadsheets do not interpret as a formula (OWASP, "CSV injection")."""
    words = one_line(text)
    return f"'{words}" if words[:1] in tuple("=+-@") else words
