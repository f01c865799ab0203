"""python -m nanogpt bench speculate: what does speculation buy, at the same tokens?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from ..benchmarks.speculation import costs, in_passes, speculation, usual_drafts
from ..benchmarks.timing import summary_text
from ..data.batches import split
from ..data.corpus import load_corpus
from ..decoding.drafts import DraftModel
from ..engines.toolchain import CannotBuild
from ..model.checkpoint import Checkpoint, load_checkpoint
from ..system.device import pick_device
from ..system.environment import environment
from ..system.files import PUBLISHED, ROOT, check_writable, write_json


def _origin(saved: Checkpoint) -> dict:
    """Which weights these were, and how good: the losses are those of their own training."""
    return {"sha256": saved.sha256, "step": saved.meta["step"], "losses": saved.meta["losses"]}


def show(result: dict) -> None:
    """The table, for a terminal."""
    print(
        f"\n{result['n_params']:,} parameters, {result['n_new']} tokens after a prompt of one, "
        f"median of {result['repeats']} in turns [lowest – highest]\n"
    )
    heads = f"{'agreement':>11}{'a pass':>8}{'formula':>9}{'tokens/s':>26}{'ratio':>24}"
    print(f"{'draft':28}{'k':>3}{heads}{'passes':>9}  tokens")
    print(f"{'none':28}{'':31}{summary_text(result['plain'], 0):>26}")
    for row in result["rows"]:
        chance = f"{row['agreement']:>11.2f}{row['tokens_per_pass']:>8.2f}{row['predicted']:>9.2f}"
        speed = (
            f"{summary_text(row['tokens_per_second'], 0):>26}{summary_text(row['speedup'], 2):>24}"
        )
        share, equal = in_passes(row, result["passes"]), "equal" if row["equal"] else "differ"
        print(f"{row['draft']:28}{row['k']:>3}{chance}{speed}{share:>9.0%}  {equal}")
    floor = result["floor"]["median"]
    best = max(result["rows"], key=lambda row: (row["equal"], row["speedup"]["median"]))
    share = best["speedup"]["median"] * result["plain"]["median"] / floor
    print(
        f"\nfloor of one reading for each token: {floor:,.0f} tokens/s; "
        f"best: {best['draft']}, k={best['k']}, {share:.2f} of it"
    )
    one = result["passes"][1]["median"]
    passes = ", ".join(f"{n}: {s['median'] / one:.2f}" for n, s in result["passes"].items())
    print(f"one pass over so many tokens, in passes over one: {passes}")


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 measured, 2 it could not be, 130 stopped."""
    args = command_line().parse_args(argv)
    path = Path(args.json or ROOT / "outputs" / "run" / "speculate.json")
    try:
        if args.json is not None:
            check_writable(path)
        ks = [int(k) if k.isdigit() else 0 for k in args.k.split(",")]
        if min(ks) < 1 or args.repeats < 1 or args.threads < 1:
            raise ValueError(
                f"--k {args.k}, --repeats {args.repeats}, --threads {args.threads}: whole "
                f"numbers of at least 1 are needed, as in --k 3,5,7"
            )
        torch.set_num_threads(args.threads)
        saved, corpus = load_checkpoint(args.target), load_corpus(args.data)
        block = saved.model.config.block_size
        if max(ks) > block - 2:
            raise ValueError(f"--k {args.k}: with a block of {block} choose at most {block - 2}")
        print(f"table counted in: {corpus}" + f"\n{corpus.banner}" * bool(corpus.banner))
        if other := set(corpus.text) - set(saved.tokenizer.chars):
            raise ValueError(
                f"the model never saw {len(other)} of the text's characters: it was trained on "
                f"{saved.meta['corpus']['name']}; give its text with --data"
            )
        model, text = saved.model.eval(), saved.tokenizer.encode(corpus.text)
        drafts = usual_drafts(model, split(text, model.config.block_size)[0])
        draft = load_checkpoint(args.draft) if args.draft else None
        if draft and draft.tokenizer.chars != saved.tokenizer.chars:
            raise ValueError(
                f"{args.draft} and {args.target} have other characters: a draft needs the very ones"
            )
        small = draft and draft.model.eval()
        if small:
            drafts = {
                f"a GPT of {small.n_params / 1e6:.2f}M": lambda k: DraftModel(small, k),
                **drafts,
            }
        n_new = min(255, model.config.block_size) if args.tokens is None else args.tokens
        result = speculation(model, drafts, ks, n_new=n_new, repeats=args.repeats)
        result["passes"] = costs(model, sorted({1, *(k + 1 for k in ks)}))
        result["proposal"] = costs(small, [1])[1] if small else None
        show(result)
        if args.json is not None:
            about = {"corpus": corpus.name, "environment": environment(pick_device("cpu"))}
            about |= {"target": _origin(saved), "draft": _origin(draft) if draft else None}
            write_json(path, {"what": "speculate", **about, **result})
            print(f"\nwritten: {path}")
    except (ValueError, OSError, CannotBuild) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped: nothing was written", file=sys.stderr)
        return 130
    return 0


def command_line() -> argparse.ArgumentParser:
    """All options."""
    about = "What does speculation buy, at the same tokens? On the CPU, in native code, one text."
    parser = argparse.ArgumentParser("python -m nanogpt bench speculate", description=about)
    add = parser.add_argument
    small = PUBLISHED / "checkpoints" / "small"
    add(
        "--target",
        metavar="PATH",
        default=small,
        help="the model that decides (the small one that ships)",
    )
    add(
        "--draft",
        metavar="PATH",
        help="a smaller model that proposes, beside the drafts that need none",
    )
    add("--k", default="3,5,7,11,15", help="numbers of proposals for each pass (3,5,7,11,15)")
    add("--tokens", type=int, help="new tokens (255, or as many as the block allows)")
    add("--repeats", type=int, default=5, help="counted repeats, after one warm-up (5)")
    add("--threads", type=int, default=1, help="CPU threads of what is no native code (1)")
    add("--data", metavar="PATH", help="the text for the table; Tiny Shakespeare when left out")
    add(
        "--json",
        nargs="?",
        const="",
        metavar="PATH",
        help="write the figures (outputs/run/speculate.json)",
    )
    return parser
