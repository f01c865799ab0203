"""python -m nanogpt verify KIND: is a cached text another one, and is that rounding or a bug?"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..files import KEEPER, LECTURE_FORM
from .common import POSITIVE, add_json, check_clone, json_path, measured_device, write_result

JUDGED = {  # the last word of the command: what it judges, and how that is called
    "model": (KEEPER, "a folder of transformers, a checkpoint, or your lesson.py"),
    "class": ("llama", "an architecture of transformers, as gpt2"),
    "server": ("http://localhost:8000", "a server's address"),
}


def options(parser: argparse.ArgumentParser) -> None:
    """The options of the command that the parser's last word names."""
    add, kind = parser.add_argument, parser.prog.split()[-1]
    parser.set_defaults(kind=kind)
    if kind in JUDGED:
        default, about = JUDGED[kind]
        parser.epilog = "Exit code 0: equal or rounding; 1: a bug."
        add("--seed", type=int, default=0, metavar="N", help="other texts (0)")
        about += f" ({default}); or several"
        add("targets", nargs="*", default=[str(default)], metavar=kind.upper(), help=about)
    elif kind == "museum":
        parser.epilog = "The site's page is made from notebooks/museum/verdicts.json."
        add("names", nargs="*", metavar="NAME", help="exhibits, as vllm_43810 (all)")
        add("--seeds", **POSITIVE, default=2, help="models and texts of each (2)")
        add_json(parser, "museum.json")
    elif kind == "certificate":
        parser.epilog = "Exit code 0: it holds; 1: it does not; 2: there is none that can be read."
        from ..series.mine import lesson_path

        page = lesson_path().with_name("certificate.html")
        add("path", nargs="?", type=Path, default=page, help=f"the page ({page}), beside lesson.py")
        add("--checkpoint", default=LECTURE_FORM, metavar="PATH", help="its weights (shipped)")
    else:
        parser.epilog = "The result is written at the end; a sweep that is stopped leaves none."
        add("--sequences", **POSITIVE, default=1000, help="texts to decode twice, at least (1000)")
        about = "another seed, other models and texts (0)"
        add("--seed", type=int, default=0, metavar="N", help=about)
        add("--dtype", choices=["float32", "float64", "bfloat16"], default="float32")
        add("--exact", action="store_true", help="in exact mode: the logits must be the same bits")
        add_json(parser, "sweep-DTYPE.json, always")
        parser.set_defaults(json="", threads=1)


def run(args: argparse.Namespace) -> int:
    """Judge, and print why. Exit code 1: there is a bug."""
    others = {"museum": museum, "certificate": certificate, "sweep": sweep}
    return others.get(args.kind, referee)(args)


# ------------------------------------------------------------------ a model, a class, a server


def referee(args: argparse.Namespace) -> int:
    """Print the report on each target."""
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
    from ..series import mine
    from ..series.certificate import report_on

    lesson = mine.load(path)
    lesson.say(mine.blanks())
    print(report := report_on(lesson.written, seed))  # what is not in it is the package's
    return {report.verdict} | ({"bug"} if lesson.broken else set())


def _models(kind: str, target: str, seed: int) -> list:
    """What `referee` judges; a checkpoint of ours in both its forms. Raises ValueError."""
    from ..checkpoint import load_checkpoint
    from ..convert import pack_heads
    from ..verify.server import HTTPServer
    from ..verify.huggingface import from_folder, small

    if kind != "model":
        return [small(target, seed) if kind == "class" else HTTPServer(target)]
    if not target or "://" in target:
        raise ValueError(f"{target!r} is no folder and no file; `verify server` takes addresses")
    if (Path(target) / "config.json").is_file():
        return [from_folder(target)]
    if Path(target).is_dir():
        raise ValueError(f"{target} is a folder without config.json: no model of transformers")
    model = load_checkpoint(target).model
    return [model, pack_heads(model)] if model.config.per_head else [model]


# ------------------------------------------------------------------ the museum, a page, a sweep


def museum(args: argparse.Namespace) -> int:
    """Judge each exhibit and print how often. A bug is also a repair that is convicted."""
    from ..console import Progress
    from ..files import sealed, write_json
    from ..verify.museum import exhibits, judged

    check_clone()
    path = json_path(args.json, "museum.json")
    paths, rows, n = exhibits(args.names), [], args.seeds
    with Progress(len(paths), "bugs") as bar:
        for exhibit in paths:
            rows.append(row := judged(exhibit, range(n)))
            bar.update(1)
            bar.print(f"{row['name']:28} convicted {row['convicted']} of {n}, by {row.get('way')}")
    bugs, repairs = (sum(row[key] == n for row in rows) for key in ("convicted", "acquitted"))
    print(f"{bugs} of {len(rows)} bugs convicted, {repairs} of their repairs acquitted,", end=" ")
    print(f"over {n} seeds")
    if path:
        write_json(path, sealed({"what": "museum", "seeds": n, "exhibits": rows}))
    return int({bugs, repairs} != {len(rows)})


def certificate(args: argparse.Namespace) -> int:
    """Compute again all that the page says."""
    from ..checkpoint import load_checkpoint
    from ..series.certificate import check

    said, wrong = check(args.path, load_checkpoint(args.checkpoint))
    print("\n".join(f"{name}: {words}" for name, words in said.items()))
    print("\n".join(f"It does not hold: {why}" for why in wrong) or "It holds: computed again.")
    return int(bool(wrong))


def sweep(args: argparse.Namespace) -> int:
    """Decode the texts as the options say and print the result."""
    from ..verify.sweep import describe, passed, sweep

    if args.dtype == "bfloat16" and not args.exact:
        raise ValueError("--dtype bfloat16 needs --exact: without it its tokens may differ")
    path = json_path(args.json, f"sweep-{args.dtype}{'-exact' * args.exact}.json")
    device = measured_device(args)
    result = sweep(args.sequences, seed=args.seed, dtype=args.dtype, in_exact=args.exact)
    print(describe(result))
    write_result(path, device, {"what": "sweep"} | result)
    return int(not passed(result))
