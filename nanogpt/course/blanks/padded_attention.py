"""Notebook 12, blank 3: padded_attention, whose sums keep their length as the text grows."""

import torch
import torch.nn.functional as F

from ...attention import attend
from ..drivers import Arguments, form, numbers
from ..page import Blank, Case
from .row_by_row import Products, aten


def padded_attention(q, k, v, mask, length):
    """attend over exactly `length` keys.  (T, hs), (S, hs), (S, hs), (T, S) -> (T, hs)"""
    more = length - k.shape[-2]
    k, v = (F.pad(x, (0, 0, 0, more)) for x in (k, v))
    return attend(q, k, v, F.pad(mask, (0, more)))


# ------------------------------------------------------------------ what a check runs


class Attention(Products):
    """Also records the weights of a softmax, and the keys of a fused kernel."""

    def __init__(self):
        super().__init__()
        self.weights = []
        self.keys = []

    def note(self, func, args, out):
        """Keep what a softmax returned, or the keys that PyTorch's own attention got."""
        if func in (aten._softmax.default, aten._safe_softmax.default):
            self.weights.append(out)
        elif func.name().startswith("aten::_scaled_dot_product"):
            self.keys.append(args[1])

    def lengths(self, size):
        """How many keys each part of attention runs over, as far as that could be observed."""
        fused = {keys.shape[-2] for keys in self.keys}
        found = {"scores": {*fused}, "softmax": {*fused}, "sum over the values": {*fused}}
        found["softmax"] |= {weights.shape[-1] for weights in self.weights}
        for a, b in self.factors:
            if a.shape[-1] == size:  # a sum over the head dimension
                found["scores"].add(max(a.shape[-2], b.shape[-1]))
            else:
                found["sum over the values"].add(a.shape[-1])
        return found


def run_padded(answer, T, S, length, size=16, dtype=torch.float32, factor=1.0, window=10**9):
    """The last T of S tokens attend to the keys up to them, or to a window of those."""
    q, k, v = (factor * numbers(n, size, seed=i) for i, n in enumerate((T, S, S)))
    gap = torch.arange(S - T, S)[:, None] - torch.arange(S)
    given = Arguments(q=q.to(dtype), k=k.to(dtype), v=v.to(dtype), mask=(gap >= 0) & (gap < window))
    with Attention() as watch:
        out = answer(*given.tensors.values(), length)
    yield from given.changes()
    yield "the shape of the output", form(out)
    for part, counts in watch.lengths(size).items():
        # A part that was not observed, in another style, is right if the output is.
        yield f"the number of keys in the {part}", " and ".join(map(str, counts or {length}))
    yield "the output", out
    places = [weights.flatten(0, -2)[:, :S] > 0 for weights in watch.weights]
    right = [torch.equal(seen, given.before["mask"]) for seen in places if len(seen) == T]
    right += [torch.equal(k.reshape(-1, size)[:S], given.before["k"]) for k in watch.keys]
    yield "the padding is not at the end of the keys", not all(right)


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="12.3",
    minutes=7,
    solution=padded_attention,
    cases=[
        Case(run_padded, T=3, S=9, length=32),
        Case(run_padded, T=1, S=5, length=12),
        Case(run_padded, T=1, S=1, length=7),
        Case(run_padded, T=3, S=20, length=20),
        Case(run_padded, T=5, S=11, length=13, window=3),
        Case(run_padded, T=3, S=9, length=24, size=4, factor=6.0, dtype=torch.float64),
        Case(run_padded, T=2, S=100, length=256),
    ],
    mistakes={
        "nothing is padded: attend must get `length` keys.": ["length - k.shape[-2] -> 0"],
        "`length` rows are added: add only the missing ones, length - S.": [
            "length - k.shape[-2] -> length"
        ],
        "the given mask is ignored: it says which keys are visible, so pad that one, F.pad(mask, (0, more)).": (
            ["F.pad(mask, (0, more)) -> F.pad(torch.ones_like(mask), (0, more))"],
            [
                "F.pad(mask, (0, more)) -> torch.ones(len(q), length).tril(length - more - len(q)).bool()"
            ],
        ),
    },
    wrong=[
        "in (k, v)) -> in (k, v))\n    k = k.flip(0)",
        "in (k, v)) -> in (k, v))\n    q = F.pad(q, (0, 0, 0, more))",
        "length - k.shape[-2] -> length - q.shape[-2]",
        "(0, 0, 0, more)) -> (0, 0, 0, more), value=-torch.inf)",
        "(0, 0, 0, more) -> (0, more)",
    ],
    right=[
        """
def padded_attention(q, k, v, mask, length):
    S, hs = k.shape
    keys, values = k.new_zeros(2, length, hs)
    keys[:S] = k
    values[:S] = v
    seen = torch.zeros(len(q), length).bool()
    seen[:, :S] = mask
    return F.scaled_dot_product_attention(q[None, None], keys[None, None], values[None, None], seen)[0, 0]
""",
        """
def padded_attention(q, k, v, mask, length):
    k, v = [F.pad(x, (0, 0, 0, length - x.shape[0])) for x in (k, v)]
    mask = F.pad(mask, (0, length - mask.shape[1]), value=False)
    scores = torch.einsum("td,sd->ts", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("ts,sd->td", scores.masked_fill(~mask, -1e9).softmax(-1), v)
""",
        """
def padded_attention(q, k, v, mask, length):
    n = length - len(k)
    k, v, mask = F.pad(k, (0, 0, 0, n)), F.pad(v, (0, 0, 0, n)), F.pad(mask, (0, n))
    return torch.cat([attend(q[i : i + 1], k, v, mask[i : i + 1]) for i in range(len(q))])
""",
    ],
    hints=(
        "A key of zeros has a score of 0. Is its weight also 0, and what makes it 0?",
        "`F.pad` fills a boolean mask with False, which means hidden, as it should be. Keys and values get extra rows at the bottom, the mask gets extra columns on the right, as many as are missing.",
        "more = length - len(k); return attend(q, F.pad(k, (0, 0, 0, more)), F.pad(v, (0, 0, 0, more)), F.pad(mask, (0, more)))",
    ),
    advice={
        "the shape of the output": "It has a row for each of the T queries: pad keys, values and the mask's columns, not q.",
        "the number of keys": "Pad keys, values and mask to exactly `length` keys, with length - S new ones: scores, softmax and the sum over the values run over all of them.",
        "the output": "It must equal attend's without padding: hide what is not there, and pad with zeros at the end.",
        "at the end of the keys": "A key must keep its position in the sum as the text grows: pad at the end.",
    },
    axes=[("query", "number")],
)
