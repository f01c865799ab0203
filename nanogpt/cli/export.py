"""python -m nanogpt export: export a checkpoint for transformers, vLLM or Karpathy's class."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import KEEPER, LECTURE_FORM, check_file, check_writable
from ..training.folders import check_folder
from .common import OUTPUTS, add_lesson, add_overwrite, weights_for
from .pretrained import TOKENIZER

if TYPE_CHECKING:
    from ..decoder.checkpoint import Checkpoint


def run(args: argparse.Namespace) -> None:
    """Write the weights atomically, and print how to load them."""
    if args.model is None:
        if args.tokenizer:
            raise ValueError("--tokenizer is for --model: leave it out")
        _from_checkpoint(args)
    else:
        _from_pretrained(args)


def _from_pretrained(args: argparse.Namespace) -> None:
    """Write a pretrained model as a folder of its model family."""
    from ..pretrained.load import load_pretrained
    from ..pretrained.write import EXPORT_MARK, write_pretrained

    if args.checkpoint or args.lesson or args.form != "auto":
        raise ValueError(
            "--model writes a pretrained model as a folder of its model family: leave out the "
            "checkpoint, --form and --lesson"
        )
    out = Path(args.out or OUTPUTS / "export")
    check_folder(out, EXPORT_MARK, args.overwrite)
    model, tokenizer = load_pretrained(args.model, tokenizer=args.tokenizer)
    config = write_pretrained(model, tokenizer, out, args.model)
    print(f"{args.model}: {model.n_params:,} parameters")
    print(f"written: {out}, for {config['architectures'][0]}")
    print("AutoModelForCausalLM.from_pretrained(PATH) loads it")


def _from_checkpoint(args: argparse.Namespace) -> None:
    """Write one of our checkpoints for transformers or Karpathy's class."""
    from ..decoder.checkpoint import is_written, load_checkpoint, write_tensors
    from ..pretrained.lecture import lecture_state_dict
    from ..pretrained.write import EXPORT_MARK, write_folder

    if args.form == "lecture":
        out = args.out or OUTPUTS / "lecture.safetensors"
        check_writable(out)
        check_file(out, is_written(out, "GPTLanguageModel"), args.overwrite)
        saved = load_checkpoint(weights_for(args, LECTURE_FORM))
        _check(args, saved)
        write_tensors(out, lecture_state_dict(saved.model), {"format": "GPTLanguageModel"})
        names = ("n_layer", "n_head", "n_embd", "block_size")
        what = f"for {', '.join(f'{x}={getattr(saved.model.config, x)}' for x in names)}"
        how = "model.load_state_dict(safetensors.torch.load_file(PATH))"
    else:
        out = args.out or OUTPUTS / "export"
        saved = load_checkpoint(weights_for(args, KEEPER))
        _check(args, saved)
        check_folder(Path(out), EXPORT_MARK, args.overwrite)
        what = f"for {write_folder(saved, Path(out))['architectures'][0]}"
        how = "AutoModelForCausalLM.from_pretrained(PATH)"
    print(f"{saved}\nwritten: {out}, {what}\n{how} loads it")
    size = saved.model.config.head_size
    if args.form != "lecture" and size < 32:
        print(f"vLLM's CPU build needs a head size of at least 32, and this model's is {size}")


def _check(args: argparse.Namespace, saved: Checkpoint) -> None:
    """With --lesson: check that your heads match the exported weights. Raises ValueError."""
    if args.lesson:
        from ..course.practice import lesson_of, logits_apart

        apart = logits_apart(lesson_of(args.lesson, "Head"), saved.model)
        print(f"with your heads these weights give the same logits, up to {apart:.1e}")


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("checkpoint", nargs="?", help="its path (the bundled model of that form)")
    add("--model", metavar="SOURCE", help="a pretrained model instead: a folder, a file, smollm2")
    add("--tokenizer", type=Path, metavar="FOLDER", help=TOKENIZER)
    about = (
        "auto: OPT for the lecture's architecture, NanoChat for the bundled model's; lecture: one "
        "file"
    )
    add("--form", default="auto", choices=("auto", "lecture"), help=about)
    add_lesson(parser, "check that your heads give the same logits")
    add("--out", type=Path, metavar="PATH", help="(outputs/run/export, or lecture.safetensors)")
    add_overwrite(parser)


CALLS = {"export": (options, run)}
