"""Muon in batches: PyTorch's state and rule, each matrix moved as if it were alone."""

import torch
from conftest import seeded

from nanogpt.training.muon import Muon

SHAPES = [(12, 4), (4, 12), (12, 4), (6, 6)]


def moved(kind, shapes, steps=3):
    """Parameters after some steps of equal gradients, and the optimizer."""
    generator = seeded(1)
    gradients = {i: torch.randn(steps, *shape, generator=generator) for i, shape in shapes.items()}
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes.values()]
    optimizer = kind(parameters, lr=0.1, weight_decay=0.01)
    for step in range(steps):
        for parameter, gradient in zip(parameters, gradients.values(), strict=True):
            parameter.grad = gradient[step].clone()
        optimizer.step()
    return parameters, optimizer


def test_it_moves_matrices_as_pytorch_does_and_keeps_the_same_state():
    shapes = dict(enumerate(SHAPES))
    ours, own = moved(Muon, shapes)
    theirs, other = moved(torch.optim.Muon, shapes)
    for a, b in zip(ours, theirs, strict=True):
        cosine = torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0)
        assert cosine > 0.999
        assert 0.99 < a.norm() / b.norm() < 1.01
    one, two = own.state_dict(), other.state_dict()
    assert one["param_groups"] == two["param_groups"]
    for index, state in two["state"].items():
        torch.testing.assert_close(one["state"][index], state)
