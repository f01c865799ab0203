"""Notebook 13, blank 2: gated, the feed-forward layer of Llama and its relatives."""

import torch
import torch.nn.functional as F

from ..drivers import Arguments, form, gradient, numbers
from ..page import Blank, Case


def gated(x, gate, up, down):
    """The gated feed-forward layer.  (…, C), (hidden, C) twice, (C, hidden) -> (…, C)"""
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


# ------------------------------------------------------------------ what a check runs


def inputs(shape, hidden, dtype=torch.float64, factor=1.0):
    """x of that shape and the three matrices, stored as in nn.Linear."""
    C = shape[-1]
    shapes = {"x": shape, "gate": (hidden, C), "up": (hidden, C), "down": (C, hidden)}
    made = {
        name: numbers(*one, seed=i, dtype=dtype) for i, (name, one) in enumerate(shapes.items())
    }
    return made | {"x": made["x"] * factor}


def run_part(answer, shape, hidden, dtype=torch.float64, factor=1.0):
    """One output."""
    given = Arguments(**inputs(shape, hidden, dtype, factor))
    out = answer(*given.tensors.values())
    yield from given.changes()
    yield "the shape of the output", form(out)
    yield "the output", out


def run_gradients(answer):
    """The gradients of x and the three matrices."""
    given = {name: x.requires_grad_() for name, x in inputs((2, 3), 4).items()}
    out = answer(*given.values())
    yield "no gradient flows through your output, so a model would not learn", not out.requires_grad
    total = (out * numbers(2, 3, seed=9)).sum()
    for name, found in gradient(total, given).items():
        yield f"the gradient of {name}", found


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="13.2",
    minutes=6,
    solution=gated,
    cases=[
        Case(run_part, shape=(2, 3, 5), hidden=7),
        Case(run_part, shape=(4, 4), hidden=4),
        Case(run_part, shape=(6,), hidden=3),
        Case(run_part, shape=(2, 5), hidden=4, factor=1000.0),
        Case(run_part, shape=(2, 3, 4), hidden=6, dtype=torch.bfloat16, tolerance=0.1),
        Case(run_gradients),
        Case(run_part, shape=(2, 2, 3, 16), hidden=40, dtype=torch.float32),
    ],
    mistakes={
        "the wrong one is gated: SiLU belongs on the gate, not on up's output.": [
            "F.silu(x @ gate.T) * (x @ up.T) -> (x @ gate.T) * F.silu(x @ up.T)"
        ],
        "the gate goes through another function than SiLU, such as ReLU, GELU or a sigmoid: F.silu(x) is x · sigmoid(x).": (
            ["F.silu -> F.gelu"],
            ["F.silu(x @ gate.T) -> (x @ gate.T) * torch.sigmoid(1.702 * (x @ gate.T))"],
            ["F.silu -> torch.sigmoid"],
        ),
        "x is added: the block adds the residual, not this layer.": ["return ( -> return x + ("],
    },
    wrong=[
        "F.silu(x @ gate.T) -> (x @ gate.T) * (x @ gate.T).exp() / (1 + (x @ gate.T).exp())",
        "F.silu(x @ gate.T) -> F.silu((x @ gate.T).detach())",
        "down.T -> down",
        "return -> x *= 2\n    x = x / 2\n    return",
    ],
    right=[
        """
def gated(x, gate, up, down):
    g, u = (x @ torch.cat([gate, up]).T).chunk(2, dim=-1)
    return torch.matmul(nn.SiLU()(g) * u, down.t())
""",
        """
def gated(x, gate, up, down):
    g = torch.einsum("...c,hc->...h", x, gate)
    u = torch.einsum("...c,hc->...h", x, up)
    return torch.einsum("...h,ch->...c", g / (1 + torch.exp(-g)) * u, down)
""",
        """
def gated(x, gate, up, down):
    g = x @ gate.T
    return F.linear(x @ up.mT * g * torch.sigmoid(g), down)
""",
    ],
    hints=(
        "Which of the two inner vectors decides how much of the other one passes, and which one is passed on? How large is `down`'s input?",
        "`x @ up.T` has the inner width. So has the gate, and the two are multiplied element-wise. `F.silu` is the activation.",
        "return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T",
    ),
    advice={
        "the shape of": "The output has the shape of x: `down` comes last.",
        "the output": "SiLU of x @ gate.T, times x @ up.T, then @ down.T.",
    },
    axes=[("text", "token", "number"), ("row", "number"), ("number",)],
)
