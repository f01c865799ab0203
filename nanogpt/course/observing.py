"""Run an answer on a case and record everything it shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .limits import TooLong
from .page import Anew, Answer, Case, Pairs

ERROR = "error"  # the name under which an exception is recorded
REPEATED = ", time "  # precedes the number of a repeated observation

Observed = dict[str, Any]  # by name, in the driver's order


def observe(case: Case, answer: Answer | Anew) -> Observed:
    """Everything that an answer shows on a case, including an exception."""
    return dict(observations(case, answer))


def observations(case: Case, answer: Answer | Anew) -> Pairs:
    """Yield what an answer shows on a case, one observation at a time, each with a unique name.

    An exception is the last one. TooLong and KeyboardInterrupt propagate: they end the whole check.
    """
    answer = answer.make() if isinstance(answer, Anew) else answer
    times: Counter[str] = Counter()
    try:
        with _state_of_its_own():
            for what, value in case.driver(answer, **case.settings):
                times[what] += 1
                name = f"{what}{REPEATED}{times[what]}" if times[what] > 1 else what
                # A copy, because an answer may write into its tensors later.
                yield name, value.detach().clone() if isinstance(value, Tensor) else value
    except (KeyboardInterrupt, TooLong, GeneratorExit):
        raise
    except BaseException as error:  # exit() in an answer must not end the notebook
        yield ERROR, error


@contextmanager
def _state_of_its_own() -> Iterator[None]:
    """Gradients on, seed 0 and the default dtype, whatever the notebook or the answer sets.

    The notebook's own state is restored afterwards.
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
    """Normal random numbers of that shape, the same in every run."""
    generator = torch.Generator().manual_seed(seed + 7919 * sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def form(value: Any) -> str:
    """A tensor's shape, or another object's type, in words."""
    if value is None:
        return "None"
    return str(tuple(value.shape)) if isinstance(value, Tensor) else f"a {type(value).__name__}"


def gradient(total: Tensor, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradient of each input, by name; zeros if the total does not depend on it."""
    found = torch.autograd.grad(total, [*inputs.values()], allow_unused=True)
    pairs = zip(inputs.items(), found, strict=True)
    return {name: torch.zeros_like(x) if g is None else g for (name, x), g in pairs}


class Arguments:
    """A call's tensors, with copies that show which ones an answer has modified."""

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = tensors
        self.before = {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def changes(self) -> Pairs:
        """What a call must leave unchanged: its arguments, and whether gradients are on."""
        for name, tensor in self.tensors.items():
            old = self.before[name]
            same = tensor.shape == old.shape and torch.equal(tensor.detach(), old)
            yield f"your code changes `{name}`, which belongs to the caller", not same
        yield "your code returns while gradients are off", not torch.is_grad_enabled()
