"""The lecture's training loop: it learns, repeats bit for bit, and matches the fast trainer."""

import functools
import re
from dataclasses import replace

import pytest
import torch
from training_fixtures import CPU, fresh, weights

from nanogpt import fitting
from nanogpt.cache import cache_owners, kv_cache
from nanogpt.config import GPTConfig
from nanogpt.data import Corpus, CorpusError, random_batch
from nanogpt.fitting import fit
from nanogpt.model import GPT
from nanogpt.training.loop import train
from nanogpt.training.recipes import RECIPES

QUICK = {"steps": 20, "batch_size": 8, "eval_every": 10, "eval_batches": 2}


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(fitting, "pick_device", lambda: CPU)


def by_the_recipe(corpus):
    """A model after the recipe `lecture`, and its history."""
    model = fresh(corpus)
    return model, train(model, corpus, replace(RECIPES["lecture"].train, **QUICK), device=CPU)


def test_defaults_match_the_recipe_lecture():
    recipe = RECIPES["lecture"].train
    for name, value in fit.__kwdefaults__.items():
        assert getattr(recipe, name) == value, name


def test_losses_and_weights_match_the_recipe_lecture_bit_for_bit(corpus, monkeypatch):
    """With dropout, at the eps of the recipe's AdamW: batches, losses and weights are the same."""
    same_eps = functools.partial(torch.optim.AdamW, eps=1e-10)
    monkeypatch.setattr(torch.optim, "AdamW", same_eps)
    theirs, expected = by_the_recipe(corpus)
    model = fresh(corpus)
    history = fit(model, corpus, **QUICK)
    assert history == {name: expected[name] for name in history}
    assert torch.equal(weights(model), weights(theirs))


def test_losses_with_the_default_eps_of_adamw_are_close(corpus):
    """The lecture takes PyTorch's default, 1e-8; the recipe 1e-10."""
    _, expected = by_the_recipe(corpus)
    history = fit(fresh(corpus), corpus, **QUICK)
    assert history["val"] == pytest.approx(expected["val"], abs=1e-4)
    assert history["batch_loss"] == pytest.approx(expected["batch_loss"], abs=1e-4)


def test_fit_lowers_the_loss_and_prints_it(corpus, capsys):
    history = fit(fresh(corpus), corpus, steps=60, batch_size=8, lr=1e-2, eval_every=25)
    assert history["step"] == [0, 25, 50, 60]
    assert len(history["batch_loss"]) == 60
    assert history["val"][-1] < history["val"][0] - 0.5
    lines = capsys.readouterr().out.splitlines()
    losses = r"\| train \d\.\d{4} \| val \d\.\d{4}"
    assert re.fullmatch(rf"step     0 of 60 {losses}", lines[0])
    assert re.fullmatch(rf"step    25 of 60 {losses} \| \d+ s left", lines[1])
    assert len(lines) == 4


def test_fit_restores_the_mode_and_the_global_random_state(corpus):
    before = torch.random.get_rng_state()
    for mode in (True, False):
        model = fresh(corpus).train(mode)
        fit(model, corpus, steps=1, batch_size=2)
        assert all(module.training is mode for module in model.modules())
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_fit_restores_the_mode_after_ctrl_c_and_after_an_error(corpus, monkeypatch, error, mode):
    """In the first batch, which is evaluated in eval mode, and in the batch of the update."""
    for calls in (1, 5):  # two splits of two batches each are evaluated before the update
        left = [None] * calls

        def fail_at_the_last(*arguments, left=left):
            left.pop()
            if not left:
                raise error
            return random_batch(*arguments)

        model = fresh(corpus).train(mode)
        monkeypatch.setattr(fitting, "random_batch", fail_at_the_last)
        with pytest.raises(error):
            fit(model, corpus, steps=1, batch_size=2, eval_batches=2)
        assert all(module.training is mode for module in model.modules())


def test_fit_refuses_a_model_with_a_cache_on(corpus):
    with kv_cache(fresh(corpus)) as model:
        with pytest.raises(ValueError, match="a KV cache is on"):
            fit(model, corpus, steps=1)
        assert all(owner.cache.length == 0 for owner in cache_owners(model))


def test_fit_names_an_invalid_argument(corpus):
    model = fresh(corpus)
    n = model.config.vocab_size
    other = GPT(GPTConfig(n + 1, block_size=8, n_layer=1, n_head=1, n_embd=8))
    with pytest.raises(ValueError, match=rf"has {n + 1} characters, the text {n}: build"):
        fit(other, corpus)
    for field, value in (("steps", 0), ("steps", 2**31), ("batch_size", 0), ("seed", -1)):
        with pytest.raises(ValueError, match=rf"{field}={value}: must be an integer in \["):
            fit(model, corpus, **{field: value})
    with pytest.raises(ValueError, match="lr=-1"):
        fit(model, corpus, lr=-1)
    with pytest.raises(TypeError, match="corpus must be a Corpus"):
        fit(model, corpus.text)
    short = Corpus(corpus.text[:60] + "".join(sorted(set(corpus.text))), "short", "0")
    with pytest.raises(CorpusError, match="validation split is too short"):
        fit(fresh(short), short)
