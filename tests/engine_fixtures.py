"""What the tests of engines share: one model shape, so that little is compiled."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
from conftest import seeded, state_of, tiny_model

from nanogpt import Batched, Compiled, Flat, Native, PerHead, SamplingParams, Uncached
from nanogpt.cache import DynamicCache
from nanogpt.engines import base, decoder_library, toolchain
from nanogpt.engines.compiled import Graph, GraphLoop, empty_kv, next_token
from nanogpt.engines.generation import complete, generate
from nanogpt.model import Head

# The shape and the batch of tests/test_same_tokens.py: what was compiled there serves here.
SHAPE = {"vocab_size": 13, "block_size": 16, "n_layer": 2, "n_head": 4, "n_embd": 32}
BATCH = 3
BLOCK = SHAPE["block_size"]


class OneStep(GraphLoop):
    """A CUDA graph without a GPU: what would be recorded is run instead, uncompiled."""

    steps = 1
    is_compiled = False

    def build(self):
        super(Graph, self).build()  # that of a graph asks for a CUDA device
        self._allocate()
        self._capture(partial(next_token, c=self.config, fused=False))

    def _capture(self, one_step):
        self.replay = torch.no_grad()(partial(self._steps, one_step))


class FiveSteps(OneStep):
    steps = 5


class Interpreted(Compiled):
    """Compiled without a compiler: the step that would be compiled is run instead."""

    def build(self):
        super(Compiled, self).build()
        self.kv = empty_kv(self.shape)
        self.step = partial(next_token, c=self.config)


EAGER = [Uncached, PerHead, Batched, Flat]
GRAPHS = [OneStep, FiveSteps]
COMPILING = [Compiled, Native]
# A build of Compiled takes a quarter of a minute: one is in test_same_tokens.py, the others are for
# the release run. `Interpreted` is the same step without the build.
_COMPILING = [
    pytest.param(Compiled, marks=[pytest.mark.slow, pytest.mark.release]),
    pytest.param(Native, marks=pytest.mark.slow),
]
compiling = pytest.mark.parametrize("kind", _COMPILING)
every = pytest.mark.parametrize("kind", [*EAGER, *GRAPHS, *_COMPILING])
# Those that do more than run the model's modules over a cache that grows.
by_itself = pytest.mark.parametrize("kind", [Flat, *GRAPHS, *_COMPILING])
SAMPLING = [
    SamplingParams(greedy=True),
    SamplingParams(top_k=3),
    SamplingParams(temperature=2.0, top_k=6, top_p=0.8),
]


def shared_model(per_head: bool = False, dtype=torch.float32, head=Head, **changes):
    return tiny_model(per_head, dtype, head, **(SHAPE | changes))


def prompt_of(T: int, batch: int = BATCH, seed: int = 0, vocab: int = 13) -> torch.Tensor:
    return torch.randint(vocab, (batch, T), generator=seeded(seed))


def uncached(model, prompt, n_new, *how, seed: int = 1):
    return complete(model, prompt, n_new, *how, cache=None, generator=seeded(seed))


def assert_same_tokens(model, engine, prompt, n_new, *how):
    got = complete(model, prompt, n_new, *how, engine=engine, generator=seeded(1))
    assert torch.equal(got, uncached(model, prompt, n_new, *how))
    return got


def close_noise(model, prompt, text, margin=1e-3):
    """Noise with which `text` follows the prompt, unless a probability is off by the margin.

    Each token's noise is its own probability, so all of them draw level; the noise of the token
    that is wanted is smaller by the margin.
    """
    T = prompt.shape[1]
    whole = torch.cat([prompt, text], dim=1)
    with torch.no_grad():
        probs = model(whole[:, :-1])[0][:, T - 1 :].softmax(-1)  # (B, n, V)
    wanted = probs.gather(2, text[..., None]) * (1 - margin)
    return probs.scatter(2, text[..., None], wanted).transpose(0, 1).contiguous()


def assert_right_probabilities(model, engine, T, n_new, batch=BATCH, by=3, margin=1e-3):
    """Every token of the vocabulary in turn must win by a hair, at every place."""
    vocab = model.config.vocab_size
    prompt = prompt_of(T, batch, vocab=vocab)
    for first in range(0, vocab, by):
        text = (torch.arange(first, first + n_new) * 5 + 2 * torch.arange(batch)[:, None]) % vocab
        noise = close_noise(model, prompt, text, margin)
        assert torch.equal(complete(model, prompt, n_new, engine=engine, noise=noise)[:, T:], text)


def change_weights(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.flip(0) - 0.05)


def heard(call):
    """The result, and the warnings as (text, file)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return call(), [(str(w.message), w.filename) for w in caught]


def assert_refused(message, model, prompt, n_new, **how):
    """At the call, in one line, and the model is left as it was."""
    before = state_of(model)
    with pytest.raises(ValueError, match=message) as error:
        generate(model, prompt, n_new, **({"cache": DynamicCache} | how))
    assert "\n" not in str(error.value)
    assert state_of(model) == before


def forget():
    """As in a new process: no engine built, no library loaded, no compiler looked up."""
    libraries = decoder_library.decoder_library, decoder_library.helpers_library
    for remembered in (toolchain.compiler, toolchain.machine, *libraries):
        remembered.cache_clear()
    base._built.clear()


@pytest.fixture
def forgetful():
    forget()
    yield
    forget()
