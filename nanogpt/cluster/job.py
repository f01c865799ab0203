"""Generate many texts from a file of prompts, in shards; existing shards are skipped.

    FOLDER/job.json           the settings of the job
    FOLDER/SHA256SUMS         a digest of each shard: `sha256sum -c SHA256SUMS` checks them
    FOLDER/shards/00000.jsonl a line of JSON for each text, in the order of the input

The digest reveals a shard that was truncated or edited. A text depends only on its prompt and its
seed, so any number of workers writes the same files. Several workers are Ray Data actors
(optional).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import signal
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..config import check_int
from ..decoder.checkpoint import Checkpoint, load_checkpoint
from ..files import OURS, read_json, real_path, sha256, user_path, write_json, write_whole
from ..sampling import MOST_NEW, PLAIN, SamplingParams, check_length, check_sampling
from ..serving.batch import serve
from ..serving.native_steps import BACKENDS
from ..serving.sequence import Request
from .folders import check_folder, held

MOST = 1_000_000  # texts in a job, and characters in a prompt: all are in memory
_OPTIONS = {
    "format": "the version of this package",
    "input": "--prompts, --samples or --seed",
    "weights": "--checkpoint",
    "sampling": "--temperature, --top-k, --top-p or --greedy",
}
Shard = dict[str, Any]  # as Ray passes it on: plain data
_Prompt = tuple[str, int]  # the beginning of a text, and its random seed


def read_prompts(
    path: Path | None, samples: int = 1, seed: int = 0, check: Callable[[str], object] = len
) -> list[_Prompt]:
    r"""Read prompts from a file, each repeated `samples` times; without a file, the prompt "\n".

    A .jsonl file has an object per line, {"prompt": "…"}; any other file has a prompt per line.
    Empty lines are skipped. The texts get the seeds `seed`, `seed` + 1, … Raises ValueError with
    the file and line, also if `check` raises one for a prompt; and OSError.
    """
    check_int("samples", samples, 1)
    check_int("seed", seed, 0, 2**62)
    path = user_path(path) if path else None
    read = _object if path and path.suffix == ".jsonl" else str
    prompts = []
    for where, line in _lines(path) if path else [("", "\n")]:
        try:
            prompts.append(read(line))
            check(prompts[-1])
        except ValueError as error:
            raise ValueError(f"{where}{error}") from None
        check_int("the number of texts", len(prompts) * samples, 1, MOST)
    if not prompts:
        raise ValueError(f"{path} has no prompt: write one in each line")
    each = [prompt for prompt in prompts for _ in range(samples)]
    return list(zip(each, range(seed, seed + len(each)), strict=True))


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """The non-empty lines of a text file, as pairs of a prefix, "FILE, line 3: ", and the line."""
    number = 0
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as file:
            while True:
                line = file.readline(MOST + 1)
                if not line:
                    return
                number += 1
                if number > 10 * MOST:
                    raise ValueError(f"{path} has over {10 * MOST:,} lines: split it into files")
                if len(line) > MOST:
                    raise ValueError(
                        f"{path}, line {number} has over {MOST:,} characters: "
                        f"write a prompt in each line"
                    )
                if line.rstrip("\r\n"):
                    yield f"{path}, line {number}: ", line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}): save it as UTF-8") from None


def _object(line: str) -> str:
    try:
        ((name, prompt),) = json.loads(line).items()
    except (ValueError, AttributeError, RecursionError):
        name = None
        prompt = None
    if name != "prompt" or not isinstance(prompt, str) or not prompt:
        raise ValueError('write {"prompt": "ROMEO:"}, and no other field')
    return prompt


@dataclass(frozen=True)
class Task:
    """The settings for every text of a job, as plain data that can be sent to any process."""

    checkpoint: str
    weights: str  # their digest
    max_new_tokens: int = 200
    sampling: SamplingParams = PLAIN
    backend: str = "native"


def prompt_check(task: Task, saved: Checkpoint) -> Callable[[str], None]:
    """Check the settings against the model; returns a check for prompts. Both raise ValueError."""
    check_int("max_new_tokens", task.max_new_tokens, 1, MOST_NEW)
    check_sampling(task.sampling, len(saved.tokenizer))

    def check(prompt: str) -> None:
        saved.tokenizer.encode(prompt)
        check_length(len(prompt), task.max_new_tokens, saved.model.config.max_positions)

    return check


class Job:
    """The texts of one job, in shards of `shard_size`, in a folder. Raises ValueError."""

    def __init__(self, folder: Path, prompts: Sequence[_Prompt], task: Task, shard_size: int = 32):
        check_int("shard_size", shard_size, 1)
        self.folder = real_path(folder)
        self.task = task
        self.shard_size = shard_size
        n = len(prompts)
        self.shards = [prompts[start : start + shard_size] for start in range(0, n, shard_size)]
        self.digests = self.folder / "SHA256SUMS"
        self.kept: set[int] = set()  # numbers of the shards that exist and have not been changed
        self.about = {  # everything the files depend on; the path of the weights does not matter
            "format": f"{OURS} job 3",
            "input": sha256(json.dumps(prompts).encode()),
            "texts": n,
            "shard_size": shard_size,
            **{name: value for name, value in asdict(task).items() if name != "checkpoint"},
        }

    @property
    def todo(self) -> list[int]:
        """The numbers of the missing shards."""
        return [n for n in range(len(self.shards)) if n not in self.kept]

    @contextmanager
    def opened(self) -> Iterator[Job]:
        """A with-block in which no other job writes here.

        Raises ValueError for a folder that holds another job, changed shards or anything else, and
        OSError for one that cannot be written. After an error nothing has changed.
        """
        path = self.folder / "job.json"
        check_folder(self.folder, path.name)
        with held(self.folder / ".lock", f"to {self.folder}"):
            before = read_json(path) or self.about
            for name, now in self.about.items():
                if before.get(name) != now:
                    given = f"--{name.replace('_', '-')} {before.get(name)!r}, not {now!r}"
                    raise ValueError(
                        f"the job in {self.folder} began with another value of "
                        f"{_OPTIONS.get(name, given)}: repeat its command to resume it, "
                        f"or name a new --out"
                    )
            digests = self._check_shards()
            write_json(path, self.about)
            lines = [f"{digest}  {name}\n" for name, digest in sorted(digests.items())]
            write_whole(self.digests, "".join(lines).encode())  # drops a line that a kill truncated
            yield self

    def _check_shards(self) -> dict[str, str]:
        """Find the finished shards; returns all digests. Raises ValueError for changed shards."""
        text = self.digests.read_text("utf-8", "replace") if self.digests.is_file() else ""
        rows = re.findall(r"^([0-9a-f]{64})  (shards/\d+\.jsonl)$", text, re.M)
        digests = {name: digest for digest, name in rows}
        changed = []
        for number in range(len(self.shards)):
            path = self.path(number)
            if not os.path.lexists(path):
                continue
            if path.is_file() and sha256(path) == digests.get(self._name(number)):
                self.kept.add(number)
            else:
                changed.append(path.name)
        if changed:
            raise ValueError(
                f"{len(changed)} shards in {self.folder} have changed since this job wrote them "
                f"({', '.join(changed[:3])}): move them away, and this command regenerates them"
            )
        return digests

    def path(self, number: int) -> Path:
        """The file of a shard."""
        return self.folder / self._name(number)

    def _name(self, number: int) -> str:
        return f"shards/{number:05d}.jsonl"

    def keep(self, number: int, texts: Sequence[str]) -> None:
        """Write a shard atomically. Raises OSError."""
        first = number * self.shard_size
        lines = []
        pairs = zip(self.shards[number], texts, strict=True)
        for index, ((prompt, seed), text) in enumerate(pairs, first):
            row = {"index": index, "prompt": prompt, "seed": seed, "text": text}
            lines.append(json.dumps(row, ensure_ascii=False) + "\n")
        data = "".join(lines).encode()
        # Write the digest first, so that a killed process never leaves a shard without one.
        with open(self.digests, "a", encoding="utf-8") as file:
            file.write(f"{sha256(data)}  {self._name(number)}\n")
            file.flush()
            os.fsync(file.fileno())
        write_whole(self.path(number), data)
        self.kept.add(number)

    def checksum(self) -> str:
        """The SHA-256 of all shards, as `cat shards/* | sha256sum` prints it."""
        digest = hashlib.sha256()
        for number in range(len(self.shards)):
            digest.update(self.path(number).read_bytes())
        return digest.hexdigest()


class ShardWriter:
    """Writes shards with its own copy of the model: a shard is one batch, on one CPU thread.

    Raises CheckpointError; a call raises ValueError or CannotBuild for an unsupported model.
    """

    def __init__(self, task: Task):
        torch.set_num_threads(1)
        self.task = task
        self.saved = load_checkpoint(task.checkpoint)

    def __call__(self, shard: Shard) -> Shard:
        """{"shard": its number, "prompts": pairs} -> {"shard": …, "texts": without prompts}."""
        task = self.task
        tokenizer = self.saved.tokenizer
        requests = []
        tokens: dict[Hashable, list[int]] = {}  # by the id of the request
        for i, (prompt, seed) in enumerate(shard["prompts"]):
            prompt_tokens = tokenizer.encode(prompt)
            request = Request(prompt_tokens, task.max_new_tokens, task.sampling, seed, id=i)
            requests.append(request)
            tokens[i] = []
        for output in serve(self.saved.model, requests, backend=BACKENDS[task.backend]):
            tokens[output.request.id].append(output.token)
        texts = []
        for new in tokens.values():
            texts.append(tokenizer.decode(new))  # type: ignore[arg-type]  # it also takes lists
        return {"shard": shard["shard"], "texts": texts}


def write_shards(job: Job, workers: int = 1, cluster: str = "") -> Iterator[tuple[int, list[str]]]:
    """Generate the texts of every missing shard, yielding (number, texts) as they finish.

    A single worker is this process. Several workers are Ray actors, which return the shards in any
    order; a lost actor is restarted, and so is its shard. They run on this machine, or on the Ray
    cluster at the address `cluster`: its machines need this package, and the checkpoint at the same
    path. Raises ImportError without Ray, ChildProcessError if its workers do not start, or fail.
    """
    shards = []
    for n in job.todo:
        shards.append({"shard": n, "prompts": [list(pair) for pair in job.shards[n]]})
    if not shards or (workers == 1 and not cluster):
        written: Iterator[Shard] = map(ShardWriter(job.task), shards)
    else:
        written = _by_ray(shards, job.task, workers, cluster)
    for shard in written:
        yield int(shard["shard"]), list(shard["texts"])


def _by_ray(shards: list[Shard], task: Task, workers: int, cluster: str) -> Iterator[Shard]:
    """Run on a cluster, or on a local Ray that listens only on loopback and requires a token."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
    options = {"log_to_driver": False, "logging_level": logging.ERROR}
    if not cluster:
        options |= {"include_dashboard": False, "num_cpus": workers + 1}
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # only loopback, also on Linux
    import ray.data

    try:
        before = signal.getsignal(signal.SIGTERM)
        ray.init(cluster or "local", **options)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray's handler would end the process immediately
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # errors are also raised
        pool = ray.data.ActorPoolStrategy(size=min(workers, len(shards)))
        rows = ray.data.from_items(shards, override_num_blocks=len(shards))
        how = {"fn_constructor_args": (task,), "num_cpus": 1, "compute": pool}
        yield from rows.map(ShardWriter, **how).iter_rows()
    except Exception as error:  # Ray's errors have no common class
        raise ChildProcessError(f"Ray's workers failed: {str(error).strip()}") from error
    finally:
        ray.shutdown()
