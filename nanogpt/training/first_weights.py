"""Initial weights of a training run: identity blocks, and heads that attend to previous tokens."""

import math

import torch
from torch import Tensor

from ..decoder.model import Decoder
from ..model import GPT, LanguageModel

# Tuned on Tiny Shakespeare: how strongly queries and keys agree, and the length of positions.
LECTURE_GAIN = 1.3
POSITION_SIZE = 0.42
ROTARY_GAIN = 0.5
ROTARY_PAIRS = 3  # the fastest ones: the slow ones cannot tell neighbours apart


def zero_init(model: LanguageModel, generator: torch.Generator) -> None:
    """Start each block as the identity and the head at zero: the first loss is exactly ln(vocab).

    Embeddings are sampled from normal(0, 0.3), because at first they are the whole signal. Frozen
    weights stay as they are, and so do embeddings tied to the head, which can be neither zero nor
    large.
    """
    tied = model.lm_head.weight is model.token_embedding_table.weight
    with torch.no_grad():
        zeros: list[Tensor] = []
        if not tied:
            zeros.append(model.lm_head.weight)
        for block in model.blocks:
            zeros.append(block.sa.proj.weight)
            zeros.append(_last_matrix(block.ffwd))
        for weight in zeros:
            if weight.requires_grad:
                weight.zero_()
        for table in (model.token_embedding_table, model.position_embedding_table):
            if table is None:
                continue
            # Sampled on the CPU, so that the numbers do not depend on the model's device.
            drawn = torch.empty_like(table.weight, device="cpu")
            drawn.normal_(std=0.3, generator=generator)
            if table.weight.requires_grad and table.weight is not model.lm_head.weight:
                table.weight.copy_(drawn)


def _last_matrix(feed_forward: torch.nn.Module) -> Tensor:
    """The last matrix of the feed-forward network, in either model."""
    last = feed_forward.net[2] if hasattr(feed_forward, "net") else feed_forward.down
    return last.get_parameter("weight")


@torch.no_grad()
def previous_token_init(model: LanguageModel) -> None:
    """Initialize head h of the first block to attend to the character h + 1 positions back.

    A head that finds the previous character is the first thing that training has to discover, and
    it takes long. Here it is built in, by one rule for both kinds of positions: a position is an
    angle, a key carries its own angle, and a query the angle of the position it attends to.
    Training can undo all of this, because these are ordinary weights.

    Embeddings, queries and keys must change together, so a model with any of them frozen is left
    unchanged.
    """
    if model.config.head_size < 2:
        return  # an angle needs two numbers
    tokens = model.token_embedding_table.weight
    attention = model.blocks[0].sa.parameters()
    tables = [t.weight for t in (model.position_embedding_table,) if t is not None]
    if not all(weight.requires_grad for weight in (tokens, *tables, *attention)):
        return
    if isinstance(model, Decoder) and model.config.rotary:
        _previous_token_init_rotary(model)
    else:
        _previous_token_init_table(model)


def _previous_token_init_table(model: LanguageModel) -> None:
    """Write positions as cosines and sines, in columns read only by the first block's heads."""
    c = model.config
    half = min(c.head_size, c.n_embd) // 2
    device = model.device
    speed = math.pi * (torch.arange(half, device=device) + 0.5) / half  # radians a position
    angle = torch.arange(c.block_size, device=device)[:, None] * speed  # (block, half)
    tokens = model.token_embedding_table.weight
    positions = model.position_embedding_table.weight
    tokens[:, : 2 * half] *= 0.1  # a character must not look like a position
    positions *= 0.1
    positions[:, : 2 * half] = POSITION_SIZE * torch.cat([angle.cos(), angle.sin()], dim=-1)
    for h, (query, key) in enumerate(_first_heads(model)):
        cos = ((h + 1) * speed).cos().diag()
        sin = ((h + 1) * speed).sin().diag()
        # Turns the angle of a position t into that of t - h - 1.
        turn = torch.cat([torch.cat([cos, sin], dim=1), torch.cat([-sin, cos], dim=1)])
        query *= 0.1
        query[: 2 * half, : 2 * half] += LECTURE_GAIN * turn
        key *= 0.1
        key[: 2 * half, : 2 * half] += LECTURE_GAIN * torch.eye(2 * half, device=device)


def _previous_token_init_rotary(model: LanguageModel) -> None:
    """Set one number of each embedding to 1, which the rotation turns into a position's angle."""
    c = model.config
    half = c.head_size // 2
    pairs = min(ROTARY_PAIRS, half)
    device = model.device
    speed = c.rope_base ** -(torch.arange(pairs, device=device) / half)  # as in `rotate`
    model.token_embedding_table.weight[:, 0] = 1.0
    for h, (query, key) in enumerate(_first_heads(model)):
        angle = (h + 1) * speed
        query[:pairs, 0] += ROTARY_GAIN * angle.cos()
        query[half : half + pairs, 0] -= ROTARY_GAIN * angle.sin()
        key[:pairs, 0] += ROTARY_GAIN


def _first_heads(model: LanguageModel) -> list[tuple[Tensor, Tensor]]:
    """Views of the query and key weights of each head of the first block.  2 × (hs, C)"""
    attention = model.blocks[0].sa
    c = model.config
    if isinstance(model, GPT):
        return [(head.query.weight, head.key.weight) for head in attention.heads]
    rows = attention.qkv.weight.view(-1, c.head_size, c.n_embd)
    keys = [rows[c.n_head + h // c.group] for h in range(c.n_head)]
    # A key shared by several heads is returned once; the others get a copy that is never read.
    keys = [key if h % c.group == 0 else key.clone() for h, key in enumerate(keys)]
    return list(zip(rows, keys, strict=False))
