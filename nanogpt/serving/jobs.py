"""Jobs: many texts, each from a prompt and a seed, generated in shards by one or several processes.

    FOLDER/job.json            the settings, which the same command repeats to resume
    FOLDER/shards/00000.jsonl  a line of JSON for each text, in the order of the prompts

A text depends only on its prompt and its seed, and a shard is a fixed range of texts, so any number
of workers writes the same files. A shard is written atomically: if its file exists, it is finished.
Several workers are actors of Ray Data (optional).
"""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ..config import check_int
from ..decoder.checkpoint import Checkpoint, load_checkpoint
from ..files import OURS, read_json, sha256, user_path, write_json, write_whole
from ..sampling import MOST_NEW, PLAIN, SamplingParams, check_length, check_sampling
from ..training.folders import check_folder
from .batch import serve
from .native_steps import BACKENDS
from .sequence import Request

LARGEST_FILE = 100_000_000  # bytes of a file of prompts, which is in memory as a whole


# ------------------------------------------------------------------ prompts


def read_prompts(path: Path | None, check: Callable[[str], object] = len) -> list[str]:
    r"""Read the prompts of a file; without a file, the single prompt "\n".

    A .jsonl file has an object per line, {"prompt": "…"}; any other file has a prompt per line.
    Empty lines are skipped. Raises ValueError with the file and line, also if `check` raises one
    for a prompt; and OSError.
    """
    if path is None:
        check("\n")
        return ["\n"]
    path = user_path(path)
    # 1. The bytes, but no more than the limit: a pipe may be endless.
    with open(path, "rb") as file:
        data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise ValueError(f"{path} has over {LARGEST_FILE:,} bytes: split it into several jobs")
    # 2. Line by line, so that an error can name the line.
    parse = _prompt_of_object if path.suffix == ".jsonl" else str
    prompts = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        try:
            text = line.decode("utf-8").rstrip("\r")
            if text:
                prompts.append(parse(text))
                check(prompts[-1])
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}, line {number} is not UTF-8 text ({error.reason} at byte "
                f"{error.start + 1} of the line): save the file as UTF-8"
            ) from None
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if not prompts:
        raise ValueError(f"{path} has no prompt: write one in each line")
    return prompts


def _prompt_of_object(line: str) -> str:
    """The prompt in a line of a .jsonl file. Raises ValueError."""
    try:
        ((name, prompt),) = json.loads(line).items()
    except (ValueError, AttributeError):
        name = None
        prompt = None
    if name != "prompt" or not isinstance(prompt, str) or not prompt:
        raise ValueError('write {"prompt": "ROMEO:"}, and no other field')
    return prompt


def prompt_check(
    saved: Checkpoint, max_new_tokens: int, sampling: SamplingParams
) -> Callable[[str], None]:
    """Check the settings against the model; returns a check for prompts. Both raise ValueError."""
    check_int("max_new_tokens", max_new_tokens, 1, MOST_NEW)
    check_sampling(sampling, len(saved.tokenizer))

    def check(prompt: str) -> None:
        saved.tokenizer.encode(prompt)
        check_length(len(prompt), max_new_tokens, saved.model.config.max_positions)

    return check


# ------------------------------------------------------------------ the texts, and their folder


@dataclass(frozen=True)
class Job:
    """The texts of one job, and the folder that they are written to. Raises ValueError.

    Text i continues prompt i // samples, with the random seed `seed` + i.
    """

    folder: Path
    prompts: Sequence[str]
    checkpoint: str  # the path of the weights
    weights: str  # their SHA-256
    samples: int = 1  # texts per prompt
    seed: int = 0
    max_new_tokens: int = 200
    sampling: SamplingParams = PLAIN
    backend: str = "native"
    shard_size: int = 32  # texts per file

    def __post_init__(self) -> None:
        check_int("samples", self.samples, 1)
        check_int("seed", self.seed, 0, 2**62)
        check_int("shard_size", self.shard_size, 1)

    @property
    def n_texts(self) -> int:
        """The number of texts."""
        return len(self.prompts) * self.samples

    @property
    def n_shards(self) -> int:
        """The number of shards; the last one may be shorter than the others."""
        return -(-self.n_texts // self.shard_size)

    @property
    def todo(self) -> list[int]:
        """The numbers of the shards that are not finished."""
        return [number for number in range(self.n_shards) if not self.path(number).is_file()]

    @cached_property
    def about(self) -> dict[str, Any]:
        """Everything that the files depend on, by the names of the options.

        The path of the weights is none of it: they may have been moved.
        """
        return {
            "checkpoint": self.weights,
            "prompts": sha256(json.dumps(list(self.prompts)).encode()),
            "samples": self.samples,
            "seed": self.seed,
            "max_new_tokens": self.max_new_tokens,
            **asdict(self.sampling),
            "backend": self.backend,
            "shard_size": self.shard_size,
            "format": f"{OURS} job",
        }

    def path(self, number: int) -> Path:
        """The file of a shard."""
        return self.folder / "shards" / f"{number:05d}.jsonl"

    def texts_of(self, number: int) -> list[tuple[int, str, int]]:
        """The texts of a shard: the number, the prompt and the seed of each."""
        first = number * self.shard_size
        numbers = range(first, min(first + self.shard_size, self.n_texts))
        return [(i, self.prompts[i // self.samples], self.seed + i) for i in numbers]

    def begin(self) -> None:
        """Create the folder, or check that it holds this job. Raises ValueError, OSError.

        After an error nothing has changed.
        """
        path = self.folder / "job.json"
        check_folder(self.folder, path.name)
        before = read_json(path)
        if before is None:
            write_json(path, self.about)
            return
        for name, now in self.about.items():
            if before.get(name) != now:
                raise ValueError(
                    f"{self.folder} holds another job, whose --{name.replace('_', '-')} is "
                    f"{before.get(name)!s:.12}, not {now!s:.12}: repeat its command to resume it, "
                    f"or name a new --out"
                )

    def write(self, number: int, continuations: Sequence[str]) -> None:
        """Write a shard, with a continuation for each of its prompts. Raises OSError."""
        lines = []
        for (i, prompt, seed), text in zip(self.texts_of(number), continuations, strict=True):
            row = {"index": i, "prompt": prompt, "seed": seed, "text": text}
            lines.append(json.dumps(row, ensure_ascii=False) + "\n")
        write_whole(self.path(number), "".join(lines).encode())


# ------------------------------------------------------------------ workers


class ShardWriter:
    """Writes the texts of shards with its own copy of the model, on one CPU thread.

    Raises CheckpointError; a call raises ValueError or CannotBuild for an unsupported model.
    """

    def __init__(self, job: Job):
        torch.set_num_threads(1)
        self.job = job
        self.saved = load_checkpoint(job.checkpoint)

    def __call__(self, row: dict[str, int]) -> dict[str, Any]:
        """{"shard": its number} -> {"shard": …, "texts": …}: a row of Ray Data becomes a row."""
        return {"shard": row["shard"], "texts": self.continuations(row["shard"])}

    def continuations(self, number: int) -> list[str]:
        """What the model writes after each prompt of a shard. The shard is one batch."""
        job = self.job
        tokenizer = self.saved.tokenizer
        requests = []
        tokens: dict[Hashable, list[int]] = {}  # by the id of the request
        for i, prompt, seed in job.texts_of(number):
            ids = tokenizer.encode(prompt)
            requests.append(Request(ids, job.max_new_tokens, job.sampling, seed, id=i))
            tokens[i] = []
        for output in serve(self.saved.model, requests, backend=BACKENDS[job.backend]):
            tokens[output.request.id].append(output.token)
        return [tokenizer.decode(new) for new in tokens.values()]  # type: ignore[arg-type]


def generate_shards(job: Job, workers: int = 1) -> Iterator[tuple[int, list[str]]]:
    """Generate every unfinished shard, yielding (number, continuations) as they are ready.

    A single worker is this process. Several are actors of Ray Data on this machine, which return
    the shards in any order; if one is lost, it is replaced and its shard generated again. Raises
    ImportError without Ray, ChildProcessError if its workers fail.
    """
    todo = job.todo
    workers = min(workers, len(todo))
    if workers > 1:
        yield from _by_ray(job, todo, workers)
        return
    writer = ShardWriter(job)
    for number in todo:
        yield number, writer.continuations(number)


def _by_ray(job: Job, todo: list[int], workers: int) -> Iterator[tuple[int, list[str]]]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to Ray's makers
    import ray.data

    before = signal.getsignal(signal.SIGTERM)
    try:
        # 1. A Ray of our own, on this machine, with a CPU for each worker.
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
        ray.init("local", num_cpus=workers, **quiet)
        # With a handler of its own a SIGTERM would end in an abort (signal 6, seen with 2.60)
        # instead of the line that says what is kept.
        signal.signal(signal.SIGTERM, before)
        # Our own progress bar is enough, and so is one line about an error.
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        # 2. A row for each shard, in a block of its own, so that it is returned once it is ready.
        rows = ray.data.from_items([{"shard": n} for n in todo], override_num_blocks=len(todo))
        # 3. Each actor loads the model once and is then called with one row after the other.
        actors = ray.data.ActorPoolStrategy(size=workers)
        done = rows.map(ShardWriter, fn_constructor_args=(job,), num_cpus=1, compute=actors)
        for row in done.iter_rows():
            yield int(row["shard"]), list(row["texts"])
    except Exception as error:  # Ray's errors have no common class
        # Their text is a worker's traceback, with the cause in the last line, if it is known.
        *_, cause = str(error).strip().splitlines() or [type(error).__name__]
        raise ChildProcessError(
            f"Ray's workers failed ({cause[:200]}): run it with one worker to see the error itself"
        ) from error
    finally:
        ray.shutdown()
