"""python -m nanogpt verify KIND: does a cache change the text, and is that rounding or a bug?"""

from __future__ import annotations

import argparse
import sys
import time
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from ..files import (
    KEEPER,
    ROOT,
    check_file,
    check_no_file,
    check_writable,
    read_json,
    user_path,
)
from ..kv_referee.report import CODES, TOKEN_BUDGET, VERDICTS, ExitCode, Report, Verdict
from .common import (
    POSITIVE,
    Calls,
    add_json,
    check_clone,
    json_path,
    measured_device,
    set_threads,
    write_result,
)

SECONDS = 600.0  # the time limit of a target
_KINDS = ROOT / "outputs" / "kinds"
_ENDS = f"Exit code {'; '.join(f'{code:d}: {code.meaning}' for code in ExitCode)}."


class Target(str, Enum):
    """What is tested: the last word of the command."""

    MODEL = "model"
    CLASS = "class"
    SERVER = "server"

    def __str__(self) -> str:
        return self.value


JUDGED: dict[Target, tuple[str | Path, str]] = {  # the default of each, and its metavar
    Target.MODEL: (
        KEEPER,
        "a folder of transformers, a checkpoint, smollm2, a .gguf, or your lesson.py",
    ),
    Target.CLASS: ("llama", "a transformers architecture, for example gpt2"),
    Target.SERVER: ("http://localhost:8000", "a server's address"),
}


def referee_options(kind: Target, parser: argparse.ArgumentParser) -> None:
    """The options of `verify model`, `verify class` and `verify server`."""
    default, about = JUDGED[kind]
    parser.epilog = _ENDS
    parser.set_defaults(kind=kind)
    add = parser.add_argument
    about += f" ({default}); or several"
    add("targets", nargs="*", default=[str(default)], metavar=kind.upper(), help=about)
    add("--seed", type=int, default=0, metavar="N", help="seed of the texts (0)")
    about = f"time limit per target ({SECONDS:g})"
    add("--seconds", type=float, default=SECONDS, metavar="N", help=about)
    add(
        "--known",
        action="append",
        default=[],
        metavar="NAME",
        help="the name of a scenario whose bug is known, as the report prints it",
    )
    add("--json", type=Path, metavar="PATH", help="also write the reports to this file")
    if kind is not Target.SERVER:
        about = (
            f"tokens that a target reads before no further scenario starts ({TOKEN_BUDGET}); "
            f"one short scenario of each kind is always tried"
        )
        add("--tokens", type=float, default=TOKEN_BUDGET, metavar="N", help=about)
        about = (
            "allow a lossy cache to move logits by this fraction of the spread of a token's "
            "logits, for example 0.1 for int8"
        )
        add("--expects", type=float, metavar="X", help=about)
    if kind is Target.MODEL:
        add("--trust-remote-code", action="store_true", help="run the model code in the folder")
        about = "run a transformers folder with this package's decoder and caches"
        add("--ours", action="store_true", help=about)


# ------------------------------------------------------------------ a model, a class, a server


def referee(args: argparse.Namespace) -> int:
    """Print a report on each target."""
    from ..files import write_whole
    from ..verify.referee import referee

    names = ("seed", "seconds", "known", "tokens", "expects")
    options = {name: getattr(args, name) for name in names if hasattr(args, name)}
    if args.json:
        check_writable(args.json)  # fail now, not after the work
        earlier = read_json(args.json)
        ours = isinstance(earlier, list) and all(
            isinstance(row, dict) and "verdict" in row for row in earlier
        )
        check_file(args.json, ours)
    if args.kind is Target.CLASS:
        set_threads(1)  # small models: more threads only wait for each other
    verdicts = {Verdict.EQUAL}
    reports = []
    for target in args.targets:
        if args.kind is Target.MODEL and target.endswith(".py"):
            report = _lesson(user_path(target), args)
            reports.append(report.to_json())
            verdicts.add(report.verdict)
            continue
        for model in _models(args, target):
            report = referee(model, say=Teller(args.seconds), **options)
            print(_printable(str(report)), flush=True)
            reports.append(report.to_json())
            verdicts.add(report.verdict)
    if args.json:
        write_whole(args.json, f"[{', '.join(reports)}]\n".encode())
    return CODES[max(verdicts, key=VERDICTS.index)]


class Teller:
    """Reports the current decoding path now and then; a terminal's line is overwritten."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.began = time.monotonic()
        self.told = 0.0  # seconds since the start
        self.terminal = sys.stderr.isatty()

    def __call__(self, way: str) -> None:
        now = time.monotonic() - self.began
        if now - self.told < (0.2 if self.terminal else 15):
            return
        self.told = now
        line = f"{now:3.0f} of {self.seconds:.0f} s: {way}"
        end = "\r" if self.terminal else "\n"
        print(f"{line[:78]:78}", end=end, file=sys.stderr, flush=True)


def _printable(words: str) -> str:
    """Remove characters that would move a terminal's cursor."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in words)


def _lesson(path: Path, args: argparse.Namespace) -> Report:
    """Print and return the report on a reader's classes in their file. Raises ValueError."""
    from ..course.certificate import judge_file

    given = {
        "--seconds": args.seconds != SECONDS,
        "--tokens": args.tokens != TOKEN_BUDGET,
        "--known": args.known != [],
        "--expects": args.expects is not None,
    }
    for option, is_given in given.items():
        if is_given:
            raise ValueError(
                f"{option}: {path} is judged with the certificate's limits: leave it out"
            )
    lines, report = judge_file(path, args.seed)
    print(_printable("\n".join(lines)), flush=True)
    return report


def _models(args: argparse.Namespace, target: str) -> list[Any]:
    """What `referee` tests; our own checkpoints in both forms. Raises ValueError."""
    from ..decoder.checkpoint import load_checkpoint
    from ..decoder.pack import pack_heads
    from ..model import GPT
    from ..pretrained.fetch import SMOLLM2
    from ..pretrained.load import load_pretrained
    from ..verify.architectures import from_folder, small
    from ..verify.server import RemoteServer

    if args.kind is Target.CLASS:
        return [small(target, args.seed)]
    if args.kind is Target.SERVER:
        return [RemoteServer(target)]
    if not target or "://" in target:
        raise ValueError(
            f"{target!r} is neither a folder nor a file; `verify server` takes addresses"
        )
    if args.ours or target == SMOLLM2 or target.lower().endswith((".gguf", ".pt")):
        return [load_pretrained(target)[0]]
    path = user_path(target)
    if (path / "config.json").is_file():
        return [from_folder(str(path), args.trust_remote_code)]
    model = load_checkpoint(path).model
    return [model, pack_heads(model)] if isinstance(model, GPT) else [model]


# ------------------------------------------------------------------ the museum, a page, a sweep


def kinds_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Writes kinds.json, README.md and a script for each bug without a report. Exit code 0."
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="KIND", help="architectures (all)")
    add("--minutes", type=float, default=60.0, metavar="N", help="minutes for all of them (60)")
    add("--seconds", type=float, default=600.0, metavar="N", help="most seconds for each (600)")
    add("--folder", type=Path, default=_KINDS, metavar="PATH", help=f"({_KINDS})")
    about = "test nothing: write README.md again from kinds.json"
    add("--render", action="store_true", help=about)


def kinds(args: argparse.Namespace) -> int:
    """Test each architecture and write the table."""
    from ..verify import survey

    check_no_file(args.folder)
    earlier = read_json(args.folder / "kinds.json")
    ours = isinstance(earlier, dict) and earlier.get("what") == "kinds"
    for name in ("kinds.json", "README.md"):
        check_file(args.folder / name, ours)
    if args.render:
        if not ours:
            raise ValueError(
                f"{args.folder} has no kinds.json: run `verify kinds` without --render"
            )
        survey.render(args.folder)
        return 0
    set_threads(1)  # small models: more threads only wait for each other
    names = args.names or survey.kinds()
    rows = list(survey.survey(names, args.minutes, args.seconds, print))
    survey.write(args.folder, rows)
    print(f"written: {args.folder}")
    return 0


def museum_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "The site's page is made from notebooks/museum/verdicts.json."
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="exhibits, for example vllm_43810 (all)")
    add("--seeds", **POSITIVE, default=2, help="models and texts per exhibit (2)")
    add_json(parser, "museum.json")


def museum(args: argparse.Namespace) -> int:
    """Test each exhibit and print how often it is convicted. A convicted repair is also a bug."""
    from ..console import Progress
    from ..files import write_json
    from ..verify.museum import exhibits, verdicts_on

    check_clone()
    set_threads(1)
    path = json_path(args.json, "museum", "museum.json")
    paths = exhibits(args.names)
    n = args.seeds
    rows = []
    with Progress(len(paths), "bugs") as bar:
        for exhibit in paths:
            row = verdicts_on(exhibit, range(n))
            rows.append(row)
            bar.update(1)
            bar.print(f"{row['name']:28} convicted {row['convicted']} of {n}, by {row.get('way')}")
    bugs, repairs = (sum(row[key] == n for row in rows) for key in ("convicted", "acquitted"))
    print(f"{bugs} of {len(rows)} bugs convicted, {repairs} of their repairs acquitted,", end=" ")
    print(f"over {n} seeds")
    if path:
        write_json(path, {"what": "museum", "seeds": n, "exhibits": rows})
    return int({bugs, repairs} != {len(rows)})


def certificate_options(parser: argparse.ArgumentParser) -> None:
    from ..course.lesson import lesson_path

    parser.epilog = "Exit code 0: it holds; 1: it does not; 2: there is no readable certificate."
    page = lesson_path().with_name("certificate.txt")
    add = parser.add_argument
    add(
        "path",
        nargs="?",
        type=Path,
        default=page,
        help=f"the certificate ({page}); lesson.py and its weights are next to it",
    )


def certificate(args: argparse.Namespace) -> int:
    """Recompute everything in the certificate except the name, the date and the speed."""
    from ..course.certificate import recomputed

    claims, reasons = recomputed(args.path)
    print(_printable("\n".join(f"{name}: {words}" for name, words in claims.items())))
    lines = [f"It does not hold: {reason}" for reason in reasons]
    holds = "It holds: everything but the name, the date and the speed was recomputed."
    print(_printable("\n".join(lines)) or holds)
    return int(bool(reasons))


def sweep_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "The result is written at the end; a stopped sweep writes none."
    add = parser.add_argument
    add(
        "--sequences",
        **POSITIVE,
        default=1000,
        help="minimum number of texts to decode with and without a cache (1000)",
    )
    add("--seed", type=int, default=0, metavar="N", help="seed of the models and texts (0)")
    add("--dtype", choices=["float32", "float64", "bfloat16"], default="float32")
    add("--exact", action="store_true", help="use exact mode: the logits must be bit-identical")
    add_json(parser, "sweep-DTYPE.json, always")
    parser.set_defaults(json="", threads=1)


def sweep(args: argparse.Namespace) -> int:
    """Decode the texts as the options say and print the result."""
    from ..verify.sweep import describe, passed, sweep

    if args.dtype == "bfloat16" and not args.exact:
        raise ValueError("--dtype bfloat16 needs --exact: without it tokens may differ")
    exact = "-exact" if args.exact else ""
    path = json_path(args.json, "sweep", f"sweep-{args.dtype}{exact}.json")
    device = measured_device(args)
    result = sweep(args.sequences, seed=args.seed, dtype=args.dtype, in_exact=args.exact)
    print(describe(result))
    write_result(path, device, {"what": "sweep"} | result)
    return int(not passed(result))


CALLS: dict[str, Calls] = {
    **{f"verify {kind}": (partial(referee_options, kind), referee) for kind in Target},
    "verify kinds": (kinds_options, kinds),
    "verify museum": (museum_options, museum),
    "verify certificate": (certificate_options, certificate),
    "verify sweep": (sweep_options, sweep),
}
