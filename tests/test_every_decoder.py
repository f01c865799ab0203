"""Every field of a DecoderConfig × every decoding path: the same tokens as without a cache.

A new field is a row of DECODERS in shapes.py, a new path a row of PATHS. The reference computes the
whole text again for every token, in float64; compiled engines compute float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields

import pytest
import torch
from checkpoint_fixtures import meta_of
from conftest import name, seeded
from engine_fixtures import OneStep
from shapes import DECODERS, SMALL
from torch import Tensor

from nanogpt import (
    Batched,
    BatchEngine,
    Compiled,
    Decoder,
    DecoderConfig,
    DynamicCache,
    Flat,
    Native,
    PagedCache,
    PromptLookup,
    Request,
    RollingCache,
    StaticCache,
    complete,
    draw_noise,
    exact,
    load_checkpoint,
    pack_heads,
    save_checkpoint,
    unpack_heads,
)
from nanogpt.decoder.config import beyond_lecture
from nanogpt.serving.modules import ModuleBackend
from nanogpt.serving.native_steps import NativeBackend

N_PROMPT = 9
N_NEW = 20
SEEDS = (6, 7)  # of the noise of each text

DecodingPath = Callable[[Decoder, Tensor], Tensor]


@functools.cache
def decoder(row: str) -> Decoder:
    """A model with large weights, whose tokens depend on every part of it."""
    model = Decoder(DecoderConfig(**SMALL | DECODERS[row]), generator=seeded(3)).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, dtype=torch.float64, generator=seeded(4))
            weight.add_(noise, alpha=0.4)
    return model


def copied(model: Decoder, dtype: torch.dtype) -> Decoder:
    """The same model with weights of its own."""
    copy = Decoder(model.config).to(dtype).eval()
    copy.load_state_dict(model.state_dict())
    return copy


def prompt_for(model: Decoder) -> Tensor:
    return torch.randint(model.config.vocab_size, (2, N_PROMPT), generator=seeded(5))


def generated(model: Decoder, prompt: Tensor, **how) -> Tensor:
    V = model.config.vocab_size
    noise = torch.cat([draw_noise(N_NEW, 1, V, seeded(seed)) for seed in SEEDS], dim=1)
    return complete(model, prompt, N_NEW, noise=noise, **how)


@functools.cache
def reference(row: str) -> Tensor:
    model = decoder(row)
    return generated(model, prompt_for(model), cache=None)


def with_cache(cache: type) -> DecodingPath:
    return lambda model, prompt: generated(model, prompt, cache=cache)


def with_engine(engine: type, dtype: torch.dtype = torch.float64) -> DecodingPath:
    return lambda model, prompt: generated(copied(model, dtype), prompt, engine=engine)


def looked_up(model: Decoder, prompt: Tensor) -> Tensor:
    return generated(model, prompt, draft=PromptLookup(2, k=3))


def in_exact_mode(model: Decoder, prompt: Tensor) -> Tensor:
    with exact(model):
        return generated(model, prompt, cache=StaticCache)


def served(backend: type, dtype: torch.dtype) -> DecodingPath:
    """Both texts at once, prompts in chunks; the second one comes later."""

    def path(model: Decoder, prompt: Tensor) -> Tensor:
        engine = BatchEngine(copied(model, dtype), backend=backend, block_len=4, budget=6)
        texts = [row.tolist() for row in prompt]
        waiting = [Request(prompt[i], N_NEW, seed=seed, id=i) for i, seed in enumerate(SEEDS)]
        while waiting or engine.busy:
            if waiting:
                engine.add(waiting.pop(0))
            for output in engine.step():
                texts[output.request.id].append(output.token)
        return torch.tensor(texts)

    return path


@pytest.fixture
def restored(tmp_path) -> DecodingPath:
    """Saved and loaded again."""

    def path(model: Decoder, prompt: Tensor) -> Tensor:
        chars = "".join(map(chr, range(97, 97 + model.config.vocab_size)))
        save_checkpoint(tmp_path / "x", model, meta_of(model, vocabulary=chars))
        return generated(load_checkpoint(tmp_path / "x").model, prompt)

    return path


PATHS: dict[str, DecodingPath] = {
    **{name(cache): with_cache(cache) for cache in (DynamicCache, StaticCache, RollingCache)},
    "PagedCache": with_cache(type("SmallPages", (PagedCache,), {"page": 3})),
    **{name(engine): with_engine(engine) for engine in (Batched, Flat, OneStep)},
    "a draft": looked_up,
    "exact mode": in_exact_mode,
    "served": served(ModuleBackend, torch.float64),
}
BUILT: dict[str, DecodingPath] = {
    "Native": with_engine(Native, torch.float32),
    "served natively": served(NativeBackend, torch.float32),
}
# Each of its rows is a compilation of half a minute.
COMPILED = ("Qwen 3", "all at once")


@pytest.mark.parametrize("row", DECODERS)
@pytest.mark.parametrize("path", PATHS)
def test_a_path_gives_the_tokens_of_the_model_without_a_cache(path, row):
    model = decoder(row)
    assert torch.equal(PATHS[path](model, prompt_for(model)), reference(row))


@pytest.mark.parametrize("row", DECODERS)
@pytest.mark.parametrize("path", BUILT)
def test_native_code_gives_the_same_tokens(path, row):
    model = decoder(row)
    assert torch.equal(BUILT[path](model, prompt_for(model)), reference(row))


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize("row", COMPILED)
def test_a_compiled_step_gives_the_same_tokens(row):
    model = decoder(row)
    path = with_engine(Compiled, torch.float32)
    assert torch.equal(path(model, prompt_for(model)), reference(row))


@pytest.mark.parametrize("row", DECODERS)
def test_a_saved_model_gives_the_same_tokens(restored, row):
    model = decoder(row)
    assert torch.equal(restored(model, prompt_for(model)), reference(row))


@pytest.mark.parametrize("row", DECODERS)
def test_a_list_of_heads_gives_the_same_tokens_or_is_refused_by_the_field(row):
    model = decoder(row)
    beyond = beyond_lecture(model.config)
    if beyond:
        with pytest.raises(ValueError, match=f"no .*{next(iter(beyond))}="):
            unpack_heads(model)
        return
    heads = unpack_heads(model)
    assert torch.equal(generated(heads, prompt_for(model)), reference(row))
    for ours, theirs in zip(pack_heads(heads).parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_every_field_has_a_row():
    changed = set().union(*(DECODERS[row].keys() for row in DECODERS))
    assert changed == {field.name for field in fields(DecoderConfig)}


@pytest.mark.parametrize("row", DECODERS)
def test_a_row_computes_another_function_than_the_plain_one(row):
    changes = DECODERS[row].keys() - {"dropout", "block_size"}
    if changes:
        prompt = prompt_for(decoder("plain"))
        logits = [decoder(one)(prompt)[0] for one in (row, "plain")]
        assert logits[0].shape != logits[1].shape or not torch.allclose(*logits)
