"""A run that was stopped, in any way, goes on to the very weights that it would have had."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch
from conftest import FORMS, name

from nanogpt.config import GPTConfig, TrainConfig
from nanogpt.model.checkpoint import CheckpointError, load_checkpoint
from nanogpt.model.gpt import GPT
from nanogpt.system.device import Device
from nanogpt.training import loop, trainer
from nanogpt.training.loop import train
from nanogpt.training.state import deferred_interrupt, state_path

CPU = Device(torch.device("cpu"), torch.float32, "tests")
RECIPE = TrainConfig(steps=20, batch_size=4, eval_every=4, eval_batches=1, warmup=3)
FILES = (".safetensors", "-last.safetensors", "-last.state.safetensors")


@pytest.fixture(autouse=True)
def plain_lines(monkeypatch):
    monkeypatch.setattr(loop, "headless", lambda: True)


def fresh(corpus, per_head=True):
    shape = {
        "vocab_size": len(set(corpus.text)),
        "block_size": 8,
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 16,
    }
    return GPT(GPTConfig(**shape, dropout=0.1, per_head=per_head))


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def stop_at(monkeypatch, step, what):
    """Do `what()` when the loop draws its batch number `step` (from 0)."""
    drawn, plain = [], trainer.random_batch

    def batch(*arguments):
        drawn.append(None)
        if len(drawn) == step + 1:
            what()
        return plain(*arguments)

    monkeypatch.setattr(trainer, "random_batch", batch)


def ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def wholes(corpus, tmp_path_factory):
    """Runs that nothing stopped, each made once: (weights, history, the bytes of its files)."""
    made = {}

    def whole(per_head, recipe):
        if (per_head, recipe) not in made:
            model, out = fresh(corpus, per_head), tmp_path_factory.mktemp("whole") / "whole"
            history = train(model, corpus, recipe, out=out, device=CPU)
            files = {suffix: out.with_name(f"whole{suffix}").read_bytes() for suffix in FILES}
            made[per_head, recipe] = weights(model), history, files
        return made[per_head, recipe]

    return whole


@pytest.mark.parametrize("per_head", FORMS, ids=name)
@pytest.mark.parametrize("recipe", [{}, {"muon_lr": None}, {"decay": False}], ids=str)
@pytest.mark.parametrize("step", [0, 3, 7, 8, 19])
def test_ctrl_c_then_resume_gives_the_bits_of_a_whole_run(
    corpus, tmp_path, monkeypatch, wholes, per_head, recipe, step
):
    recipe = replace(RECIPE, **recipe)
    whole, expected, files = wholes(per_head, recipe)
    stopped = fresh(corpus, per_head)
    with monkeypatch.context() as patch:
        stop_at(patch, step, ctrl_c)
        with pytest.raises(
            KeyboardInterrupt, match=f"after {step + 1} steps and saved.*resume=True"
        ):
            train(stopped, corpus, recipe, out=tmp_path / "part", device=CPU)
    assert torch.equal(weights(stopped), whole) == (step == 19)
    assert not torch.equal(weights(stopped), weights(fresh(corpus, per_head))), (
        "what it had learnt is lost"
    )
    again = fresh(corpus, per_head)
    history = train(again, corpus, recipe, out=tmp_path / "part", device=CPU, resume=True)
    assert torch.equal(weights(again), whole)
    assert history == expected
    for suffix in FILES:
        assert (tmp_path / f"part{suffix}").read_bytes() == files[suffix], suffix


def test_a_run_may_be_stopped_many_times(corpus, tmp_path, monkeypatch):
    whole = fresh(corpus)
    train(whole, corpus, RECIPE, device=CPU)
    for _ in range(10):
        with monkeypatch.context() as patch:
            stop_at(patch, 2, ctrl_c)
            model = fresh(corpus)
            try:
                train(model, corpus, RECIPE, out=tmp_path / "run", device=CPU, resume=True)
                break
            except KeyboardInterrupt:
                pass
    assert torch.equal(weights(model), weights(whole))


def test_resuming_a_finished_run_changes_nothing(corpus, tmp_path):
    model, again = fresh(corpus), fresh(corpus)
    history = train(model, corpus, RECIPE, out=tmp_path / "run", device=CPU)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert train(again, corpus, RECIPE, out=tmp_path / "run", device=CPU, resume=True) == history
    assert torch.equal(weights(again), weights(model))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_resuming_where_nothing_was_begun_begins(corpus, tmp_path):
    one, other = fresh(corpus), fresh(corpus)
    train(one, corpus, RECIPE, device=CPU)
    train(other, corpus, RECIPE, out=tmp_path / "run", device=CPU, resume=True)
    assert torch.equal(weights(one), weights(other))


def test_without_a_place_to_save_ctrl_c_says_so(corpus, monkeypatch):
    stop_at(monkeypatch, 3, ctrl_c)
    with pytest.raises(KeyboardInterrupt, match="after 4 steps; nothing was saved"):
        train(fresh(corpus), corpus, RECIPE, device=CPU)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("change", [{"lr": 1e-3}, {"steps": 30}, {"seed": 3}], ids=str)
def test_another_recipe_is_refused_by_name_and_number(corpus, tmp_path, change):
    train(fresh(corpus), corpus, RECIPE, out=tmp_path / "run", device=CPU)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    (key, value), model = next(iter(change.items())), fresh(corpus)
    with pytest.raises(
        ValueError, match=f"train {key} {getattr(RECIPE, key)!r}, not {value!r}.*resume=False"
    ):
        train(
            model, corpus, replace(RECIPE, **change), out=tmp_path / "run", device=CPU, resume=True
        )
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_resuming_without_a_place_is_refused(corpus):
    with pytest.raises(ValueError, match="no `out` says where"):
        train(fresh(corpus), corpus, RECIPE, device=CPU, resume=True)


def test_another_dtype_is_refused_and_the_model_left_as_it_was(corpus, tmp_path):
    train(fresh(corpus), corpus, RECIPE, out=tmp_path / "run", device=CPU)
    model = fresh(corpus).double()
    before = weights(model)
    with pytest.raises(ValueError, match=r"dtype.*torch\.float32.*torch\.float64"):
        train(model, corpus, RECIPE, out=tmp_path / "run", device=CPU, resume=True)
    assert torch.equal(weights(model), before), "zero_init came before the check"


def test_a_ctrl_c_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferred_interrupt() as asked:
            ctrl_c()
        assert not asked
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_shape_is_refused(corpus, tmp_path):
    train(fresh(corpus), corpus, RECIPE, out=tmp_path / "run", device=CPU)
    other = GPT(replace(fresh(corpus).config, n_layer=1))
    with pytest.raises(ValueError, match="config n_layer 2, not 1"):
        train(other, corpus, RECIPE, out=tmp_path / "run", device=CPU, resume=True)


def test_a_damaged_state_is_refused_and_the_checkpoints_stay(corpus, tmp_path):
    train(fresh(corpus), corpus, RECIPE, out=tmp_path / "run", device=CPU)
    path = state_path(tmp_path / "run")
    good = path.read_bytes()
    for damage in (
        good[: len(good) // 2],
        good[:9],
        b"",
        good[:-5] + bytes([good[-5] ^ 1]) + good[-4:],
    ):
        path.write_bytes(damage)
        with pytest.raises(CheckpointError, match="damaged"):
            train(fresh(corpus), corpus, RECIPE, out=tmp_path / "run", device=CPU, resume=True)
        assert load_checkpoint(tmp_path / "run").meta["train"]["steps"] == 20
    load_checkpoint(tmp_path / "run-last")
    path.unlink()
    train(fresh(corpus), corpus, RECIPE, out=tmp_path / "run", device=CPU, resume=True)
    assert path.read_bytes() == good


def test_a_checkpoint_is_no_state(corpus, tmp_path):
    train(fresh(corpus), corpus, RECIPE, out=tmp_path / "run", device=CPU)
    state_path(tmp_path / "run").write_bytes((tmp_path / "run.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="format 'nanogpt-notebooks checkpoint 1'"):
        train(fresh(corpus), corpus, RECIPE, out=tmp_path / "run", device=CPU, resume=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_a_loss_that_is_no_number_stops_at_its_step(corpus, tmp_path, monkeypatch, value):
    """Not at the next evaluation: by then every weight is NaN, and the step that did it is unknown."""
    model, calls = fresh(corpus, per_head=False), []

    def spoil(module, args, out):
        calls.append(None)
        return (
            (out[0], out[1] * value)
            if module.training and out[1] is not None and step_of() == 6
            else out
        )

    def step_of():
        return sum(1 for training_step in steps if training_step)

    steps = []
    plain = trainer.random_batch
    monkeypatch.setattr(trainer, "random_batch", lambda *a: steps.append(True) or plain(*a))
    model.register_forward_hook(spoil)
    with pytest.raises(
        FloatingPointError, match=f"{value} at step 5: .*muon_lr=0.01.* of step 4, is in .*run.saf"
    ):
        train(model, corpus, RECIPE, out=tmp_path / "run", device=CPU)
    assert load_checkpoint(tmp_path / "run-last").meta["step"] == 4
    assert torch.isfinite(weights(load_checkpoint(tmp_path / "run").model)).all()


# ------------------------------------------------------------------ killed


PROGRAM = """
import os, sys, torch
from pathlib import Path
from nanogpt.config import GPTConfig, TrainConfig
from nanogpt.data import practice_corpus
from nanogpt.model import GPT
from nanogpt.runtime import pick_device
from nanogpt.train import train
torch.set_num_threads(1)

def run(out):
    corpus = practice_corpus()
    model = GPT(GPTConfig(block_size=16, n_layer=1, n_head=2, n_embd=32, dropout=0.1))
    recipe = TrainConfig(steps=120, batch_size=4, eval_every=3, eval_batches=1)
    train(model, corpus, recipe, out=Path(out), device=pick_device("cpu"), resume=True)
"""

# For each line a run in a process of its own, whose imports are done. Says its id, and then how it ended.
FORKS = """
import torch._dynamo  # as the first optimizer does
for line in sys.stdin:
    child = os.fork()
    if not child:
        print("begun", os.getpid(), flush=True)
        run(line.strip())
        sys.stdout.flush()
        os._exit(0)
    print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def start(program, *words, **options):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + program, *map(str, words)],
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def test_killed_at_random_moments_and_resumed_the_bits_are_those_of_a_whole_run(tmp_path):
    pick, kills = random.Random(7), 0
    with start(FORKS, stdin=subprocess.PIPE) as forks:

        def begin(out):
            print(out, file=forks.stdin, flush=True)
            return int(forks.stdout.readline().removeprefix("begun "))

        def end():
            return next(int(line.split()[-1]) for line in forks.stdout if "ended " in line)

        for _ in range(6):
            process = begin(tmp_path / "killed")
            assert "step" in forks.stdout.readline()  # the first evaluation: it is under way
            time.sleep(pick.uniform(0.0, 0.12))
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            kills += end() == -signal.SIGKILL
        assert kills >= 3
        for out in ("killed", "whole"):
            begin(tmp_path / out)
            assert end() == 0
        forks.stdin.close()
    assert forks.returncode == 0
    for suffix in FILES:
        assert (tmp_path / f"killed{suffix}").read_bytes() == (
            tmp_path / f"whole{suffix}"
        ).read_bytes(), suffix


def test_ctrl_c_in_a_program_ends_it_with_advice(tmp_path):
    process = start("run(sys.argv[1])", tmp_path / "run", stderr=subprocess.PIPE)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "saved: the same call with resume=True goes on from here" in said
    assert state_path(tmp_path / "run").is_file()


# ------------------------------------------------------------------ Ctrl-C itself


def test_the_second_ctrl_c_is_raised_and_the_handler_put_back():
    before = signal.getsignal(signal.SIGINT)
    with deferred_interrupt() as asked:
        ctrl_c()
        assert asked == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()
    assert signal.getsignal(signal.SIGINT) is before


def test_in_another_thread_nothing_is_deferred_and_nothing_breaks():
    seen = []

    def work():
        with deferred_interrupt() as asked:
            seen.append(asked)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [[]]


def test_the_state_is_plain_tensors_and_json(corpus, tmp_path):
    from safetensors import safe_open

    train(fresh(corpus), corpus, RECIPE, out=tmp_path / "run", device=CPU)
    with safe_open(state_path(tmp_path / "run"), framework="pt") as file:
        meta = json.loads(file.metadata()["nanogpt"])
        assert meta["step"] == 20
        assert {key.split(".")[0] for key in file.keys()} == {  # noqa: SIM118
            "model",
            "optimizer",
            "batch_loss",
            "batches",
            "cpu",
        }


def test_a_run_that_starts_anew_cannot_be_mixed_up_with_the_one_before(corpus, tmp_path):
    """It is stopped before it has saved a state of its own; the state that lay there was another run's."""
    out = tmp_path / "run"
    train(fresh(corpus), corpus, RECIPE, out=out, device=CPU)

    def stop(step, model):
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        train(fresh(corpus), corpus, RECIPE, out=out, device=CPU, watch=stop)
    again, whole = fresh(corpus), fresh(corpus)
    history = train(again, corpus, RECIPE, out=out, device=CPU, resume=True)
    assert history == train(whole, corpus, RECIPE, device=CPU)
    assert torch.equal(weights(again), weights(whole))
    assert load_checkpoint(f"{out}-last").meta["step"] == 20


def test_ctrl_c_in_the_first_evaluation_counts_it_once(corpus, tmp_path):
    with pytest.raises(KeyboardInterrupt, match="after 0 steps"):
        train(
            fresh(corpus),
            corpus,
            RECIPE,
            out=tmp_path / "run",
            device=CPU,
            watch=lambda step, _: step or ctrl_c(),
        )
    history = train(fresh(corpus), corpus, RECIPE, out=tmp_path / "run", device=CPU, resume=True)
    assert history["step"] == [0, 4, 8, 12, 16, 20]
    assert len((tmp_path / "run.jsonl").read_text().splitlines()) == 6


def test_the_log_counts_the_seconds_of_all_its_parts(corpus, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(patch, 9, ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            train(fresh(corpus), corpus, RECIPE, out=tmp_path / "run", device=CPU)
    train(fresh(corpus), corpus, RECIPE, out=tmp_path / "run", device=CPU, resume=True)
    told = [
        json.loads(line)["seconds"] for line in (tmp_path / "run.jsonl").read_text().splitlines()
    ]
    assert told == sorted(told)
    assert len(told) == 6


@pytest.mark.parametrize(
    "what", [lambda model: model.eval(), lambda model: torch.rand(3)], ids=["eval", "rand"]
)
def test_who_watches_changes_nothing(corpus, what):
    models = [fresh(corpus), fresh(corpus)]
    for model, watch in zip(models, (None, lambda step, model: what(model)), strict=True):
        train(model, corpus, RECIPE, device=CPU, watch=watch)
    assert torch.equal(weights(models[0]), weights(models[1]))
