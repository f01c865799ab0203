"""Notebook 13's model: the real one, one that is named, or the stand-in, and which it says."""

import string
from importlib.util import find_spec

import pytest
import torch
from notebook_fixtures import cells_of

from nanogpt import Decoder, DecoderConfig, DynamicCache
from nanogpt.bench.gain import write
from nanogpt.pretrained.needs import PretrainedError
from nanogpt.series import real
from nanogpt.series.real import real_model, to_transformers


@pytest.fixture
def no_network(monkeypatch):
    def refuse(source):
        raise PretrainedError("SmolLM2 could not be fetched: connect to a network")

    monkeypatch.setattr(real, "load_pretrained", refuse)


def test_without_the_model_a_small_one_stands_in_and_says_why(no_network):
    found = real_model()
    assert not found.real
    assert "NOT A REAL MODEL" in str(found)
    assert "connect to a network" in str(found)


def test_a_short_run_asks_nobody(monkeypatch):
    monkeypatch.setattr(real, "load_pretrained", lambda source: pytest.fail("it asked"))
    assert not real_model(brief=True).real
    assert "it was asked for" in str(real_model("small", brief=True))


def test_a_model_that_is_named_is_loaded_or_refused(no_network):
    with pytest.raises(PretrainedError, match="could not be fetched"):
        real_model("some/model", brief=True)


def test_the_stand_in_has_the_real_ones_architecture_and_reads_english():
    found = real_model("small")
    c = found.model.config
    assert (c.kv_heads, c.group) == (2, 3)
    assert (c.gated, c.tied, c.rotary) == (True, True, True)
    prompt = found.tokenizer.encode(string.printable[:95])[None]
    texts = [
        torch.cat([*write(found.model, prompt, 20, cache)], 1) for cache in (None, DynamicCache)
    ]
    assert torch.equal(*texts)
    assert len(set(texts[0][0].tolist())) > 3, "a text of one token shows no mistake"


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_transformers_finds_the_weights_under_their_names():
    found = real_model("small")
    prompt = found.tokenizer.encode("The keys and values of a token")[None]
    theirs = to_transformers(found.model)
    with torch.no_grad():
        expected = found.model(prompt)[0]
        assert torch.allclose(theirs(prompt).logits, expected, atol=1e-4)
        for name, weight in theirs.named_parameters():
            if "k_proj" in name:
                weight.copy_(weight.flip(0))
        assert not torch.allclose(theirs(prompt).logits, expected, atol=1e-4)


def test_a_shape_that_no_family_has_is_refused_by_name():
    with pytest.raises(ValueError, match="none of the families llama, .* has this shape"):
        to_transformers(Decoder(DecoderConfig(vocab_size=9, n_layer=1, n_embd=8, window=4)))


FORGETS = """
from nanogpt.course.solutions import KVCache as Right
class KVCache(Right):
    def update(self, k, v, pos):
        k, v, pos = super().update(k, v, pos)
        return k[:, -6:], v[:, -6:], pos[-6:]
"""


@pytest.mark.parametrize(
    ("reader", "equal"),
    [("from nanogpt.course.solutions import KVCache", True), (FORGETS, False)],
)
def test_the_readers_cache_runs_in_it_and_a_wrong_one_is_seen(reader, equal):
    cache = cells_of(13, "your-cache", imports=reader)["YourCache"]
    found = real_model("small")
    prompt = found.tokenizer.encode("The best way to learn")[None]
    plain = torch.cat([*write(found.model, prompt, 12)], dim=1)
    assert torch.equal(torch.cat([*write(found.model, prompt, 12, cache)], dim=1), plain) is equal
