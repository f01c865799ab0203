"""What the tests of training share: a tiny model, ways to stop a run, forked processes."""

import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from pathlib import Path

import torch
from safetensors import safe_open
from shapes import model_of

from nanogpt.cli import main
from nanogpt.cli.common import Parser
from nanogpt.cli.train import options, train_on
from nanogpt.config import GPTConfig
from nanogpt.data import practice_corpus
from nanogpt.device import Device, pick_device
from nanogpt.model import GPT, LanguageModel
from nanogpt.training.loop import train
from nanogpt.training.processes import joined
from nanogpt.training.recipes import TrainConfig
from nanogpt.training.resume import state_path
from nanogpt.training.trainer import Trainer

CPU = Device(torch.device("cpu"), torch.float32, "tests")
FILES = (".safetensors", "-last.safetensors", "-last.state.safetensors")
TINY = {"block_size": 8, "n_layer": 2, "n_head": 2, "n_embd": 16}


def fresh(corpus, per_head=True, *, dtype=torch.float32, **fields) -> LanguageModel:
    """A tiny untrained model for this text, the same each time.

    A GPT, or a Decoder: packed, or with fields that the lecture does not have.
    """
    shape = {"vocab_size": len(set(corpus.text)), "dropout": 0.1, **TINY, **fields}
    return model_of(packed=not per_head, **shape).to(dtype)


def weights(model) -> torch.Tensor:
    """All of a model's parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def contents(out: Path) -> dict[str, bytes]:
    """The weights and the state that a run wrote, by what their names end in."""
    return {suffix: out.with_name(f"{out.name}{suffix}").read_bytes() for suffix in FILES}


def log_of(out: Path) -> list[dict]:
    lines = out.with_name(f"{out.name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def step_of(out: Path) -> int:
    """The step of the saved state."""
    with safe_open(state_path(out), framework="pt") as file:
        return json.loads(file.metadata()["nanogpt"])["step"]


def stop_at(monkeypatch, step, what) -> None:
    """Do `what()` when the loop begins its step number `step` (from 0)."""
    monkeypatch.setattr(Trainer, "step", Trainer.step)  # put back in the end
    do_at(step, what)


def do_at(step, what) -> None:
    """The same for the rest of a process."""
    begun = []
    plain = Trainer.step

    def begin(*arguments):
        begun.append(None)
        if len(begun) == step + 1:
            what()
        return plain(*arguments)

    Trainer.step = begin


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


# Processes that start at once: forked from one in which everything is imported.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch._dynamo", "nanogpt.cli.train", "training_fixtures"])
PATIENCE = 200  # seconds, against a test that hangs; nothing here is timed


def fork(log: Path, target, *arguments, **env):
    """A process that calls the target and exits with its result; it prints to log.out, log.err."""
    process = FORKS.Process(target=_child, args=(str(log), target, arguments, env))
    process.start()
    return process


def _child(log, target, arguments, env):
    os.environ |= env | {"TQDM_DISABLE": "1"}
    for name in ("out", "err"):
        stream = open(f"{log}.{name}", "w", buffering=1, encoding="utf-8")  # noqa: SIM115
        setattr(sys, f"std{name}", stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    sys.exit(target(*arguments))


def fork_pair(log: Path, target, *arguments) -> list:
    """Two processes as torchrun would start them; they print to log0.out, log1.out and so on."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    place |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    return [
        fork(Path(f"{log}{rank}"), target, *arguments, RANK=rank, LOCAL_RANK=rank, **place)
        for rank in ("0", "1")
    ]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def exit_code(process) -> int:
    """Wait for its end; a process that hangs is killed, and its exit code is negative."""
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode


def wait_for(text: str, path: Path, process) -> None:
    """Until the process has printed the text to this file."""
    while not path.is_file() or text not in path.read_text(encoding="utf-8"):
        assert process.is_alive(), path.with_suffix(".err").read_text(encoding="utf-8")
        time.sleep(0.005)


def short_run(out: Path, killed_at: int | None = None) -> None:
    """A run for a process of its own; it resumes what is saved there.

    The process is killed before it renames file number `killed_at` (from 1) to its place.
    """
    renamed = []
    plain = os.replace

    def rename(*arguments):
        renamed.append(arguments)
        if len(renamed) == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        plain(*arguments)

    os.replace = rename
    corpus = practice_corpus()
    model = GPT(GPTConfig(block_size=16, n_layer=1, n_head=2, n_embd=32, dropout=0.1))
    recipe = TrainConfig(steps=45, batch_size=4, eval_every=3, eval_batches=1)
    train(model, corpus, recipe, out=out, device=CPU, resume=True)


def some_runs(runs) -> None:
    """For each of two processes: runs, one after another; what is refused is printed."""
    rank = os.environ["RANK"]
    parser = Parser("train", "")
    options(parser)
    with joined(pick_device("cpu")) as (device, team):
        for _, *one in runs:
            try:
                words = [word.replace("RANK", rank) for word in one]
                train_on(device, team, parser.parse_args(words))
            except ValueError as error:
                print("refused:", error)


def interrupted_run(words) -> int:
    """A run in which Ctrl-C reaches the second process alone, in its step number 12 (from 0)."""
    if os.environ["RANK"] == "1":
        do_at(12, ctrl_c)
    return main(words)
