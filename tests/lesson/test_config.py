"""Shapes: right numbers are derived, wrong ones refused with advice."""

from dataclasses import fields

import pytest

from nanogpt.config import GPTConfig

EDGES = {  # each field's smallest and largest value, and one beyond each
    **dict.fromkeys(("vocab_size", "block_size", "n_layer"), (1, 2**40, 0, -1)),
    "n_head": (1, 64, 0, 65),
    "n_embd": (4, 4096, 3, 0),
    "dropout": (0, 1 - 2**-53, -1e-9, 1.0),
}


@pytest.mark.parametrize("name", [field.name for field in fields(GPTConfig)])
def test_a_field_takes_its_smallest_and_its_largest_value_and_none_beyond(name):
    *right, low, high = EDGES[name]
    for value in right:
        assert getattr(GPTConfig(**{name: value}), name) == value
    for value in (low, high, None, True, "2"):
        with pytest.raises(ValueError, match=name):
            GPTConfig(**{name: value})


@pytest.mark.parametrize(("n_embd", "n_head", "fewer"), [(10, 4, 2), (64, 60, 32), (7, 3, 1)])
def test_heads_without_equal_shares_are_refused_with_a_number_that_fits(n_embd, n_head, fewer):
    advice = f"n_embd={n_embd} must be a multiple of n_head={n_head}: .*with n_head={fewer}$"
    with pytest.raises(ValueError, match=advice):
        GPTConfig(n_embd=n_embd, n_head=n_head)
    assert GPTConfig(n_embd=n_embd, n_head=fewer).head_size * fewer == n_embd
