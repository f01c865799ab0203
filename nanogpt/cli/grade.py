"""python -m nanogpt grade: grade a folder of learners' lesson.py files."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ..course import grade, grade_report
from ..course.outcomes import one_line
from ..course.submissions import submissions
from ..files import check_file, check_no_file, check_writable, write_whole
from .common import add_overwrite, check_clone, positive


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "folder",
        nargs="?",
        type=Path,
        help="has NAME.py or a folder for each learner, as Moodle, nbgrader or Classroom export it",
    )
    add("--csv", type=Path, metavar="PATH", help="write the table as CSV, with full messages")
    add_overwrite(parser)
    add(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="exercises, or notebooks such as 01, to grade (all that occur in any file)",
    )
    add("--workers", type=positive, metavar="N", help="files graded in parallel (number of CPUs)")
    add("--seconds", type=positive, default=20, metavar="S", help="time limit per exercise (20)")
    add("--memory", type=positive, default=4, metavar="GIB", help="memory limit per file (4)")
    parser.epilog = (
        "Exit codes: 0 all files were graded, 1 some could not be, 2 none was tried. The files "
        "are programs that run under your account, limited in time and memory but not sandboxed."
    )


def run(args: argparse.Namespace) -> int:
    """Grade the files, print the table, and write the CSV. Exit code 1: some were not graded."""
    check_clone()
    if not args.folder:
        raise ValueError("give the folder with the lesson.py files: grade FOLDER")
    check_no_file(args.folder)
    names = grade.exercises(args.only)
    found, others = submissions(args.folder)
    if args.csv:
        check_writable(args.csv)
        check_file(args.csv, False, args.overwrite)  # a teacher may have added marks to it
    limits = grade.FileLimits(args.seconds, args.memory)
    workers = min(len(found), args.workers or os.cpu_count() or 1)
    grades = grade.grade(found, names, limits, workers)
    names = names if args.only else grade.handed_in(grades, names)
    if args.csv:
        write_whole(args.csv, grade_report.as_csv(grades, names))
    print(grade_report.report(grades, names))
    unjudged = sum(one.problem is not None for one in grades)
    print(f"\n{len(grades) - unjudged} of {len(grades)} files were graded")
    if others:
        print(f"not a submission: {', '.join(map(one_line, others))}")
    if args.csv:
        print(f"written: {args.csv}")
    return int(unjudged > 0)


CALLS = {"grade": (options, run)}
