"""Notebook 13, blank 2: gated."""

import torch.nn.functional as F

from ..page import Blank


def gated(x, gate, up, down):
    """The gated feed-forward layer.  (…, C), (hidden, C) twice, (C, hidden) -> (…, C)"""
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


BLANK = Blank(
    number="13.2",
    solution=gated,
    cases=[],
    mistakes={},
    hints=(
        "Which of the two inner vectors decides how much of the other one passes, and which one is passed on? How large is `down`'s input?",
        "`x @ up.T` has the inner width. So has the gate, and the two are multiplied element-wise. `F.silu` is the activation.",
        "return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T",
    ),
    advice={
        "the shape of": "The output has the shape of x: `down` comes last.",
        "no gradient": "Leave detach() and no_grad() out.",
        "the gradient": "x and the three matrices all get gradients.",
        "the output": "SiLU of x @ gate.T, times x @ up.T, then @ down.T.",
        "mat1 and mat2": "nn.Linear stores (out, in), so transpose the matrix: x @ gate.T.",
    },
    axes=[("text", "token", "number"), ("row", "number"), ("number",)],
)
