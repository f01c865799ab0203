"""What the dispatcher of generate computes: the tokens are compared in test_same_tokens.py."""

import pytest
import torch
from conftest import seeded
from draft_fixtures import Wrong
from shapes import SMALL

from nanogpt import (
    Decoder,
    DecoderConfig,
    DynamicCache,
    SamplingParams,
    StaticCache,
    complete,
    generate,
)


@pytest.fixture
def model():
    return Decoder(DecoderConfig(**SMALL)).eval()


@pytest.mark.parametrize("cache", [DynamicCache, StaticCache])
def test_a_prefill_computes_the_logits_of_its_last_token_alone(model, cache):
    rows = []
    model.lm_head.register_forward_hook(lambda head, x, y: rows.append(y.shape[1]))
    prompt = torch.randint(13, (2, 9), generator=seeded(1))
    text = complete(model, prompt, 5, cache=cache)
    assert rows == [1] * 5
    assert torch.equal(text, complete(model, prompt, 5, cache=None))


def test_the_rows_of_a_text_s_noise_are_taken_one_by_one(model, monkeypatch):
    """Witness: a greedy text of 5M tokens began after seconds, as all its rows were made first."""
    prompt = torch.randint(13, (1, 9), generator=seeded(1))
    expected = complete(model, prompt, 5, SamplingParams(greedy=True))
    monkeypatch.setattr(torch.Tensor, "__iter__", None)
    steps = generate(model, prompt, 5, SamplingParams(greedy=True))
    for i in range(5):
        assert int(next(steps)) == int(expected[0, 9 + i])


def test_a_draft_and_a_class_of_your_own_get_the_logits_of_all_tokens(model):
    class Mine(Decoder):
        def forward(self, idx, targets=None, pos=None):
            return super().forward(idx, targets, pos)

    mine = Mine(model.config).eval()
    rows = []
    prompt = torch.randint(13, (1, 9), generator=seeded(1))
    for each in (mine, model):
        each.lm_head.register_forward_hook(lambda head, x, y: rows.append(y.shape[1]))
    text = complete(mine, prompt, 3)
    assert rows == [9, 1, 1]
    rows.clear()
    assert torch.equal(complete(model, prompt, 3, draft=Wrong(text, 13, k=1)), text)
    assert rows[0] > 1
