"""Shapes, recipes and profiles: right numbers are derived, wrong ones refused with advice."""

import pytest

from nanogpt.config import SIZES, TrainConfig, override
from nanogpt.series.profiles import PROFILES, get_profile


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
    laptop, full = PROFILES["laptop"], PROFILES["full"]
    for name in ("seeds", "lengths", "batches", "repeats", "threads", "train_threads"):
        assert getattr(laptop, name) == getattr(full, name), name
    assert min(laptop.repeats, laptop.seeds) >= 5, "fewer are no yardstick of noise"
