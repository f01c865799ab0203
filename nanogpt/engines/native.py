"""Rung 7: the whole decode loop in C++ (native.cpp). One thread; float32 on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from ..decoding.drafts import Draft, DraftModel
from ..model.gpt import GPT
from . import toolchain
from .compiled import Compiled
from .eager import Flat
from .functional import qkv_of
from .native_library import Session, library
from .native_speculation import NativeSpeculation


class Native(Flat):
    """Rung 7. The whole loop as one native function: nothing is called any more, and no weight is copied."""

    fallback = Compiled
    in_torch = False
    bits = 32
    rough = False  # whether vectors are rounded to 8 bits as well

    def build(self):
        if (self.device.type, self.dtype) != ("cpu", torch.float32):
            kind = f"{str(self.dtype).removeprefix('torch.')} on {self.device.type}"
            raise toolchain.CannotBuild(f"it computes float32 on the CPU, not {kind}")
        c = self.config
        self.library = library(c.n_embd, c.n_head, c.vocab_size, self.bits, self.rough)
        self.spare = []  # keys and values of generations that have ended: fresh memory costs time

    def tokens(self, model, prompt, noise, sampling):
        (B, T), n = prompt.shape, len(noise)
        text = torch.empty(B, T + n, dtype=torch.int64, device="cpu")
        text[:, :T] = prompt
        read, ready, chunk = 0, T, 1  # the first token at once, then more and more in one call
        with Session(self, model, text, T, noise, sampling) as session:
            while ready < T + n:
                new = min(chunk, T + n - ready)
                session.decode(read, ready + new - 1)
                yield from text[:, ready : ready + new].clone().split(1, dim=1)
                read, ready, chunk = ready + new - 1, ready + new, min(2 * chunk, 64)

    def speculate(self, model, prompt, noise, sampling, draft):
        drafter = self._drafter(draft, len(prompt))
        vocab_size = self.config.vocab_size
        return NativeSpeculation(self, model, drafter, draft, vocab_size, prompt, noise, sampling)

    @staticmethod
    def _drafter(draft: Draft, batch: int) -> Native | None:
        """The native engine of a draft model; None where its own modules, or no model, propose."""
        if not isinstance(draft, DraftModel):
            return None
        kind = draft.engine or Native
        if not issubclass(kind, Native):
            raise ValueError(
                f"engine={kind.__name__}: a draft is decoded by Native, Native8 or Rough8"
            )
        if why := kind.supports(draft.model):
            if draft.engine is None:
                return None
            raise ValueError(why)
        engine = kind.ready(draft.model, batch)
        return engine if isinstance(engine, Native) else None

    def weights(self, model: GPT) -> list[Tensor]:
        """The model's tensors in the order in which native.cpp reads them."""
        named = [model.token_embedding_table.weight, model.position_embedding_table.weight]
        named += [
            model.ln_f.weight,
            model.ln_f.bias,
            *self.matrix(model.lm_head.weight),
            model.lm_head.bias,
        ]
        for block in model.blocks:
            sa, (up, _, down, _) = block.sa, block.ffwd.net
            named += [block.ln1.weight, block.ln1.bias]
            for layer in qkv_of(block):
                named += self.matrix(layer.weight)
            named += [*self.matrix(sa.proj.weight), sa.proj.bias, block.ln2.weight, block.ln2.bias]
            named += [*self.matrix(up.weight), up.bias, *self.matrix(down.weight), down.bias]
        if any(w.dtype not in (torch.float32, torch.int8) for w in named):
            raise ValueError(
                "some weights are not float32, and this engine reads them as they lie: cast the model whole"
            )
        # Detached, so that their memory stays even when the model is cast or moved half-way.
        return [w.detach().contiguous() for w in named]

    def matrix(self, weight: Tensor) -> list[Tensor]:
        """What stands for a matrix: itself."""
        return [weight]
