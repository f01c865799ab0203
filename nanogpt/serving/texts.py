"""What serving asks of a tokenizer: the text of tokens as they come, and where a text ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from ..data import CharTokenizer
from ..decoder.model import Decoder
from ..decoder.standard import Unfilled
from ..model import LanguageModel
from ..pretrained.tokenizer import PretrainedTokenizer

Tokenizer = CharTokenizer | PretrainedTokenizer


class Pieces(Protocol):
    """The text of one token after another, in whole characters."""

    def push(self, token: int) -> str:
        """The text that this token completes; "" if it completes none."""

    def end(self) -> str:
        """The text of what waits, at the end of all tokens."""


class CharPieces:
    """Every token is a character."""

    def __init__(self, tokenizer: CharTokenizer):
        self.chars = tokenizer.chars

    def push(self, token: int) -> str:
        return self.chars[token]

    def end(self) -> str:
        return ""


def pieces_of(tokenizer: Tokenizer) -> Pieces:
    """For one text."""
    if isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer.pieces()
    return CharPieces(tokenizer)


def stop_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens that end a text or an answer; none are characters."""
    return tokenizer.stop if isinstance(tokenizer, PretrainedTokenizer) else ()


def name_of(tokenizer: Tokenizer, token: int) -> str:
    """The text of one token, with a control token's name; of half a character a sign for it."""
    if isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer.decode([token], special=True)
    return tokenizer.chars[token]


def template_of(tokenizer: Tokenizer) -> Callable[[list[dict[str, str]]], Tensor] | None:
    """What makes a prompt of a chat's messages; None for a model without a chat template."""
    if isinstance(tokenizer, PretrainedTokenizer) and tokenizer.template is not None:
        return tokenizer.chat
    return None


def without_spare_tokens(model: LanguageModel, tokenizer: Tokenizer) -> LanguageModel:
    """A model, over the same weights, that never samples a token which the tokenizer lacks.

    Makers pad a vocabulary to a round number. The bias of such a token is -inf: a probability of 0
    in every backend. Raises ValueError for sizes that do not belong together.
    """
    n = len(tokenizer)
    size = model.config.vocab_size
    if n == size:
        return model
    if not isinstance(tokenizer, PretrainedTokenizer):
        raise ValueError(f"the tokenizer has {n} characters, the model's vocabulary {size}")
    if n > size or type(model) is not Decoder or model.config.logit_softcap is not None:
        raise ValueError(
            f"the tokenizer has {n:,} tokens, the model's vocabulary {size:,}: load both from the "
            f"same source; spare tokens are served of a Decoder without logit_softcap"
        )
    config = replace(model.config, head_bias=True)
    with torch.device("meta"), Unfilled():  # the shape, without numbers
        padded = Decoder(config)
    bias = torch.zeros_like(model.lm_head.weight.detach()[:, 0])
    if model.lm_head.bias is not None:
        bias += model.lm_head.bias.detach()
    bias[n:] = -torch.inf
    padded.load_state_dict(model.state_dict() | {"lm_head.bias": bias}, assign=True)
    if config.tied:
        padded.lm_head.weight = padded.token_embedding_table.weight
    return padded.requires_grad_(False).eval()
