"""python -m nanogpt run, site, student, slides, sync: run, render and hand out the notebooks."""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ..decoder.checkpoint import load_checkpoint
from ..files import ROOT, check_no_file, path_in, real_path, user_path
from ..series import runner, student
from ..series.mirror import set_address, sync
from ..series.plan import DEFAULT, Purpose, make_plan
from ..site import address, slides
from ..site.build import newest, render
from ..site.nbfile import SyncError
from ..training.folders import held
from .common import add_overwrite, check_clone, positive

VARIABLES = ["NANOGPT_DATA", "NANOGPT_CHECKPOINT", "NANOGPT_MINE", "NANOGPT_CACHE"]  # paths


def run_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("notebooks", nargs="*", help="numbers or names, for example 00 03")
    add("--all", action="store_true", help=f"all of them; else {' '.join(DEFAULT)}")
    known = "auto (gpu if available, else laptop), smoke, laptop, full (as published), gpu"
    add("--profile", default="auto", help=known)
    add("--plan", dest="dry", action="store_true", help="print the plan, with the expected minutes")
    setting: dict[str, Any] = {
        "dest": "settings",
        "metavar": "NAME=VALUE",
        "help": "set a notebook's parameter",
    }
    add("-p", action="append", default=[], **setting)
    add("--out", type=Path, metavar="FOLDER", help="output folder (outputs/run/PROFILE)")
    add(
        "--timeout",
        type=positive,
        default=1800,
        metavar="S",
        help="time limit per cell in seconds (1800)",
    )
    add_overwrite(parser)
    add("--no-html", dest="html", action="store_false", help="do not render the pages")
    add("--source", type=Path, help=argparse.SUPPRESS)
    add = parser.add_mutually_exclusive_group().add_argument
    for purpose, about in (
        (Purpose.PUBLISH, "write outputs/published if all pass"),
        (Purpose.REPRODUCE, "compare a complete run with outputs/published"),
    ):
        add(purpose.value, dest="purpose", action="store_const", const=purpose, help=about)
    parser.set_defaults(purpose=Purpose.RUN)


def run_notebooks(args: argparse.Namespace) -> int:
    """Execute the notebooks and render their pages. Exit code 1: one failed, or differs."""
    if not args.source:
        check_clone()
    for variable in VARIABLES:  # kernels run in a different folder from the command
        path = path_in(variable)
        if path:
            os.environ[variable] = str(path)
    checkpoint = "" if args.purpose is not Purpose.RUN else os.environ.get("NANOGPT_CHECKPOINT", "")
    for setting in args.settings:
        name, _, value = setting.partition("=")
        checkpoint = value if name == "checkpoint" else checkpoint
    if checkpoint not in ("", "auto"):
        # Kernels run in ROOT; fail before one starts.
        load_checkpoint(ROOT / user_path(checkpoint))
    plan = make_plan(
        args.notebooks,
        every=args.all,
        purpose=args.purpose,
        profile=args.profile,
        settings=args.settings,
        out=args.out,
        overwrite=args.overwrite,
        html=args.html or args.purpose is Purpose.PUBLISH,
        timeout=args.timeout,
        source=args.source,
    )
    if args.dry:
        print(plan.pace)
        return 0
    return 0 if runner.run_series(plan) else 1


def site_options(parser: argparse.ArgumentParser) -> None:
    about = "an output folder of `run` (the newest in outputs/run, else outputs/published)"
    parser.add_argument("folder", nargs="?", type=Path, help=about)


def render_site(args: argparse.Namespace) -> None:
    """Write FOLDER/html and print the path of its index."""
    folder = real_path(args.folder or newest())
    check_no_file(folder)
    # Do not create a missing folder for its lock: rendering says what is missing.
    with held(folder / ".lock", f"into {folder}") if folder.is_dir() else nullcontext():
        print(render(folder))


def sync_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check", action="store_true", help="list the differences and write nothing"
    )
    parser.add_argument("--repo", metavar="OWNER/NAME", help="set the repository's address")
    parser.add_argument("--ref", help="the branch or tag in badges and the set-up cell")


def sync_notebooks(args: argparse.Namespace) -> int:
    """Exit codes: 0 in sync, 1 something differs (with --check), 2 it could not be done."""
    check_clone()
    check = args.check
    if (args.repo or args.ref) and check:
        raise SyncError("--check writes nothing, so it cannot go with --repo or --ref")
    if args.repo or args.ref:
        differ = set_address(args.repo or address.REPO, args.ref or address.REF, ROOT)
    else:
        differ = sync(ROOT, check=check)
    for path in differ:
        print(f"{'differs' if check else 'written'}: {path.relative_to(ROOT)}")
    if differ and check:
        print("run `make sync` (python -m nanogpt sync); edit mirrored code in nanogpt/, not here")
    return int(bool(differ) and check)


def student_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    place = ROOT / "outputs" / "student"
    add("--out", type=Path, default=place, metavar="FOLDER", help="(outputs/student)")
    add(
        "--no-hints",
        dest="hints",
        action="store_false",
        help="also remove the folded hints; hint() still works",
    )
    add_overwrite(parser)


def write_student(args: argparse.Namespace) -> None:
    """Write the student edition, and print its limits."""
    check_clone()
    written = student.write_edition(args.out, hints=args.hints, overwrite=args.overwrite)
    print(f"written: {len(written)} notebooks without solutions, in {args.out}")
    print("a headless run (`run`, make) fills in solutions, so it cannot run this edition")


def slides_options(parser: argparse.ArgumentParser) -> None:
    place = ROOT / "outputs" / "slides"
    parser.add_argument(
        "--out", type=Path, default=place, metavar="FOLDER", help="(outputs/slides)"
    )
    add_overwrite(parser)


def write_slides(args: argparse.Namespace) -> None:
    """Render the slides of notebooks/teaching, and print their paths."""
    check_clone()
    for path in slides.write_slides(args.out, overwrite=args.overwrite):
        print(f"written: {path}")


CALLS = {
    "run": (run_options, run_notebooks),
    "student": (student_options, write_student),
    "slides": (slides_options, write_slides),
    "site": (site_options, render_site),
    "sync": (sync_options, sync_notebooks),
}
