"""Checks of the exercises as data: a right answer, cases and mistakes, tried by one harness.

`exercise` says what a check is; `observing`, `comparing`, `finding` and `words` are the harness.
The other modules hold the tables, one for each exercise or a few of a kind. A check compares what
an answer shows, never the form of its code.
"""

from __future__ import annotations

from typing import Any

from ..blanks import Problem
from . import finding
from .caches import KV_CACHE, STATIC_KV_CACHE
from .costs import FASTEST, MULTIPLICATIONS, STEP_BYTES
from .exercise import Exercise
from .graphs import FIXED_ATTENTION
from .head import HEAD
from .loop import LOOP
from .masked import MASKED_HEAD
from .memories import ASKED_HEAD, ONE_TEXT, READ_ON
from .repairs import CHECK_LENGTH, REPAIRED_BASELINE, REPAIRED_LOOP
from .rounding import ROUND_ROW
from .sampling import SAMPLE
from .step import ONE_STEP
from .times import LATENCY, SPEEDUP
from .verdicts import MARGIN, SLY_CACHE, VERDICT
from .visibility import VISIBLE
from .weights import ATTENTION_WEIGHTS

EXERCISES: dict[str, Exercise] = {
    "attention_weights": ATTENTION_WEIGHTS,
    "one_step": ONE_STEP,
    "visible": VISIBLE,
    "KVCache": KV_CACHE,
    "Head": HEAD,
    "sample": SAMPLE,
    "generate_with_cache": LOOP,
    "StaticKVCache": STATIC_KV_CACHE,
    "verdict": VERDICT,
    "SlyCache": SLY_CACHE,
    "margin": MARGIN,
    "MaskedHead": MASKED_HEAD,
    "repaired_loop": REPAIRED_LOOP,
    "read_on": READ_ON,
    "repaired_baseline": REPAIRED_BASELINE,
    "AskedHead": ASKED_HEAD,
    "check_length": CHECK_LENGTH,
    "one_text": ONE_TEXT,
    "FixedAttention": FIXED_ATTENTION,
    "multiplications": MULTIPLICATIONS,
    "latency": LATENCY,
    "paired_speedup": SPEEDUP,
    "step_bytes": STEP_BYTES,
    "fastest": FASTEST,
    "round_row": ROUND_ROW,
}


def problem_of(name: str) -> Problem:
    """The check of the exercise of that name: of an answer, what is wrong with it, or None."""

    def problem(answer: Any) -> str | None:
        return finding.problem(EXERCISES[name], answer)

    problem.__name__ = name
    return problem
