"""python -m nanogpt bench train: how soon is each recipe at a loss?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from ..benchmarks.timing import spread
from ..benchmarks.training import KINDS, chosen, race, steps_for, table
from ..data.corpus import Corpus, load_corpus
from ..system.device import pick_device
from ..system.environment import environment
from ..system.files import ROOT, check_writable, write_json


def show(rows: list[dict], corpus: Corpus) -> None:
    """The table as text."""
    print(
        f"{'recipe':<40}{'for':>7}{'block':>6}{'params':>8}{'steps':>7}  {'seconds':<22}{'loss':<26}sooner"
    )
    for row in rows:
        goal, sooner = f"{row['goal']:g}" if row["goal"] else "–", row.get("sooner")
        times = f"{spread(sooner, 1)} ×" if sooner else ""
        facts = f"{row['block_size']:>6}{row['n_params'] / 1e6:>7.2f}M{row['steps']:>7,}"
        name, seconds, loss = row["name"], spread(row["seconds"], 1), spread(row["loss"], 4)
        print(f"{name:<40}{goal:>7}{facts}  {seconds:<22}{loss:<26}{times}")
    print(f"losses over all of the validation text of {corpus.name}, each at its own block")


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 measured, 2 it could not be, 130 stopped (what was measured until then is kept)."""
    args = command_line().parse_args(argv)
    name = "ideas" if args.ideas else "heads" if args.heads else "race"
    path, runs = Path(args.json or ROOT / "outputs" / "run" / f"{name}.json"), []
    try:
        if args.json is not None:
            check_writable(path)
        if min(args.seeds, args.threads) < 1 or not 0 < args.seconds < 1e6:
            raise ValueError(
                "--seeds and --threads must be at least 1, --seconds above 0 and below a million"
            )
        torch.set_num_threads(args.threads)
        device, corpus = pick_device(args.device), load_corpus(args.data)
        if corpus.banner:
            print(corpus.banner)
        entries = chosen(KINDS[name], args.only)
        steps = steps_for(entries, corpus, args.seconds, device) if args.ideas else None
        for seed in range(args.first, args.first + args.seeds):
            runs += race(entries, corpus, seed=seed, device=device, steps=steps)
            if args.json is not None:
                about = {
                    "corpus": corpus.name,
                    "sha256": corpus.sha256,
                    "environment": environment(device),
                }
                write_json(path, {"what": name, **about, "rows": table(runs), "runs": runs})
        show(table(runs), corpus)
        if args.json is not None:
            print(f"\nwritten: {path}")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        kept = (
            f": the seeds that were complete are in {path}"
            if args.json is not None and runs
            else ""
        )
        print(f"\nstopped{kept}", file=sys.stderr)
        return 130
    return 0


def command_line() -> argparse.ArgumentParser:
    """All options."""
    about = "How soon is each recipe at a loss?"
    parser = argparse.ArgumentParser("python -m nanogpt bench train", description=about)
    add = parser.add_argument
    kind = parser.add_mutually_exclusive_group().add_argument
    kind(
        "--ideas",
        action="store_true",
        help="one idea more on every rung, each with the same seconds",
    )
    kind("--heads", action="store_true", help="what shared keys and windows cost, with equal steps")
    add("--seconds", type=float, default=20.0, help="with --ideas: training of each rung (20)")
    add("--seeds", type=int, default=3, help="how many seeds (3)")
    add("--first", type=int, default=1337, metavar="SEED", help="the first of them (1337)")
    add("--only", metavar="RECIPES", help="these and the lecture's, as in fast,sprint")
    add("--data", metavar="PATH", help="any UTF-8 text; Tiny Shakespeare when left out")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto")
    add("--threads", type=int, default=1, help="CPU threads (1)")
    add(
        "--json",
        nargs="?",
        const="",
        metavar="PATH",
        help="write the figures (outputs/run/race.json, ideas.json, heads.json)",
    )
    return parser
