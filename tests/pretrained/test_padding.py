"""Ids that a tokenizer lacks: no decoding path samples one, and all other logits are the same."""

import pytest
import torch
from chat_fixtures import LLAMA, llama, tokenizer, tokens_alone
from conftest import seeded, tiny_model
from pretrained_fixtures import V_TOKENIZER

import nanogpt
from nanogpt import CausalSelfAttention, Decoder, DecoderConfig, SamplingParams
from nanogpt.data import CharTokenizer
from nanogpt.pretrained.padding import without_spare_tokens

SAMPLINGS = [
    SamplingParams(),
    SamplingParams(greedy=True),
    SamplingParams(0.7, top_k=20),
    SamplingParams(1.2, top_p=0.9),
]
ENGINES = ["Uncached", "Batched", "Flat", "Native"]
PATHS = {
    "no cache": lambda: {"cache": None},
    "cache": dict,
    "prompt lookup": lambda: {"draft": nanogpt.PromptLookup()},
    "a draft that proposes spare ids": lambda: {"draft": nanogpt.DraftModel(llama())},
}


def check(how: dict, sampling: SamplingParams) -> None:
    prompt = tokenizer().encode("the quick brown fox")
    model = without_spare_tokens(llama(), tokenizer())
    assert max(tokens_alone(llama(), prompt, 30, sampling)) >= V_TOKENIZER
    tokens = tokens_alone(model, prompt, 30, sampling, **how)
    assert max(tokens) < V_TOKENIZER
    assert tokens == tokens_alone(model, prompt, 30, sampling, cache=None)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_no_path_samples_a_spare_id(path, sampling):
    check(PATHS[path](), sampling)


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_no_engine_samples_a_spare_id(engine, sampling):
    check({"engine": getattr(nanogpt, engine)}, sampling)


FIELDS = [{}, {"tied": False}, {"head_bias": True}, {"tied": False, "head_bias": True}]


@pytest.mark.parametrize("fields", FIELDS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_all_other_logits_are_the_same_and_the_model_is_left_as_it_was(fields, dtype):
    model = Decoder(DecoderConfig(**LLAMA | fields), generator=seeded(3)).to(dtype).eval()
    if model.lm_head.bias is not None:
        model.lm_head.bias.normal_(generator=seeded(4))
    tokens = torch.arange(40)[None]
    want = model(tokens)[0]
    limited = without_spare_tokens(model, tokenizer())
    got = limited(tokens)[0]
    assert torch.equal(got[..., :V_TOKENIZER], want[..., :V_TOKENIZER])
    assert (got[..., V_TOKENIZER:] == -torch.inf).all()
    assert torch.equal(model(tokens)[0], want)
    shared = limited.token_embedding_table.weight.data_ptr()
    assert shared == model.token_embedding_table.weight.data_ptr()
    assert all(weight.requires_grad for weight in model.parameters())


def test_a_model_without_spare_ids_is_returned_as_it_is():
    model = Decoder(DecoderConfig(**LLAMA | {"vocab_size": V_TOKENIZER}))
    assert without_spare_tokens(model, tokenizer()) is model


class Mine(CausalSelfAttention):
    """Attention of a reader, which a new Decoder would not have."""


REFUSED = {
    "characters": (tiny_model, CharTokenizer("ab"), "2 characters, the model's vocabulary 13"),
    "too few ids": (lambda: tiny_model(per_head=False), tokenizer(), "304 tokens, .* vocabulary 1"),
    "a softcap": (
        lambda: Decoder(DecoderConfig(**LLAMA | {"logit_softcap": 5.0})),
        tokenizer(),
        "without logit_softcap",
    ),
    "attention of your own": (
        lambda: Decoder(DecoderConfig(**LLAMA), attention=Mine),
        tokenizer(),
        "without custom code",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_tokenizer_that_does_not_belong_to_the_model_is_refused(case):
    make, own, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        without_spare_tokens(make(), own)
