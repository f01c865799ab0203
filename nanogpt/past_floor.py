"""Past the floor: what speculation buys over the best rung, at the same tokens.

python -m nanogpt.bench speculate --json                          the small model that ships
python -m nanogpt.bench speculate --target PATH --draft PATH      your own pair, as trained by nanogpt.train

The floor of the ladder is one reading of the weights for each token. A pass that reads known and
proposed tokens together needs one reading for several, so the best of these may lie beyond it.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from .bench import clock, spread, summary
from .build import CannotBuild
from .checkpoint import Checkpoint, load_checkpoint
from .data import load_corpus, split
from .drafts import LARGEST_TABLE, LookUp, NGram, Small
from .generate import draw_noise, generate
from .limits import read_bandwidth, weight_bytes
from .model import GPT
from .native import Native, Rough8, Session
from .runtime import PUBLISHED, ROOT, check_writable, environment, headless, pick_device, write_json
from .speculate import Draft, expected_tokens

TABLES = {1: "a table of characters", 2: "a table for pairs", 3: "a table for triples"}
PLAIN = {"temperature": 1.0, "top_k": None, "top_p": None}
Drafts = dict[str, Callable[[int], Draft]]  # by name, for a number of proposals


def speculation(model: GPT, drafts: Drafts, ks: list[int], *, n_new: int = 255, repeats: int = 5,
                seed: int = 42, engine=Native, progress: bool = True) -> dict:  # fmt: skip
    """Time plain decoding and every draft with every k, in turns, each repeat with a seed of its own.

    Batch 1, a prompt of one token. Returns plain data, a row for each draft and k: whether all tokens
    were those of plain decoding; `agreement`, the share accepted of the proposals that were looked
    at; tokens a pass, measured, and as (1 - aᵏ⁺¹) / (1 - a) predicts; tokens per second; the ratio
    to plain decoding, pair by pair; and the floor, readings of all weights per second, in the same turns.
    `engine` None: the model's own modules, over a growing cache.
    """
    device = model.lm_head.weight.device
    if engine is not None and not hasattr(engine.ready(model, 1), "speculate"):
        raise CannotBuild("of the engines Native takes a draft, and none can be built here")
    prompt = torch.zeros(1, 1, dtype=torch.int64, device=device)
    runs = {(None, 0): None} | {(name, k): make(k) for name, make in drafts.items() for k in ks}
    seconds, found = {key: [] for key in runs}, {key: [] for key in runs}
    size, floors = weight_bytes(model.config, model.lm_head.weight.element_size()), []
    quiet = not progress or headless()
    bar = tqdm(total=(1 + repeats) * len(runs), disable=quiet, file=sys.stdout, leave=False)
    for turn in range(1 + repeats):
        for key, draft in runs.items():
            gc.collect()  # not in the middle of a reading
            generator, before = torch.Generator().manual_seed(seed + turn), clock(device)
            steps = generate(model, prompt, n_new, engine=engine, draft=draft, generator=generator)
            tokens = torch.cat(list(steps), dim=1)
            if turn:
                seconds[key].append(clock(device) - before)
                found[key].append((tokens, getattr(steps, "tally", None)))
            bar.update()
        floors.append(read_bandwidth(size, repeats=1, device=device)["median"] / size)
    bar.close()
    base, rows = (None, 0), []
    for name, k in list(runs)[1:]:
        key, tallies = (name, k), [tally for _, tally in found[name, k]]
        pairs = zip(found[key], found[base], strict=True)
        looked = sum(tally.accepted + tally.rejected for tally in tallies)
        a = sum(tally.accepted for tally in tallies) / max(1, looked)
        rows.append({
            "draft": name, "k": k, "agreement": a,
            "equal": all(torch.equal(x, y) for (x, _), (y, _) in pairs),
            "tokens_per_pass": n_new * repeats / sum(tally.passes for tally in tallies),
            "predicted": expected_tokens(a, k), "tokens_per_second": summary(n_new / s for s in seconds[key]),
            "speedup": summary(x / y for x, y in zip(seconds[base], seconds[key], strict=True)),
        })  # fmt: skip
    return {"n_params": model.n_params, "n_new": n_new, "repeats": repeats, "rows": rows,
            "plain": summary(n_new / s for s in seconds[base]), "floor": summary(floors)}  # fmt: skip


def costs(model: GPT, counts: list[int], *, place: int = 100, repeats: int = 15) -> dict[int, dict]:
    """Seconds of one native pass over so many tokens, after `place` others: a summary for each count."""
    engine = Native.ready(model, 1)
    if not isinstance(engine, Native):
        raise CannotBuild("a pass over several tokens is timed in native code, and none can be built here")
    place = min(place, model.config.block_size - 1 - max(counts))
    if place < 0 or min(counts) < 1:
        raise ValueError(f"{counts} tokens in one pass, with a block of {model.config.block_size}: choose "
                         f"from 1 to {model.config.block_size - 1}")  # fmt: skip
    text = torch.zeros(1, model.config.block_size, dtype=torch.int64)
    noise = draw_noise(model.config.block_size - 1, 1, model.config.vocab_size, torch.Generator())
    seconds = {count: [] for count in counts}
    with Session(engine, model, text, 1, noise, PLAIN) as session:
        session.decode(0, place)
        for _ in range(1 + repeats):
            for count, own in seconds.items():
                before = clock(text.device)
                session.check(place, place + count)
                own.append(clock(text.device) - before)
    return {count: summary(own[1:]) for count, own in seconds.items()}


def in_passes(row: dict, passes: dict) -> float:
    """About which share of a row's time the model's own passes take, the rest being the draft's.

    An estimate: full passes, timed apart by `costs`.
    """
    return passes[row["k"] + 1]["median"] * row["tokens_per_second"]["median"] / row["tokens_per_pass"]


def usual_drafts(model: GPT, text: Tensor) -> Drafts:
    """What proposes without another model being trained: the model in 8 bits, tables, the text so far."""
    V = model.config.vocab_size
    n = next(n for n in (3, 2, 1) if n == 1 or V**n <= LARGEST_TABLE)
    return {
        "itself, in 8 bits": lambda k: Small(model, k, engine=Rough8),
        TABLES[n]: lambda k: NGram(text, V, n, k),
        "look-up in its own text": lambda k: LookUp(5, k),
    }


def _origin(saved: Checkpoint) -> dict:
    """Which weights these were, and how good: the losses are those of their own training."""
    return {"sha256": saved.sha256, "step": saved.meta["step"], "losses": saved.meta["losses"]}


def show(result: dict) -> None:
    """The table, for a terminal."""
    print(f"\n{result['n_params']:,} parameters, {result['n_new']} tokens after a prompt of one, "
          f"median of {result['repeats']} in turns [lowest – highest]\n")  # fmt: skip
    heads = f"{'agreement':>11}{'a pass':>8}{'formula':>9}{'tokens/s':>26}{'ratio':>24}"
    print(f"{'draft':28}{'k':>3}{heads}{'passes':>9}  tokens")
    print(f"{'none':28}{'':31}{spread(result['plain'], 0):>26}")
    for row in result["rows"]:
        chance = f"{row['agreement']:>11.2f}{row['tokens_per_pass']:>8.2f}{row['predicted']:>9.2f}"
        speed = f"{spread(row['tokens_per_second'], 0):>26}{spread(row['speedup'], 2):>24}"
        share, equal = in_passes(row, result["passes"]), "equal" if row["equal"] else "differ"
        print(f"{row['draft']:28}{row['k']:>3}{chance}{speed}{share:>9.0%}  {equal}")
    floor = result["floor"]["median"]
    best = max(result["rows"], key=lambda row: (row["equal"], row["speedup"]["median"]))
    share = best["speedup"]["median"] * result["plain"]["median"] / floor
    print(f"\nfloor of one reading for each token: {floor:,.0f} tokens/s; "
          f"best: {best['draft']}, k={best['k']}, {share:.2f} of it")  # fmt: skip
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
            raise ValueError(f"--k {args.k}, --repeats {args.repeats}, --threads {args.threads}: whole "
                             f"numbers of at least 1 are needed, as in --k 3,5,7")  # fmt: skip
        torch.set_num_threads(args.threads)
        saved, corpus = load_checkpoint(args.target), load_corpus(args.data)
        block = saved.model.config.block_size
        if max(ks) > block - 2:
            raise ValueError(f"--k {args.k}: with a block of {block} choose at most {block - 2}")
        print(f"table counted in: {corpus}" + f"\n{corpus.banner}" * bool(corpus.banner))
        if other := set(corpus.text) - set(saved.tokenizer.chars):
            raise ValueError(f"the model never saw {len(other)} of the text's characters: it was trained on "
                             f"{saved.meta['corpus']['name']}; give its text with --data")  # fmt: skip
        model, text = saved.model.eval(), saved.tokenizer.encode(corpus.text)
        drafts = usual_drafts(model, split(text, model.config.block_size)[0])
        draft = load_checkpoint(args.draft) if args.draft else None
        if draft and draft.tokenizer.chars != saved.tokenizer.chars:
            raise ValueError(
                f"{args.draft} and {args.target} have other characters: a draft needs the very ones"
            )
        small = draft and draft.model.eval()
        if small:
            drafts = {f"a GPT of {small.n_params / 1e6:.2f}M": lambda k: Small(small, k), **drafts}
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
    parser = argparse.ArgumentParser("python -m nanogpt.bench speculate", description=about)
    add = parser.add_argument
    small = PUBLISHED / "checkpoints" / "small"
    add("--target", metavar="PATH", default=small, help="the model that decides (the small one that ships)")
    add("--draft", metavar="PATH", help="a smaller model that proposes, beside the drafts that need none")
    add("--k", default="3,5,7,11,15", help="numbers of proposals for each pass (3,5,7,11,15)")
    add("--tokens", type=int, help="new tokens (255, or as many as the block allows)")
    add("--repeats", type=int, default=5, help="counted repeats, after one warm-up (5)")
    add("--threads", type=int, default=1, help="CPU threads of what is no native code (1)")
    add("--data", metavar="PATH", help="the text for the table; Tiny Shakespeare when left out")
    add("--json", nargs="?", const="", metavar="PATH", help="write the figures (outputs/run/speculate.json)")
    return parser
