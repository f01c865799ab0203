"""The entries of the training benchmark: what each changes, and what was published of them."""

from dataclasses import replace

import pytest

from nanogpt.benchmarks.training import HEADS, IDEAS, KINDS, compared, published
from nanogpt.config import MODERN, RECIPES


def test_each_idea_adds_to_the_one_before():
    first, batched, rate, fast, sprint = made = [e.configs(65, 1) for e in IDEAS]
    sizes = {(shape.n_layer, shape.n_head, shape.n_embd, shape.block_size) for _, shape in made}
    assert len(sizes) == 1
    assert (first[0].batched, batched[0].batched) == (False, True)
    assert (batched[0].decay, rate[0].decay) == (False, True)
    assert rate[0].muon_lr is None
    assert fast[0] == replace(RECIPES["fast"].train, batch_size=32, seed=1, steps=764)
    assert all(getattr(sprint[1], key) == value for key, value in MODERN.items())


def test_shared_keys_and_windows_are_measured_with_equal_training():
    configs = [entry.configs(65, 1) for entry in HEADS]
    assert len({train for train, _ in configs}) == 1
    shapes = {entry.name: shape for entry, (_, shape) in zip(HEADS, configs, strict=True)}
    base = shapes["rotary positions"]
    assert replace(shapes["1 head of keys"], n_kv_head=None) == base
    assert replace(shapes["window 16, every 2nd layer full"], window=None, full_every=0) == base
    assert replace(shapes["a table of positions"], rope=True) == base


@pytest.mark.parametrize("name", KINDS)
def test_the_published_figures_are_of_the_real_corpus_and_these_entries(name):
    result, entries = published(name), KINDS[name]
    assert (result["what"], result["corpus"]) == (name, "Tiny Shakespeare")
    assert {run["seed"] for run in result["runs"]} == {1337, 1338, 1339}
    assert result["rows"] == compared(result["runs"])
    for row, entry in zip(result["rows"], entries, strict=True):
        config, shape = entry.configs(65, 3)
        assert (row["name"], row["goal"]) == (entry.name, entry.goal)
        assert row["chars"] == config.batch_size * shape.block_size
        assert (row["n_params"], row["steps"]) == (shape.n_params, config.steps)
