"""python -m nanogpt verify model PATH: is its cached text off by rounding, or by a bug?"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..system.files import WEIGHTS


def judged(models, seed: int) -> int:
    """Print the report on each model. Exit code 1: one of them has a bug."""
    from ..verify.referee import referee

    reports = []
    for model in models:
        reports.append(referee(model, seed=seed))
        print(reports[-1], flush=True)
    return int(any(report.verdict == "bug" for report in reports))


def run(args: argparse.Namespace) -> int:
    """Judge a folder of transformers, or both forms of a checkpoint of ours."""
    if (Path(args.path) / "config.json").is_file():
        from ..verify.subjects import from_folder

        return judged([from_folder(args.path)], args.seed)
    if Path(args.path).is_dir():
        raise ValueError(f"{args.path} is a folder without config.json: no model of transformers")
    from ..model.checkpoint import load_checkpoint
    from ..model.convert import pack_heads

    model = load_checkpoint(args.path).model
    return judged([model, pack_heads(model)] if model.config.per_head else [model], args.seed)


def add_seed(parser: argparse.ArgumentParser) -> None:
    """What the three commands share."""
    parser.epilog = "Exit code 0: equal or rounding; 1: a bug."
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="other texts (0)")


def options(parser: argparse.ArgumentParser) -> None:
    """All options."""
    add_seed(parser)
    about = "a folder of transformers, or a checkpoint of ours (the one that ships)"
    parser.add_argument("path", nargs="?", default=WEIGHTS / "small", help=about)
