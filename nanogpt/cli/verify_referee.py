"""python -m nanogpt verify model PATH | class NAME | server URL: is it rounding, or a bug?"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..system.files import WEIGHTS

TARGETS = {  # the last word of the command: what it judges, and how that is called
    "model": (WEIGHTS / "small", "a folder of transformers, a checkpoint, or your lesson.py"),
    "class": ("llama", "an architecture of transformers, as gpt2"),
    "server": ("http://localhost:8000", "a server's address"),
}


def run(args: argparse.Namespace) -> int:
    """Print the report on each model. Exit code 1: one of them has a bug."""
    from ..verify.referee import referee

    verdicts = set()
    for target in args.targets:
        if args.kind == "model" and target.endswith(".py"):
            verdicts |= _lesson(Path(target), args.seed)
            continue
        for model in _models(args.kind, target, args.seed):
            print(report := referee(model, seed=args.seed), flush=True)
            verdicts.add(report.verdict)
    return int("bug" in verdicts)


def _lesson(path: Path, seed: int) -> set[str]:
    """The verdicts on a reader's classes, as they stand in their file. Raises OSError.

    What the judges of its blanks say against a name is a bug as well.
    """
    from ..notebook import mine
    from ..notebook.certificate import CACHES, tiny
    from ..verify.referee import referee

    lesson = mine.load(path)
    own = lesson.written  # what is not in it is the package's
    print(lesson.whose(mine.blanks()))
    print(report := referee(tiny(own["Head"], seed), seed=seed, caches=[own[x] for x in CACHES]))
    return {report.verdict} | ({"bug"} if lesson.broken else set())


def _models(kind: str, target: str, seed: int) -> list:
    """What `referee` judges; a checkpoint of ours in both its forms. Raises ValueError."""
    from ..verify.server import HTTPServer
    from ..verify.subjects import from_folder, small

    if kind != "model":
        return [small(target, seed) if kind == "class" else HTTPServer(target)]
    if not target or "://" in target:
        raise ValueError(f"{target!r} is no folder and no file; `verify server` takes addresses")
    if (Path(target) / "config.json").is_file():
        return [from_folder(target)]
    if Path(target).is_dir():
        raise ValueError(f"{target} is a folder without config.json: no model of transformers")
    from ..model.checkpoint import load_checkpoint
    from ..model.convert import pack_heads

    model = load_checkpoint(target).model
    return [model, pack_heads(model)] if model.config.per_head else [model]


def options(parser: argparse.ArgumentParser) -> None:
    """All options; the parser's last word says what is judged."""
    kind = parser.prog.split()[-1]
    default, about = TARGETS[kind]
    parser.epilog = "Exit code 0: equal or rounding; 1: a bug."
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="other texts (0)")
    about += f" ({default}); or several"
    parser.add_argument(
        "targets", nargs="*", default=[str(default)], metavar=kind.upper(), help=about
    )
    parser.set_defaults(kind=kind)
