"""python -m nanogpt generate: generate many texts, with one or several workers; resumable.

With --model it prints one text from a pretrained model; that is in pretrained.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import check_int
from ..console import Progress
from ..files import KEEPER, real_path
from .common import add_lesson, weights_for
from .pretrained import OF_JOBS, SOURCES, TOKENIZER, print_text

if TYPE_CHECKING:
    from ..course.practice import LessonWriter
    from ..serving.jobs import Job


def run(args: argparse.Namespace) -> None:
    """Write the remaining shards. However this ends, the message says how many are kept."""
    if args.model is not None:
        print_text(args)
        return
    of_models = (args.prompt, args.chat, args.draft, args.tokenizer)
    if any(of_models) or args.bits != 32 or args.device != "cpu":
        raise ValueError(
            "--prompt, --chat, --draft, --tokenizer, --bits and --device are for --model; a job "
            "reads --prompts FILE"
        )
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
    add = parser.add_argument
    add("--model", metavar="SOURCE", help=f"print one text from a pretrained model: {SOURCES}")
    add("--tokenizer", type=Path, metavar="FOLDER", help=TOKENIZER)
    add("--prompt", metavar="TEXT", help="the text that --model continues")
    add(
        "--chat",
        action="store_true",
        help="--prompt is a message, put into the model's chat template",
    )
    about = (
        "with --model: speculate, by `lookup` in the text or with a smaller model; identical output"
    )
    add("--draft", metavar="SOURCE", help=about)
    about = "with --model: bits per weight in compiled code (32); with 8 the text may differ"
    add("--bits", type=int, choices=(32, 8), default=32, help=about)
    about = "with --model: device (cpu)"
    add("--device", choices=("auto", "cpu", "cuda"), default="cpu", help=about)
    add("--checkpoint", metavar="PATH", help="path of the weights (the bundled model)")
    add(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="one prompt per line, or .jsonl (a single newline)",
    )
    add("--samples", type=int, metavar="N", help="texts per prompt (1)")
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the first text; counts up from there (0)",
    )
    out = "where the texts are written; the same command resumes there (outputs/run/generate)"
    add("--out", type=Path, metavar="FOLDER", help=out)
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
    add_lesson(parser, "heads, KVCache, sample and loop")
    add("--shard-size", type=int, metavar="N", help="texts per file (32)")
    add("--workers", type=int, metavar="N", help="number of processes; more than one needs Ray (1)")
    parser.set_defaults(**OF_JOBS)


CALLS = {"generate": (options, run)}
