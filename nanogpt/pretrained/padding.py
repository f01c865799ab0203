"""Padded vocabularies: a model may have more token ids than its tokenizer."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..config import check_type
from ..data import CharTokenizer
from ..decoder.model import Decoder
from ..decoder.skeleton import skeleton
from ..decoder.standard import not_standard
from ..model import LanguageModel
from .tokenizer import PretrainedTokenizer


def without_spare_tokens(
    model: LanguageModel, tokenizer: PretrainedTokenizer | CharTokenizer
) -> LanguageModel:
    """A model with the same weights that never samples an id missing from the tokenizer.

        model, tokenizer = load_pretrained("owner/name")
        model = without_spare_tokens(model, tokenizer)

    Vocabularies are often padded to a round number. The head's bias of a spare id becomes -inf,
    which is a probability of 0 in every engine, cache and backend; all other logits are unchanged.
    A model without spare ids is returned as it is. Raises ValueError for sizes that do not belong
    together, and for a padded model that is not a plain Decoder without logit_softcap.
    """
    check_type("model", model, LanguageModel)
    check_type("tokenizer", tokenizer, (PretrainedTokenizer, CharTokenizer))
    n = len(tokenizer)
    size = model.config.vocab_size
    if n == size:
        return model
    if isinstance(tokenizer, CharTokenizer):
        raise ValueError(
            f"the tokenizer has {n} characters, the model's vocabulary {size}: load both from the "
            f"same checkpoint"
        )
    padded = type(model) is Decoder and model.config.logit_softcap is None
    if n > size or not padded or not_standard(model) is not None:
        raise ValueError(
            f"the tokenizer has {n:,} tokens, the model's vocabulary {size:,}: load both from the "
            f"same source; spare tokens can be ruled out for a Decoder without logit_softcap and "
            f"without custom code"
        )
    config = replace(model.config, head_bias=True)
    limited: Decoder = skeleton(config)
    bias = torch.zeros_like(model.lm_head.weight.detach()[:, 0])
    if model.lm_head.bias is not None:
        bias += model.lm_head.bias.detach()
    bias[n:] = -torch.inf
    limited.load_state_dict(model.state_dict() | {"lm_head.bias": bias}, assign=True)
    if config.tied:
        limited.lm_head.weight = limited.token_embedding_table.weight
    limited.requires_grad_(False)
    limited.eval()
    return limited
