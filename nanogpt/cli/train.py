"""A training run from the command line, in one process or in several.

python -m nanogpt train --recipe fast --size small
torchrun --nproc_per_node=2 -m nanogpt train --recipe fast --size small
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import fields, replace

import torch

from ..config.fields import override
from ..config.shapes import SIZES
from ..config.training import RECIPES, TrainConfig, recipe_for
from ..data.corpus import load_corpus
from ..data.tokenizer import CharTokenizer
from ..model.checkpoint import stem
from ..model.gpt import GPT
from ..system.device import Device, pick_device
from ..system.files import ROOT, check_writable
from ..training.distributed import joined, ranks, reports_errors
from ..training.log import log_path
from ..training.loop import train
from ..training.run import best_step
from ..training.state import state_path


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 trained, 1 the loss was no number, 2 it could not begin, 130 stopped and saved.

    Of several processes each has the exit code, and one alone says why. 1 when another one was lost, too.
    """
    with nullcontext() if reports_errors() else _silence():
        args = command_line().parse_args(argv)
    try:
        if not 1 <= args.threads <= (os.cpu_count() or 1):
            raise ValueError(
                f"--threads {args.threads}: from 1 to {os.cpu_count()}, the CPUs of this machine"
            )
        torch.set_num_threads(args.threads)
        with joined(pick_device(args.device)) as device:
            run(args, device)
    except FloatingPointError as error:
        return _ended(f"error: {error}", 1)
    except (ValueError, OSError) as error:
        return _ended(f"error: {error}", 2)
    except KeyboardInterrupt as stopped:
        again = "; the same command with --resume goes on" if str(stopped) else ""
        return _ended(f"\nstopped{again}", 130)
    return 0


def _ended(why: str, code: int) -> int:
    if reports_errors():
        print(why, file=sys.stderr)
    return code


@contextmanager
def _silence():
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def run(args: argparse.Namespace, device: Device) -> None:
    """Train as the options say; the first of several processes speaks."""
    given = {f.name: getattr(args, f.name) for f in fields(TrainConfig)}
    recipe, shape = recipe_for(args.recipe, SIZES[args.size])
    recipe = override(recipe, **given)
    recipe = replace(recipe, muon_lr=None) if args.no_muon else recipe
    corpus = load_corpus(args.data)
    out = stem(args.out or ROOT / "outputs" / "run" / "train" / f"{args.size}-{args.recipe}")
    begun = state_path(out).is_file()
    if begun and not args.resume and not args.replace:
        raise ValueError(
            f"{out} holds a run: --resume goes on with it, --replace starts anew in its place, --out PATH "
            f"takes another place"
        )
    group = ranks()
    if group.first:
        check_writable(out.with_name(f"{out.name}.safetensors"))
    shape = replace(shape, vocab_size=len(CharTokenizer(corpus.text)))
    model = GPT(shape, generator=torch.Generator().manual_seed(recipe.seed))
    if group.first:
        print(corpus.banner or corpus)
        together = f", {group.size} processes" if group.size > 1 else ""
        print(f"{model.n_params:,} parameters, block {shape.block_size}, {device}{together}")
        print(recipe, flush=True)
        if args.resume and not begun:
            print(f"no run was saved at {out}: starting at step 0")
    history = train(model, corpus, recipe, out=out, device=device, resume=args.resume, speed=True)
    if group.first:
        full = f"full validation loss {history['full_val']:.4f} at block {history['block_size']}"
        print(f"{full}, of the last weights")
        print(
            f"the best weights, of step {best_step(history)}: {out}.safetensors; the log: {log_path(out)}"
        )


def command_line() -> argparse.ArgumentParser:
    """All options; those of a recipe are the fields of TrainConfig."""
    parser = argparse.ArgumentParser(
        "python -m nanogpt train", description="Train a model on a text."
    )
    add = parser.add_argument
    about = "; ".join(f"{name}: {recipe.about}" for name, recipe in RECIPES.items())
    add("--recipe", choices=list(RECIPES), default="fast", help=f"{about}. Default: fast")
    add(
        "--size",
        choices=sorted(SIZES),
        default="small",
        help="small, article or lecture: the model's shape",
    )
    add("--data", metavar="PATH", help="any UTF-8 text; Tiny Shakespeare when left out")
    add(
        "--out",
        metavar="PATH",
        help="where the checkpoints go, without suffix (outputs/run/train/SIZE-RECIPE)",
    )
    add(
        "--resume",
        action="store_true",
        help="go on with the run that was stopped there, to the same bits",
    )
    add("--replace", action="store_true", help="start anew where a run lies already")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto")
    add("--threads", type=int, default=1, help="CPU threads (1)")
    add("--no-muon", action="store_true", help="AdamW for the matrices as well")
    group = parser.add_argument_group("what the recipe says, unless you say otherwise")
    for f in fields(TrainConfig):
        name = "--" + f.name.replace("_", "-")
        kind = int if f.type == "int" else float
        how = (
            {"action": argparse.BooleanOptionalAction}
            if f.type == "bool"
            else {"type": kind, "metavar": "N"}
        )
        group.add_argument(name, default=None, help=f.metadata["help"], **how)
    return parser
