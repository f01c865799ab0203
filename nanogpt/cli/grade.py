"""python -m nanogpt grade: judge a folder of learners' lesson.py files."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ..files import check_file, check_writable, write_whole
from ..series import grade
from .common import add_overwrite, check_clone, positive


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "folder",
        nargs="?",
        type=Path,
        help="with files NAME.py or NAME/lesson.py, also one folder deeper",
    )
    add("--csv", type=Path, metavar="PATH", help="write the table as CSV, with each sentence whole")
    add_overwrite(parser)
    add(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="exercises, or notebooks as 01, that count (those of any file)",
    )
    add("--workers", type=positive, metavar="N", help="files judged at once (the CPUs)")
    add("--seconds", type=positive, default=20, metavar="S", help="of computing an exercise (20)")
    add("--memory", type=positive, default=4, metavar="GIB", help="of a file's process (4)")
    parser.epilog = (
        "Exit codes: 0 all files could be judged, 1 some could not, 2 none was tried. The files "
        "are programs that run as you, limited in time and memory, but not shut in."
    )


def run(args: argparse.Namespace) -> int:
    """Judge the files, print the table, and write the CSV. Exit code 1: some cannot be judged."""
    check_clone()
    if not args.folder:
        raise ValueError("name the folder that holds the lesson.py files: grade FOLDER")
    names = grade.exercises(args.only)
    found, others = grade.submissions(args.folder)
    if args.csv:
        check_writable(args.csv)
        check_file(args.csv, False, args.overwrite)  # marks may have been added to it
    limits = grade.Limits(args.seconds, args.memory)
    workers = min(len(found), args.workers or os.cpu_count() or 1)
    grades = grade.grade(found, names, limits, workers)
    names = names if args.only else grade.handed_in(grades, names)
    if args.csv:
        write_whole(args.csv, grade.as_csv(grades, names))
    print(grade.report(grades, names))
    unjudged = sum(one.problem is not None for one in grades)
    print(f"\n{len(grades) - unjudged} of {len(grades)} files could be judged")
    if others:
        print(f"not a submission: {', '.join(map(grade.one_line, others))}")
    if args.csv:
        print(f"written: {args.csv}")
    return int(unjudged > 0)


CALLS = {"grade": (options, run)}
