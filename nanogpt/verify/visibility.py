"""What a cache needs of a rule that says who sees whom, checked point by point."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from ..cache.attach import kv_cache
from ..cache.dynamic import DynamicCache
from ..cache.static import StaticCache
from ..config.shapes import GPTConfig
from ..model.gpt import GPT, CausalSelfAttention


def judge(rule: Callable) -> list[dict]:
    """What a cache needs of a rule(q_pos, k_pos, window, sinks) like `visible`, as rows of a table.

    The last check decodes with it: a small model in float64, uncached and cached, with a prefill in
    one piece, in pieces and one by one. What the rule raises is the verdict of the check it failed.
    """
    pos = torch.arange(40)

    def mask(q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return rule(q_pos, k_pos, None, 0)

    def is_mask() -> bool:
        some = mask(pos[-3:], pos)
        return isinstance(some, Tensor) and (some.dtype, some.shape) == (torch.bool, (3, 40))

    def ignores_order() -> bool:
        """Keys in another order, or without the first of them, are seen by the same queries."""
        whole, turned = mask(pos, pos), pos.roll(13)
        fewer = torch.equal(mask(pos[-1:], pos[5:]), whole[-1:, 5:])
        return fewer and torch.equal(mask(pos, turned), whole[:, turned])

    checks = {
        "a truth value for each query and key": is_mask,
        "no query sees a later key": lambda: not mask(pos, pos).triu(1).any(),
        "no query sees an empty slot": lambda: not mask(pos, torch.full_like(pos, -1)).any(),
        "every query sees a key": lambda: mask(pos, pos).any(1).all(),
        "positions decide, not the order of keys": ignores_order,
        "cached logits equal uncached logits": lambda: _cached_equals_uncached(rule, pos),
    }
    rows = []
    for name, check in checks.items():
        try:
            verdict = "✓" if check() else "✗"
        except Exception as error:  # the reader's own code may raise anything
            verdict = f"✗ {type(error).__name__}: {error}"
        rows.append({"check": name, "verdict": verdict})
        if len(rows) == 1 and verdict != "✓":
            break  # without a mask there is nothing more to check
    return rows


@torch.no_grad()
def _cached_equals_uncached(rule: Callable, pos: Tensor) -> bool:
    attention = type("Own", (CausalSelfAttention,), {"visible": staticmethod(rule)})
    shape = GPTConfig(vocab_size=13, n_layer=2, n_embd=32, rope=True, n_kv_head=2, per_head=False)
    model = GPT(shape, attention=attention).double().eval()
    for p in model.parameters():  # far from flat, so that a wrong mask moves the logits
        p.mul_(25 if p.ndim == 2 else 1)
    idx = torch.randint(13, (1, len(pos)), generator=torch.Generator().manual_seed(7))
    expected = model(idx)[0]
    for cache, chunk in itertools.product((DynamicCache, StaticCache), (1, 7, len(pos))):
        with kv_cache(model, cache):
            parts = [model(idx[:, part], pos=part)[0] for part in pos.split(chunk)]
        if not torch.allclose(torch.cat(parts, dim=1), expected, rtol=0, atol=1e-9):
            return False
    return True
