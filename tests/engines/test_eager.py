"""Rungs 1 to 5: PyTorch, operation by operation, and the model as a function."""

import pytest
import torch
from decoding_fixtures import decoder as decoder_of
from engine_fixtures import EAGER, prompt_of, shared_model
from shapes import DECODERS

from nanogpt import Batched, Flat, Static, Uncached
from nanogpt.decoder.pack import flatten
from nanogpt.decoder.step import named_tensors
from nanogpt.engines.generation import complete


@pytest.mark.parametrize("kind", EAGER)
def test_16_bits_are_decoded_in_their_own_arithmetic(kind):
    """It rounds so coarsely that the order of a sum moves tokens: here the range is what counts."""
    text = complete(shared_model(True, torch.bfloat16), prompt_of(5), 12, engine=kind)
    assert text.dtype == torch.int64
    assert 0 <= int(text.min()) <= int(text.max()) < 13


@torch.no_grad()
def assert_right_logits(model, kind, text):
    """Chunks of several sizes, at the start and after it, where another text was read before."""
    wrong = text.flip(1)
    expected = model(text)[0]
    reader = kind(model.config, batch=len(text), dtype=torch.float64).reader(model)
    got = [reader.read(text[:, :5])]
    reader.read(wrong[:, 5:12])
    reader.read(wrong[:, 12:13])
    reader.rewind(8)
    sizes = [3, 1, 1, 7, text.shape[1] - 17]
    got += [reader.read(part) for part in text[:, 5:].split(sizes, dim=1)]
    assert reader.length == text.shape[1]
    torch.testing.assert_close(torch.cat(got, 1), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", EAGER)
def test_a_decoder_reads_chunks_of_any_size_at_any_place_and_forgets_its_end(kind):
    for per_head, sizes in ((True, {"n_layer": 1, "n_head": 1}), (False, {"n_embd": 20})):
        model = shared_model(per_head, torch.float64, **sizes, block_size=19)
        assert_right_logits(model, kind, prompt_of(19))


@pytest.mark.parametrize("row", DECODERS)
@pytest.mark.parametrize("kind", [Uncached, Batched, Static, Flat])
def test_every_field_of_a_config_is_computed(kind, row):
    model = decoder_of(**DECODERS[row])
    c = model.config
    assert_right_logits(model, kind, prompt_of(c.block_size, 2, vocab=c.vocab_size))


@pytest.mark.parametrize("row", DECODERS)
def test_flat_weights_are_the_models_own_memory(row):
    model = decoder_of(torch.float32, **DECODERS[row])
    weights = flatten(model)
    tensors = named_tensors(weights)
    if model.config.rotary:
        del tensors["positions"]
    assert {t.data_ptr() for t in tensors.values()} == {p.data_ptr() for p in model.parameters()}
    assert not any(t.requires_grad for t in tensors.values())
