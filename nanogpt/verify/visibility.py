"""What a cache needs of a rule about who sees whom, checked one by one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..cache.attach import kv_cache
from ..cache.dynamic import DynamicCache
from ..cache.static import StaticCache
from ..config.shapes import GPTConfig
from ..model.gpt import GPT, CausalSelfAttention
from .compare import _seeded


def judge(pattern: Callable) -> list[dict]:
    """What a cache needs of a `visible(q_pos, k_pos, window, sinks)`, checked one by one, as rows of a table.

    The last check decodes with it: a small model in float64, cached and uncached, in one piece, in
    chunks and one by one. Whatever the pattern raises is the verdict of the check that it failed.
    """
    pos = torch.arange(40)
    checks = {
        "gives a truth value for each query and key": lambda: _is_mask(pattern, pos),
        "nobody sees what comes later": lambda: not _seen(pattern, pos, pos).triu(1).any(),
        "nobody sees an empty slot": lambda: (
            not _seen(pattern, pos, torch.full_like(pos, -1)).any()
        ),
        "everybody sees something": lambda: bool(_seen(pattern, pos, pos).any(1).all()),
        "positions decide, not places in the array": lambda: _in_any_order(pattern, pos),
        "cached logits are the uncached ones": lambda: _cached_is_uncached(pattern, pos),
    }
    rows = []
    for what, check in checks.items():
        try:
            verdict = "✓" if check() else "✗"
        except Exception as error:  # the reader's own code: whatever it is
            verdict = f"✗ {type(error).__name__}: {error}"
        rows.append({"check": what, "verdict": verdict})
        if what.startswith("gives") and verdict != "✓":
            break
    return rows


def _seen(pattern: Callable, q_pos: Tensor, k_pos: Tensor) -> Tensor:
    return pattern(q_pos, k_pos, None, 0)


def _is_mask(pattern: Callable, pos: Tensor) -> bool:
    seen = _seen(pattern, pos[-3:], pos)
    return isinstance(seen, Tensor) and seen.dtype == torch.bool and seen.shape == (3, len(pos))


def _in_any_order(pattern: Callable, pos: Tensor) -> bool:
    """Keys lie in a cache as it suits the cache: turned, or without the first, they are seen by the same."""
    whole, turned = _seen(pattern, pos, pos), pos.roll(len(pos) // 3)
    last, some = pos[-1:], pos[5:]
    return torch.equal(_seen(pattern, pos, turned), whole[:, turned]) and torch.equal(
        _seen(pattern, last, some), whole[last][:, some]
    )


@torch.no_grad()
def _cached_is_uncached(pattern: Callable, pos: Tensor) -> bool:
    own = type("Own", (CausalSelfAttention,), {"visible": staticmethod(pattern)})
    shape = GPTConfig(vocab_size=13, n_layer=2, n_embd=32, rope=True, n_kv_head=2, per_head=False)
    model = GPT(shape, attention=own).double().eval()
    for p in model.parameters():  # far from flat, so that a wrong mask moves the logits
        p.mul_(25 if p.ndim == 2 else 1)
    idx = torch.randint(13, (1, len(pos)), generator=_seeded(7))
    expected = model(idx)[0]
    for design in (DynamicCache, StaticCache):
        for chunk in (1, 7, len(pos)):
            with kv_cache(model, design):
                parts = zip(idx.split(chunk, dim=1), pos.split(chunk), strict=True)
                logits = torch.cat([model(part, pos=places)[0] for part, places in parts], dim=1)
            if not torch.allclose(logits, expected, rtol=0, atol=1e-9):
                return False
    return True
