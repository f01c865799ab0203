"""What happens to each of PyTorch's functions: computed as usual, or here, in one order.

A function is found by its name, under which torch, torch.nn.functional and Tensor have the same.
Each row was met in a model, a cache, a sampler, a notebook or public code, which its comment names.
A function that is missing is refused by name where it returns floating-point numbers: to add it,
show that no sum in it depends on the shape, and add a row to tests/engines/test_exact.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from .functions import (
    attention,
    cross_entropy,
    einsum,
    in_registers,
    linear,
    log_softmax,
    matmul,
    mean_of,
    power,
    rms_norm,
    rsqrt,
    softmax,
    sum_of,
)


def names_of(*functions: Callable[..., Any]) -> set[str]:
    """The names of these functions, and of their versions that write into the first argument."""
    names = {function.__name__ for function in functions}
    return names | {f"{name}_" for name in names if hasattr(Tensor, f"{name}_")}


# Computed as usual: no sum, or one that PyTorch computes row by row in a fixed order.
AS_USUAL = names_of(
    # Every model: reading and setting an attribute, such as x.shape and x.T, or an element.
    *(Tensor.shape.__get__, Tensor.data.__set__, Tensor.__getitem__, Tensor.__setitem__),  # type: ignore[attr-defined]
    # Masks, positions, rotations, and the buffers of caches and of Flat.
    *(torch.arange, torch.empty, torch.full, torch.ones, torch.tensor, torch.zeros),
    *(torch.zeros_like, Tensor.new_zeros),
    torch.ones_like,  # notebook 04: noise that is equal for all candidates
    *(torch.tril, torch.triu),  # a mask of ones or of -inf: notebooks 01 and 08; Llama's model.py
    # Noise, as draw_noise and minimal.py draw it, and the first weights of a new model.
    *(torch.rand, torch.randn, Tensor.exponential_, Tensor.normal_, Tensor.uniform_),
    *(nn.init.kaiming_uniform_, Tensor.fill_, Tensor.zero_, F.dropout),
    # A model copied to another dtype or device: notebook 12, and what the error for autocast says.
    *(Tensor.to, Tensor.double, Tensor.float, Tensor.half, Tensor.bfloat16, Tensor.__deepcopy__),
    *(Tensor.cpu, Tensor.pin_memory, Tensor.clone, Tensor.contiguous, Tensor.copy_, Tensor.detach),
    # load_state_dict of weights that are a subclass of Tensor; a model's requires_grad_(False).
    *(Tensor.module_load, Tensor.requires_grad_),
    Tensor.type_as,  # RMSNorm in gpt-fast's style: in float32, and back
    # Heads apart and together, in GPT, Decoder and step: numbers move to another place.
    *(torch.cat, torch.stack, torch.chunk, torch.split, torch.split_with_sizes, torch.unbind),
    *(torch.reshape, Tensor.view, torch.flatten, torch.unflatten, torch.movedim),
    *(torch.t, torch.transpose, Tensor.expand, torch.repeat_interleave, F.embedding, F.pad),
    *(torch.permute, torch.swapaxes),  # notebook 11; a learner's attention_weights
    *(torch.squeeze, torch.unsqueeze),  # notebook 06: noise.unsqueeze(1) in a loop of one's own
    Tensor.repeat,  # notebook 08: the slots of a ring
    # Caches write and read their rows; BatchEngine its tables; speculation its probabilities.
    *(torch.index_copy, torch.index_fill, torch.index_select, torch.scatter, torch.masked_fill),
    *(torch.roll, torch.gather),  # Decoder's token shift; notebook 07
    torch.where,  # a learner's fixed_attention
    # Choosing numbers: top_k and top_p, the referee's report, ReLU.
    *(torch.amax, torch.amin, torch.aminmax, torch.clamp, torch.max, torch.min),
    *(torch.sort, torch.topk, F.relu),
    # Rounded once, which IEEE 754 fixes for any code.
    *(torch.abs, torch.add, torch.div, torch.mul, torch.neg, torch.sub, Tensor.__rsub__),
    torch.square,  # the squared ReLU of nanochat
    torch.round,  # the codes of Int8Cache
    # Summed row by row, one term after another or in an order that the width fixes.
    *(torch.cumsum, F.layer_norm),  # top_p; every LayerNorm
)
# Options that add numbers on top of a function of the table above, or round twice: refused.
ADDING = {"alpha", "reduce", "rounding_mode"}

# Computed here, in one order.
OUR_ORDER: dict[str, Callable[..., Tensor]] = {
    # Products: `@`, what readers write their heads with, and what PyTorch's own layers call.
    torch.matmul.__name__: matmul,
    torch.bmm.__name__: matmul,
    torch.einsum.__name__: einsum,
    F.linear.__name__: linear,
    F.scaled_dot_product_attention.__name__: attention,
    # Reductions: softmax, RMSNorm, the loss.
    torch.sum.__name__: sum_of,
    torch.mean.__name__: mean_of,
    torch.softmax.__name__: softmax,
    torch.log_softmax.__name__: log_softmax,
    F.rms_norm.__name__: rms_norm,
    F.cross_entropy.__name__: cross_entropy,
    # Powers: 10000 ** (-i / n) of rotations; RMSNorm by hand, as in Llama's model.py.
    torch.pow.__name__: power,
    Tensor.__rpow__.__name__: lambda exponent, x: power(x, exponent),
    torch.rsqrt.__name__: rsqrt,
    # Elementwise: activations, softmax by hand, noise, rotations.
    **{
        func.__name__: in_registers(func)
        for func in (
            *(F.gelu, F.silu, torch.tanh, torch.sigmoid),  # sigmoid: the gate of nanochat's smear
            *(torch.exp, torch.log, torch.log1p, torch.cos, torch.sin),
        )
    },
}
