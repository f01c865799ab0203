"""Other programs' decoding of our weights and our noise, to be timed beside the ladder's rungs.

A peer is a function of the noise, (n, V), that returns the n tokens drawn after the token 0. It
draws as we do, argmax(probs / noise), so its tokens are compared with ours. Float32 on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..config.shapes import GPTConfig
from ..model.convert import check_standard
from ..model.gpt import GPT

Peer = Callable[[Tensor], Tensor]


def jax_scan(model: GPT) -> dict[str, Peer]:
    """The whole loop in one `lax.scan` over a static cache, compiled on the first call.

    `model` has the lecture's architecture, with all heads in one product. XLA takes one thread
    where torch does, unless JAX has run before. Raises ImportError without jax, ValueError for
    another architecture.
    """
    if torch.get_num_threads() == 1:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    try:
        import jax
    except ImportError as error:
        raise ImportError(f'{error}: pip install "jax>=0.4.30"') from error
    check_standard(model)
    if other := model.config.beyond_lecture:
        raise ValueError(f"--peer jax computes the lecture's architecture, and this has {other}")
    weights = {name: jax.dlpack.from_dlpack(w.detach()) for name, w in model.state_dict().items()}
    loop = jax.jit(partial(_loop, model.config))

    def decode(noise: Tensor) -> Tensor:
        return torch.tensor(jax.device_get(loop(weights, jax.dlpack.from_dlpack(noise)))).long()

    return {"JAX, the loop in lax.scan": decode}


def _loop(c: GPTConfig, w: dict, noise):
    """n tokens, as JAX traces them.  (n, V) -> (n,)"""
    from jax import lax, nn
    from jax import numpy as jnp

    positions = jnp.arange(len(noise))

    def step(carry, now):
        (token, caches), (pos, own), kept = carry, now, []
        x = w["token_embedding_table.weight"][token] + w["position_embedding_table.weight"][pos]
        for i, (keys, values) in enumerate(caches):
            at = f"blocks.{i}"
            qkv = _linear(w, f"{at}.sa.qkv", _norm(w, f"{at}.ln1", x))
            q, k, v = qkv.reshape(3, c.n_head, c.head_size)
            keys, values = keys.at[:, pos].set(k), values.at[:, pos].set(v)  # (H, n, hs)
            kept.append((keys, values))
            scores = jnp.einsum("hd,htd->ht", q, keys) * c.head_size**-0.5
            shares = nn.softmax(jnp.where(positions <= pos, scores, -jnp.inf))
            mixed = jnp.einsum("ht,htd->hd", shares, values)
            x = x + _linear(w, f"{at}.sa.proj", mixed.reshape(-1))
            inner = nn.relu(_linear(w, f"{at}.ffwd.net.0", _norm(w, f"{at}.ln2", x)))
            x = x + _linear(w, f"{at}.ffwd.net.2", inner)
        probs = nn.softmax(_linear(w, "lm_head", _norm(w, "ln_f", x)))
        token = jnp.argmax(probs / own)
        return (token, kept), token

    cache = jnp.zeros((c.n_head, len(noise), c.head_size))
    return lax.scan(step, (0, [(cache, cache)] * c.n_layer), (positions, noise))[1]


def _linear(w: dict, name: str, x):
    return w[f"{name}.weight"] @ x + w.get(f"{name}.bias", 0.0)


def _norm(w: dict, name: str, x):
    x = x - x.mean()
    return x / ((x * x).mean() + 1e-5) ** 0.5 * w[f"{name}.weight"] + w[f"{name}.bias"]


def hugging_face(exported: tuple[dict, dict[str, Tensor]]) -> dict[str, Peer]:
    """transformers' `generate` over its dynamic and its static cache; the noise is a processor.

    `exported` are a config and tensors from the export. Raises ImportError without transformers.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise ImportError(f'{error}: pip install "transformers>=5.17,<6"') from error
    config, weights = exported
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
    theirs.load_state_dict(weights)
    theirs.eval()
    prompt = torch.zeros(1, 1, dtype=torch.int64)

    def decode(noise: Tensor, **cache) -> Tensor:
        def race(tokens, logits):
            return logits.softmax(-1) / noise[tokens.shape[1] - 1]

        how = {"do_sample": False, "max_new_tokens": len(noise), "logits_processor": [race]}
        mask = torch.ones_like(prompt)
        return theirs.generate(prompt, attention_mask=mask, **how, **cache)[0, 1:]

    return {
        "Hugging Face, dynamic cache": decode,
        "Hugging Face, static cache": partial(decode, cache_implementation="static"),
    }
