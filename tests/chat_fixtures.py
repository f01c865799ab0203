"""A random Llama of a few layers and a tokenizer of byte pairs, with which chats are served."""

from __future__ import annotations

import functools
from copy import deepcopy

import torch
from conftest import seeded
from pretrained_fixtures import CHAT, SPECIALS, V_TOKENIZER, V, their_tokenizer_json
from tokenizers import Tokenizer

from nanogpt.decoder.config import DecoderConfig
from nanogpt.decoder.model import Decoder
from nanogpt.engines.generation import complete, generate
from nanogpt.pretrained.tokenizer import PretrainedTokenizer
from nanogpt.sampling import PLAIN, draw_noise
from nanogpt.serving.sequence import Request

END = SPECIALS.index("<|im_end|>")
ENDS = (END, *range(60, 90))  # many, so that texts of a random model end
LLAMA = {"vocab_size": V, "block_size": 128, "n_layer": 2, "n_head": 4, "n_kv_head": 2}
LLAMA |= {"n_embd": 32, "ffn_dim": 96, "positions": "rotary", "norm": "rms", "tied": True}
LLAMA |= {"activation": "silu", "gated": True}
LLAMA |= dict.fromkeys(["norm_bias", "proj_bias", "ffn_bias", "head_bias"], False)


@functools.cache
def llama(dtype=torch.float32) -> Decoder:
    """Its spare tokens, behind those of the tokenizer, are likelier than all others."""
    model = Decoder(DecoderConfig(**LLAMA), generator=seeded(3)).eval()
    generator = seeded(4)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=generator)
        model.token_embedding_table.weight[V_TOKENIZER:] *= 4
    return model.to(dtype)


@functools.cache
def tokenizer(template: str | None = CHAT, stop: tuple[int, ...] = ENDS) -> PretrainedTokenizer:
    made = Tokenizer.from_str(their_tokenizer_json())
    return PretrainedTokenizer(made, stop, template, {"eos_token": SPECIALS[END]})


def tokens_alone(model, prompt, n_new: int, sampling=PLAIN, seed: int = 0, **how) -> list[int]:
    """What `generate` gives, without an end."""
    steps = generate(model, prompt[None], n_new, sampling, generator=seeded(seed), **how)
    return [int(token) for token in steps]


def tokens_of(model, asked: Request, **how) -> list[int]:
    """What `generate` gives for a request of a model with a bias, up to the request's end.

    The bias of its end tokens is -inf for the first `min_new_tokens`.
    """
    n = asked.max_new_tokens
    least = min(n, asked.min_new_tokens)
    noise = draw_noise(n, 1, model.config.vocab_size, seeded(asked.seed))
    barred = deepcopy(model)
    barred.lm_head.bias[list(asked.stop)] = -torch.inf
    text = asked.prompt[None]
    for part, rows in ((barred, noise[:least]), (model, noise[least:])):
        if len(rows):
            text = complete(part, text, len(rows), asked.sampling, noise=rows, **how)
    new = text[0, len(asked.prompt) :].tolist()
    return new[:least] + up_to_end(new[least:], asked.stop)


def up_to_end(tokens: list[int], stop: tuple[int, ...] = ENDS) -> list[int]:
    """The tokens, up to the first that ends a text, which is the last then."""
    first = next((i for i, token in enumerate(tokens) if token in stop), len(tokens))
    return tokens[: first + 1]


def text_of(tokens: list[int], stop: tuple[int, ...] = ENDS) -> str:
    """The text that is shown of these tokens."""
    return "".join(tokenizer(stop=stop).stream(tokens))
