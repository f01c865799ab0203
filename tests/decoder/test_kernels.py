"""Gradients written by hand are the gradients; without gradients PyTorch computes."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from conftest import seeded

from nanogpt.decoder.config import Activation
from nanogpt.decoder.layers import activate, rms_norm

WEIGHT = torch.randn(8, dtype=torch.float64, generator=seeded(3))


def scaled(norm, eps=None):
    """That norm of any dtype, with weights of the same dtype."""
    return lambda x: norm(x, weight=WEIGHT.to(x.dtype), eps=eps)


def chain(x, weight=None, eps=None):
    return F.rms_norm(x, x.shape[-1:], weight, eps)


PAIRS = {  # ours, and PyTorch's operations
    "rms_norm": (rms_norm, chain),
    "rms_norm, eps": (partial(rms_norm, eps=0.1), partial(chain, eps=0.1)),
    "rms_norm, weights": (scaled(rms_norm), scaled(chain)),
    "rms_norm, weights, eps": (scaled(rms_norm, 0.1), scaled(chain, 0.1)),
    "relu2": (partial(activate, activation=Activation.RELU2), lambda x: F.relu(x).square()),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_value_and_gradient_are_those_of_the_chain_of_operations(pair):
    by_hand, by_torch = PAIRS[pair]
    x = torch.randn(3, 2, 5, 8, dtype=torch.float64, generator=seeded(1))
    x = x.transpose(1, 2).requires_grad_()  # as heads lie in memory
    weights = torch.randn(3, 5, 2, 8, dtype=torch.float64, generator=seeded(2))
    got, want = (torch.autograd.grad((f(x) * weights).sum(), x)[0] for f in (by_hand, by_torch))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(by_hand(x), by_torch(x), rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        assert torch.equal(by_hand(x.float()), by_torch(x.float()))  # the bits of inference
    assert by_hand(x.detach()).grad_fn is None
    half = x.detach().bfloat16().requires_grad_()
    assert torch.equal(by_hand(half), by_torch(half))


def test_the_weight_of_a_norm_has_its_gradient():
    x = torch.randn(3, 5, 8, dtype=torch.float64, generator=seeded(1))
    outer = torch.randn(3, 5, 8, dtype=torch.float64, generator=seeded(2))
    weight = WEIGHT.clone().requires_grad_()
    for needs_grad in (True, False):
        x = x.detach().requires_grad_(needs_grad)
        got, want = (
            torch.autograd.grad((f(x, weight) * outer).sum(), weight)[0] for f in (rms_norm, chain)
        )
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
