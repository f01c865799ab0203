"""python -m nanogpt train: train a model on a text, in one process or in several with torchrun."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import Any

import torch

from ..config import SIZES, GPTConfig
from ..data import CharTokenizer, load_corpus
from ..decoder.checkpoint import check_path
from ..decoder.config import DecoderConfig
from ..decoder.pack import build_model
from ..device import Device, pick_device
from ..files import check_writable
from ..training.folders import held_run
from ..training.loop import train
from ..training.processes import Team, joined
from ..training.recipes import RECIPES, TrainConfig, recipe_for
from ..training.resume import state_path
from .common import OUTPUTS, add_shared, set_threads


def run(args: argparse.Namespace) -> None:
    """Join the other processes, if any, and train; after a Ctrl-C print how to resume."""
    set_threads(args.threads)
    try:
        with joined(pick_device(args.device)) as (device, team):
            train_on(device, team, args)
    except KeyboardInterrupt as stopped:
        start = "this step" if stopped.args else "the last evaluation, if there was one"
        raise KeyboardInterrupt(f"the same command with --resume resumes from {start}") from stopped


def train_on(device: Device, team: Team, args: argparse.Namespace) -> None:
    """Train as the options say; only the first of several processes prints. Raises ValueError."""
    recipe, shape = _configs(args)
    corpus = load_corpus(args.data)
    heads = f"-{args.n_head}-heads" if args.n_head else ""
    usual = OUTPUTS / "train" / f"{_size(args)}-{args.recipe}{heads}"
    out = check_path("out", usual if args.out is None else args.out)
    saved = state_path(out).is_file()
    weights = out.with_name(f"{out.name}.safetensors")
    if saved and not (args.resume or args.overwrite):
        raise ValueError(
            f"{out} holds a run: --resume resumes it, --overwrite starts a new one, --out PATH "
            "writes elsewhere"
        )
    shape = replace(shape, vocab_size=len(CharTokenizer(corpus.text)))
    model = build_model(shape, torch.Generator().manual_seed(recipe.seed))
    if team.first:
        check_writable(weights)
        print(corpus.banner or corpus)
        together = f", {team.size} processes" if team.size > 1 else ""
        print(f"{model.n_params:,} parameters, block {shape.block_size}, {device}{together}")
        print(recipe, flush=True)
        if args.resume and not (saved or weights.is_file()):
            print(f"no run was saved at {out}: starting at step 0")
    settings = {"out": out, "device": device, "resume": args.resume, "speed": True}
    with held_run(out) if team.first else nullcontext():
        history = train(model, corpus, recipe, team=team, **settings)
    if team.first:
        full = history["full_val"]
        block = history["block_size"]
        print(f"full validation loss {full:.4f} at block {block}, with the last weights")
        print(f"the best weights: {weights}; the log: {out}.jsonl")


def _configs(args: argparse.Namespace) -> tuple[TrainConfig, GPTConfig | DecoderConfig]:
    """The recipe with the command line's changes, and the shape that it needs."""
    recipe, shape = recipe_for(args.recipe, SIZES[_size(args)])
    if args.n_head is not None:
        shape = replace(shape, n_head=args.n_head)
    changes: dict[str, Any] = {}
    for field in fields(TrainConfig):
        value = getattr(args, field.name)
        if value is not None:
            changes[field.name] = None if value == "none" else value
    return replace(recipe, **changes), shape


def _size(args: argparse.Namespace) -> str:
    return args.size or RECIPES[args.recipe].size


def number(text: str) -> float | str:
    """Parse a number, or "none", for argparse."""
    return "none" if text.lower() == "none" else float(text)


def stages(text: str) -> tuple[tuple[float, int], ...]:
    """Parse 0.5:64,0.85:128 to ((0.5, 64), (0.85, 128)), "none" to (). Raises ValueError."""
    if text.lower() == "none":
        return ()
    pairs = (part.split(":") for part in text.split(","))
    return tuple((float(share), int(block)) for share, block in pairs)


def options(parser: argparse.ArgumentParser) -> None:
    """Add all options; a recipe's are the fields of TrainConfig."""
    add = parser.add_argument
    about = "; ".join(f"{name}: {recipe.about}" for name, recipe in RECIPES.items())
    add("--recipe", choices=list(RECIPES), default="fast", help=f"{about} (fast)")
    add("--size", choices=list(SIZES), help="the model's shape (the recipe's: small or medium)")
    add("--n-head", type=int, metavar="N", help="heads per block (the size's)")
    add("--out", metavar="PATH", help="output path without suffix (outputs/run/train/SIZE-RECIPE)")
    add("--resume", action="store_true", help="resume a stopped run, with bit-identical results")
    add("--overwrite", action="store_true", help="replace a saved run by a new one")
    add_shared(parser, "--data", "--device", "--threads")
    add("--no-muon", dest="muon_lr", action="store_const", const="none", help="--muon-lr none")
    group = parser.add_argument_group("changes to the recipe")
    kinds: dict[Any, dict[str, Any]] = {
        bool: {"action": argparse.BooleanOptionalAction},
        int: {"type": int, "metavar": "N"},
        tuple[tuple[float, int], ...]: {"type": stages, "metavar": "SHARE:BLOCK,…"},
    }
    for field in fields(TrainConfig):
        kind = kinds.get(field.type, {"type": number, "metavar": "N"})
        text = field.metadata["help"].replace("%", "%%").replace("None:", "none:")
        group.add_argument(f"--{field.name.replace('_', '-')}", help=text, **kind)


CALLS = {"train": (options, run)}
