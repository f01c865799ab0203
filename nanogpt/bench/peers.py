"""Other programs on the ladder, with our weights: what each is asked for, and transformers.

A program that is given our noise takes argmax(probs / noise), so that its tokens can be compared
with ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..decoder.model import Decoder
from ..pretrained.form import family_form


@dataclass(frozen=True)
class PeerTask:
    """The text that another program is asked for."""

    prompt: Tensor  # (T,)
    n_new: int
    noise: Tensor | None  # (n_new, V): token i is argmax(probs / noise[i]); None: argmax(probs)
    first: Callable[[], None]  # to be called at the first token, if T > 1


@dataclass(frozen=True)
class Peer:
    """Another program on the same model."""

    decode: Callable[[PeerTask], Tensor]  # -> the new tokens (n_new,)
    weights: str = "float32"  # their type, such as "F32"
    weight_bytes: int | None = None  # read per token; None: those of our float32 weights
    kv_itemsize: int = 4  # bytes per number in its cache


def transformers_peers(model: Decoder) -> dict[str, Peer]:
    """transformers' model with these weights, in float32. Raises ImportError without it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config, tensors = family_form(model)
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
    theirs.load_state_dict(tensors, strict=False)  # a tied head has no tensor of its own
    return peers_of(theirs.eval())


def peers_of(theirs: Any) -> dict[str, Peer]:
    """transformers' `generate` with its dynamic and its static cache."""

    def decode(task: PeerTask, **cache: str) -> Tensor:
        def race(tokens: Tensor, logits: Tensor) -> Tensor:
            assert task.noise is not None
            return logits.softmax(-1) / task.noise[tokens.shape[1] - len(task.prompt)]

        text: Tensor = theirs.generate(
            task.prompt[None],
            attention_mask=torch.ones_like(task.prompt)[None],
            do_sample=False,
            max_new_tokens=task.n_new,
            logits_processor=[] if task.noise is None else [race],
            streamer=_First(task.first),
            **cache,
        )
        return text[0, len(task.prompt) :]

    static = partial(decode, cache_implementation="static")
    return {"transformers, dynamic cache": Peer(decode), "transformers, static cache": Peer(static)}


class _First:
    """A streamer for transformers, which receives the prompt and then every token."""

    def __init__(self, first: Callable[[], None]):
        self.first = first
        self.seen = 0

    def put(self, tokens: Tensor) -> None:
        self.seen += 1
        if self.seen == 2:
            self.first()

    def end(self) -> None:
        """Do nothing."""
