"""Rung 7: the whole decode loop in C++ (native.cpp). One thread; float32 on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..decoding.decoder import Tokens
from ..decoding.drafts import Draft, DraftModel
from ..model.gpt import GPT
from .base import check_float32, require_float32_cpu
from .compiled import Compiled
from .eager import Flat
from .functional import qkv_of
from .native_library import Session, library, text_of
from .native_speculation import NativeSpeculation


class Native(Flat):
    """Rung 7. The whole loop as one native function: Python is asked for 64 tokens at a time."""

    fallback = Compiled
    in_torch = False
    decodes_drafts = True
    bits = 32  # of a weight
    int8_inputs = False  # whether vectors are rounded to 8 bits as well

    def build(self):
        require_float32_cpu(self)
        c = self.config
        self.library = library(c.n_embd, c.n_head, c.vocab_size, self.bits, self.int8_inputs)
        self.spare = []  # keys and values of the last generation: fresh memory costs time

    def tokens(self, model, prompt, noise, sampling):
        return NativeTokens(self, model, prompt, noise, sampling)

    def speculate(self, model, prompt, noise, sampling, draft):
        drafter = self._drafter(draft, len(prompt))
        vocab_size = self.config.vocab_size
        return NativeSpeculation(self, model, drafter, draft, vocab_size, prompt, noise, sampling)

    @staticmethod
    def _drafter(draft: Draft, batch: int) -> Native | None:
        """The native engine of a draft model; None for a draft that is asked token by token."""
        if not isinstance(draft, DraftModel):
            return None
        if draft.engine is None and Native.supports(draft.model):
            return None
        engine = (draft.engine or Native).ready(draft.model, batch)
        return engine if isinstance(engine, Native) else None

    def weights(self, model: GPT) -> list[Tensor]:
        """The model's tensors in the order in which native.cpp reads them."""
        embeddings = model.token_embedding_table, model.position_embedding_table
        named = [table.weight for table in embeddings]
        named += [model.ln_f.weight, model.ln_f.bias]
        named += [*self.matrix(model.lm_head.weight), model.lm_head.bias]
        for block in model.blocks:
            sa, (up, _, down, _) = block.sa, block.ffwd.net
            named += [block.ln1.weight, block.ln1.bias]
            for layer in qkv_of(block):
                named += self.matrix(layer.weight)
            named += [*self.matrix(sa.proj.weight), sa.proj.bias, block.ln2.weight, block.ln2.bias]
            named += [*self.matrix(up.weight), up.bias, *self.matrix(down.weight), down.bias]
        check_float32(w for w in named if w.dtype != torch.int8)
        # Detached, so that their memory stays even when the model is cast or moved half-way.
        return [w.detach().contiguous() for w in named]

    def matrix(self, weight: Tensor) -> list[Tensor]:
        """What stands for a matrix: itself."""
        return [weight]


class NativeTokens(Tokens):
    """The tokens of a native generation. What is known at the first of them is used for all."""

    def __init__(self, engine: Native, model: GPT, prompt: Tensor, noise: Tensor, sampling):
        self.engine, self.generation, self.prompt = engine, (noise, sampling), prompt
        self.model, self._steps = model, None

    def __next__(self) -> Tensor:
        if self._steps is None:
            self._steps = self._stream()
        return next(self._steps)

    def rest(self) -> Tensor:
        if self._steps is not None:
            return torch.cat([self.prompt[:, :0], *self._steps], dim=1)
        self._steps = iter(())
        text, known = self._text()
        with Session(self.engine, self.model, text, known, *self.generation) as session:
            session.decode(0, text.shape[1] - 1)
        return text[:, known:]

    def close(self) -> None:
        self._steps = iter(())

    def _text(self) -> tuple[Tensor, int]:
        return text_of(self.prompt, len(self.generation[0])), self.prompt.shape[1]

    def _stream(self) -> Iterator[Tensor]:
        text, known = self._text()
        read, end, chunk = 0, text.shape[1], 1  # the first token at once, then more in one call
        with Session(self.engine, self.model, text, known, *self.generation) as session:
            while known < end:
                new = min(chunk, end - known)
                session.decode(read, known + new - 1)
                yield from text[:, known : known + new].clone().split(1, dim=1)
                read, known, chunk = known + new - 1, known + new, min(4 * chunk, 64)
