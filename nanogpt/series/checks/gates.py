"""The check of gated, a feed-forward layer with a gate."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import solutions
from .exercise import Answer, Case, Exercise, Pairs
from .observing import Arguments, form, gradient, numbers

NAMES = ("x", "gate", "up", "down")


def inputs(
    shape: tuple[int, ...], hidden: int, dtype: torch.dtype = torch.float64, factor: float = 1.0
) -> dict[str, Tensor]:
    """x of that shape and the three matrices, stored as in nn.Linear."""
    C = shape[-1]
    shapes = (shape, (hidden, C), (hidden, C), (C, hidden))
    made = {
        name: numbers(*one, seed=seed, dtype=dtype)
        for seed, (name, one) in enumerate(zip(NAMES, shapes, strict=True))
    }
    made["x"] = made["x"] * factor
    return made


def run_part(
    answer: Answer,
    shape: tuple[int, ...],
    hidden: int,
    dtype: torch.dtype = torch.float64,
    factor: float = 1.0,
) -> Pairs:
    """One output."""
    given = Arguments(**inputs(shape, hidden, dtype, factor))
    out = answer(*given.tensors.values())
    yield from given.changes()
    yield "the shape of the output", form(out)
    yield "the output", out


def run_gradients(answer: Answer) -> Pairs:
    """The gradients of x and the three matrices."""
    given = {name: x.requires_grad_() for name, x in inputs((2, 3), 4).items()}
    out = answer(*given.values())
    yield "no gradient flows through your output, so a model would not learn", not out.requires_grad
    total = (out * numbers(2, 3, seed=9)).sum()
    for name, found in gradient(total, given).items():
        yield f"the gradient of {name}", found


RIGHT: Answer = solutions.gated


def gated_by(inner: Any) -> Answer:
    """gated with another function of gate's and up's activations, before down."""
    return lambda x, gate, up, down: inner(x @ gate.T, x @ up.T) @ down.T


def by_exponentials(g: Tensor, u: Tensor) -> Tensor:
    return g * g.exp() / (1 + g.exp()) * u


def after_down(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return (F.silu(x @ gate.T) @ down.T) * (x @ up.T @ down.T)


def in_place(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    g = x @ gate.T
    x *= 1
    x += 0.5
    return F.silu(g) * ((x - 0.5) @ up.T) @ down.T


GATED = Exercise(
    notebook="13",
    hints=(
        "Which of the two inner vectors decides how much of the other one passes, and which one "
        "is passed on? How large is `down`'s input?",
        "`x @ up.T` has the inner width. So has the gate, and the two are multiplied "
        "element-wise. `F.silu` is the activation.",
        "return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T",
    ),
    right=RIGHT,
    cases=[
        Case(run_part, shape=(2, 3, 5), hidden=7),
        Case(run_part, shape=(4, 4), hidden=4),
        Case(run_part, shape=(6,), hidden=3),
        Case(run_part, shape=(1, 1, 8), hidden=1),
        Case(run_part, shape=(2, 5), hidden=4, factor=1000.0),
        Case(run_part, shape=(2, 3, 4), hidden=6, dtype=torch.float32),
        Case(run_part, shape=(2, 3, 4), hidden=6, dtype=torch.bfloat16, tolerance=0.1),
        Case(run_gradients),
        Case(run_part, shape=(2, 2, 3, 16), hidden=40),
    ],
    mistakes={
        "you gate the wrong way round: SiLU belongs on the gate, not on up's output.": (
            gated_by(lambda g, u: g * F.silu(u))
        ),
        "the gate is not multiplied in: only up's output goes through SiLU.": gated_by(
            lambda g, u: F.silu(u)
        ),
        "up's output is left out: multiply the gate with it.": gated_by(lambda g, u: F.silu(g)),
        "the activation is missing: the gate goes through SiLU.": gated_by(lambda g, u: g * u),
        "this is the lecture's ReLU on the gate: the gate takes SiLU.": gated_by(
            lambda g, u: F.relu(g) * u
        ),
        "this is the lecture's feed-forward, down(relu(up(x))): multiply up's output with the "
        "gate after SiLU.": gated_by(lambda g, u: F.relu(u)),
        "this is sigmoid: SiLU is x · sigmoid(x).": gated_by(lambda g, u: g.sigmoid() * u),
        "this is GELU: the gate takes SiLU.": gated_by(lambda g, u: F.gelu(g) * u),
        "this is the tanh form of GELU: the gate takes SiLU.": gated_by(
            lambda g, u: F.gelu(g, approximate="tanh") * u
        ),
        "this is tanh: the gate takes SiLU.": gated_by(lambda g, u: g.tanh() * u),
        "this is hard swish, which is piecewise: the gate takes SiLU.": gated_by(
            lambda g, u: F.hardswish(g) * u
        ),
        "the gate is multiplied by 1.702 inside the sigmoid, as in quick GELU: SiLU is x · "
        "sigmoid(x).": gated_by(lambda g, u: g * (1.702 * g).sigmoid() * u),
        "this is a softmax over the gate: SiLU works element-wise.": gated_by(
            lambda g, u: g.softmax(-1) * u
        ),
        "you add the gate: multiply.": gated_by(lambda g, u: F.silu(g) + u),
        "you subtract the gate: multiply.": gated_by(lambda g, u: u - F.silu(g)),
        "up's output is subtracted: multiply.": gated_by(lambda g, u: F.silu(g) - u),
        "the gate is divided by up's output: multiply.": gated_by(lambda g, u: F.silu(g) / u),
        "the gate is multiplied by itself: multiply it with up's output, x @ up.T.": gated_by(
            lambda g, u: F.silu(g) * F.silu(g)
        ),
        "SiLU comes before the product: you apply it to the product of both.": gated_by(
            lambda g, u: F.silu(g * u)
        ),
        "SiLU is applied to both factors: leave up's output as it is.": gated_by(
            lambda g, u: F.silu(g) * F.silu(u)
        ),
        "SiLU is applied to the gate twice: once is enough.": gated_by(
            lambda g, u: F.silu(F.silu(g)) * u
        ),
        "SiLU is multiplied by the gate again, but already contains it: SiLU is x · "
        "sigmoid(x).": gated_by(lambda g, u: g * F.silu(g) * u),
        "the sigmoid's argument has the wrong sign: SiLU is x · sigmoid(x), not x · "
        "sigmoid(-x).": gated_by(lambda g, u: g * (-g).sigmoid() * u),
        "SiLU is applied to x, before the gate's matrix: apply it to "
        "the matrix's output.": lambda x, gate, up, down: (
            (F.silu(x) @ gate.T) * (x @ up.T) @ down.T
        ),
        "one matrix computes both factors: `gate` and `up` each compute their own.": (
            lambda x, gate, up, down: F.silu(x @ gate.T) * (x @ gate.T) @ down.T
        ),
        "the gate is computed with `up`: x @ gate.T is the gate.": (
            lambda x, gate, up, down: F.silu(x @ up.T) * (x @ up.T) @ down.T
        ),
        "`down` is missing: the output has the width of x.": (
            lambda x, gate, up, down: F.silu(x @ gate.T) * (x @ up.T)
        ),
        "`down` comes before the product: multiply first, then apply it.": after_down,
        "`gate` is not transposed: nn.Linear stores (out, in), so use x @ gate.T.": (
            lambda x, gate, up, down: F.silu(x @ gate) * (x @ up.T) @ down.T
        ),
        "`up` is not transposed: nn.Linear stores (out, in), so use x @ up.T.": (
            lambda x, gate, up, down: F.silu(x @ gate.T) * (x @ up) @ down.T
        ),
        "`down` is not transposed: nn.Linear stores (out, in), so use … @ down.T.": (
            lambda x, gate, up, down: F.silu(x @ gate.T) * (x @ up.T) @ down
        ),
        "no matrix is transposed: nn.Linear stores (out, in), so use x @ weight.T.": (
            lambda x, gate, up, down: F.silu(x @ gate) * (x @ up) @ down
        ),
        "x is added: the block adds the residual, not this layer.": (
            lambda x, gate, up, down: x + F.silu(x @ gate.T) * (x @ up.T) @ down.T
        ),
        "SiLU is applied to the output: nothing follows `down`.": (
            lambda x, gate, up, down: F.silu(F.silu(x @ gate.T) * (x @ up.T) @ down.T)
        ),
        "exp() of a large number overflows, and infinity over infinity is NaN: F.silu does not "
        "overflow.": gated_by(by_exponentials),
        "x is detached, so earlier layers would not learn: leave detach() out.": (
            lambda x, gate, up, down: RIGHT(x.detach(), gate, up, down)
        ),
        "the gate is detached, so it would not learn: leave detach() out.": (
            lambda x, gate, up, down: F.silu(x @ gate.T).detach() * (x @ up.T) @ down.T
        ),
        "the output is detached, so a model would not learn: leave detach() out.": (
            lambda x, gate, up, down: RIGHT(x, gate, up, down).detach()
        ),
        "the output becomes float32: keep the input's dtype.": (
            lambda x, gate, up, down: RIGHT(x, gate, up, down).float()
        ),
        "your code changes `x`, which belongs to the caller: x *= … and x += … write into "
        "it.": in_place,
    },
    advice={
        "the shape of": "The output has the shape of x: `down` comes last.",
        "no gradient": "Leave detach() and no_grad() out.",
        "the gradient": "x and the three matrices all get gradients.",
        "the output": "SiLU of x @ gate.T, times x @ up.T, then @ down.T.",
        "mat1 and mat2": "nn.Linear stores (out, in), so transpose the matrix: x @ gate.T.",
    },
    axes=[("text", "token", "number"), ("row", "number"), ("number",)],
)
