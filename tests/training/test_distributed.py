"""Training in several processes: the losses of one process, one writer, a clean end."""

import copy
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from training_fixtures import (
    CPU,
    ctrl_c,
    exit_code,
    fork_pair,
    interrupted_run,
    log_of,
    some_runs,
    step_of,
    stop_at,
)

from nanogpt.cli import main
from nanogpt.config import GPTConfig
from nanogpt.data import practice_corpus
from nanogpt.device import Device
from nanogpt.model import GPT
from nanogpt.training.processes import ALONE, Team, joined, torchrun
from nanogpt.training.recipes import TrainConfig
from nanogpt.training.resume import state_path
from nanogpt.training.trainer import Trainer

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo"
)
STEPS = 20


def words(folder, out, *more):
    """A run of the folder's text, which writes to folder/out.

    Not the recipe's Muon and high rate: they make 1e-3 of a difference in the last bit in 60 steps.
    """
    calm = ["--no-muon", "--lr", "1e-3"]
    short = ["--steps", str(STEPS), "--eval-every", "10", "--eval-batches", "1"]
    where = ["--device", "cpu", "--data", f"{folder}/text.txt", "--out", f"{folder}/{out}"]
    short += ["--size", "article", "--batch-size", "4", *where]
    return ["train", *short, *(more if "--recipe" in more else [*calm, *more])]


def assert_same_run(out, whole):
    """The losses of all batches and the last weights, but for the order of additions."""
    a = load_file(state_path(out))
    b = load_file(state_path(whole))
    torch.testing.assert_close(a["batch_loss"], b["batch_loss"], atol=1e-5, rtol=0)
    assert len(a["batch_loss"]) == STEPS
    for name in (name for name in a if name.startswith("model.")):
        torch.testing.assert_close(a[name], b[name], atol=1e-5, rtol=0, msg=name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a text and `whole`, the run of one process that was never stopped."""
    path = tmp_path_factory.mktemp("distributed")
    (path / "text.txt").write_text(practice_corpus().text[:20_000], encoding="utf-8")
    assert main(words(path, "whole")) == 0
    return path


@pytest.fixture(scope="module")
def two(folder):
    """The folder after two processes made some runs there; what each of them printed."""
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 14, ctrl_c)
        assert main(words(folder, "begun")) == 130
        assert step_of(folder / "begun") == 15
    runs = [
        words(folder, "of-RANK/plain"),
        words(folder, "of-RANK/parts", "--accumulate", "2"),
        words(folder, "begun", "--resume"),
        words(folder, "of-RANK/sprint", "--recipe", "sprint"),
        words(folder, "of-RANK/plain", "--resume"),  # which the second process has no state of
    ]
    pair = fork_pair(folder / "two", some_runs, runs)
    printed = {
        f"{rank}.{end}": (folder / f"two{rank}.{end}") for rank in (0, 1) for end in ("out", "err")
    }
    assert [exit_code(process) for process in pair] == [0, 0], printed["0.err"].read_text(
        encoding="utf-8"
    )
    return {key: path.read_text(encoding="utf-8") for key, path in printed.items()}


@pytest.mark.parametrize("out", ["of-0/plain", "of-0/parts", "begun"])
def test_two_processes_compute_the_losses_and_weights_of_one(folder, two, out):
    """Without and with accumulate, and a run that one process began and two resumed."""
    assert_same_run(folder / out, folder / "whole")


def test_two_processes_have_the_bits_of_one_with_accumulate_2(folder, two):
    """With Muon, which would enlarge any difference."""
    assert main(words(folder, "sprint", "--recipe", "sprint", "--accumulate", "2")) == 0
    a, b = (load_file(state_path(folder / out)) for out in ("of-0/sprint", "sprint"))
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def test_only_the_first_process_prints_and_writes(folder, two):
    assert "2 processes" in two["0.out"]
    assert "full validation loss" in two["0.out"]
    assert all(line.startswith("refused: ") for line in two["1.out"].splitlines())
    assert two["0.err"] == two["1.err"] == ""
    assert not list(folder.glob("of-1/*"))
    ends = [".json", ".jsonl", ".safetensors"]
    ends += ["-last.json", "-last.safetensors", "-last.state.safetensors"]
    expected = {name + end for name in ("plain", "parts", "sprint") for end in ends}
    assert {p.name for p in folder.glob("of-0/*")} == expected
    assert [row["step"] for row in log_of(folder / "of-0" / "plain")] == [0, 10, 20]


def test_both_processes_refuse_and_the_first_prints_why(folder, two):
    files = "process 0 has saved steps: 20, process 1 has 0: all must read the same files"
    for rank in (0, 1):
        (refused,) = re.findall("refused: .*", two[f"{rank}.out"])
        assert files in refused
    pair = fork_pair(folder / "late", main, words(folder, "odd", "--batch-size", "3"))
    assert [exit_code(process) for process in pair] == [2, 2]
    errors = [(folder / f"late{rank}.err").read_text(encoding="utf-8") for rank in (0, 1)]
    assert errors[0].startswith(
        "error: --batch-size 3 is 3 windows of block 32, not a multiple of 2 parts"
    )
    assert errors[1] == ""
    assert not list(folder.glob("odd*"))


def test_ctrl_c_in_one_process_stops_all_at_the_same_step(folder):
    pair = fork_pair(folder / "stop", interrupted_run, words(folder, "stopped"))
    assert [exit_code(process) for process in pair] == [130, 130]
    errors = [(folder / f"stop{rank}.err").read_text(encoding="utf-8") for rank in (0, 1)]
    assert errors[0].count("the same command with --resume resumes from this step") == 1
    assert errors[1] == ""
    assert step_of(folder / "stopped") == 13
    assert main(words(folder, "stopped", "--resume")) == 0
    assert_same_run(folder / "stopped", folder / "whole")


LOSES_A_PROCESS = """
import os, signal, sys
from pathlib import Path
from nanogpt.cli import main
from training_fixtures import do_at

lost = Path(__file__).with_name("lost")
if os.environ["RANK"] == "1" and not lost.exists():
    do_at(14, lambda: lost.touch() or os.kill(os.getpid(), signal.SIGKILL))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.release
def test_after_a_kill_torchrun_stops_all_and_resume_gives_the_same_bits(folder, two, monkeypatch):
    (folder / "lost.py").write_text(LOSES_A_PROCESS, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    script = [str(folder / "lost.py"), *words(folder, "killed")]
    with pytest.raises(ChildProcessError, match="SIGKILL"):
        torchrun(script, 2)
    assert step_of(folder / "killed") == 10
    torchrun([*script, "--resume"], 2)
    a, b = (load_file(state_path(folder / out)) for out in ("killed", "of-0/plain"))
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


# ------------------------------------------------------------------ in one process


def test_without_torchrun_there_is_one_process(alone):
    device = Device(torch.device("cpu"), torch.float32, "tests")
    with joined(device) as (given, team):
        assert given is device
        assert team is ALONE


@pytest.fixture
def alone(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("rank", [0, 2])
def test_dropout_of_other_processes_depends_on_the_step_alone(rank, monkeypatch):
    """A resumed run repeats the dropout of an uninterrupted one; process 0 is as one alone."""
    team = Team(rank, 4)
    for name in ("agree_on_text", "averaging", "mean"):  # connected to no others
        monkeypatch.setattr(Team, name, lambda self, x, *others: x)
    model = GPT(GPTConfig(vocab_size=5, block_size=8, n_layer=1, n_head=1, n_embd=4, dropout=0.5))
    config = TrainConfig(batch_size=4, seed=5, warmup=0, decay=False)
    data = torch.arange(99) % 5
    losses = []
    for step, seed in ((7, 1), (7, 2), (8, 2)):
        trainer = Trainer(copy.deepcopy(model), data, config, torch.Generator(), CPU, team)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            losses.append(float(trainer.step(step)))
    assert (losses[0] == losses[1]) == bool(rank)
    assert (losses[1] == losses[2]) != bool(rank)


def test_torchrun_reports_the_error_of_a_failed_process(tmp_path):
    (tmp_path / "fails.py").write_text("raise ValueError('no room')", encoding="utf-8")
    with pytest.raises(ChildProcessError, match="(?s)failed, exit code 1:.*ValueError: no room"):
        torchrun([str(tmp_path / "fails.py")], 1)


@pytest.mark.parametrize("rank", ["0", "2"])
def test_more_processes_than_gpus_are_refused_in_every_process(monkeypatch, alone, rank):
    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    gpu = Device(torch.device("cuda"), torch.float32, "tests")
    with pytest.raises(ValueError, match="3 processes, but 2 GPUs.*_node=2 at most"), joined(gpu):
        pass
    assert not dist.is_initialized()
