"""One step of training is the same however it is computed, and every recipe goes on where it stopped."""

import json
import math
from dataclasses import replace

import pytest
import torch
from conftest import CACHES, FORMS, name, seeded, tokens
from test_state import FILES, ctrl_c, stop_at, weights

from nanogpt.config import MODERN, RECIPES, GPTConfig, TrainConfig, recipe_for
from nanogpt.data.batches import split
from nanogpt.decoding.generate import complete
from nanogpt.model.checkpoint import load_checkpoint, read_tensors
from nanogpt.model.convert import convert_state, pack_heads
from nanogpt.model.gpt import GPT
from nanogpt.system.device import Device
from nanogpt.training import evaluate, loop, optimizers
from nanogpt.training.evaluate import estimate_loss
from nanogpt.training.log import write_log
from nanogpt.training.loop import train
from nanogpt.training.state import state_path
from nanogpt.training.trainer import Trainer

CPU = Device(torch.device("cpu"), torch.float32, "tests")
HALF = Device(torch.device("cpu"), torch.float16, "tests")
PLUS = {**MODERN, "ngrams": 3}
ADAM = TrainConfig(
    steps=8, batch_size=8, warmup=2, lr=3e-3, muon_lr=None, eval_every=4, eval_batches=1
)


@pytest.fixture(autouse=True)
def plain_lines(monkeypatch):
    monkeypatch.setattr(loop, "headless", lambda: True)


@pytest.fixture
def build(tokenizer):
    """Builds a small model, the same each time."""

    def make(fields=None, per_head=True, dtype=torch.float32, dropout=0.0):
        shape = {
            "vocab_size": len(tokenizer),
            "block_size": 8,
            "n_layer": 2,
            "n_head": 2,
            "n_embd": 16,
        }
        model = GPT(GPTConfig(**shape, **(fields or {}), dropout=dropout)).to(dtype)
        return model if per_head else pack_heads(model)

    return make


@pytest.fixture
def steps(corpus, tokenizer):
    """Trains a model for some steps: the trainer, and the losses."""
    data, _ = split(tokenizer.encode(corpus.text), 8)

    def go(model, config, n=8, device=CPU):
        one = Trainer(model.train(), data, config, seeded(config.seed), device)
        return one, [float(one.step(step)) for step in range(n)]

    return go


def recipe_of(key, build, **changes):
    """A named recipe, cut short, and a model for it."""
    config, shape = recipe_for(key, build(dropout=0.1).config)
    short = {"steps": 20, "batch_size": 4, "eval_every": 4, "eval_batches": 1, "warmup": 3}
    return replace(config, **(short | changes)), GPT(shape)


# ------------------------------------------------------------------ however it is computed


@pytest.mark.parametrize("fields", [{}, PLUS], ids=["lecture", "sprint+"])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_a_batch_in_parts_is_the_same_step(build, steps, fields, clip):
    whole = build(fields, per_head=False, dtype=torch.float64)
    _, expected = steps(whole, replace(ADAM, clip=clip))
    for parts in (2, 4, 8):
        model = build(fields, per_head=False, dtype=torch.float64)
        _, losses = steps(model, replace(ADAM, clip=clip, accumulate=parts))
        assert losses == pytest.approx(expected, abs=1e-10)
        torch.testing.assert_close(weights(model), weights(whole), rtol=0, atol=1e-10)


def test_a_part_is_a_share_of_the_batch(build, steps, monkeypatch):
    seen, model = [], build(per_head=False)
    model.register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
    steps(model, replace(ADAM, accumulate=4), n=2)
    assert seen == [2] * 8


@pytest.mark.parametrize(("batch", "parts"), [(8, 3), (2, 4)])
def test_a_batch_that_cannot_be_shared_out_is_refused(batch, parts):
    with pytest.raises(ValueError, match=f"batch_size={batch}: no multiple of accumulate={parts}"):
        TrainConfig(batch_size=batch, accumulate=parts)


@pytest.mark.parametrize("fields", [{}, PLUS], ids=["lecture", "sprint+"])
def test_head_by_head_and_all_heads_at_once_are_the_same_step(build, steps, fields):
    heads, batched = (build(fields, form, torch.float64) for form in FORMS)
    (_, one), (_, other) = steps(heads, ADAM), steps(batched, ADAM)
    assert one == pytest.approx(other, abs=1e-10)
    state = convert_state(batched.state_dict(), batched.config, per_head=True)
    for key, tensor in heads.state_dict().items():
        torch.testing.assert_close(tensor, state[key], rtol=0, atol=1e-10, msg=key)


@pytest.mark.parametrize(
    ("per_head", "batched", "itself"),
    [
        (True, True, False),
        (True, False, True),
        (False, True, True),
        (False, False, True),
    ],
)
def test_the_model_itself_is_trained_or_its_batched_copy(
    build, corpus, monkeypatch, per_head, batched, itself
):
    model, seen = build(per_head=per_head), []
    monkeypatch.setattr(
        loop, "Trainer", lambda model, *rest: seen.append(model) or Trainer(model, *rest)
    )
    before = weights(model)
    train(model, corpus, replace(ADAM, batched=batched), device=CPU)
    assert (seen[0] is model) is itself
    assert seen[0].config.per_head is (per_head and not batched)
    assert not torch.equal(weights(model), before), "the model kept no weights"


def test_every_weight_of_sprint_plus_moves(build, corpus):
    config, model = recipe_of("sprint+", build)
    before = {key: t.clone() for key, t in model.state_dict().items()}
    train(model, corpus, config, device=CPU)
    assert [key for key, t in model.state_dict().items() if torch.equal(t, before[key])] == []
    assert model.ngrams.triples.weight.any(-1).sum() < 1000, "rows of triples that never occurred"


# ------------------------------------------------------------------ rates and clipping


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"warmup": 0, "decay": False, "final": 0.5}, {0: 1, 5: 1, 9: 1}),
        ({"warmup": 4, "decay": False}, {0: 1 / 4, 2: 3 / 4, 3: 1, 9: 1}),
        ({"warmup": 0}, {0: 1, 5: 0.5, 9: 0.1, 10: 0}),
        ({"warmup": 4}, {0: 1 / 4, 1: 0.5 * 0.9, 3: 0.7, 5: 0.5}),
        ({"warmup": 0, "final": 0.1}, {0: 1, 5: 0.55, 9: 0.19, 10: 0.1}),
        ({"warmup": 4, "final": 0.1}, {0: 1 / 4, 1: 0.5 * 0.91, 5: 0.55, 10: 0.1}),
        ({"warmup": 0, "final": 1.0}, {0: 1, 5: 1, 10: 1}),
        ({"warmup": 40}, {0: 1 / 40, 9: 0.25 * 0.1}),
    ],
)
def test_the_rate_rises_and_falls_to_its_final_share(changes, expected):
    config = TrainConfig(steps=10, **changes)
    assert {step: config.scale(step) for step in expected} == pytest.approx(expected)


@pytest.fixture
def lengths(monkeypatch):
    """The length of the gradient at each step, as the optimizers find it."""
    seen, plain = [], optimizers.make_optimizers

    def watched(model, config):
        optimizers = plain(model, config)
        optimizers[0].register_step_pre_hook(
            lambda *_: seen.append(
                float(torch.cat([p.grad.flatten() for p in model.parameters()]).norm())
            )
        )
        return optimizers

    monkeypatch.setattr(optimizers, "make_optimizers", watched)
    return seen


@pytest.mark.parametrize("muon", [None, 0.02])
def test_a_gradient_is_cut_to_the_length_given_and_else_left_alone(build, steps, lengths, muon):
    config = replace(ADAM, muon_lr=muon)
    for clip in (None, 1e30, 0.01):
        steps(build(), replace(config, clip=clip), n=3)
    free, loose, cut = lengths[:3], lengths[3:6], lengths[6:]
    assert free == loose
    assert min(free) > 0.02
    assert cut == pytest.approx([0.01] * 3, rel=1e-3)


def test_a_gradient_is_measured_whole(build, steps, lengths):
    """Not part by part, and in float16 not while it is scaled up."""
    model = build()
    steps(model, replace(ADAM, clip=0.01, accumulate=4), n=3)
    steps(build(), replace(ADAM, clip=0.01), n=3, device=HALF)
    assert lengths == pytest.approx([0.01] * 6, rel=1e-3)


# ------------------------------------------------------------------ float16


def test_float16_trains_and_its_gradients_are_the_usual_ones(build, corpus):
    runs = {}
    for device in (CPU, HALF):
        model = build(PLUS)
        history = train(model, corpus, replace(ADAM, steps=20), device=device)
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        runs[device] = history["val"]
    assert runs[HALF][-1] < runs[HALF][0] - 0.2
    assert runs[HALF] == pytest.approx(runs[CPU], abs=0.01)


def test_only_float16_is_scaled(build, steps):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        one, _ = steps(build(), ADAM, n=1, device=Device(torch.device("cpu"), dtype, "tests"))
        assert one.scaler.is_enabled() is (dtype == torch.float16)


@pytest.mark.parametrize("muon", [None, 0.02])
def test_gradients_too_large_for_float16_move_nothing_and_the_scale_is_halved(build, steps, muon):
    model = build()
    one, _ = steps(model, replace(ADAM, muon_lr=muon), n=2, device=HALF)
    one.scaler.update(2.0**40)
    before = weights(model)
    assert math.isfinite(one.step(2))
    assert torch.equal(weights(model), before)
    assert one.scaler.get_scale() == 2.0**39
    one.scaler.update(2.0**10)
    one.step(3)
    assert not torch.equal(weights(model), before)


def test_the_scale_is_saved_and_put_back(build, corpus, tmp_path, monkeypatch):
    whole, part, again = build(PLUS), build(PLUS), build(PLUS)
    train(whole, corpus, ADAM, out=tmp_path / "whole", device=HALF)
    with monkeypatch.context() as patch:
        stop_at(patch, 4, ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            train(part, corpus, ADAM, out=tmp_path / "part", device=HALF)
    _, meta = read_tensors(state_path(tmp_path / "part"))
    assert meta["scaler"]["_growth_tracker"] == 5
    train(again, corpus, ADAM, out=tmp_path / "part", device=HALF, resume=True)
    assert torch.equal(weights(again), weights(whole))
    for suffix in FILES:
        assert (tmp_path / f"part{suffix}").read_bytes() == (
            tmp_path / f"whole{suffix}"
        ).read_bytes(), suffix


# ------------------------------------------------------------------ recipes


@pytest.mark.parametrize("key", RECIPES)
def test_the_same_seed_gives_the_same_bits(build, corpus, key):
    runs = []
    for seed in (1, 1, 2):
        config, model = recipe_of(key, build, seed=seed)
        runs.append((train(model, corpus, config, device=CPU), weights(model)))
    (history, first), (again, second), (other, third) = runs
    assert history == again
    assert torch.equal(first, second)
    assert history["batch_loss"] != other["batch_loss"]
    assert not torch.equal(first, third)
    assert history["val"][-1] < history["val"][0]


@pytest.mark.parametrize("key", ["sprint", "sprint+"])
def test_ctrl_c_then_resume_gives_the_bits_of_a_whole_run(
    build, corpus, tmp_path, monkeypatch, key
):
    config, whole = recipe_of(key, build, clip=1.0, accumulate=2)
    expected = train(whole, corpus, config, out=tmp_path / "whole", device=CPU)
    with monkeypatch.context() as patch:
        stop_at(patch, 6, ctrl_c)
        with pytest.raises(KeyboardInterrupt, match="after 7 steps and saved"):
            train(recipe_of(key, build)[1], corpus, config, out=tmp_path / "part", device=CPU)
    again = recipe_of(key, build)[1]
    assert train(again, corpus, config, out=tmp_path / "part", device=CPU, resume=True) == expected
    assert torch.equal(weights(again), weights(whole))
    for suffix in FILES:
        assert (tmp_path / f"part{suffix}").read_bytes() == (
            tmp_path / f"whole{suffix}"
        ).read_bytes(), suffix


@pytest.mark.parametrize("key", ["sprint", "sprint+"])
def test_a_trained_model_decodes_the_same_tokens_with_a_cache(build, corpus, tmp_path, key):
    config, model = recipe_of(key, build, steps=60, eval_every=30)
    train(model, corpus, config, out=tmp_path / "fox", device=CPU)
    found = load_checkpoint(tmp_path / "fox-last").model
    assert torch.equal(weights(found), weights(model))
    prompt = tokens(3, 2, vocab=found.config.vocab_size)
    text = complete(found, prompt, 7, cache=None, generator=seeded(1))
    for design in CACHES:
        assert torch.equal(complete(found, prompt, 7, cache=design, generator=seeded(1)), text)


def stopped(build, corpus, out, monkeypatch, config):
    with monkeypatch.context() as patch:
        stop_at(patch, 3, ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            train(build(), corpus, config, out=out, device=CPU)


def test_a_run_may_go_on_in_other_parts(build, corpus, tmp_path, monkeypatch):
    whole, model = build(), build()
    train(whole, corpus, ADAM, device=CPU)
    stopped(build, corpus, tmp_path / "run", monkeypatch, ADAM)
    train(model, corpus, replace(ADAM, accumulate=4), out=tmp_path / "run", device=CPU, resume=True)
    torch.testing.assert_close(weights(model), weights(whole), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "change",
    [{"clip": 1.0}, {"final": 0.1}, {"beta2": 0.5}, {"batched": False}, {"fused": False}],
    ids=str,
)
def test_but_not_with_other_steps(build, corpus, tmp_path, monkeypatch, change):
    stopped(build, corpus, tmp_path / "run", monkeypatch, ADAM)
    ((key, value),) = change.items()
    with pytest.raises(ValueError, match=f"train {key} {getattr(ADAM, key)!r}, not {value!r}"):
        train(
            build(), corpus, replace(ADAM, **change), out=tmp_path / "run", device=CPU, resume=True
        )


def test_another_architecture_is_refused(build, corpus, tmp_path, monkeypatch):
    stopped(build, corpus, tmp_path / "run", monkeypatch, ADAM)
    with pytest.raises(ValueError, match="config rope False, not True"):
        train(build({"rope": True}), corpus, ADAM, out=tmp_path / "run", device=CPU, resume=True)


# ------------------------------------------------------------------ what it tells


def test_with_speed_the_throughput_stands_in_the_line(build, corpus, capsys):
    train(build(), corpus, ADAM, device=CPU, speed=True)
    first, *others = capsys.readouterr().out.splitlines()
    assert first.endswith("| starting")
    assert len(others) == 2
    assert all(" chars/s, MFU " in line and ", evaluation " in line for line in others)


@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_at_each_evaluation_the_watcher_sees_the_model(build, corpus, tokenizer, per_head):
    seen = []

    def watch(step, model):
        text = complete(model, tokenizer.encode("the")[None], 5, generator=seeded(1))
        seen.append((step, text.shape, estimate_loss(model, batches), model.training))

    data, val = split(tokenizer.encode(corpus.text), 8)
    batches, model, alone = (
        evaluate.fixed_batches(val, 8, 1, "cpu"),
        build(PLUS, per_head),
        build(PLUS, per_head),
    )
    history = train(model, corpus, ADAM, device=CPU, watch=watch)
    assert seen == [
        (step, (1, 8), loss, True) for step, loss in zip([0, 4, 8], history["val"], strict=True)
    ]
    assert train(alone, corpus, ADAM, device=CPU) == history
    assert torch.equal(weights(alone), weights(model)), "watching changed the training"


def test_the_log_says_how_fast_it_went(build, corpus, tmp_path):
    history = train(build(), corpus, ADAM, out=tmp_path / "fox", device=CPU)
    first, *others = (
        json.loads(line) for line in (tmp_path / "fox.jsonl").read_text().splitlines()
    )
    keys = ["step", "train", "val", "seconds", "chars_per_second", "mfu", "evaluation"]
    assert first["chars_per_second"] is first["mfu"] is None
    for line, step, loss in zip(others, (4, 8), history["val"][1:], strict=True):
        assert list(line) == list(first) == keys
        assert (line["step"], line["val"]) == (step, loss)
        assert line["chars_per_second"] > 0
        assert line["mfu"] > 0
        assert 0 < line["evaluation"] < 1
    assert 0 <= first["seconds"] < others[0]["seconds"] < others[1]["seconds"]


def test_what_the_log_knows_of_the_speed_outlives_a_kill(tmp_path):
    """A run that is killed between its log and its state tells its last evaluation twice, once in the end."""
    out, history = tmp_path / "fox", {"step": [], "train": [], "val": []}

    def evaluated(step, seconds):
        for key, value in (("step", step), ("train", 2.0), ("val", 3.0)):
            history[key].append(value)
        write_log(out, history, {"seconds": seconds})
        return [
            json.loads(line).get("seconds")
            for line in (tmp_path / "fox.jsonl").read_text().splitlines()
        ]

    assert [evaluated(0, 1), evaluated(4, 2), evaluated(8, 3)] == [[1], [1, 2], [1, 2, 3]]
    history = {key: values[:2] for key, values in history.items()}
    assert evaluated(8, 4) == [1, 2, 4]
    history = {key: values[:0] for key, values in history.items()}
    assert evaluated(0, 5) == [5], "another run, from its beginning"
    history = {"step": [0, 4], "train": [7.0, 7.0], "val": [7.0, 7.0]}
    assert evaluated(8, 6) == [None, None, 6], "evaluations of a run that wrote no log here"
