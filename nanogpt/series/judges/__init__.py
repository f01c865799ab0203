"""The judges of the kept blanks: each tries an answer and names a mistake in a sentence.

A judge has the name of its blank. It compares numbers, never the form of the code: at shapes whose
dimensions all differ, in two dtypes, over long texts and up to a capacity, with gradients where
there are any, and looks whether the caller's tensors are left alone.
"""

from .attention import attention_weights, visible
from .caches import KVCache, StaticKVCache
from .counts import fastest, latency, multiplications, paired_speedup, round_row, step_bytes
from .head import Head
from .loops import generate_with_cache, sample
from .step import one_step

__all__ = [
    "Head",
    "KVCache",
    "StaticKVCache",
    "attention_weights",
    "fastest",
    "generate_with_cache",
    "latency",
    "multiplications",
    "one_step",
    "paired_speedup",
    "round_row",
    "sample",
    "step_bytes",
    "visible",
]
