"""python -m nanogpt generate: many texts, by one worker or several, resumed where they stopped.

python -m nanogpt generate --samples 100                100 texts, of seeds 0 to 99
python -m nanogpt generate --prompts FILE --out FOLDER --workers 4
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from ..serving.job import Job, read_rows, shards_of
from ..system.console import Progress
from ..system.files import PUBLISHED
from .common import OUTPUTS, command_parser, exit_code


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 all texts are written, 2 they could not be, 130 stopped: shards are kept."""
    args = options().parse_args(argv)
    return exit_code(lambda: run(args))


def run(args: argparse.Namespace) -> None:
    """Write the texts as the options say."""
    from ..config.checks import check_int
    from ..serving.ray_workers import check_ray

    check_int("--workers", args.workers, 1, 1000)
    if args.workers > 1 or args.cluster:
        check_ray()
    job, task = _job(args)
    with job.opened():
        _say_what_is_done(job)
        try:
            _write(job, task, args)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"{_kept(job)}: the same command resumes") from None
        except OSError as error:
            why = (error.errno, error.strerror) if error.errno else (str(error),)
            raise type(error)(*why[:-1], f"{why[-1]}; {_kept(job)}") from error
        print(f"checksum of all texts: {job.finish()}")
    print(f"written: {args.out}/shards, {len(job.rows):,} texts in {job.n_shards:,} files")


def _job(args: argparse.Namespace) -> tuple:
    from ..decoding.sampling import SamplingParams
    from ..model.checkpoint import load_checkpoint
    from ..serving.writer import Task, check_rows, choose_backend, settings

    rows = read_rows(args.prompts, args.samples, args.seed)
    saved = load_checkpoint(args.checkpoint)
    backend, why = choose_backend(saved) if args.backend == "auto" else (args.backend, "")
    print(f"{saved}\n{backend} steps{f': {why}' if why else ''}", flush=True)
    drawn = SamplingParams(args.temperature, args.top_k, args.top_p, args.greedy)
    task = Task(str(Path(args.checkpoint).resolve()), args.max_new_tokens, drawn, backend)
    check_rows(rows, task, saved)
    return Job(args.out, rows, settings(task, saved), args.shard_size), task


def _say_what_is_done(job: Job) -> None:
    print(f"{len(job.rows):,} texts in {job.n_shards:,} shards, {len(job.done):,} of them done")
    for number in job.damaged:
        print(f"{job.path(number)} is damaged or gone: its texts are written again", flush=True)


def _write(job: Job, task, args: argparse.Namespace) -> None:
    with Progress(job.n_shards, "shards", done=len(job.done)) as bar:
        for number, texts in _texts(job, task, args):
            job.keep(number, texts)
            bar.update()


def _texts(job: Job, task, args: argparse.Namespace) -> Iterator:
    """The texts of each shard that is not done, with its number."""
    from ..serving.ray_workers import write_by_ray
    from ..serving.writer import Writer

    if not job.todo:
        return iter(())
    if args.workers > 1 or args.cluster:
        return write_by_ray(job, task, args.workers, args.cluster)
    write = Writer(task)
    return ((number, write(rows)) for number, rows in shards_of(job))


def _kept(job: Job) -> str:
    return f"{len(job.done):,} of {job.n_shards:,} shards are kept in {job.folder}"


def options() -> argparse.ArgumentParser:
    """All options."""
    parser = command_parser("generate", "Many texts, by one worker or several.")
    add = parser.add_argument
    small = PUBLISHED / "checkpoints" / "small"
    add("--checkpoint", default=small, metavar="PATH", help="the one that ships, by default")
    add("--prompts", type=Path, metavar="FILE", help="a prompt a line, or .jsonl (a newline)")
    add("--samples", type=int, default=1, metavar="N", help="texts for each prompt (1)")
    add("--seed", type=int, default=0, metavar="N", help="of the first text; then the next (0)")
    add("--out", type=Path, default=OUTPUTS / "generate", metavar="FOLDER")
    add("--max-new-tokens", type=int, default=200, metavar="N", help="of each text (200)")
    add("--temperature", type=float, default=1.0, metavar="X")
    add("--top-k", type=int, metavar="K")
    add("--top-p", type=float, metavar="P")
    add("--greedy", action="store_true", help="the likeliest token each time")
    add("--backend", choices=("auto", "native", "modules"), default="auto")
    add("--shard-size", type=int, default=32, metavar="N", help="texts in a file (32)")
    add("--workers", type=int, default=1, metavar="N", help="more than one need Ray (1)")
    add("--cluster", metavar="ADDRESS", help="a cluster of Ray's that runs already, as in auto")
    return parser
