"""Notebook 04, blank 8: FixedAttention, one step whose shapes never change, so one graph serves all."""

import logging

import torch
import torch.nn as nn
from torch import Tensor

from ..drivers import Arguments, form, numbers
from ..page import Blank, Case
from ..traps import compiled, steps


class FixedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 32, 16))
        self.register_buffer("v", torch.zeros(1, 32, 16))

    def forward(self, q, k, v, pos):
        """One step of attention, over slots 0 … pos.  (1, 1, 16) three times, (1,) -> (1, 1, 16)"""
        self.k.index_copy_(1, pos, k)
        self.v.index_copy_(1, pos, v)
        scores = (q @ self.k.mT * 0.25).masked_fill(torch.arange(32) > pos, float("-inf"))
        return scores.softmax(-1) @ self.v


# ------------------------------------------------------------------ what a check runs


def run(answer, positions, factor=1.0):
    """Two modules that get tokens in turn, at these positions: they must not share anything."""
    modules = [answer() for _ in range(2)]
    for turn, position in enumerate(positions):
        for number, module in enumerate(modules):
            seed = 100 * turn + 10 * number
            q, k, v = (numbers(1, 1, 16, seed=seed + i, dtype=torch.float32) for i in range(3))
            given = Arguments(q=q * factor, k=k, v=v, pos=torch.tensor([position]))
            with torch.no_grad():
                out = module(*given.tensors.values())
            yield from given.changes()
            where = "the first output" if not turn else f"the output of call {turn}"
            where += f" at position {position}" + " of a second module" * number
            yield f"the shape of {where}", form(out)
            if isinstance(out, Tensor):
                yield "an output is NaN", bool(out.isnan().any())
            yield where, out


def run_graphs(answer, n=3):
    """Compiled with every shape as a guard: did one graph serve all tokens?"""
    log = logging.getLogger("torch._dynamo")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of graph breaks, and those are counted
    try:
        out, graphs = compiled(answer(), n, dynamic=False)
        right = torch.allclose(out, steps(answer(), n), atol=1e-5)
    finally:
        log.setLevel(level)
    yield f"{n} tokens take more than one graph", graphs > 1
    yield "compiled, the output differs", not right


# ------------------------------------------------------------------ what people write

SCORES = '(q @ self.k.mT * 0.25).masked_fill(torch.arange(32) > pos, float("-inf"))'
COUNTED = [
    "super().__init__() -> super().__init__()\n        self.n = -1",
    "self.k.index_copy_ -> self.n += 1\n        self.k.index_copy_",
    "(1, pos, -> (1, torch.tensor([self.n]),",
]
JOINED = [
    "self.k.index_copy_(1, pos, k) -> self.k = torch.cat([self.k, k], dim=1)",
    "self.v.index_copy_(1, pos, v) -> self.v = torch.cat([self.v, v], dim=1)",
]
BLANK = Blank(
    number="04.8",
    minutes=5,
    solution=FixedAttention,
    method="forward",
    cases=[
        Case(run, positions=[0, 1, 2, 3, 1, 2]),  # a text that goes on from slot 1
        Case(run, positions=[*range(32)]),
        Case(run, 1e-3, positions=[0, 1, 2, 3], factor=300.0),  # exp() overflows
        Case(run_graphs),
    ],
    mistakes={
        "the empty slots get weight: their scores must be -inf, because exp(0) is 1.": [
            '.masked_fill(torch.arange(32) > pos, float("-inf")) -> '
        ],
        "the newest token does not see itself, and the first sees nothing: hide the slots > pos, "
        "not >= pos.": ["> pos -> >= pos"],
        "the scores are not multiplied by 0.25, which is 1 / √16.": [" * 0.25 -> "],
        "a text that goes on from an earlier slot is wrong: `pos` says which slot a token has, and "
        "how far it sees, not the number of calls or what the buffers hold.": (
            [*COUNTED, "> pos -> > self.n"],
            [
                *JOINED,
                "[self.k -> [self.k[:, 1:]",
                "[self.v -> [self.v[:, 1:]",
                "(32) -> (31, -1, -1)",
            ],
            ["torch.arange(32) > pos -> (self.k == 0).all(-1)[:, None]"],
        ),
        "the output is right, but needs several graphs: some shape still changes, as with a slice, "
        "or Python asks for the value of pos. Keep 32 slots, and hide with a mask made of "
        "tensors.": [
            f"{SCORES} -> q @ self.k[:, : int(pos) + 1].mT * 0.25",
            "@ self.v -> @ self.v[:, : int(pos) + 1]",
        ],
    },
    wrong=[
        "scores.softmax(-1) -> (scores.exp() / scores.exp().sum(-1, keepdim=True))",
        "pos, k) -> pos[0], k[:, 0])",
        "q @ self -> q.mul_(1.5) @ self",
    ],
    right=[
        """
class FixedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 32, 16))
        self.register_buffer("v", torch.zeros(1, 32, 16))

    def forward(self, q, k, v, pos):
        self.k[:, pos] = k
        self.v[:, pos] = v
        seen = torch.arange(32)[None] <= pos[:, None]
        return F.scaled_dot_product_attention(q, self.k, self.v, attn_mask=seen)
""",
        """
class FixedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 32, 16))
        self.register_buffer("v", torch.zeros(1, 32, 16))

    def forward(self, q, k, v, pos):
        here = (torch.arange(32) == pos)[None, :, None]
        self.k = torch.where(here, k, self.k)
        self.v = torch.where(here, v, self.v)
        scores = torch.einsum("btd,bsd->bts", q, self.k) / 4
        return F.softmax(torch.where(torch.arange(32) <= pos, scores, -1e9), dim=-1) @ self.v
""",
    ],
    hints=(
        "Which shapes of GrowingAttention change from one token to the next? What could keep a length of 32, and how would the empty slots lose their weight?",
        '`self.k.index_copy_(1, pos, k)` writes rows into slots. A mask of fixed length hides the others: `torch.arange(32) > pos` is True for those not written yet, and `masked_fill(…, float("-inf"))` removes their weight. A slice like `self.k[:, :pos + 1]` would have a different shape at every step.',
        'self.k.index_copy_(1, pos, k), self.v likewise; then scores = (q @ self.k.mT * 0.25).masked_fill(torch.arange(32) > pos, float("-inf")), and return scores.softmax(-1) @ self.v',
    ),
    advice={
        "the shape of": "It is (1, 1, 16), a mean of values.",
        "the first output": "The first token sees only slot 0: is it written, and are the others "
        "hidden?",
        "the output of call": "The first token is right. Is each key in its own slot, are slots 0 "
        "to pos visible, and are the scores multiplied by 0.25?",
    },
    axes=[("text", "token", "number")],
)
