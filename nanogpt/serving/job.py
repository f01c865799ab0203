"""A job of many texts: cut into shards, kept in a folder, resumed from what is done.

    FOLDER/job.json           which job it is; the shards that are done, with their digests
    FOLDER/shards/00000.jsonl a line of JSON for each text, in the order of the input

A text depends on its prompt and its seed alone. So a job may be written by any number of workers,
stopped and resumed, and its texts have one checksum. More workers than one are actors of Ray Data,
on this machine or on a cluster; Ray is optional: pip install 'ray[data]'.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from ..config.checks import check_int
from ..decoding.limits import MOST_NEW, check_length, check_sampling
from ..decoding.sampling import PLAIN, SamplingParams
from ..engines.toolchain import CannotBuild
from ..model.checkpoint import Checkpoint, load_checkpoint
from ..system.files import PACKAGE, atomic_path, held, sha256, write_json
from .batch import serve
from .modules import ModuleBackend
from .native import NativeBackend
from .request import Request

FORMAT = "nanogpt-notebooks job 1"
MOST = 10_000_000  # texts of one job: its prompts are in memory
BACKENDS = {"native": NativeBackend, "modules": ModuleBackend}


class Prompt(NamedTuple):
    """One text to write: what it begins with, and the seed of its randomness."""

    prompt: str
    seed: int


def read_prompts(path: Path | None, samples: int = 1, seed: int = 0) -> list[Prompt]:
    r"""The texts that a file asks for: `samples` of each of its prompts; without a file, of "\n".

    A .jsonl file has an object a line, {"prompt": "…", "seed": 7}; any other file has a prompt a
    line, and lines without one are skipped. A prompt without a seed of its own gets the next
    number, from `seed` on, for each of its texts. Raises ValueError, naming the line, and OSError.
    """
    check_int("samples", samples, 1)
    check_int("seed", seed, 0, 2**62)
    lines = [("\n", None)] if path is None else _read_lines(Path(path))
    if not lines:
        raise ValueError(f"{path} holds no prompt: write one a line")
    if (n := len(lines) * samples) > MOST:
        raise ValueError(f"{n:,} texts are too many for one job; cut it: {MOST:,} are the most")
    prompts = []
    for prompt, own in lines:
        first = len(prompts) + seed if own is None else own
        prompts += [Prompt(prompt, first + i) for i in range(samples)]
    return prompts


def _read_lines(path: Path) -> list[tuple[str, int | None]]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason})") from None
    if path.suffix != ".jsonl":
        return [(line, None) for line in lines if line]
    found = []
    for i, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            prompt, seed = row["prompt"], row.get("seed")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            prompt = seed = None
        if not isinstance(prompt, str) or not prompt:
            raise ValueError(f'{path}, line {i}: write an object a line, {{"prompt": "ROMEO:"}}')
        if seed is not None:
            check_int(f"{path}, line {i}: seed", seed, 0, 2**62)
        found.append((prompt, seed))
    return found


@dataclass(frozen=True)
class Task:
    """How every text of a job is written: plain data that any process can be given."""

    checkpoint: str
    weights: str  # their digest
    max_new_tokens: int = 200
    sampling: SamplingParams = PLAIN
    backend: str = "native"


def choose_backend(saved: Checkpoint) -> tuple[str, str]:
    """The fastest backend for these weights here, and why it is not the native one."""
    try:
        why = NativeBackend.supports(saved.model)
        if not why:
            NativeBackend(saved.model, 1, 1)
            return "native", ""
    except CannotBuild as error:
        why = str(error)
    return "modules", why


def check_prompts(prompts: Sequence[Prompt], task: Task, saved: Checkpoint) -> None:
    """Raises ValueError for the first text that this model cannot write, before any is."""
    check_int("max_new_tokens", task.max_new_tokens, 1, MOST_NEW)
    check_sampling(task.sampling, len(saved.tokenizer))
    for i, (prompt, _) in enumerate(prompts):
        try:
            saved.tokenizer.encode(prompt)
        except ValueError as error:
            raise ValueError(f"text {i}: {error}") from None
        length, positions = len(prompt), saved.model.config.positions
        check_length(length, task.max_new_tokens, positions, f"text {i}: ")


class Job:
    """The texts of one job, in shards of `shard_size`, in a folder. Raises ValueError."""

    def __init__(self, folder: Path, prompts: Sequence[Prompt], task: Task, shard_size: int = 32):
        check_int("shard_size", shard_size, 1)
        self.folder, self.prompts, self.task = Path(folder), prompts, task
        self.shard_size, self.n_shards = shard_size, -(-len(prompts) // shard_size)
        self.about = {  # all that the files depend on; the weights are the same wherever they lie
            "input": sha256(json.dumps(prompts).encode()),
            "texts": len(prompts),
            "shard_size": shard_size,
            **{name: value for name, value in asdict(task).items() if name != "checkpoint"},
        }
        self.done: dict[int, str] = {}  # the digest of each shard's file
        self.damaged: list[int] = []  # shards that were done, and are to be written again

    @contextmanager
    def opened(self):
        """A with-block in which no other job writes here; what was done before is found.

        A shard that is damaged or gone is written again; its file is kept as NAME.damaged. Raises
        ValueError for a folder that holds another job or something else, OSError for a closed one.
        """
        with held(self.folder / ".lock", f"to {self.folder}"):
            if (self.folder / "job.json").is_file():
                self._resume()
            elif other := [p.name for p in self.folder.iterdir() if p.name[0] != "."]:
                raise ValueError(f"{self.folder} holds {other[0]}, and no job: name a new folder")
            else:
                self._note({})
            yield self

    @property
    def todo(self) -> list[int]:
        """The shards that are not done."""
        return [number for number in range(self.n_shards) if number not in self.done]

    def prompts_of(self, number: int) -> Sequence[Prompt]:
        """The prompts of a shard."""
        return self.prompts[number * self.shard_size : (number + 1) * self.shard_size]

    def path(self, number: int) -> Path:
        """Where a shard is."""
        return self.folder / "shards" / f"{number:05d}.jsonl"

    def keep(self, number: int, texts: Sequence[str]) -> None:
        """Write a shard, then note it as done: each is whole or not there. Raises OSError."""
        lines = [
            {"index": number * self.shard_size + i, **prompt._asdict(), "text": text}
            for i, (prompt, text) in enumerate(zip(self.prompts_of(number), texts, strict=True))
        ]
        data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
        with atomic_path(self.path(number)) as temporary:
            temporary.write_bytes(data)
        self._note(self.done | {number: sha256(data)})

    def finish(self) -> str:
        """The checksum of all texts, noted in job.json. Raises ValueError for a damaged shard.

        SHA-256 over index, prompt, seed and text of each, so it is the same however many shards
        and workers there were.
        """
        digest = hashlib.sha256()
        for number in range(self.n_shards):
            if not self._is_whole(number):
                raise ValueError(f"{self.path(number)} was changed: the same command mends it")
            for line in self.path(number).read_bytes().splitlines():
                digest.update(json.dumps(list(json.loads(line).values())).encode() + b"\n")
        self._note(self.done, digest.hexdigest())
        return digest.hexdigest()

    def _note(self, done: dict[int, str], checksum: str | None = None) -> None:
        about = {"format": FORMAT, **self.about, "shards": self.n_shards, "checksum": checksum}
        write_json(self.folder / "job.json", about | {"done": dict(sorted(done.items()))})
        self.done = done

    def _resume(self) -> None:
        path = self.folder / "job.json"
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
            done = {int(number): digest for number, digest in before["done"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} is damaged ({error!r}): name a new folder") from None
        now = {"format": FORMAT, **self.about}
        if changed := [name for name in now if before.get(name) != now[name]]:
            words = "; ".join(f"{name} {before.get(name)!r}, not {now[name]!r}" for name in changed)
            raise ValueError(
                f"the job in {self.folder} began with {words}: repeat the same command to resume "
                f"it, or name a new folder"
            )
        self.done = {number: done[number] for number in done if 0 <= number < self.n_shards}
        self.damaged = [number for number in sorted(self.done) if not self._is_whole(number)]
        for number in self.damaged:
            del self.done[number]
            if self.path(number).is_file():
                os.replace(self.path(number), f"{self.path(number)}.damaged")

    def _is_whole(self, number: int) -> bool:
        path = self.path(number)
        return path.is_file() and sha256(path) == self.done.get(number)


# ------------------------------------------------------------------ workers


class ShardWriter:
    """Writes shards with a model of its own, all texts of one at once, on one thread of the CPU.

    Raises CheckpointError for a checkpoint that cannot be read. A call raises ValueError for a
    model that the backend does not compute, CannotBuild where there is no compiler for it.
    """

    def __init__(self, task: Task):
        torch.set_num_threads(1)
        self.task, self.saved = task, load_checkpoint(task.checkpoint)

    def __call__(self, shard: dict) -> dict:
        """{"shard": its number, "prompts": pairs} -> {"shard": …, "texts": without prompts}."""
        encode, decode = self.saved.tokenizer.encode, self.saved.tokenizer.decode
        n_new, sampling = self.task.max_new_tokens, self.task.sampling
        requests = [
            Request(encode(prompt), n_new, sampling, seed=seed, id=i)
            for i, (prompt, seed) in enumerate(shard["prompts"])
        ]
        tokens: list[list[int]] = [[] for _ in requests]
        for output in serve(self.saved.model, requests, backend=BACKENDS[self.task.backend]):
            tokens[output.request.id].append(output.token)
        return {"shard": shard["shard"], "texts": [decode(new) for new in tokens]}


def check_ray() -> None:
    """Raises ImportError, saying what to install, where there is no Ray."""
    if importlib.util.find_spec("ray") is None:
        raise ImportError(
            "several workers need Ray, which is not installed: pip install 'ray[data]'"
        )


def write_shards(
    job: Job, workers: int = 1, cluster: str | None = None
) -> Iterator[tuple[int, Sequence[str]]]:
    """The texts of every shard that is not done, as they come: (number, texts).

    One worker is this process. More are actors of Ray, here or on the `cluster` that runs at this
    address, whose machines all have this package and read the checkpoint at its path; they give the
    shards in any order. An actor that is lost is started again, and so is its shard. Raises
    ImportError without Ray, ConnectionError where Ray does not start, and ChildProcessError for a
    worker that fails however often it is started.
    """
    if not job.todo:
        return
    shards = ({"shard": n, "prompts": [list(p) for p in job.prompts_of(n)]} for n in job.todo)
    if workers == 1 and not cluster:
        written = map(ShardWriter(job.task), shards)
    else:
        written = _written_by_ray(list(shards), job.task, workers, cluster)
    for shard in written:
        yield int(shard["shard"]), list(shard["texts"])


def _written_by_ray(shards: list[dict], task: Task, workers: int, cluster: str | None):
    ray = _start_ray(workers, cluster)
    try:
        rows = ray.data.from_items(shards, override_num_blocks=len(shards)).map(
            ShardWriter,
            fn_constructor_args=(task,),
            num_cpus=1,
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(shards))),
        )
        yield from rows.iter_rows()
    except ray.exceptions.RayError as error:
        lines = str(error).strip().splitlines()
        why = next((line for line in reversed(lines) if "Error: " in line), lines[0])
        raise ChildProcessError(f"the workers fail: {why.strip()}") from error
    finally:
        ray.shutdown()


def _start_ray(workers: int, cluster: str | None):
    """Ray, connected to the cluster named, else to one of this machine alone.

    The latter listens on loopback, asks for a token, and has no dashboard and no statistics.
    """
    check_ray()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    )
    how = {"address": cluster}
    if not cluster:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # on Linux it does the same
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "60")  # on a busy machine
        how = {"address": "local", "num_cpus": workers + 1, "include_dashboard": False}
        how["object_store_memory"] = 100 * 2**20  # bytes: texts are small
    import ray
    import ray.data

    try:
        ray.init(**how, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # of no class of its own
        why = str(error).strip().splitlines()[0]
        advice = "is it running?" if cluster else "is the machine busy? Try again"
        raise ConnectionError(f"Ray could not be started ({why}): {advice}") from error
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # an error is raised, too
    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray
