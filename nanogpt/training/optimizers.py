"""The start of the weights and what moves them."""

from __future__ import annotations

import torch

from ..config.training import TrainConfig
from ..model.gpt import GPT
from .muon import Muon


def zero_init(model: GPT, generator: torch.Generator) -> None:
    """Start each block as the identity and the head at zero: the first loss is exactly ln(vocab).

    Embeddings are drawn from normal(0, 0.3): as long as the blocks add nothing, they are the whole
    signal. Look-up tables start at zero.
    """
    with torch.no_grad():
        for block in model.blocks:
            block.sa.proj.weight.zero_()
            block.ffwd.net[2].weight.zero_()
        model.lm_head.weight.zero_()
        for table in (model.token_embedding_table, model.position_embedding_table):
            if table is not None:  # drawn on the CPU: the same numbers wherever the model is
                drawn = torch.empty_like(table.weight, device="cpu")
                table.weight.copy_(drawn.normal_(std=0.3, generator=generator))
        for parameter in model.ngrams.parameters() if model.ngrams else ():
            parameter.zero_()


def make_optimizers(model: GPT, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for all else; or AdamW alone.

    Muon (Keller Jordan, 2024, https://kellerjordan.github.io/posts/muon/) makes each update of a
    matrix orthogonal, so that all its directions learn at the same speed.
    """
    muon = {id(p) for p in model.blocks.parameters() if p.ndim == 2} if config.muon_lr else set()
    rest = [p for p in model.parameters() if id(p) not in muon]
    matrices = [p for p in model.parameters() if id(p) in muon]
    settings = {
        "lr": config.lr,
        "betas": (0.9, float(config.beta2)),
        "weight_decay": config.weight_decay,
    }
    # The first gradients of tables and a head that start at zero are tiny: a larger eps would damp
    # them.
    optimizers = [torch.optim.AdamW(rest, **settings, eps=1e-10, fused=config.fused)]
    if matrices:
        settings = {"lr": config.muon_lr, "weight_decay": config.weight_decay}
        optimizers.append(Muon(matrices, **settings))
    return optimizers
