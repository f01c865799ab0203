"""GPTConfig: the range of each field, errors with advice, and published sizes.

Counts of parameters and bytes are compared with built models in tests/decoder/test_config.py.
"""

from dataclasses import fields

import pytest

from nanogpt.config import GPTConfig, check_number

EDGES = {  # each field's smallest and largest value, and one beyond each
    # Beyond 64 bits torch raised an OverflowError that named no field.
    **dict.fromkeys(("vocab_size", "block_size", "n_layer"), (1, 2**63 - 1, 0, 2**63)),
    "n_head": (1, 64, 0, 65),
    "n_embd": (4, 4096, 3, 0),
    "dropout": (0, 1 - 2**-53, -1e-9, 1.0),
}


@pytest.mark.parametrize("name", [field.name for field in fields(GPTConfig)])
def test_each_field_accepts_its_range_and_nothing_beyond(name):
    *right, low, high = EDGES[name]
    for value in right:
        assert getattr(GPTConfig(**{name: value}), name) == value
    for value in (low, high, None, True, "2"):
        with pytest.raises(ValueError, match=name):
            GPTConfig(**{name: value})


@pytest.mark.parametrize(("n_embd", "n_head", "fewer"), [(10, 4, 2), (64, 60, 32), (7, 3, 1)])
def test_an_indivisible_width_is_refused_with_a_number_that_fits(n_embd, n_head, fewer):
    advice = f"n_embd={n_embd} must be a multiple of n_head={n_head}: .*with n_head={fewer}$"
    with pytest.raises(ValueError, match=advice):
        GPTConfig(n_embd=n_embd, n_head=n_head)
    assert GPTConfig(n_embd=n_embd, n_head=fewer).head_size * fewer == n_embd


def test_an_integer_beyond_64_bits_is_refused_as_a_number():
    """Witness: rope_base=10**25 ended in an OverflowError of torch."""
    check_number("rope_base", 1e25, 1)
    check_number("rope_base", 2**63 - 1, 1)
    with pytest.raises(ValueError, match=r"^rope_base=10{25}: .* 64 bits; write 1e\+25$"):
        check_number("rope_base", 10**25, 1)


def test_cache_bytes_match_published_sizes():
    llama = GPTConfig(n_layer=32, n_head=32, n_embd=4096)
    assert llama.cache_bytes(4096, itemsize=2) == 2 * 2**30
    assert GPTConfig(n_layer=12, n_head=12, n_embd=768).cache_bytes(1024) == 75_497_472
