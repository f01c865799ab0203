"""Muon, with all matrices of one shape in one product."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# The first three polynomials of Polar Express (Amsel et al. 2025, arXiv 2505.16932), each the best
# for what the one before it leaves. In the race of notebook 11 they end at the loss to which five
# equal ones lead, those of torch.optim.Muon.
POLYNOMIALS = (
    (8.1566, -22.4833, 15.8788),
    (4.0429, -2.8089, 0.5000),
    (3.8917, -2.7725, 0.5061),
)


class Muon(torch.optim.Muon):
    """PyTorch's Muon, sooner: it goes matrix by matrix, in bfloat16, which few CPUs multiply fast.

    Same arguments, same state: momentum, the step made orthogonal, times √(rows / columns) where
    a matrix has more rows than columns. Here the matrices of one shape are a batch, in float32 on
    a CPU and in bfloat16 on a GPU.
    """

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            params, grads, moments = [], [], []
            self._init_group(group, params, grads, moments)
            if params:
                torch._foreach_lerp_(moments, grads, 1 - group["momentum"])
                torch._foreach_lerp_(grads, moments, group["momentum"])  # Nesterov
                if group["weight_decay"]:
                    torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
                _update(params, grads, group["lr"])


def _update(params: list[Tensor], directions: list[Tensor], lr: float) -> None:
    """Move each matrix along its direction, made orthogonal."""
    for rows, cols in dict.fromkeys(p.shape for p in params):
        alike = [i for i, p in enumerate(params) if p.shape == (rows, cols)]
        steps = orthogonal(torch.stack([directions[i] for i in alike]))
        steps = steps.mul(-lr * math.sqrt(max(1, rows / cols))).to(params[0].dtype)
        torch._foreach_add_([params[i] for i in alike], list(steps))


def orthogonal(x: Tensor) -> Tensor:
    """Nearly the orthogonal matrices nearest to these: all singular values come close to 1.

    (n, rows, columns) -> (n, rows, columns), float32 on a CPU, bfloat16 elsewhere
    """
    x = x.float() if x.device.type == "cpu" else x.bfloat16()
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.02 + 1e-7)  # no singular value above 1
    for a, b, c in POLYNOMIALS:
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide else x.mT
