"""Shapes, recipes and profiles: right numbers are derived, wrong ones refused with advice."""

import pytest

from nanogpt.config import PROFILES, SIZES, TrainConfig, get_profile, override
from nanogpt.config.profiles import PARTS


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
    assert get_profile("auto") is get_profile("cpu", cuda=True) is PROFILES["cpu"]
    for name in ("fast", "cpu/5", "cpu/", "cpu/x", "fast/2", "cpu/2/2"):
        with pytest.raises(ValueError, match="is unknown: choose auto, smoke, cpu, gpu, cpu/2"):
            get_profile(name)


@pytest.mark.parametrize("name", ["smoke", *(f"{p}/{n}" for p in ("cpu", "gpu") for n in PARTS)])
def test_every_profile_can_be_run(name):
    profile = get_profile(name)
    assert profile.name == name.removesuffix("/1")
    assert profile.kind == name.partition("/")[0]
    assert {profile.size, profile.train_size, *profile.sizes} <= set(SIZES)
    assert list(profile.lengths) == sorted(set(profile.lengths))
    assert 1 <= profile.lengths[0] < profile.lengths[-1]
    assert profile.lengths[-1] < SIZES[profile.size].block_size, "a prompt of 1 must fit before it"
    assert min(profile.batches) == 1
    assert min(profile.seeds, profile.repeats) >= 2, "a spread needs two"


def test_parts_do_less_and_less():
    found = [get_profile(f"cpu/{n}") for n in PARTS]
    for amount in ("seeds", "lengths", "repeats", "share"):
        assert [getattr(p, amount) for p in found] == sorted(
            (getattr(p, amount) for p in found), reverse=True
        )
    steps = [p.train.steps for p in found]
    assert steps == [3000 // n for n in PARTS]
    assert found[3].part(100) == 25
