"""Tools of all judges: an objection, tensors that must stay as they are, and seeded numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

TIGHT = {torch.float32: 1e-4, torch.float64: 1e-9}  # how near a right answer comes


class Objection(Exception):
    """An answer is wrong; the message says why, in a sentence."""


def objects(judge: Callable) -> Callable:
    """A judge that raises Objection, as one that returns its words, or None."""

    @functools.wraps(judge)
    def problem(answer) -> str | None:
        try:
            with torch.inference_mode(False), torch.enable_grad():  # whatever its caller has set
                return judge(answer)
        except Objection as objection:
            return str(objection)

    return problem


def need(holds: bool, words: str) -> None:
    """Raise Objection with these words unless it holds."""
    if not holds:
        raise Objection(words)


def drawn(*shape: int, seed: int = 0, dtype=torch.float32) -> Tensor:
    """Normal numbers of that shape, the same in every run."""
    generator = torch.Generator().manual_seed(seed + 7919 * sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def near(a, b: Tensor, tolerance: float | None = None) -> bool:
    """Whether a tensor has the shape of another and its numbers, up to rounding."""
    if (
        not isinstance(a, Tensor)
        or a.shape != b.shape
        or a.is_floating_point() != b.is_floating_point()
    ):
        return False
    tolerance = tolerance or TIGHT.get(b.dtype, 1e-2)
    return torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


def shape_of(x) -> str:
    """The shape of a tensor in words, or the type of another object."""
    return str(tuple(x.shape)) if isinstance(x, Tensor) else f"a {type(x).__name__}"


def untouched(call: Callable, **given):
    """call(*given), with copies of the tensors. Raises Objection where it writes into one."""
    copies = {name: x.clone() if isinstance(x, Tensor) else x for name, x in given.items()}
    result = call(*copies.values())
    for name, x in given.items():
        if isinstance(x, Tensor) and not torch.equal(copies[name], x):
            raise Objection(
                f"your code changes `{name}`, which belongs to the caller: `{name} *= …`, "
                f"`{name}[…] = …` and methods that end in _ do that. Compute a new tensor."
            )
    return result


def first_match(result: Tensor, mistakes: dict[str, Tensor]) -> str | None:
    """The words of the mistake that gives these very numbers, or None."""
    return next((words for words, wrong in mistakes.items() if near(result, wrong)), None)
