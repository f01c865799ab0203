"""A stopped run, however it was stopped, resumes to the bits of an uninterrupted one."""

import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from training_fixtures import (
    CPU,
    contents,
    ctrl_c,
    exit_code,
    fork,
    fresh,
    log_of,
    short_run,
    step_of,
    stop_at,
    weights,
)

from nanogpt import files
from nanogpt.decoder.checkpoint import CheckpointError, load_checkpoint, read_tensors, write_tensors
from nanogpt.device import Device
from nanogpt.training.folders import held_run
from nanogpt.training.history import History
from nanogpt.training.loop import train
from nanogpt.training.recipes import MODERN, TrainConfig
from nanogpt.training.resume import RunFiles, state_path
from nanogpt.training.signals import deferred_interrupt

RECIPE = TrainConfig(steps=20, batch_size=4, eval_every=4, eval_batches=1, warmup=3)
STAGED = replace(RECIPE, previous_token_init=True, epochs=True, stages=((0.5, 2), (0.75, 4)))
HALF = Device(torch.device("cpu"), torch.float16, "tests")

# Kinds of runs: recipe, model, device, and the steps at which the run is stopped. Each kind has a
# part of the state that the others lack.
KINDS = {
    # Random batches, Muon, a list of heads. Stopped at an evaluation, between two, at the end.
    "lecture": (RECIPE, {}, CPU, (3, 8, 19)),
    # One optimizer, and a model that is not unpacked at the end.
    "packed, AdamW alone": (replace(RECIPE, muon_lr=None), {"per_head": False}, CPU, (7,)),
    # One tensor under two names.
    "tied, shared keys": (RECIPE, {"tied": True, "n_kv_head": 1, "gated": True}, CPU, (5,)),
    "sprint, in parts": (replace(RECIPE, accumulate=2), MODERN, CPU, (6,)),
    # Batches that follow from the step, stopped in a later stage.
    "short windows, epochs": (STAGED, {}, CPU, (13,)),
    # The scaler's factor and counter.
    "float16": (RECIPE, {}, HALF, (4,)),
}


@pytest.fixture(scope="module")
def wholes(corpus, tmp_path_factory):
    """Runs that nothing stopped, each made once: (weights, history, where its files are)."""
    made = {}

    def whole(kind="lecture"):
        if kind not in made:
            recipe, fields, device, _ = KINDS[kind]
            model = fresh(corpus, **fields)
            out = tmp_path_factory.mktemp("whole") / "run"
            history = train(model, corpus, recipe, out=out, device=device)
            made[kind] = weights(model), history, out
        return made[kind]

    return whole


@pytest.fixture
def copy(wholes, tmp_path):
    """A copy of the files of the whole run of the lecture's kind."""
    shutil.copytree(wholes()[2].parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


def all_of(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def stop(corpus, out, recipe=RECIPE, *, step, device=CPU, **fields):
    """A run that Ctrl-C stops in its step of that number; the model."""
    model = fresh(corpus, **fields)
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, step, ctrl_c)
        with pytest.raises(
            KeyboardInterrupt, match=f"after {step + 1} steps and saved.*resume=True"
        ):
            train(model, corpus, recipe, out=out, device=device)
    return model


def resume(corpus, out, recipe=RECIPE, *, device=CPU, **fields):
    """The model and the history of a run that is resumed from what is saved there."""
    model = fresh(corpus, **fields)
    return model, train(model, corpus, recipe, out=out, device=device, resume=True)


# ------------------------------------------------------------------ Ctrl-C and resume


@pytest.mark.parametrize(
    ("kind", "step"), [(kind, step) for kind, (*_, steps) in KINDS.items() for step in steps]
)
def test_resuming_after_ctrl_c_gives_the_same_bits(corpus, tmp_path, wholes, kind, step):
    (recipe, fields, device, _) = KINDS[kind]
    (end, expected, files) = wholes(kind)
    out = tmp_path / "run"
    model = stop(corpus, out, recipe, step=step, device=device, **fields)
    assert torch.equal(weights(model), end) == (step == 19)
    assert not torch.equal(weights(model), weights(fresh(corpus, **fields))), "what it had learnt"
    if device is HALF:
        assert read_tensors(state_path(out))[1]["scaler"]["_growth_tracker"] == 5
    model, history = resume(corpus, out, recipe, device=device, **fields)
    assert torch.equal(weights(model), end)
    assert history == expected
    assert contents(out) == contents(files)


def test_the_next_evaluation_repairs_the_log_of_a_killed_run(corpus, tokenizer, tmp_path):
    """A run killed between its log and its state evaluates again: the log has one line for it."""
    saved = RunFiles(tmp_path / "fox", fresh(corpus), corpus, RECIPE, tokenizer)

    model = fresh(corpus)

    def evaluated(steps, seconds):
        n = len(steps)
        history = History(step=steps, train=[2.0] * n, val=[3.0] * n, block=[8] * n)
        saved.save_newest(model, history, {"seconds": seconds})
        return [(row["step"], row["seconds"]) for row in log_of(tmp_path / "fox")]

    evaluated([0], 1)
    evaluated([0, 4], 2)
    assert evaluated([0, 4, 8], 3) == [(0, 1), (4, 2), (8, 3)]
    with open(tmp_path / "fox.jsonl", "ab") as log:
        log.write(b'{"step": \xff')
    assert evaluated([0, 4, 8], 4) == [(0, 1), (4, 2), (8, 4)]
    assert evaluated([0], 5) == [(0, 5)], "another run, from its beginning"


def test_resuming_a_finished_run_changes_nothing(corpus, copy, wholes):
    before = all_of(copy.parent)
    model, history = resume(corpus, copy)
    assert history == wholes()[1]
    assert torch.equal(weights(model), wholes()[0])
    assert all_of(copy.parent) == before


def test_a_run_without_out_cannot_resume_and_says_so_when_it_is_stopped(corpus, monkeypatch):
    with pytest.raises(ValueError, match="no `out` says where"):
        train(fresh(corpus), corpus, RECIPE, device=CPU, resume=True)
    stop_at(monkeypatch, 3, ctrl_c)
    with pytest.raises(KeyboardInterrupt, match="after 4 steps; nothing was saved"):
        train(fresh(corpus), corpus, RECIPE, device=CPU)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_in_the_first_evaluation_counts_it_once(corpus, tmp_path):
    out = tmp_path / "run"

    def watch(step, _):
        return step or ctrl_c()

    with pytest.raises(KeyboardInterrupt, match="after 0 steps"):
        train(fresh(corpus), corpus, RECIPE, out=out, device=CPU, watch=watch)
    _, history = resume(corpus, out)
    assert history["step"] == [row["step"] for row in log_of(out)] == [0, 4, 8, 12, 16, 20]


def test_a_new_run_replaces_the_state_of_an_earlier_one_before_it_trains(corpus, copy, wholes):
    """Stopped in its first evaluation, it resumes itself and not the earlier run."""

    def cut(step, model):
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        train(fresh(corpus), corpus, RECIPE, out=copy, device=CPU, watch=cut)
    assert step_of(copy) == 0
    assert resume(corpus, copy)[1] == wholes()[1], "it begins at step 0"
    assert load_checkpoint(f"{copy}-last").meta["step"] == 20


# (what was there before, how many files are written when the run is killed). A new run writes its
# state, then five files an evaluation: checkpoints and their .json, log, state.
KILLS = [
    ("nothing", 0),
    ("nothing", 1),  # a state without checkpoints
    ("nothing", 4),  # checkpoints, and an old state
    ("nothing", 6),  # the whole first evaluation
    ("a whole run", 0),  # the earlier run's files alone
    ("a whole run", 1),  # a new state beside the earlier run's checkpoints
    ("a whole run", 6),
]
OTHERS = [("nothing", n) for n in range(13)] + [("a whole run", n) for n in range(8)]
KILLS += [pytest.param(*kill, marks=pytest.mark.release) for kill in OTHERS if kill not in KILLS]


@pytest.mark.parametrize(("over", "written"), KILLS)
def test_a_run_killed_at_any_file_resumes_to_the_same_bits(
    corpus, tmp_path, wholes, monkeypatch, written, over
):
    """The run is killed before it writes file number `written` (from 0)."""
    plain = files.atomic_path
    begun = []
    if over == "a whole run":
        for path in wholes()[2].parent.glob(f"{wholes()[2].name}*"):
            shutil.copy(path, tmp_path / path.name.replace(wholes()[2].name, "run", 1))

    def killed(path):
        begun.append(path)
        if len(begun) > written:
            raise SystemExit("killed")
        return plain(path)

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(files, "atomic_path", killed)
        with pytest.raises(SystemExit, match="killed"):
            train(fresh(corpus), corpus, RECIPE, out=out, device=CPU)
    model, history = resume(corpus, out)
    assert torch.equal(weights(model), wholes()[0])
    assert history == wholes()[1]
    assert contents(out) == contents(wholes()[2])
    assert [row["step"] for row in log_of(out)] == history["step"]


def test_a_run_removes_only_its_own_temporary_files(corpus, tmp_path):
    ours = [".run-last.state.safetensors.0123abcd.tmp", ".run.safetensors.89abcdef.tmp"]
    others = [".other.safetensors.89abcdef.tmp", ".run.safetensors.tmp", "run.safetensors.bak"]
    for name in (*ours, *others):
        (tmp_path / name).write_text("half", encoding="utf-8")
    with held_run(tmp_path / "run"):
        left = {path.name for path in tmp_path.iterdir()}
    assert left == {".run.lock", *others}


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("recipe", "fields", "words"),
    [
        ({"lr": 1e-3}, {}, "lr=0.008, not 0.001"),
        ({"steps": 30}, {}, "steps=20, not 30"),
        ({"batched": False}, {}, "batched=True, not False"),
        ({}, {"n_layer": 1}, "n_layer=2, not 1"),
        ({}, {"per_head": False}, "model='GPT', not 'Decoder'"),
        ({}, {"window": 5}, "model='GPT', not 'Decoder'; window=None, not 5"),
        ({}, {"dtype": torch.float64}, "dtype='torch.float32', not 'torch.float64'"),
    ],
    ids=str,
)
def test_other_settings_are_refused_by_name_before_anything_changes(
    corpus, copy, recipe, fields, words
):
    files = all_of(copy.parent)
    model = fresh(corpus, **fields)
    before = weights(model)
    with pytest.raises(ValueError, match=f"{words}: resume with the same .*out=PATH"):
        train(model, corpus, replace(RECIPE, **recipe), out=copy, device=CPU, resume=True)
    assert torch.equal(weights(model), before), "zero_init came before the check"
    assert all_of(copy.parent) == files


def test_another_architecture_with_the_same_tensors_is_refused(corpus, tmp_path):
    out = tmp_path / "run"
    stop(corpus, out, step=3, window=5)
    for fields, words in (
        ({}, "model='Decoder', not 'GPT'; window=5, not None"),
        ({"per_head": False}, "began with window=5, not None: resume"),
        ({"window": 5, "activation": "relu2"}, "began with activation='relu', not 'relu2': resume"),
    ):
        with pytest.raises(ValueError, match=words):
            resume(corpus, out, **fields)
    resume(corpus, out, window=5)


def test_a_run_may_resume_with_another_accumulate(corpus, tmp_path):
    adam = replace(RECIPE, muon_lr=None, lr=3e-3, steps=8)
    out = tmp_path / "run"
    whole = fresh(corpus, dropout=0.0)
    train(whole, corpus, adam, device=CPU)
    stop(corpus, out, adam, step=3, dropout=0.0)
    model, _ = resume(corpus, out, replace(adam, accumulate=4), dropout=0.0)
    torch.testing.assert_close(weights(model), weights(whole), rtol=0, atol=1e-4)


def test_a_checkpoint_is_not_a_state(corpus, copy):
    state_path(copy).write_bytes(copy.with_name("run.safetensors").read_bytes())
    with pytest.raises(
        CheckpointError, match="is not 'nanogpt-notebooks training state 5': pass another out"
    ):
        resume(corpus, copy)


def test_a_state_is_not_a_checkpoint(copy):
    copied = copy.with_name("x.safetensors")
    copied.write_bytes(state_path(copy).read_bytes())
    with pytest.raises(CheckpointError, match="x.safetensors is the state of a training run, not"):
        load_checkpoint(copied)


def test_the_same_text_under_another_name_is_resumed_and_another_text_is_not(corpus, tmp_path):
    stop(corpus, tmp_path / "run", step=3)
    resume(replace(corpus, name="renamed.txt"), tmp_path / "run")
    with pytest.raises(
        ValueError, match=r"began with text='renamed.txt, \w{12}', not 'fox, 000000000000'"
    ):
        resume(replace(corpus, sha256="0" * 64), tmp_path / "run")


def test_resuming_under_other_conditions_prints_which_ones_keep_the_bits(
    corpus, tmp_path, capsys, monkeypatch
):
    stop(corpus, tmp_path / "run", step=3)
    capsys.readouterr()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(torch, "__version__", "9.9.0")
    resume(corpus, tmp_path / "run", replace(RECIPE, accumulate=2))
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(
        "resuming with threads=3, accumulate=2, torch=9.9.0, saved with threads=1"
    )
    assert "need threads=1, accumulate=1, torch=" in first
    resume(corpus, tmp_path / "run", replace(RECIPE, accumulate=2))
    assert "resuming with" not in capsys.readouterr().out, "as it was saved last"


@pytest.mark.parametrize("again", [True, False])
def test_trained_weights_without_their_state_are_not_replaced(corpus, copy, again):
    """Somebody kept the weights alone: a new run, or one that cannot resume, would begin at 0."""
    state_path(copy).unlink()
    copy.with_name("run.jsonl").unlink()
    before = all_of(copy.parent)
    with pytest.raises(CheckpointError, match="trained for .* steps, and the state .* is lost"):
        train(fresh(corpus), corpus, RECIPE, out=copy, device=CPU, resume=again)
    assert all_of(copy.parent) == before


@pytest.mark.parametrize("damage", ["a tensor of another shape", "no history"])
def test_a_state_that_does_not_fit_the_run_is_one_error(corpus, copy, damage):
    """A file of ours with a matching digest is believed; what then fails to load names the file."""
    tensors, meta = read_tensors(state_path(copy))
    if damage == "no history":
        del meta["history"]
    else:
        tensors["model.lm_head.weight"] = torch.zeros(3)
    write_tensors(state_path(copy), tensors, meta)
    with pytest.raises(CheckpointError, match="not a state of this run .*: restore it, or"):
        resume(corpus, copy)


def test_a_damaged_state_is_refused_before_anything_changes(corpus, copy):
    """One bit of a download or a disk: the digest does not match."""
    data = bytearray(state_path(copy).read_bytes())
    data[-1] ^= 1
    state_path(copy).write_bytes(data)
    before = all_of(copy.parent)
    with pytest.raises(CheckpointError, match="is damaged: its contents do not match its digest"):
        resume(corpus, copy)
    assert all_of(copy.parent) == before


# ------------------------------------------------------------------ killed


def test_a_process_killed_between_two_files_resumes_to_the_same_bits(tmp_path):
    """In the first evaluation; before the first state; before the second; in a resumed part."""
    for rename in (2, 11, 16, 7):
        process = fork(tmp_path / f"log{rename}", short_run, tmp_path / "killed", rename)
        assert exit_code(process) == -signal.SIGKILL
    for out in ("killed", "whole"):
        assert exit_code(fork(tmp_path / out, short_run, tmp_path / out)) == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    steps = [[row["step"] for row in log_of(tmp_path / name)] for name in ("killed", "whole")]
    assert steps == [list(range(0, 46, 3))] * 2


# ------------------------------------------------------------------ Ctrl-C itself


def test_a_second_ctrl_c_is_raised_and_the_handler_restored():
    before = signal.getsignal(signal.SIGINT)
    with deferred_interrupt() as asked:
        ctrl_c()
        assert asked == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_ends_the_process_after_the_block_and_a_callers_handler_stays(
    name, monkeypatch, request
):
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_DFL)  # under nohup it is ignored
    request.addfinalizer(lambda: signal.signal(number, before))
    ended = []
    with deferred_interrupt() as asked:
        os.kill(os.getpid(), number)
        assert asked == [number]
        monkeypatch.setattr(os, "kill", lambda *given: ended.append(given))
    assert ended == [(os.getpid(), number)], "at the end of the block"
    assert signal.getsignal(number) is signal.SIG_DFL

    def handler(*_):
        asked.append("the caller's own")

    signal.signal(number, handler)
    try:
        with deferred_interrupt():
            assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, signal.SIG_DFL)


def test_an_ignored_ctrl_c_and_other_threads_are_left_alone():
    def handler():
        with deferred_interrupt():
            return signal.getsignal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with ThreadPoolExecutor() as pool:
        assert pool.submit(handler).result() is before
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert handler() is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
