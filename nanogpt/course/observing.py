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
