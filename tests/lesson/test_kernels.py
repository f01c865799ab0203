"""Gradients written by hand are the gradients; without gradients PyTorch computes."""

import pytest
import torch
import torch.nn.functional as F
from conftest import seeded

from nanogpt.attention import SquaredReLU, rms_norm


def chain(x):
    return F.rms_norm(x, x.shape[-1:])


def relu2(x):
    return F.relu(x).square()


@pytest.mark.parametrize(("by_hand", "by_torch"), [(rms_norm, chain), (SquaredReLU(), relu2)])
def test_value_and_gradient_are_those_of_the_chain_of_operations(by_hand, by_torch):
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
