"""python -m nanogpt bench train: how soon does each recipe reach a loss?"""

from __future__ import annotations

import argparse

from ..bench.step import step_rows
from ..bench.tables import table
from ..bench.training import KINDS, compared, train_in_turns
from ..data import load_corpus
from ..timing import summary_text
from . import common


def run(args: argparse.Namespace) -> None:
    """Measure, writing the JSON after each seed, so that a stop keeps them; print the table."""
    path = common.json_path(args.json, f"{args.kind}.json")
    device, corpus, runs = common.measured_device(args), load_corpus(args.data), []
    if args.kind == "step":
        rows = [row for name in ("fast", "keeper") for row in step_rows(name, corpus, device)]
        common.write_result(path, device, {"what": "step", "rows": rows})
        print(table(rows))
        return
    print(f"{corpus.banner or corpus}; losses over its validation text, each at its own block")
    about = {"what": args.kind, "corpus": corpus.name, "sha256": corpus.sha256}
    try:
        for seed in range(1337, 1337 + args.seeds):
            runs += train_in_turns(KINDS[args.kind], corpus, seed=seed, device=device)
            result = about | {"rows": compared(runs), "runs": runs}
            common.write_result(path, device, result)
    except KeyboardInterrupt:
        kept = f"the complete seeds are in {path}" if path and runs else ""
        raise KeyboardInterrupt(kept) from None
    print(f"\n{report(result['rows'])}")


def report(rows: list[dict]) -> str:
    """The rows of `compared` as text for a terminal."""
    return table(
        [
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
    )


def options(parser: argparse.ArgumentParser) -> None:
    kind = parser.add_mutually_exclusive_group().add_argument
    how = {"action": "store_const", "dest": "kind", "default": "race"}
    kind("--ideas", const="ideas", help="add one idea at a time, at about equal seconds", **how)
    kind("--heads", const="heads", help="shared keys and windows, at equal steps", **how)
    kind("--step", const="step", help="the seconds of one step by part, beside the peak", **how)
    parser.add_argument("--seeds", **common.POSITIVE, default=3, help="how many, from 1337 on (3)")
    common.add_shared(parser, "--data", "--device", "--threads")
    common.add_json(parser, "race.json, ideas.json, heads.json or step.json")
