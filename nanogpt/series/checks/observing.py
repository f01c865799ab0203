"""Run an answer on a case and note all that it shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..limits import TooLong
from .exercise import Anew, Answer, Case, Pairs

ERROR = "error"  # the name under which an exception is noted
TIMES = ", time "  # before the number of an observation that comes again

Observed = dict[str, Any]  # by its name, in the order of the driver


def observe(case: Case, answer: Answer | Anew) -> Observed:
    """All that an answer shows on a case; an exception is one of these things."""
    return dict(observations(case, answer))


def observations(case: Case, answer: Answer | Anew) -> Pairs:
    """One thing after another that an answer shows on a case, each with a name of its own.

    An exception is the last of them. TooLong and KeyboardInterrupt go through: they end the whole
    check.
    """
    answer = answer.make() if isinstance(answer, Anew) else answer
    times: Counter[str] = Counter()
    try:
        with _state_of_its_own():
            for what, value in case.driver(answer, **case.settings):
                times[what] += 1
                name = f"{what}{TIMES}{times[what]}" if times[what] > 1 else what
                # A copy, because an answer may write into its tensors later.
                yield name, value.detach().clone() if isinstance(value, Tensor) else value
    except (KeyboardInterrupt, TooLong, GeneratorExit):
        raise
    except BaseException as error:  # exit() in an answer must not end the notebook
        yield ERROR, error


@contextmanager
def _state_of_its_own() -> Iterator[None]:
    """Gradients on, seed 0 and the default dtype, whatever the notebook has set or an answer sets.

    The notebook's own state comes back afterwards.
    """
    dtype = torch.get_default_dtype()
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_default_dtype(torch.float32)
            torch.manual_seed(0)
            yield
    finally:
        torch.set_default_dtype(dtype)


# ------------------------------------------------------------------ for drivers


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers of that shape, the same in every run."""
    generator = torch.Generator().manual_seed(seed + 7919 * sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def form(value: Any) -> str:
    """The shape of a tensor, or the type of another object, in words."""
    if value is None:
        return "None"
    return str(tuple(value.shape)) if isinstance(value, Tensor) else f"a {type(value).__name__}"


def gradient(total: Tensor, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradient of each input, by name; zeros for one that the total does not depend on."""
    found = torch.autograd.grad(total, [*inputs.values()], allow_unused=True)
    pairs = zip(inputs.items(), found, strict=True)
    return {name: torch.zeros_like(x) if g is None else g for (name, x), g in pairs}


class Arguments:
    """The tensors of a call, with copies that show what an answer has written into."""

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = tensors
        self.before = {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def changes(self) -> Pairs:
        """What a call must leave alone: its arguments, and whether gradients are on."""
        for name, tensor in self.tensors.items():
            old = self.before[name]
            same = tensor.shape == old.shape and torch.equal(tensor.detach(), old)
            yield f"your code changes `{name}`, which belongs to the caller", not same
        yield "after your code gradients are off for all that follows", not torch.is_grad_enabled()
