"""python -m nanogpt bench train: how soon does each recipe reach a loss?"""

from __future__ import annotations

import argparse

from ..benchmarks.entries import KINDS, choose
from ..benchmarks.timing import summary_text
from ..benchmarks.training import compared, steps_for, train_in_turns
from ..config.checks import check_int, check_number
from ..data.corpus import Corpus, load_corpus
from ..system.console import table
from ..system.environment import environment
from ..system.files import write_json
from . import common


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 measured, 2 it could not be, 130 stopped: complete seeds are kept."""
    return common.exit_code(lambda: run(options().parse_args(argv)))


def run(args: argparse.Namespace) -> None:
    """Measure as the options say, writing the JSON after each seed; print the table."""
    check_int("--seeds", args.seeds, 1)
    check_number("--seconds", args.seconds, 0.001, 1e6)
    path = common.json_path(args.json, f"{args.kind}.json")
    device, corpus, runs = common.measured_device(args), load_corpus(args.data), []
    if corpus.banner:
        print(corpus.banner)
    entries = choose(KINDS[args.kind], args.only)
    steps = steps_for(entries, corpus, args.seconds, device) if args.kind == "ideas" else None
    about = {"what": args.kind, "corpus": corpus.name, "sha256": corpus.sha256}
    about["environment"] = environment(device)
    try:
        for seed in range(args.first, args.first + args.seeds):
            runs += train_in_turns(entries, corpus, seed=seed, device=device, steps=steps)
            if path:
                write_json(path, {**about, "rows": compared(runs), "runs": runs})
    except KeyboardInterrupt:
        kept = f"the complete seeds are in {path}" if path and runs else ""
        raise KeyboardInterrupt(kept) from None
    print(report(compared(runs), corpus))
    if path:
        print(f"\nwritten: {path}")


def report(rows: list[dict], corpus: Corpus) -> str:
    """The rows of `compared` as text for a terminal."""
    shown = [
        {
            "recipe": row["name"],
            "for": f"{row['goal']:g}" if row["goal"] else "–",
            "block": row["block_size"],
            "params": f"{row['n_params'] / 1e6:.2f}M",
            "steps": f"{row['steps']:,}",
            "seconds": summary_text(row["seconds"], 1),
            "loss": summary_text(row["loss"], 4),
            "sooner": f"{summary_text(row['sooner'], 1)} ×" if "sooner" in row else "",
        }
        for row in rows
    ]
    foot = f"losses over all of the validation text of {corpus.name}, each at its own block"
    return f"\n{table(shown)}\n{foot}"


def options() -> argparse.ArgumentParser:
    """All options."""
    parser = common.command_parser("bench train", "How soon does each recipe reach a loss?")
    kind = parser.add_mutually_exclusive_group().add_argument
    how = {"action": "store_const", "dest": "kind", "default": "race"}
    kind("--ideas", const="ideas", help="add one idea at a time, at equal seconds", **how)
    kind("--heads", const="heads", help="shared keys and windows, at equal steps", **how)
    add = parser.add_argument
    add("--seconds", type=float, default=20.0, help="with --ideas: training of each (20)")
    add("--seeds", type=int, default=3, metavar="N", help="how many seeds (3)")
    add("--first", type=int, default=1337, metavar="SEED", help="the first of them (1337)")
    add("--only", metavar="RECIPES", help="these and the lecture's, as in fast,sprint")
    common.add_shared(parser, "--data", "--device", "--threads")
    common.add_json(parser, "race.json, ideas.json or heads.json")
    return parser
