"""Rungs 1 to 5: PyTorch, operation by operation, and the model as a function."""

import pytest
import torch
from engine_fixtures import EAGER, assert_same_tokens, prompt_of, seeded, shared_model

from nanogpt import Flat, Static
from nanogpt.decoding.generate import complete
from nanogpt.engines import functional
from nanogpt.model.attention import visible


@pytest.mark.parametrize("kind", EAGER)
def test_they_take_every_shape_and_both_forms(kind):
    for per_head in (True, False):
        for sizes in ({"n_layer": 1, "n_head": 1}, {"block_size": 9, "n_embd": 20}):
            model = shared_model(per_head, **sizes)
            assert_same_tokens(model, kind, prompt_of(4), model.config.block_size - 3)


@pytest.mark.parametrize("kind", EAGER)
def test_other_dtypes_are_decoded_in_their_own_arithmetic(kind):
    assert_same_tokens(shared_model(True, torch.float64), kind, prompt_of(5), 12)
    # bfloat16 rounds so coarsely that the order of a sum moves tokens: here the range is what
    # counts.
    text = complete(shared_model(True, torch.bfloat16), prompt_of(5), 12, engine=kind)
    assert text.dtype == torch.int64
    assert 0 <= int(text.min()) <= int(text.max()) < 13


def test_a_default_dtype_changes_nothing():
    model, before = shared_model(), torch.get_default_dtype()
    expected = complete(model, prompt_of(5), 12, generator=seeded())
    try:
        torch.set_default_dtype(torch.float64)
        for kind in (None, Static, Flat):
            text = complete(model, prompt_of(5), 12, generator=seeded(), engine=kind)
            assert torch.equal(text, expected)
    finally:
        torch.set_default_dtype(before)


def test_a_decoder_reads_chunks_of_any_size_at_any_place_and_forgets_its_end():
    text = prompt_of(16)
    for per_head in (True, False):
        model = shared_model(per_head, torch.float64)
        with torch.no_grad():
            expected = model(text)[0]
        for kind in EAGER:
            decoder = kind(model.config, batch=3, dtype=torch.float64).decoder(model)
            with torch.no_grad():
                decoder.read(text[:, :5])
                decoder.read(text[:, 9:])  # wrong here, and forgotten
                decoder.rewind(7)
                got = [decoder.read(part) for part in text[:, 5:].split([3, 1, 7], dim=1)]
            assert decoder.length == 16
            torch.testing.assert_close(torch.cat(got, 1), expected[:, 5:], rtol=0, atol=1e-10)


@pytest.mark.parametrize("layout", ["layers", "one", "interleaved"])
def test_the_functional_step_gives_the_models_logits_in_every_layout(layout):
    model, text = shared_model(True), prompt_of(12)
    weights = functional.flatten(model)
    caches = functional.buffers(model.config, 3, 20, layout)
    assert {tuple(t.shape) for pair in caches for t in pair} == {(3, 4, 20, 8)}
    with torch.no_grad():
        parts = [(0, 7), *((t, t + 1) for t in range(7, 12))]
        got = [functional.step(weights, caches, text[:, a:b], a, 4) for a, b in parts]
        torch.testing.assert_close(torch.cat(got, 1), model(text)[0], atol=1e-5, rtol=1e-5)
    assert not any(t[:, :, 12:].any() for pair in caches for t in pair), "nobody has written there"


def test_a_chunks_mask_is_what_is_visible_from_its_positions():
    for start, end in ((0, 1), (0, 6), (4, 5), (4, 9)):
        mask = functional.chunk_mask(start, end, "cpu")
        if mask.get("attn_mask") is None:
            assert mask["is_causal"] == (end - start > 1)
        else:
            assert torch.equal(
                mask["attn_mask"], visible(torch.arange(start, end), torch.arange(end))
            )


def test_an_unknown_layout_is_refused():
    with pytest.raises(ValueError, match='"layers", "one" or "interleaved"'):
        functional.buffers(shared_model().config, 1, 8, "rows")


def test_flat_weights_are_the_models_own_memory():
    model = shared_model()
    weights = functional.flatten(model)
    layers = [tensor for layer in weights.layers for tensor in layer]
    tensors = [t for t in weights if isinstance(t, torch.Tensor)] + layers
    assert {t.data_ptr() for t in tensors} == {p.data_ptr() for p in model.parameters()}
    assert not any(t.requires_grad for t in tensors)
