"""Other people's decoding, timed beside ours."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..model.gpt import GPT


def hugging_face(model: GPT, n_new: int) -> dict[str, Callable]:
    """generate() of a GPT-2 of the same shape from transformers, weights as drawn: static and dynamic cache.

    Its arithmetic is its own (GELU, its own sampling), so its tokens are not compared. Raises
    ImportError without transformers (requirements-peers.txt).
    """
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise ImportError(f"{error}: pip install -r requirements-peers.txt") from error

    c = model.config
    shape = GPT2Config(
        vocab_size=c.vocab_size,
        n_positions=c.block_size + 1,
        n_embd=c.n_embd,
        n_layer=c.n_layer,
        n_head=c.n_head,
        bos_token_id=None,
        eos_token_id=None,
    )
    device = model.lm_head.weight.device
    theirs = GPT2LMHeadModel(shape).to(device=device, dtype=model.lm_head.weight.dtype).eval()
    prompt = torch.zeros(1, 1, dtype=torch.int64, device=device)
    mask = torch.ones_like(prompt)

    def run(**cache):
        out = theirs.generate(
            prompt,
            attention_mask=mask,
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
