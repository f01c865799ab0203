"""Notebook 13, blank 1: share_keys."""

from ..page import Blank


def share_keys(k, n_head):
    """Keys for n_head heads; neighbouring heads share them.  (B, Hkv, S, hs) -> (B, n_head, S, hs)"""
    return k.repeat_interleave(n_head // k.shape[1], dim=1)


BLANK = Blank(
    number="13.1",
    solution=share_keys,
    cases=[],
    mistakes={},
    hints=(
        "With 3 KV heads and 9 query heads, in which order must the keys be: 0 1 2 0 1 2 0 1 2, or 0 0 0 1 1 1 2 2 2?",
        "Each KV head serves `n_head // k.shape[1]` query heads. `torch.repeat_interleave` repeats each entry of a dimension before moving on to the next.",
        "return k.repeat_interleave(n_head // k.shape[1], dim=1)",
    ),
    advice={
        "the shape": "(B, n_head, S, hs): each KV head n_head // k.shape[1] times, along dimension 1.",
        "no gradient": "Leave detach() and no_grad() out.",
        "the keys of": "Neighbours share: query head h gets KV head h // group, where group is n_head // k.shape[1].",
        "the gradient": "Keys get gradients from every query head that reads them.",
    },
    axes=[("text", "position", "number"), ("text", "head", "position", "number")],
)
