"""python -m nanogpt bench speculate: what does speculation buy, at the same tokens?"""

from __future__ import annotations

import argparse

from torch import Tensor

from ..bench import speculation as bench
from ..bench.tables import table
from ..checkpoint import Checkpoint, load_checkpoint
from ..config import check_int
from ..data import load_corpus, split
from ..engines.drafts import DraftModel
from ..files import KEEPER
from ..timing import summary_text
from ..trainer import full_loss
from . import common


def run(args: argparse.Namespace) -> None:
    """Measure as the options say, print the table and write the JSON."""
    path = common.json_path(args.json, "speculate.json")
    device = common.measured_device(args)
    saved, corpus = load_checkpoint(args.target), load_corpus(args.data)
    model, block = saved.model.eval(), saved.model.config.block_size
    check_int("k", max(args.k), 1, block - 2)
    print(f"table counted in: {corpus.banner or corpus}")
    draft = load_checkpoint(args.draft) if args.draft else None
    n_new = common.n_tokens(args, block)
    data, val = split(saved.tokenizer.encode(corpus.text), block)
    drafts = bench.usual_drafts(model, data)
    if draft and draft.tokenizer.chars != saved.tokenizer.chars:
        raise ValueError("the draft and the target have different characters: both need the same")
    if draft:
        name = f"a GPT of {draft.model.n_params / 1e6:.2f}M"
        drafts = {name: lambda k: DraftModel(draft.model.eval(), k)} | drafts
    result = bench.speculation(model, drafts, args.k, n_new=n_new, repeats=args.repeats)
    result["passes"] = bench.pass_seconds(model, sorted({1, *(k + 1 for k in args.k)}))
    result["proposal"] = bench.pass_seconds(draft.model, [1])[1] if draft else None
    print(report(result))
    about = {"what": "speculate", "corpus": corpus.name, "target": _origin(saved, val)}
    about["draft"] = _origin(draft, val) if draft else None
    print(compared(about["target"], about["draft"]))
    common.write_result(path, device, about | result)


def _origin(saved: Checkpoint, val: Tensor) -> dict:
    """Which weights these were, how many, and how good: their loss on this validation text."""
    about = {"sha256": saved.sha256, "step": saved.meta["step"], "losses": saved.meta["losses"]}
    return about | {"n_params": saved.model.n_params, "loss": full_loss(saved.model, val)}


def compared(target: dict, draft: dict | None) -> str:
    """The losses of target and draft in a line, and a warning where the draft is the better one."""
    text = f"validation loss of the target {target['loss']:.3f}"
    if draft is None:
        return text
    text += f", of the draft {draft['loss']:.3f}"
    if draft["loss"] > target["loss"]:
        return text
    return f"{text}: the draft predicts no worse, so this measures no draft: choose a smaller one"


def report(result: dict) -> str:
    """The result of `speculation` as text for a terminal."""
    rows = [
        {
            "draft": row["draft"],
            "k": row["k"],
            "acceptance": f"{row['acceptance_rate']:.2f}",
            "a pass": f"{row['tokens_per_pass']:.2f}",
            "formula": f"{row['predicted']:.2f}",
            "tokens/s": summary_text(row["tokens_per_second"], 0),
            "ratio": summary_text(row["speedup"], 2),
            "tokens": "equal" if row["equal"] else "differ",
        }
        for row in result["rows"]
    ]
    return (
        f"\n{result['n_params']:,} parameters, {result['n_new']} tokens after a prompt of one; "
        f"{common.timings(result['repeats'])}\n\n{table(rows)}\n"
        f"without a draft {summary_text(result['plain'], 0)} tokens/s, of a roofline bound of "
        f"{summary_text(result['roofline'], 0)}: one reading of weights and cache a token"
    )


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", metavar="PATH", default=KEEPER, help="the model that decides (the keeper)")
    add("--draft", metavar="PATH", help="a smaller model that proposes, beside the usual drafts")
    how = {"type": common.positive, "nargs": "+", "default": [3, 5, 7, 11, 15], "metavar": "K"}
    add("--k", **how, help="numbers of proposals for each pass (3 5 7 11 15)")
    common.add_shared(parser, "--tokens", "--repeats", "--threads", "--data")
    common.add_json(parser, "speculate.json")
    parser.set_defaults(device="cpu")
