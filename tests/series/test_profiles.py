"""Profiles: found by name, and each can be run."""

import pytest

from nanogpt.config import SIZES
from nanogpt.series.profiles import PROFILES, get_profile


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
