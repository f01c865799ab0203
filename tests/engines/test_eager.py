"""Rungs 1 to 5: PyTorch, operation by operation, and the model as a function."""

import pytest
import torch
from engine_fixtures import EAGER, prompt_of, shared_model

from nanogpt.engines import functional
from nanogpt.generation import complete


@pytest.mark.parametrize("kind", EAGER)
def test_16_bits_are_decoded_in_their_own_arithmetic(kind):
    """It rounds so coarsely that the order of a sum moves tokens: here the range is what counts."""
    text = complete(shared_model(True, torch.bfloat16), prompt_of(5), 12, engine=kind)
    assert text.dtype == torch.int64
    assert 0 <= int(text.min()) <= int(text.max()) < 13


@pytest.mark.parametrize("kind", EAGER)
def test_a_decoder_reads_chunks_of_any_size_at_any_place_and_forgets_its_end(kind):
    text = prompt_of(16)
    for per_head, sizes in ((True, {"n_layer": 1, "n_head": 1}), (False, {"n_embd": 20})):
        model = shared_model(per_head, torch.float64, **sizes)
        decoder = kind(model.config, batch=3, dtype=torch.float64).decoder(model)
        with torch.no_grad():
            expected = model(text)[0]
            decoder.read(text[:, :5])
            decoder.read(text[:, 9:])  # wrong here, and forgotten
            decoder.rewind(7)
            got = [decoder.read(part) for part in text[:, 5:].split([3, 1, 7], dim=1)]
        assert decoder.length == 16
        torch.testing.assert_close(torch.cat(got, 1), expected[:, 5:], rtol=0, atol=1e-10)


def test_flat_weights_are_the_models_own_memory():
    model = shared_model()
    weights = functional.flatten(model)
    tensors = [*weights[:-1], *(tensor for layer in weights.layers for tensor in layer)]
    assert {t.data_ptr() for t in tensors} == {p.data_ptr() for p in model.parameters()}
    assert not any(t.requires_grad for t in tensors)
