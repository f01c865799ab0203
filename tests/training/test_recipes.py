"""Recipes and schedules, and the range of each setting."""

from dataclasses import fields, replace

import pytest
from shapes import DECODERS, SMALL

from nanogpt.config import SIZES
from nanogpt.decoder.config import DecoderConfig, beyond_lecture, decoder_config
from nanogpt.training.recipes import MODERN, RECIPES, TrainConfig, recipe_for

SWITCHES = (
    "decay",
    "compile",
    "batched",
    "fused",
    "zero_init",
    "previous_token_init",
    "epochs",
    "bf16",
)
EDGES = {  # each field's smallest and largest value, and one beyond each
    **dict.fromkeys(("steps", "eval_every"), (1, 2**31 - 1, 0, 2**31)),
    "eval_batches": (1, 4096, 0, 4097),
    "batch_size": (1, 2**31 - 1, 0, 2**31),
    "accumulate": (1, 4, 0, 3),
    "warmup": (0, 1e30, -1, 1e31),
    "weight_decay": (0, 1e30, -1e-9, 1e31),
    "beta2": (0, 1 - 2**-53, -1e-9, 1.0),
    "seed": (0, 2**63 - 1, -1, 2**63),
    **dict.fromkeys(("lr", "muon_lr"), (1e-30, 1e30, 0, 1e31)),
    "stages": (((1e-9, 1),), ((1.0, 2**31 - 1),), ((0.0, 1),), ((0.5, 2**31),)),
    **dict.fromkeys(SWITCHES, (False, True, None, 1)),
}


@pytest.mark.parametrize("name", [field.name for field in fields(TrainConfig)])
def test_a_setting_accepts_its_range_and_nothing_beyond(name):
    *right, low, high = EDGES[name]
    for value in right:
        assert getattr(TrainConfig(**{name: value}), name) == value
    for value in (low, high):
        with pytest.raises(ValueError, match=name.removesuffix("s")):
            TrainConfig(**{name: value})


def test_the_learning_rate_warms_up_and_decays_to_zero():
    config = TrainConfig(steps=100, warmup=10)
    scales = [config.scale(step) for step in (0, 9, 50, 99, 100)]
    assert scales == pytest.approx([0.1, 0.91, 0.5, 0.01, 0.0])
    constant = TrainConfig(steps=9, warmup=3, decay=False)
    assert [constant.scale(step) for step in (0, 2, 8)] == [1 / 3, 1.0, 1.0]
    assert TrainConfig(steps=4, warmup=0).scale(0) == 1.0


def test_stages_begin_at_their_shares_of_the_steps():
    config = TrainConfig(steps=10, batch_size=3, stages=((0.25, 4), (0.5, 8)))
    assert [config.stage(step) for step in range(10)] == [0, 0, 0, 1, 1, 2, 2, 2, 2, 2]
    assert config.stage_begins() == [0, 3, 5]
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


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("row", DECODERS)
def test_a_recipe_changes_only_the_fields_that_it_names(name, row):
    shape = DecoderConfig(**SMALL | DECODERS[row])
    changes = RECIPES[name].model
    if changes and shape.head_size % 2:
        with pytest.raises(ValueError, match="head_size=5 must be even"):
            recipe_for(name, shape)
        return
    assert recipe_for(name, shape)[1] == replace(shape, **changes)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_keeps_the_lectures_shape_or_makes_a_modern_decoder(name):
    _, changed = recipe_for(name, SIZES["small"])
    if not RECIPES[name].model:
        assert changed is SIZES["small"]
        return
    assert changed == replace(decoder_config(SIZES["small"]), **MODERN)
    assert beyond_lecture(changed) == MODERN
