"""python -m nanogpt generate: many texts with one or several workers, or one with --model.

`write_texts` is the job of many texts, which resumes. One text from a pretrained model is
`print_text` in pretrained.py. What both have are the options of sampling.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import ParameterError, check_int
from ..console import Progress
from ..files import KEEPER, real_path
from .common import OUTPUTS, add_lesson, weights_for
from .pretrained import print_text, text_options

if TYPE_CHECKING:
    from ..course.practice import LessonWriter
    from ..serving.jobs import Job


# The options of each form of the command, with their defaults; the other form refuses them.
ONE_TEXT: dict[str, Any] = {
    "tokenizer": None,
    "prompt": None,
    "chat": False,
    "draft": None,
    "bits": 32,
    "device": "cpu",
}
MANY_TEXTS: dict[str, Any] = {
    "checkpoint": KEEPER,
    "prompts": None,
    "samples": 1,
    "out": OUTPUTS / "generate",
    "lesson": None,
    "shard_size": 32,
    "workers": 1,
}


def run(args: argparse.Namespace) -> None:
    """Print one text of the pretrained model --model, or else write the texts of a job."""
    if args.model is not None:
        _refuse(args, MANY_TEXTS, "--model generates one text; leave it out")
        print_text(args)
    else:
        _refuse(args, ONE_TEXT, "only with --model SOURCE; a job reads --prompts FILE")
        write_texts(args)


def _refuse(args: argparse.Namespace, options: dict[str, Any], why: str) -> None:
    """Raise ParameterError if an option of the other form was given."""
    for name, usual in options.items():
        value = getattr(args, name)
        if value != usual:
            raise ParameterError(f"{name}={str(value)[:200]}: {why}", name)


def write_texts(args: argparse.Namespace) -> None:
    """Write the remaining shards. However this ends, the message says how many are kept."""
    from ..serving.jobs import generate_shards

    check_int("workers", args.workers, 1, 1000)
    if args.workers > 1:
        import ray.data  # noqa: F401  (without it, stop before anything is written)
    args.checkpoint = weights_for(args, KEEPER)
    lesson = _lesson(args) if args.lesson else None
    job = _job(args)
    job.begin()
    n = job.n_shards
    n_done = n - len(job.todo)
    print(f"{job.n_texts:,} texts in {n:,} shards, {n_done:,} are done", flush=True)
    try:
        with Progress(n, "shards", initial=n_done) as bar:
            written = lesson.shards(job) if lesson else generate_shards(job, args.workers)
            for number, texts in written:
                job.write(number, texts)
                bar.update()
    except (KeyboardInterrupt, OSError) as error:
        reason = f"{error}; " if str(error) else ""
        raise type(error)(
            f"{reason}{n - len(job.todo):,} of {n:,} shards are kept in {job.folder}: "
            f"the same command resumes"
        ) from error
    print(f"written: {args.out}/shards")


def _job(args: argparse.Namespace) -> Job:
    from ..decoder.checkpoint import find_weights, load_checkpoint
    from ..sampling import SamplingParams
    from ..serving.jobs import Job, prompt_check, read_prompts
    from ..serving.native_steps import choose_backend

    saved = load_checkpoint(args.checkpoint)
    backend = args.backend
    reason = ""
    if args.lesson:  # its own loop writes the texts
        backend = "lesson"
    elif backend == "auto":
        backend, reason = choose_backend(saved.model)
    print(saved)
    print(f"{backend} steps: {reason}" if reason else f"{backend} steps", flush=True)
    sampling = SamplingParams(args.temperature, args.top_k, args.top_p, args.greedy)
    check = prompt_check(saved, args.max_new_tokens, sampling)
    return Job(
        args.out,
        read_prompts(args.prompts, check),
        checkpoint=str(real_path(find_weights(args.checkpoint))),
        weights=saved.sha256,
        samples=args.samples,
        seed=args.seed,
        max_new_tokens=args.max_new_tokens,
        sampling=sampling,
        backend=backend,
        shard_size=args.shard_size,
    )


def _lesson(args: argparse.Namespace) -> LessonWriter:
    """The writer of shards with the reader's loop. Raises ValueError for unsupported options."""
    from ..course.practice import LessonWriter

    sampled = args.greedy or args.top_k or args.top_p
    if args.workers > 1 or sampled or args.backend == "native":
        raise ValueError(
            "--lesson runs your loop and your sample in this process: leave out --workers, "
            "--greedy, --top-k, --top-p and --backend native"
        )
    return LessonWriter(args.lesson, args.checkpoint, args.temperature)


def options(parser: argparse.ArgumentParser) -> None:
    text_options(parser)
    job_options(parser)
    sampling_options(parser)
    parser.set_defaults(**ONE_TEXT, **MANY_TEXTS)


def job_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("many texts, without --model")
    add = group.add_argument
    add("--checkpoint", metavar="PATH", help="path of the weights (the bundled model)")
    add(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="one prompt per line, or .jsonl (a single newline)",
    )
    add("--samples", type=int, metavar="N", help="texts per prompt (1)")
    out = "where the texts are written; the same command resumes there (outputs/run/generate)"
    add("--out", type=Path, metavar="FOLDER", help=out)
    add_lesson(group, "heads, KVCache, sample and loop")
    add("--shard-size", type=int, metavar="N", help="texts per file (32)")
    add("--workers", type=int, metavar="N", help="number of processes; more than one needs Ray (1)")


def sampling_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("both").add_argument
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the first text; counts up from there (0)",
    )
    add("--max-new-tokens", type=int, default=200, metavar="N", help="new tokens per text (200)")
    add("--temperature", type=float, default=1.0, metavar="X", help="below 1: likelier tokens (1)")
    add("--top-k", type=int, metavar="K", help="sample only from the K most likely tokens")
    add(
        "--top-p",
        type=float,
        metavar="P",
        help="sample only from the smallest set of tokens whose probabilities add up to P",
    )
    add("--greedy", action="store_true", help="always pick the most likely token")
    add("--backend", choices=("auto", "native", "modules"), default="auto")


CALLS = {"generate": (options, run)}
