"""Random weights of any decoder, and the definition of its arithmetic in float64."""

import torch

from nanogpt.decoder.config import DecoderConfig, Norm
from nanogpt.decoder.step import (
    Affine,
    Layer,
    Weights,
    chunk_mask,
    grouped_attention,
    rotations,
    step,
)

CPU = torch.device("cpu")


def random_weights(c: DecoderConfig, seed: int = 0) -> Weights:
    """Weights with which the next token is no flat guess."""
    rng = torch.Generator().manual_seed(seed)

    def matrix(n, k, bias=False):
        weight = torch.randn(n, k, generator=rng) * (1.5 / k**0.5)
        return Affine(weight, 0.3 * torch.randn(n, generator=rng) if bias else None)

    def norm(n, shifts=True):
        if not c.norm_weights:
            return Affine()
        weight = 1 + 0.3 * torch.randn(n, generator=rng)
        has_bias = shifts and c.norm is Norm.LAYER and c.norm_bias
        return Affine(weight, 0.3 * torch.randn(n, generator=rng) if has_bias else None)

    def layer():
        C = c.n_embd
        qk = [norm(c.head_size, shifts=False) if c.qk_norm else Affine() for _ in range(2)]
        return Layer(
            norm(C),
            matrix(c.qkv_rows, C, c.qkv_bias),
            *qk,
            matrix(C, c.n_head * c.head_size, c.proj_bias),
            norm(C),
            matrix(c.hidden * (1 + c.gated), C, c.ffn_bias),
            matrix(C, c.hidden, c.ffn_bias),
        )

    tokens = torch.randn(c.vocab_size, c.n_embd, generator=rng)
    if c.rotary:
        positions = rotations(c.block_size, c, torch.float32, CPU)
    else:
        positions = torch.randn(c.block_size, c.n_embd, generator=rng)
    embed_norm = norm(c.n_embd) if c.embed_norm else Affine()
    layers = [layer() for _ in range(c.n_layer)]
    head = matrix(c.vocab_size, c.n_embd, c.head_bias)
    if c.tied:
        head = head._replace(weight=tokens)
    return Weights(tokens, positions, embed_norm, layers, norm(c.n_embd), head)


def map_weights(function, w):
    """The same structure, with function(tensor) for every tensor."""
    if w is None or isinstance(w, torch.Tensor):
        return None if w is None else function(w)
    if isinstance(w, list):
        return [map_weights(function, each) for each in w]
    return type(w)(*(map_weights(function, each) for each in w))


def reference_logits(w: Weights, c: DecoderConfig, tokens: torch.Tensor) -> torch.Tensor:
    """`step` in float64 over a whole text.  (T,) -> (T, V)"""
    T = len(tokens)
    w = map_weights(torch.Tensor.double, w)
    positions = rotations(T, c, torch.float64, CPU) if c.rotary else w.positions[:T]

    def attend(i, q, k, v):
        mask = chunk_mask(0, T, c.window_of(i), c.sinks, CPU)
        return grouped_attention(q, k.transpose(1, 2), v.transpose(1, 2), mask)

    return step(w, tokens[None], positions[None], attend, c)[0]
