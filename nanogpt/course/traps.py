"""Code shared by notebook 04, whose cells mirror it, and the checks of its blanks."""

from __future__ import annotations

import torch

from ..attention import attend, visible
from ..model import Head
from ..sampling import sample


def places(start, count, like):
    """The positions start, start + 1, … of `count` tokens."""
    return torch.arange(start, start + count, device=like.device)


@torch.no_grad()
def decode(model, prompt, noise):
    """The correct loop: the prompt, then each newest token, with positions."""
    x = prompt
    start = 0
    out = []
    for row in noise:
        logits, _ = model(x, pos=places(start, x.shape[1], x))
        start += x.shape[1]
        x = sample(logits[:, -1], row)
        out.append(x)
    return torch.cat(out, dim=1)


class MemoryHead(Head):
    def __init__(self, config):
        super().__init__(config)
        self.memory = []  # pairs of keys and values

    def forward(self, x, pos):
        q = self.query(x)
        k = self.key(x)
        v = self.value(x)
        if not self.training:
            self.memory.append((k, v))
            k, v = (torch.cat(rows, dim=1) for rows in zip(*self.memory))
        order = torch.arange(k.shape[1], device=x.device)
        return attend(q, k, v, visible(order[-x.shape[1] :], order))


def steps(module, n):
    """Run n tokens through the module.  -> (n, 1, 16)"""
    rows = torch.randn(n, 3, 1, 1, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return torch.cat([module(*row, torch.tensor([t])) for t, row in enumerate(rows)])


def compiled(module, n, **options):
    """The output of n compiled steps, and how many graphs they needed."""
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()  # forget what other cells compiled
    return steps(torch.compile(module, backend=counting, **options), n), len(graphs)
