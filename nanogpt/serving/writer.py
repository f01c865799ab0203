"""What a worker of a job does: it loads a checkpoint, and writes the texts of a shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from ..config.checks import check_int
from ..decoding.sampling import PLAIN, SamplingParams
from ..engines.toolchain import CannotBuild
from ..model.checkpoint import Checkpoint, load_checkpoint
from .batch import serve
from .job import Row
from .modules import ModuleBackend
from .native import NativeBackend
from .request import Request

BACKENDS = {"native": NativeBackend, "modules": ModuleBackend}


@dataclass(frozen=True)
class Task:
    """How every text of a job is written: plain data that any process can be given.

    Raises ValueError for numbers that no text can have.
    """

    checkpoint: str
    max_new_tokens: int = 200
    sampling: SamplingParams = PLAIN
    backend: str = "native"

    def __post_init__(self):
        check_int("max_new_tokens", self.max_new_tokens, 1)
        if self.backend not in BACKENDS:
            raise ValueError(f"backend={self.backend!r}: choose from {', '.join(BACKENDS)}")


class Writer:
    """A model that writes the texts of rows, all of them at once; on one thread of the CPU.

    Raises CheckpointError for a checkpoint that cannot be read, ValueError for a model that the
    backend does not compute, CannotBuild where there is no compiler for it.
    """

    def __init__(self, task: Task):
        torch.set_num_threads(1)
        self.task, self.saved = task, load_checkpoint(task.checkpoint)
        backend = BACKENDS[task.backend]
        if why := backend.supports(self.saved.model):
            raise ValueError(why)
        backend(self.saved.model, 1, 1)  # built now, before there is work to lose

    def __call__(self, rows: Sequence[Row]) -> list[str]:
        """The text that follows each prompt, without it."""
        encode, model = self.saved.tokenizer.encode, self.saved.model
        requests = [
            Request(encode(row.prompt), self.task.max_new_tokens, self.task.sampling, seed, id=i)
            for i, row in enumerate(rows)
            for seed in [None if self.task.sampling.greedy else row.seed]
        ]
        tokens: list[list[int]] = [[] for _ in rows]
        for output in serve(model, requests, backend=BACKENDS[self.task.backend]):
            tokens[output.request.id].append(output.token)
        return [self.saved.tokenizer.decode(own) for own in tokens]


def settings(task: Task, saved: Checkpoint) -> dict:
    """All that a text depends on beside its row, as plain data."""
    how = {"weights": saved.sha256, **asdict(task)}
    del how["checkpoint"]  # the weights are the same wherever they lie
    return how


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


def check_rows(rows: Sequence[Row], task: Task, saved: Checkpoint) -> None:
    """Raises ValueError for the first row that this model cannot continue, before any is."""
    known, positions = set(saved.tokenizer.chars), saved.model.config.positions
    if task.sampling.top_k is not None:
        check_int("top_k", task.sampling.top_k, 1, len(known))
    for i, row in enumerate(rows):
        if unknown := set(row.prompt) - known:
            raise ValueError(
                f"text {i}: {sorted(unknown)[0]!r} in {row.prompt[:40]!r} is not among the "
                f"{len(known)} characters that the model knows"
            )
        if positions and len(row.prompt) + task.max_new_tokens - 1 > positions:
            raise ValueError(
                f"text {i}: a prompt of {len(row.prompt)} and {task.max_new_tokens} new tokens "
                f"exceed block_size {positions}: ask for at most "
                f"{max(0, positions + 1 - len(row.prompt))}, or shorten the prompt"
            )
