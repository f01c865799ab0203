"""The entries of the training benchmark: what each changes, and what was published of them."""

from dataclasses import asdict, replace

import pytest
from shapes import ROPE

from nanogpt.bench.entries import (
    CHANGES,
    HEADS,
    IDEAS,
    KINDS,
    RATES,
    TODAY,
    WHOLE,
    Place,
    effects,
)
from nanogpt.bench.training import compared, published
from nanogpt.decoder.config import beyond_lecture
from nanogpt.training.recipes import MODERN


def test_each_idea_adds_one_change_to_the_one_before_or_takes_one_away():
    made = {entry.name: [asdict(config) for config in entry.configs(65, 1)] for entry in IDEAS}
    train = {name: config for name, (config, _) in made.items()}
    sizes = [(s["n_layer"], s["n_head"], s["n_embd"], s["block_size"]) for _, s in made.values()]
    assert len(set(sizes)) == 1
    assert {(config["steps"], config["batch_size"]) for config in train.values()} == {(300, 6)}

    def changed(a, b):
        return {key for key in train[a] if train[a][key] != train[b][key]}

    for change, name in zip(
        ("zero_init", "previous_token_init", "stages", "epochs"), CHANGES, strict=True
    ):
        whole = "epochs"  # the last line of the lecture's architecture
        assert changed(f"all but {name}", whole) == {change}
        assert changed(f"only {name}", "rate 5e-3, warm-up, line to zero") == {change}
    assert changed("look-back", "zero start") == {"previous_token_init"}
    assert changed("short windows first", "look-back") == {"stages"}
    assert changed("epochs", "short windows first") == {"epochs"}
    assert changed("all but the falling rate", "epochs") == {"decay"}
    assert changed("all but the warm-up", "epochs") == {"warmup"}
    assert changed("all but Muon", "epochs") == {"muon_lr", "lr"}
    assert changed(TODAY, "epochs") == set()
    shapes = {entry.name: entry.configs(65, 1)[1] for entry in IDEAS}
    newer = {name: beyond_lecture(shape) for name, shape in shapes.items()}
    assert {name: fields for name, fields in newer.items() if fields} == {
        TODAY: MODERN,
        f"only {TODAY}": MODERN,
    }


def rows_of_ideas(**medians):
    """A row for each line of IDEAS, all alike but for the medians given; seeds range over 0.02."""
    rows = []
    for entry in IDEAS:
        loss = medians.get(entry.name, 2.0)
        spread = {"median": loss, "low": loss - 0.01, "high": loss + 0.01, "n": 5}
        rows.append({"name": entry.name, "loss": spread, "seconds": spread})
    return rows


def test_an_idea_is_clear_where_the_medians_differ_by_more_than_the_seeds_of_either_line():
    rows = rows_of_ideas(Muon=1.975, **{"only epochs": 2.015, "all but look-back": 2.5})
    found = effects(rows)
    assert found["Muon", "on top"]["loss"]["change"] == pytest.approx(-0.025)
    assert found["Muon", "alone"]["loss"]["clear"]
    assert not found["epochs", "alone"]["loss"]["clear"]
    without = found["look-back", "without"]["loss"]
    assert without["change"] == pytest.approx(-0.5), "below zero the idea helps, in every place"
    rows[IDEAS.index(next(e for e in IDEAS if e.name == RATES))]["loss"]["high"] = 2.1
    wide = effects(rows)["Muon", "on top"]["loss"]
    assert (wide["clear"], wide["range"]) == (False, pytest.approx(0.11))


def test_every_line_of_the_ideas_is_in_some_comparison():
    found = effects(rows_of_ideas())
    assert {place for _, place in found} == set(Place)
    for name in ("Muon", *CHANGES):
        assert all((name, place) in found for place in Place)
    for entry in IDEAS:
        other = effects(rows_of_ideas(**{entry.name: 3.0}))
        assert other != found, entry.name
    assert IDEAS[len(CHANGES) + 3].name == WHOLE


def test_shared_keys_and_windows_are_measured_with_equal_training():
    configs = [entry.configs(65, 1) for entry in HEADS]
    assert len({train for train, _ in configs}) == 1
    shapes = {entry.name: shape for entry, (_, shape) in zip(HEADS, configs, strict=True)}
    base = shapes["rotary positions"]
    assert replace(shapes["1 head of keys"], n_kv_head=None) == base
    assert replace(shapes["window 16, every 2nd layer full"], window=None, full_every=0) == base
    assert replace(shapes["a table of positions"], **ROPE) == base


@pytest.mark.parametrize("name", KINDS)
def test_the_published_figures_are_of_the_real_corpus_and_these_entries(name):
    result = published(name)
    entries = KINDS[name]
    assert (result["what"], result["corpus"]) == (name, "Tiny Shakespeare")
    seeds = 5 if name == "ideas" else 3
    assert {run["seed"] for run in result["runs"]} == set(range(1337, 1337 + seeds))
    assert result["rows"] == compared(result["runs"])
    for row, entry in zip(result["rows"], entries, strict=True):
        config, shape = entry.configs(65, 3)
        assert (row["name"], row["goal"]) == (entry.name, entry.goal)
        assert row["chars"] == config.batch_size * shape.block_size
        assert (row["n_params"], row["steps"]) == (shape.n_params, config.steps)
