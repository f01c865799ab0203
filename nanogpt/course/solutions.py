"""The names that a lesson starts from: the solutions of all blanks, and what they use.

    from nanogpt.course.solutions import Head

A reader's lesson imports the ones that the reader has not written yet.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from ..attention import attend
from ..cache import kv_cache
from ..engines.drafts import Draft
from .blanks import BLANKS
from .traps import MemoryHead, decode, places

_NAMES: dict[str, Any] = {
    "math": math,
    "median": median,
    "torch": torch,
    "nn": nn,
    "F": F,
    "Tensor": Tensor,
    "attend": attend,
    "kv_cache": kv_cache,
    "Draft": Draft,
    "MemoryHead": MemoryHead,
    "decode": decode,
    "places": places,
    **{name: blank.solution for name, blank in BLANKS.items()},
}
globals().update(_NAMES)
__all__ = [*_NAMES]


def lesson_names() -> dict[str, Any]:
    """A new namespace with these names, in which an answer is executed."""
    return dict(_NAMES)
