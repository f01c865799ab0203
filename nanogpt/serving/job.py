"""A job of many texts: cut into shards, kept in a folder, resumed from what is done.

    FOLDER/job.json           which job it is; the shards that are done, with their digests
    FOLDER/shards/00000.jsonl a line of JSON for each text, in the order of the input

A text depends on its prompt and its seed alone. So a job may be cut over any number of workers,
stopped and resumed, and its texts have one checksum. Knows nothing of models and workers.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ..config.checks import check_int
from ..system.files import atomic_path, sha256, write_json
from ..system.lock import held

FORMAT = "nanogpt-notebooks job 1"
MOST = 10_000_000  # texts of one job: its rows are in memory


class Row(NamedTuple):
    """One text to write: what it begins with, and the seed of its randomness."""

    prompt: str
    seed: int


def read_rows(path: Path | None, samples: int = 1, seed: int = 0) -> list[Row]:
    r"""The texts that a file asks for: `samples` of each of its prompts; without a file, of "\n".

    A .jsonl file has an object a line, {"prompt": "…", "seed": 7}; any other file has a prompt a
    line, and lines without one are skipped. A prompt without a seed of its own gets the next
    number, from `seed` on, for each of its texts. Raises ValueError, naming the line, and OSError.
    """
    check_int("samples", samples, 1)
    check_int("seed", seed, 0, 2**62)
    rows, prompts = [], [("\n", None)] if path is None else _prompts(Path(path))
    if (n := len(prompts) * samples) > MOST:
        raise ValueError(
            f"{n:,} texts are too many for one job, which has {MOST:,} at most: cut it"
        )
    for prompt, own in prompts:
        for i in range(samples):
            rows.append(Row(prompt, len(rows) + seed if own is None else own + i))
    if not rows:
        raise ValueError(f"{path} holds no prompt: write one a line")
    return rows


def _prompts(path: Path) -> list[tuple[str, int | None]]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason})") from None
    if path.suffix != ".jsonl":
        return [(line, None) for line in lines if line]
    where = ((f"{path}, line {i}", line) for i, line in enumerate(lines, 1) if line.strip())
    return [_parsed(line, place) for place, line in where]


def _parsed(line: str, place: str) -> tuple[str, int | None]:
    try:
        row = json.loads(line)
        prompt, seed = row["prompt"], row.get("seed")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f'{place}: write an object a line, {{"prompt": "ROMEO:"}}') from None
    if not isinstance(prompt, str) or not prompt:
        raise ValueError(f"{place}: prompt={prompt!r}: must be a text of at least one character")
    if seed is not None:
        check_int(f"{place}: seed", seed, 0, 2**62)
    return prompt, seed


class Job:
    """The texts of one job, in shards of `shard_size`, in a folder.

    `settings` are plain data: all beside the rows that a text depends on. Raises ValueError.
    """

    def __init__(self, folder: Path, rows: Sequence[Row], settings: dict, shard_size: int = 32):
        check_int("shard_size", shard_size, 1)
        self.folder, self.rows, self.shard_size = Path(folder), rows, shard_size
        self.about = {
            "input": sha256(json.dumps(rows).encode()),
            "texts": len(rows),
            "shard_size": shard_size,
            **json.loads(json.dumps(settings)),
        }
        self.n_shards = -(-len(rows) // shard_size)
        self.done: dict[int, str] = {}  # the digest of each shard's file
        self.damaged: list[int] = []  # shards that were done, and are to be written again

    @contextmanager
    def opened(self):
        """A with-block in which no other job writes here; what was done before is found.

        A shard that is damaged or gone is written again; its file is kept as NAME.damaged. Raises
        ValueError for a folder that holds another job or something else, OSError for a closed one.
        """
        self._check_folder()
        with held(self.folder / ".lock", f"to {self.folder}"):
            self._check_folder()  # another job may have been quicker
            if self._manifest.is_file():
                self._resume()
            else:
                self._write()
            yield self

    @property
    def todo(self) -> list[int]:
        """The shards that are not done."""
        return [number for number in range(self.n_shards) if number not in self.done]

    def rows_of(self, number: int) -> Sequence[Row]:
        """The rows of a shard."""
        return self.rows[number * self.shard_size : (number + 1) * self.shard_size]

    def path(self, number: int) -> Path:
        """Where a shard is."""
        return self.folder / "shards" / f"{number:05d}.jsonl"

    def keep(self, number: int, texts: Sequence[str]) -> None:
        """Write a shard, then note it as done: each is whole or not there. Raises OSError."""
        rows, first = self.rows_of(number), number * self.shard_size
        lines = [
            json.dumps({"index": first + i, **row._asdict(), "text": text}, ensure_ascii=False)
            for i, (row, text) in enumerate(zip(rows, texts, strict=True))
        ]
        data = "".join(line + "\n" for line in lines).encode()
        with atomic_path(self.path(number)) as temporary:
            temporary.write_bytes(data)
        self.done[number] = sha256(data)
        try:
            self._write()
        except OSError:
            del self.done[number]
            raise

    def finish(self) -> str:
        """The checksum of all texts, noted in job.json. Raises ValueError for a damaged shard.

        SHA-256 over index, prompt, seed and text of each, so it is the same however many shards
        and workers there were.
        """
        digest = hashlib.sha256()
        for number in range(self.n_shards):
            if not self._is_whole(number):
                raise ValueError(f"{self.path(number)} was changed: the same command mends it")
            with open(self.path(number), encoding="utf-8", newline="\n") as file:
                for line in file:
                    row = json.loads(line)
                    parts = [row["index"], row["prompt"], row["seed"], row["text"]]
                    digest.update(json.dumps(parts).encode() + b"\n")
        self._write(digest.hexdigest())
        return digest.hexdigest()

    # -------------------------------------------------------------- the folder

    @property
    def _manifest(self) -> Path:
        return self.folder / "job.json"

    def _check_folder(self) -> None:
        if self.folder.is_file():
            raise ValueError(f"{self.folder} is a file: name a folder")
        if self._manifest.is_file() or not self.folder.is_dir():
            return
        if other := [p.name for p in self.folder.iterdir() if p.name[0] != "."]:
            raise ValueError(
                f"{self.folder} holds something else ({other[0]}), and no job: name a new folder"
            )

    def _write(self, checksum: str | None = None) -> None:
        done = {str(number): self.done[number] for number in sorted(self.done)}
        about = {"format": FORMAT, **self.about, "shards": self.n_shards}
        write_json(self._manifest, {**about, "checksum": checksum, "done": done})

    def _resume(self) -> None:
        try:
            before = json.loads(self._manifest.read_text(encoding="utf-8"))
            done = {int(number): digest for number, digest in before["done"].items()}
            if before["format"] != FORMAT:
                raise ValueError(f"format {before['format']!r}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"{self._manifest} is damaged or of another version ({error}): name a new folder"
            ) from None
        self._check_same(before)
        self.done = {number: done[number] for number in done if 0 <= number < self.n_shards}
        self.damaged = [number for number in sorted(self.done) if not self._is_whole(number)]
        for number in self.damaged:
            del self.done[number]
            if self.path(number).is_file():
                os.replace(self.path(number), f"{self.path(number)}.damaged")

    def _check_same(self, before: dict) -> None:
        changed = [
            f"{name} {before.get(name)!r}, not {value!r}"
            for name, value in self.about.items()
            if before.get(name) != value
        ]
        if changed:
            raise ValueError(
                f"the job in {self.folder} began with {'; '.join(changed)}: repeat the same "
                f"command to resume it, or name a new folder"
            )

    def _is_whole(self, number: int) -> bool:
        try:
            return sha256(self.path(number)) == self.done.get(number)
        except OSError:
            return False


def shards_of(job: Job) -> Iterator[tuple[int, Sequence[Row]]]:
    """The shards that are not done, with their rows."""
    return ((number, job.rows_of(number)) for number in job.todo)
