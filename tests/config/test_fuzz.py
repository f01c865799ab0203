"""Anything at all: the right result, or our own error that names what was wrong."""

import math
from dataclasses import fields

import hypothesis.strategies as st
import pytest
import torch
from fuzz_fixtures import anything, attempt, examples, is_number, is_whole
from hypothesis import given

from nanogpt.config import GPTConfig, TrainConfig
from nanogpt.model.gpt import GPT
from nanogpt.training.optimizers import make_optimizers

COUNT = (lambda v: is_whole(v) and 1 <= v <= 10**6), (lambda v: not is_whole(v) or v < 1)


SHARE = (
    (lambda v: is_number(v) and 0 <= v < 1),
    (lambda v: not isinstance(v, (int, float)) or not 0 <= v < 1),
)


RATE = (
    lambda v: is_number(v) and 0 < v < 1e30,
    lambda v: not isinstance(v, (int, float)) or not 0 < v <= 3e38,  # no float32 is larger
)


RATE_OR_NONE = (lambda v: v is None or RATE[0](v)), (lambda v: v is not None and RATE[1](v))


FROM_0 = (lambda v: v == 0 and is_number(v) or RATE[0](v)), (lambda v: v != 0 and RATE[1](v))


STEPS = (
    (lambda v: is_whole(v) and 0 <= v <= 10**6),
    (lambda v: not isinstance(v, (int, float)) or not 0 <= v < math.inf),
)


SWITCH = (lambda v: isinstance(v, bool)), (lambda v: not isinstance(v, (bool, int)))


PART = (lambda v: is_number(v) and 0 <= v <= 1), (lambda v: v != 1 and SHARE[1](v))


FROM_1 = (lambda v: RATE[0](v) and v >= 1), (lambda v: RATE[1](v) or v < 1)


FEW = (lambda v: is_whole(v) and 1 <= v <= 3), (lambda v: not is_whole(v) or not 1 <= v <= 3)


COUNT_OR_NONE = (lambda v: v is None or COUNT[0](v)), (lambda v: v is not None and COUNT[1](v))


ONE_OR_NONE = (lambda v: v is None or v == 1 and is_whole(v)), (lambda v: v is not None and v != 1)


NOUGHT = (lambda v: v == 0 and is_whole(v)), (lambda v: not isinstance(v, int) or v != 0)


DIVIDES_4 = (
    (lambda v: is_whole(v) and v in (1, 2, 4)),
    (lambda v: not is_whole(v) or v not in (1, 2, 4)),
)


SEED = (
    lambda v: is_whole(v) and 0 <= v < 2**63,
    lambda v: not isinstance(v, int) or not -(2**63) <= v < 2**64,
)


# For each field: what must be taken, and what must be refused. Between the two either is right.
RULES = {
    GPTConfig: {
        **dict.fromkeys(("vocab_size", "block_size", "n_layer", "n_head", "n_embd"), COUNT),
        "dropout": SHARE,
        **dict.fromkeys(("per_head", "rms_norm", "rope", "qk_norm", "relu2", "bias"), SWITCH),
        "rope_base": FROM_1,
        "ngrams": FEW,
        "n_kv_head": ONE_OR_NONE,  # of one head
        "window": COUNT_OR_NONE,
        **dict.fromkeys(("sinks", "full_every"), NOUGHT),  # without a window
    },
    TrainConfig: {
        **dict.fromkeys(("steps", "batch_size", "eval_every", "eval_batches"), COUNT),
        **{
            "lr": RATE,
            "muon_lr": RATE_OR_NONE,
            "warmup": STEPS,
            "weight_decay": FROM_0,
            "seed": SEED,
        },
        **{"beta2": SHARE, "final": PART, "clip": RATE_OR_NONE, "accumulate": DIVIDES_4},
        **dict.fromkeys(("decay", "zero_init", "batched", "fused", "compile"), SWITCH),
    },
}


SMALL = {"vocab_size": 5, "block_size": 6, "n_layer": 1, "n_head": 1, "n_embd": 4}


TRAINED = GPT(GPTConfig(**SMALL))  # by whatever recipe


FIELDS = [(kind, field.name) for kind in RULES for field in fields(kind)]


def use(config) -> None:
    """Do once what the config is for, where it is small enough for that."""
    if isinstance(config, GPTConfig):
        if max(getattr(config, name) for name in SMALL) <= 40:
            GPT(config)(torch.zeros(1, 1, dtype=torch.int64))
        return
    torch.Generator().manual_seed(config.seed)
    assert 0 <= config.scale(0) <= 1
    for parameter in TRAINED.parameters():
        parameter.grad = torch.ones_like(parameter)
    for optimizer in make_optimizers(TRAINED, config):
        optimizer.step()


@pytest.mark.parametrize(
    ("kind", "field"),
    [(kind, field) for kind, field in FIELDS],
    ids=[field for _, field in FIELDS],
)
@given(value=anything)
@examples(40)
def test_a_value_of_any_kind_is_usable_or_refused_by_name(kind, field, value):
    must_take, must_refuse = RULES[kind][field]
    changes = (SMALL | {"per_head": False} if kind is GPTConfig else {}) | {field: value}
    config, said = attempt(lambda: kind(**changes), ValueError, TypeError)
    if said is not None:
        assert field in said
        assert repr(value) in said or f"{field}={value}" in said
        assert not must_take(value) or "must be a multiple of" in said
        return
    assert not must_refuse(value)
    use(config)


@given(changes=st.fixed_dictionaries({}, optional={name: st.integers(-1, 12) for name in SMALL}))
@examples(40)
def test_numbers_together_make_a_model_or_are_refused_by_name(changes):
    shape = SMALL | changes
    config, said = attempt(lambda: GPTConfig(**shape), ValueError)
    if said is not None:
        assert min(shape.values()) < 1 or shape["n_embd"] % shape["n_head"]
        assert any(f"{name}={value}" in said for name, value in shape.items())
        return
    assert min(shape.values()) >= 1
    assert shape["n_embd"] % shape["n_head"] == 0
    use(config)
