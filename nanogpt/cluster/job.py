"""A job of many texts: cut into shards, kept in a folder, resumed from what is done.

    FOLDER/job.json           which job it is; at its end the checksum of all texts
    FOLDER/shards/00000.jsonl a line of JSON for each text, in the order of the input

A text depends on its prompt and its seed alone. So a job may be written by any number of workers,
stopped and resumed, and its texts have one checksum. Several are actors of Ray Data (optional).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..checkpoint import Checkpoint, load_checkpoint
from ..config import check_int
from ..export.ownership import check_ours
from ..files import held, sha256, write_json, write_whole
from ..sampling import MOST_NEW, PLAIN, SamplingParams, check_length, check_sampling
from ..serving.batch import serve
from ..serving.native_steps import BACKENDS
from ..serving.sequence import Request

MOST = 10_000_000  # texts of one job: its prompts are in memory
OPTIONS = {"input": "--prompts, --samples or --seed", "weights": "--checkpoint"}
OPTIONS |= {"sampling": "--temperature, --top-k, --top-p or --greedy"}
Prompt = tuple[str, int]  # what a text begins with, and the seed of its randomness


def read_prompts(
    path: Path | None, samples: int = 1, seed: int = 0, check: Callable[[str], object] = len
) -> list[Prompt]:
    r"""The texts that a file asks for: `samples` of each of its prompts; without a file, of "\n".

    A .jsonl file has an object a line, {"prompt": "…"}; any other file has a prompt a line. Empty
    lines are skipped. The texts have the seeds `seed`, `seed` + 1, … Raises ValueError, naming the
    file and the line, also where `check` raises one for a prompt; and OSError.
    """
    check_int("samples", samples, 1)
    check_int("seed", seed, 0, 2**62)
    prompts, read = [], _object if path and Path(path).suffix == ".jsonl" else str
    for where, line in _lines(Path(path)) if path else [("", "\n")]:
        try:
            prompts.append(read(line))
            check(prompts[-1])
        except ValueError as error:
            raise ValueError(f"{where}{error}") from None
    if not prompts:
        raise ValueError(f"{path} has no prompt: write one in each line")
    check_int("the number of texts", len(prompts) * samples, 1, MOST)
    each = [prompt for prompt in prompts for _ in range(samples)]
    return list(zip(each, range(seed, seed + len(each)), strict=True))


def _lines(path: Path) -> list[tuple[str, str]]:
    """The lines of a text that are not empty, each after its name: "FILE, line 3: "."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text ({error}): save it as one") from None
    return [(f"{path}, line {i}: ", line) for i, line in enumerate(lines, 1) if line]


def _object(line: str) -> str:
    try:
        ((name, prompt),) = json.loads(line).items()
    except (ValueError, AttributeError, RecursionError):
        name, prompt = None, None
    if name != "prompt" or not isinstance(prompt, str) or not prompt:
        raise ValueError('write {"prompt": "ROMEO:"}, and no other field')
    return prompt


@dataclass(frozen=True)
class Task:
    """How every text of a job is written: plain data that any process can be given."""

    checkpoint: str
    weights: str  # their digest
    max_new_tokens: int = 200
    sampling: SamplingParams = PLAIN
    backend: str = "native"


def prompt_check(task: Task, saved: Checkpoint) -> Callable[[str], None]:
    """Raises ValueError for numbers that this model cannot take; what it returns, for a prompt."""
    check_int("max_new_tokens", task.max_new_tokens, 1, MOST_NEW)
    check_sampling(task.sampling, len(saved.tokenizer))

    def check(prompt: str) -> None:
        saved.tokenizer.encode(prompt)
        check_length(len(prompt), task.max_new_tokens, saved.model.config.positions)

    return check


class Job:
    """The texts of one job, in shards of `shard_size`, in a folder. Raises ValueError."""

    def __init__(self, folder: Path, prompts: Sequence[Prompt], task: Task, shard_size: int = 32):
        check_int("shard_size", shard_size, 1)
        self.folder, self.task, self.shard_size = Path(folder).resolve(), task, shard_size
        n, self.before = len(prompts), None  # the checksum that an earlier end noted
        self.shards = [prompts[start : start + shard_size] for start in range(0, n, shard_size)]
        self.todo = set(range(len(self.shards)))  # the numbers of those that are not done
        self.about = {  # all that the files depend on; the weights are the same wherever they lie
            "format": "nanogpt-notebooks job 1",
            "input": sha256(json.dumps(prompts).encode()),
            "texts": n,
            "shard_size": shard_size,
            **{name: value for name, value in asdict(task).items() if name != "checkpoint"},
        }

    @contextmanager
    def opened(self):
        """A with-block in which no other job writes here; what was done before is found.

        Raises ValueError for a folder that holds another job, something else or a shard that is
        not whole, and OSError for a closed one. Nothing is changed then.
        """
        path = self.folder / "job.json"
        with held(self.folder / ".lock", f"to {self.folder}"):
            names = ["job.json", "shards/-", *(f"shards/{self.path(n).name}" for n in self.todo)]
            check_ours(self.folder, names, dict.fromkeys(names))
            if path.is_file():
                self._resume(path)
            elif other := [p.name for p in self.folder.iterdir() if p.name[0] != "."]:
                raise ValueError(f"{self.folder} holds {other[0]}, and no job: name a new folder")
            else:
                write_json(path, self.about)
            yield self

    def path(self, number: int) -> Path:
        """Where a shard is."""
        return self.folder / "shards" / f"{number:05d}.jsonl"

    def keep(self, number: int, texts: Sequence[str]) -> None:
        """Write a shard: it is whole or not there. Raises OSError."""
        write_whole(self.path(number), self._lines(number, texts))
        self.todo.discard(number)

    def finish(self) -> str:
        """The checksum of all texts, noted in job.json. Raises ValueError for damaged texts.

        SHA-256 over index, prompt, seed and text of each, so it is the same however many shards
        and workers there were.
        """
        digest = hashlib.sha256()
        for number in range(len(self.shards)):
            for row in self._rows(number):
                digest.update(json.dumps(list(row.values())).encode() + b"\n")
        checksum = digest.hexdigest()
        if self.before not in (None, checksum):
            raise ValueError(f"a text in {self.folder} was changed: name a new --out")
        write_json(self.folder / "job.json", self.about | {"checksum": checksum})
        return checksum

    def _lines(self, number: int, texts: Sequence[str]) -> bytes:
        """A shard's file. Raises ValueError for too few texts or too many."""
        first, pairs = number * self.shard_size, zip(self.shards[number], texts, strict=True)
        lines = [
            {"index": i, "prompt": prompt, "seed": seed, "text": text}
            for i, ((prompt, seed), text) in enumerate(pairs, first)
        ]
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()

    def _rows(self, number: int) -> list[dict]:
        """A shard as it was written. Raises ValueError for one that is not."""
        data = self.path(number).read_bytes()
        try:
            rows = [json.loads(line) for line in data.splitlines()]
            whole = self._lines(number, [row["text"] for row in rows]) == data
        except (ValueError, KeyError, TypeError, RecursionError):
            whole = False
        if not whole:
            raise ValueError(f"{self.path(number)} is damaged: delete it, and resume")
        return rows

    def _resume(self, path: Path) -> None:
        try:
            before = dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} is damaged ({error!r}): name a new folder") from None
        for name, now in self.about.items():
            if (was := before.get(name)) != now:
                option = OPTIONS.get(name, f"--{name.replace('_', '-')} {was!r}, not {now!r}")
                why = f"the job in {self.folder} began with another value of {option}"
                raise ValueError(f"{why}: repeat its command to resume it, or name a new --out")
        self.before = before.get("checksum")
        self.todo -= {n for n in self.todo if self.path(n).exists() and self._rows(n)}


class ShardWriter:
    """Writes shards with a model of its own, all texts of one at once, on one thread of the CPU.

    Raises CheckpointError; a call ValueError or CannotBuild for a model that cannot be computed.
    """

    def __init__(self, task: Task):
        torch.set_num_threads(1)
        self.task, self.saved = task, load_checkpoint(task.checkpoint)

    def __call__(self, shard: dict) -> dict:
        """{"shard": its number, "prompts": pairs} -> {"shard": …, "texts": without prompts}."""
        task, tokenizer = self.task, self.saved.tokenizer
        requests = [
            Request(tokenizer.encode(prompt), task.max_new_tokens, task.sampling, seed, id=i)
            for i, (prompt, seed) in enumerate(shard["prompts"])
        ]
        tokens: list[list[int]] = [[] for _ in requests]
        for output in serve(self.saved.model, requests, backend=BACKENDS[task.backend]):
            tokens[output.request.id].append(output.token)
        return {"shard": shard["shard"], "texts": [tokenizer.decode(new) for new in tokens]}


def write_shards(job: Job, workers: int = 1, cluster: str = "") -> Iterator[tuple[int, list[str]]]:
    """The texts of every shard that is not done, as they come: (number, texts).

    One worker is this process. More are actors of Ray, which give the shards in any order; one that
    is lost is started again, and so is its shard. They run here, or on the Ray cluster whose
    address `cluster` is: its machines need this package, and the checkpoint at the same path.
    Raises ImportError without Ray, ChildProcessError where its workers do not start, or fail.
    """
    shards = [{"shard": n, "prompts": [list(p) for p in job.shards[n]]} for n in sorted(job.todo)]
    if not shards or (workers == 1 and not cluster):
        written = map(ShardWriter(job.task), shards)
    else:
        written = _by_ray(shards, job.task, workers, cluster)
    for shard in written:
        yield int(shard["shard"]), list(shard["texts"])


def _by_ray(shards: list[dict], task: Task, workers: int, cluster: str) -> Iterator[dict]:
    """By a cluster, or by a Ray of this machine alone, on loopback and behind a token."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
    options = {"log_to_driver": False, "logging_level": logging.ERROR}
    if not cluster:
        options |= {"include_dashboard": False, "num_cpus": workers + 1}
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # loopback alone, on Linux too
    import ray.data

    try:
        ray.init(cluster or "local", **options)
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # an error is raised, too
        pool = ray.data.ActorPoolStrategy(size=min(workers, len(shards)))
        rows = ray.data.from_items(shards, override_num_blocks=len(shards))
        how = {"fn_constructor_args": (task,), "num_cpus": 1, "compute": pool}
        yield from rows.map(ShardWriter, **how).iter_rows()
    except Exception as error:  # Ray's have no class of their own
        raise ChildProcessError(f"Ray's workers failed: {str(error).strip()}") from error
    finally:
        ray.shutdown()
