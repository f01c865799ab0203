"""Shapes, recipes and profiles: right numbers are derived, wrong ones refused with advice."""

import pytest

from nanogpt.config import SIZES, GPTConfig, override
from nanogpt.series.profiles import PROFILES, get_profile
from nanogpt.training.recipes import TrainConfig


def test_the_learning_rate_rises_and_then_falls_to_nothing():
    config = TrainConfig(steps=100, warmup=10)
    scales = [config.scale(step) for step in (0, 9, 50, 99, 100)]
    assert scales == pytest.approx([0.1, 0.91, 0.5, 0.01, 0.0])
    constant = TrainConfig(steps=9, warmup=3, decay=False)
    assert [constant.scale(step) for step in (0, 2, 8)] == [1 / 3, 1.0, 1.0]
    assert TrainConfig(steps=4, warmup=0).scale(0) == 1.0


def test_override_changes_what_is_given_and_nothing_else():
    config = override(TrainConfig(), steps=7, lr=None)
    assert config == TrainConfig(steps=7)
    with pytest.raises(TypeError, match="batch"):
        override(TrainConfig(), batch=3)
    with pytest.raises(ValueError, match="steps=0"):
        override(TrainConfig(), steps=0)


WINDOW = {"per_head": False, "window": 4}
EDGES = {  # the class, the field, its smallest and largest value, one beyond each
    TrainConfig: {
        **dict.fromkeys(("steps", "eval_every", "eval_batches"), (1, 2**31 - 1, 0, 2**31)),
        "batch_size": (1, 2**31 - 1, 0, 2**31),
        "accumulate": (1, 4, 0, 3),
        "warmup": (0, 1e30, -1, 1e31),
        "weight_decay": (0, 1e30, -1e-9, 1e31),
        "final": (0, 1, -1e-9, 1.001),
        "beta2": (0, 1 - 2**-53, -1e-9, 1.0),
        "seed": (0, 2**63 - 1, -1, 2**63),
        **dict.fromkeys(("lr", "muon_lr", "clip"), (1e-30, 1e30, 0, 1e31)),
        "stages": (((1e-9, 1),), ((1.0, 2**31 - 1),), ((0.0, 1),), ((0.5, 2**31),)),
    },
    GPTConfig: {
        **dict.fromkeys(("vocab_size", "block_size", "n_layer"), (1, 2**40, 0, -1)),
        "n_head": (1, 64, 0, 65),
        "n_embd": (4, 4096, 3, 0),
        "dropout": (0, 1 - 2**-53, -1e-9, 1.0),
        "rope_base": (1.0, 1e30, 0.999, 1e31),
        "window": (1, 2**31, 0, 2**31 + 1),
        "sinks": (0, 2**31, -1, 2**31 + 1),
        "full_every": (0, 2**40, -1, 0.5),
        "n_kv_head": (1, 4, 0, 3),
    },
}
CASES = [(kind, name) for kind, fields in EDGES.items() for name in fields]


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[name for _, name in CASES])
def test_a_field_takes_its_smallest_and_its_largest_value_and_none_beyond(kind, name):
    others = WINDOW if name in ("window", "sinks", "full_every") else {}
    if name == "n_kv_head":
        others = {"per_head": False}
    *right, low, high = EDGES[kind][name]
    for value in right:
        assert getattr(kind(**{**others, name: value}), name) == value
    for value in (low, high):
        with pytest.raises(ValueError, match=name.removesuffix("s")):
            kind(**{**others, name: value})


def test_stages_begin_where_their_shares_say():
    config = TrainConfig(steps=10, batch_size=3, stages=((0.25, 4), (0.5, 8)))
    assert [config.stage(step) for step in range(10)] == [0, 0, 0, 1, 1, 2, 2, 2, 2, 2]
    assert [config.stage_begin(step) for step in range(10)] == [0, 0, 0, 3, 3, 5, 5, 5, 5, 5]
    assert [config.window(step, 16) for step in (0, 3, 5)] == [(4, 12), (8, 6), (16, 3)]
    assert TrainConfig(steps=9, batch_size=1, stages=((0.5, 8),)).window(0, 4) == (8, 1)
    for stages in (
        0.5,
        ((0.5,),),
        ((0.6, 4), (0.5, 8)),
        ((0.5, 4), (0.5, 8)),
        ((0.5, 0),),
        ((0.5, 4, 4),),
        "ab",
    ):
        with pytest.raises(ValueError, match="stages"):
            TrainConfig(stages=stages)


def test_profiles_are_found_by_name_and_auto_looks_for_cuda():
    assert get_profile("smoke") is PROFILES["smoke"]
    assert get_profile("auto", cuda=True) is PROFILES["gpu"]
    assert get_profile("auto") is get_profile("laptop", cuda=True) is PROFILES["laptop"]
    for name in ("fast", "cpu", "cpu/4", "full/2", ""):
        with pytest.raises(ValueError, match="is unknown: choose auto, smoke, laptop, full, gpu"):
            get_profile(name)


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_can_be_run(name):
    profile = PROFILES[name]
    assert profile.name == name
    assert set(profile.sizes) <= set(SIZES)
    assert profile.size in profile.sizes, "the trained model is a row of each comparison"
    assert list(profile.lengths) == sorted(set(profile.lengths))
    assert 1 <= profile.lengths[0] < profile.lengths[-1]
    assert profile.lengths[-1] < SIZES[profile.size].block_size, "a prompt of 1 must fit before it"
    assert min(profile.batches) == 1
    assert min(profile.seeds, profile.repeats) >= 2, "a spread needs two"


def test_a_laptop_counts_as_often_as_the_published_run():
    laptop = PROFILES["laptop"]
    full = PROFILES["full"]
    for name in ("seeds", "lengths", "batches", "repeats", "threads", "train_threads"):
        assert getattr(laptop, name) == getattr(full, name), name
    assert min(laptop.repeats, laptop.seeds) >= 5, "fewer are no yardstick of noise"
