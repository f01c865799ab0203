"""Other people's decoding, timed beside ours."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..config.shapes import GPTConfig
from ..model.gpt import GPT


def hugging_face(model: GPT, n_new: int) -> dict[str, Callable[[], Tensor]]:
    """generate() of a GPT-2 of the model's shape in transformers, with dynamic and static cache.

    Its weights are random, and its arithmetic (GELU) and its sampling are its own, so its tokens
    are not compared. Each function returns n_new tokens, (1, n_new). Raises ImportError without
    transformers (requirements-peers.txt).
    """
    weight = model.lm_head.weight
    theirs = _gpt2(model.config).to(device=weight.device, dtype=weight.dtype).eval()
    prompt = torch.zeros(1, 1, dtype=torch.int64, device=weight.device)

    def run(**cache) -> Tensor:
        out = theirs.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=True,
            top_k=0,
            max_new_tokens=n_new,
            min_new_tokens=n_new,
            pad_token_id=0,
            **cache,
        )
        if out.shape[1] != 1 + n_new:
            raise RuntimeError(f"transformers gave {out.shape[1] - 1} tokens, not {n_new}")
        return out[:, 1:]

    return {
        "Hugging Face, dynamic cache": lambda: run(use_cache=True),
        "Hugging Face, static cache": lambda: run(cache_implementation="static"),
    }


def _gpt2(config: GPTConfig):
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise ImportError(f"{error}: pip install -r requirements-peers.txt") from error
    shape = GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.block_size + 1,
        n_embd=config.n_embd,
        n_layer=config.n_layer,
        n_head=config.n_head,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(shape)
