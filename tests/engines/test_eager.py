"""Rungs 1 to 4: PyTorch, operation by operation, and the model as a function."""

import pytest
import torch
from decoding_fixtures import decoder as decoder_of
from engine_fixtures import EAGER, prompt_of, shared_model
from shapes import COMBINED

from nanogpt import Batched, Flat, Uncached


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


# The step and the modules that they run are compared for every field in tests/decoder/test_step.py.
@pytest.mark.parametrize("row", COMBINED)
@pytest.mark.parametrize("kind", [Uncached, Batched, Flat])
def test_every_architecture_is_computed(kind, row):
    model = decoder_of(**COMBINED[row])
    c = model.config
    assert_right_logits(model, kind, prompt_of(c.block_size, 2, vocab=c.vocab_size))
