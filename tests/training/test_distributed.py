"""Several processes train as one does: the same losses, one that speaks and writes, an end in any case."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from nanogpt.cli.train import main
from nanogpt.data.corpus import practice_corpus
from nanogpt.model.checkpoint import load_checkpoint
from nanogpt.system.device import Device
from nanogpt.training import trainer
from nanogpt.training.distributed import Ranks, joined, ranks, speaks
from nanogpt.training.state import state_path

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo"
)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
PATIENCE = 200  # seconds, against a test that hangs; nothing here is timed
AGAIN = "the same command with --resume goes on from the last evaluation"

# What each of the two processes does: some runs, one after another, each told by its options.
PROGRAM = """
import json, os, sys
from pathlib import Path
from nanogpt.launch import command_line, run
from nanogpt.parallel import joined
from nanogpt.runtime import pick_device
rank, here = os.environ["RANK"], Path(sys.argv[1])
with joined(pick_device("cpu")) as device:
    for words in json.loads(sys.argv[2]):
        try:
            run(command_line().parse_args([word.replace("RANK", rank) for word in words]), device)
        except ValueError as error:
            Path(here, "error" + rank).write_text(str(error))
"""

# One run whose steps take 50 ms more, so that it is stopped in the midst wherever the tests are run.
SLOW = """
import json, os, sys, time
from pathlib import Path
from nanogpt import trainer
from nanogpt.launch import main
plain = trainer.random_batch
trainer.random_batch = lambda *arguments: time.sleep(0.05) or plain(*arguments)
Path(sys.argv[1], "pid" + os.environ["RANK"]).write_text(str(os.getpid()))
raise SystemExit(main(json.loads(sys.argv[2])))
"""


def words(folder, out, *more):
    """A run of 60 steps of the folder's text, which writes to folder/out.

    Not the recipe's Muon and high rate: they make 1e-3 of a difference in the last bit within 60 steps.
    """
    calm = ["--no-muon", "--lr", "1e-3"]
    length = ["--steps", "60", "--eval-every", "10", "--eval-batches", "1", "--batch-size", "4"]
    where = ["--device", "cpu", "--data", f"{folder}/text.txt", "--out", f"{folder}/{out}"]
    return ["--size", "article", *length, *where, *(more if "--recipe" in more else [*calm, *more])]


def start(folder, program, what, *options):
    """Two processes of a program. They have process groups of their own: Ctrl-C reaches torchrun's alone."""
    path, root = folder / "program.py", Path(__file__).parents[1]
    path.write_text(program)
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    command = [*TORCHRUN, *options, str(path), str(folder), json.dumps(what)]
    return subprocess.Popen(
        command,
        cwd=root,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process):
    """What it still said, (stdout, stderr); a process that hangs is killed, and fails the test."""
    try:
        return process.communicate(timeout=PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)  # torchrun ends the others
            process.communicate()


def reach(process, line):
    """Read its stdout until a line holds these words."""
    while line not in (said := process.stdout.readline()):
        assert said, process.stderr.read()


def step_of(out):
    with safe_open(state_path(out), framework="pt") as file:
        return json.loads(file.metadata()["nanogpt"])["step"]


def assert_same_run(out, whole):
    """The losses of all batches and the weights at the end, but for the order in which numbers are added."""
    a, b = load_file(state_path(out)), load_file(state_path(whole))
    torch.testing.assert_close(a["batch_loss"], b["batch_loss"], atol=1e-5, rtol=0)
    assert len(a["batch_loss"]) == 60
    for name in (name for name in a if name.startswith("model.")):
        torch.testing.assert_close(a[name], b[name], atol=1e-5, rtol=0, msg=name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a text and `whole`, the run of one process that was never stopped."""
    path = tmp_path_factory.mktemp("parallel")
    (path / "text.txt").write_text(practice_corpus().text[:20_000], encoding="utf-8")
    assert main(words(path, "whole")) == 0
    return path


@pytest.fixture(scope="module")
def two(folder):
    """The folder after two processes made some runs there; the folder of what they said."""
    with pytest.MonkeyPatch.context() as patch:
        drawn, plain = [], trainer.random_batch

        def batch(*arguments):
            drawn.append(None)
            if len(drawn) == 25:
                os.kill(os.getpid(), signal.SIGINT)
            return plain(*arguments)

        patch.setattr(trainer, "random_batch", batch)
        assert main(words(folder, "begun")) == 130
        assert step_of(folder / "begun") == 25
    runs = [
        words(folder, "of-RANK/plain"),
        words(folder, "of-RANK/parts", "--accumulate", "2"),
        words(folder, "begun", "--resume"),
        words(folder, "of-RANK/sprint", "--recipe", "sprint"),
        words(folder, "of-RANK/plain", "--resume"),  # which the second process has no state of
    ]
    logs = folder / "logs"
    process = start(folder, PROGRAM, runs, "--redirects", "3", "--log-dir", str(logs))
    said = end(process)
    assert process.returncode == 0, said
    return logs


def said_by(rank, logs, stream):
    return next(logs.glob(f"**/{rank}/{stream}.log")).read_text()


@pytest.mark.parametrize("out", ["of-0/plain", "of-0/parts", "begun"])
def test_two_processes_compute_the_run_of_one(folder, two, out):
    """As it comes; in two parts each; and a run that one process began and two went on with."""
    assert_same_run(folder / out, folder / "whole")


def test_a_share_for_each_of_two_processes_is_two_parts_one_after_another_to_the_bit(folder, two):
    """With Muon, whose bfloat16 would show any other difference."""
    assert main(words(folder, "sprint", "--recipe", "sprint", "--accumulate", "2")) == 0
    a, b = (
        load_file(state_path(folder / "of-0" / "sprint")),
        load_file(state_path(folder / "sprint")),
    )
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def test_the_first_alone_speaks_and_writes(folder, two):
    assert "2 processes" in said_by(0, two, "stdout")
    assert "full validation loss" in said_by(0, two, "stdout")
    assert said_by(1, two, "stdout") == said_by(1, two, "stderr") == said_by(0, two, "stderr") == ""
    assert not list(folder.glob("of-1/*"))
    ends = [
        ".json",
        ".jsonl",
        ".safetensors",
        "-last.json",
        "-last.safetensors",
        "-last.state.safetensors",
    ]
    assert {p.name for p in folder.glob("of-0/*")} == {
        name + end for name in ("plain", "parts", "sprint") for end in ends
    }
    log = (folder / "of-0" / "plain.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == [0, 10, 20, 30, 40, 50, 60]


def test_processes_that_find_different_files_refuse_to_train(folder, two):
    for rank in (0, 1):
        said = (folder / f"error{rank}").read_text()
        assert (
            "process 0 has saved steps: 60, process 1 has 0: all must read the same files" in said
        )


def test_a_batch_that_cannot_be_shared_is_refused_once(folder):
    command = [*TORCHRUN, "-m", "nanogpt", "train", *words(folder, "odd", "--batch-size", "3")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode != 0
    assert (
        done.stderr.count(
            "error: batch_size=3 cannot be shared by 2 processes: take a multiple of 2\n"
        )
        == 1
    )
    assert "exitcode  : 2 " in done.stderr
    assert not list(folder.glob("odd*"))


def test_ctrl_c_stops_all_at_one_step_and_one_process_goes_on(folder):
    process = start(folder, SLOW, words(folder, "stopped"))
    reach(process, "step    10 of 60")
    os.killpg(process.pid, signal.SIGINT)
    said = end(process)[1]
    assert process.returncode != 0
    assert said.count("stopped; the same command with --resume goes on") == 1
    assert AGAIN not in said
    assert 10 <= step_of(folder / "stopped") < 60
    assert main(words(folder, "stopped", "--resume")) == 0
    assert_same_run(folder / "stopped", folder / "whole")


def test_when_a_process_is_lost_all_end_and_one_goes_on(folder):
    process = start(folder, SLOW, words(folder, "lost"))
    reach(process, "step    20 of 60")
    os.kill(int((folder / "pid1").read_text()), signal.SIGKILL)
    said = end(process)[1]
    assert process.returncode != 0
    assert said.count(AGAIN) == 1
    assert "Signal 9 (SIGKILL)" in said
    assert step_of(folder / "lost") in (10, 20, 30, 40, 50)
    assert load_checkpoint(folder / "lost-last").meta["train"]["steps"] == 60
    assert main(words(folder, "lost", "--resume")) == 0
    assert_same_run(folder / "lost", folder / "whole")


DEAF = """
import os, torch.distributed as dist
from datetime import timedelta
from nanogpt.parallel import _ends_when_told
with _ends_when_told():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    print("waiting", flush=True)
    store.wait(["what never comes"], timedelta(minutes=30))
"""


def test_a_process_that_waits_for_a_lost_one_hears_torchrun_all_the_same():
    env = os.environ | {"RANK": "0"}
    process = subprocess.Popen(
        [sys.executable, "-c", DEAF],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    reach(process, "waiting")
    process.send_signal(signal.SIGTERM)
    try:
        said = process.communicate(timeout=PATIENCE)[1]
    finally:
        process.kill()
    assert process.returncode == 1
    assert AGAIN in said


# ------------------------------------------------------------------ in one process


@pytest.fixture
def alone(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_a_process_alone_is_the_only_one_and_nothing_is_changed(alone):
    here, values, model = (
        Device(torch.device("cpu"), torch.float32, "tests"),
        torch.arange(6.0),
        nn.Linear(2, 2),
    )
    handler = signal.getsignal(signal.SIGTERM)
    with joined(here) as device:
        assert device is here
        assert not dist.is_initialized()
        assert signal.getsignal(signal.SIGTERM) is handler
        assert ranks() == Ranks(0, 1)
    assert Ranks().first
    assert speaks()
    assert torch.equal(Ranks().share(values), values)
    assert Ranks().mean(values) is values
    assert Ranks().wrap(model) is model
    Ranks().agree("a thing", 3)


def test_each_process_has_its_share_of_a_batch_and_all_have_it_whole():
    batch = torch.arange(24).view(12, 2)
    for size in (1, 2, 3, 4):
        assert torch.equal(
            torch.cat([Ranks(rank, size).share(batch) for rank in range(size)]), batch
        )


@pytest.mark.parametrize(("rank", "count"), [(0, 1), (1, 1), (2, 2)])
def test_more_processes_than_gpus_are_refused_in_every_one(monkeypatch, alone, rank, count):
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    gpu = Device(torch.device("cuda"), torch.float32, "tests")
    told = rf"3 processes, but {count} GPUs? on this machine.*--nproc_per_node={count} at most"
    with pytest.raises(ValueError, match=told), joined(gpu):
        pass
    assert not dist.is_initialized()


def test_a_gpu_of_its_own_and_nccl_between_them(monkeypatch, alone):
    """With fakes: what is asked of torch, and in which order."""
    asked = []
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: asked.append(str(device)))
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **more: asked.append(backend))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: asked.append("parted"))
    handler = signal.getsignal(signal.SIGTERM)
    with joined(Device(torch.device("cuda"), torch.bfloat16, "tests")) as device:
        assert (str(device.device), device.dtype) == ("cuda:1", torch.bfloat16)
    assert asked == ["cuda:1", "nccl", "parted"]
    assert signal.getsignal(signal.SIGTERM) is handler
