"""The checks of heads that share keys: key_head and share_keys."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import solutions
from .exercise import Anew, Answer, Case, Exercise, Pairs
from .observing import Arguments, form, gradient, numbers

# ------------------------------------------------------------------ key_head


def run_heads(answer: Answer, n_head: int, n_kv_head: int) -> Pairs:
    """The KV heads of all query heads."""
    got = [answer(h, n_head, n_kv_head) for h in range(n_head)]
    kinds = sorted({type(number).__name__ for number in got})
    yield "the type of the numbers of KV heads", " and ".join(kinds)
    yield f"the KV heads that query heads 0 to {n_head - 1} read", got


def run_any_order(answer: Answer) -> Pairs:
    """Single calls for models of several shapes."""
    for h, n_head, n_kv_head in ((63, 64, 8), (2, 3, 3), (11, 12, 3), (5, 8, 1), (0, 32, 8)):
        yield (
            f"the KV head of query head {h} of {n_head}, with {n_kv_head} KV heads",
            (answer(h, n_head, n_kv_head)),
        )


def head_by(number: Any) -> Answer:
    """key_head as a function of the head's index, the group size and the number of KV heads."""
    return lambda h, n_head, n_kv_head: number(h, n_head // n_kv_head, n_kv_head)


def group_of_first() -> Answer:
    groups: list[int] = []

    def key_head(h: int, n_head: int, n_kv_head: int) -> int:
        groups.append(n_head // n_kv_head)
        return h // groups[0]

    return key_head


def upside_down(h: int, n_head: int, n_kv_head: int) -> int:
    return h // (n_kv_head // n_head)


KEY_HEAD = Exercise(
    notebook="08",
    hints=(
        "Of 12 query heads and 3 KV heads, which query heads read KV head 0, and which is the "
        "first to read KV head 1?",
        "How many query heads are in a group? Which group is query head h in?",
        "return h // (n_head // n_kv_head)",
    ),
    right=solutions.key_head,
    cases=[
        Case(run_heads, n_head=4, n_kv_head=2),
        Case(run_heads, n_head=12, n_kv_head=3),
        Case(run_heads, n_head=4, n_kv_head=1),
        Case(run_heads, n_head=4, n_kv_head=4),
        Case(run_heads, n_head=9, n_kv_head=3),
        Case(run_heads, n_head=6, n_kv_head=2),
        Case(run_heads, n_head=1, n_kv_head=1),
        Case(run_any_order),
        Case(run_heads, n_head=64, n_kv_head=8),
        Case(run_heads, n_head=14, n_kv_head=2),
    ],
    mistakes={
        "you deal the heads out like cards, with %: neighbours should share, so divide by the "
        "group size.": head_by(lambda h, group, n: h % n),
        "h is divided by the number of KV heads: divide it by the group size, n_head // "
        "n_kv_head.": head_by(lambda h, group, n: h // n),
        "this is a query head's index within its group: divide with //, not %.": head_by(
            lambda h, group, n: h % group
        ),
        "a head's index is an integer: divide with //, not with /.": head_by(
            lambda h, group, n: h / group
        ),
        "a float is not an integer, even with a whole value: divide with // and by an "
        "integer.": head_by(lambda h, group, n: float(h // group)),
        "the quotient is rounded to nearest, which moves heads into the next group: // rounds "
        "down.": head_by(lambda h, group, n: round(h / group)),
        "the quotient is rounded up: // rounds down.": head_by(
            lambda h, group, n: math.ceil(h / group)
        ),
        "every query head gets its own KV head: there are only n_kv_head of them, and "
        "neighbours share.": head_by(lambda h, group, n: h),
        "heads past the last KV head all get that one: form groups of equal size.": head_by(
            lambda h, group, n: min(h, n - 1)
        ),
        "all query heads get KV head 0: that is MQA, but there may be more KV heads.": head_by(
            lambda h, group, n: 0
        ),
        "KV heads are numbered from 0: yours begin with 1.": head_by(
            lambda h, group, n: h // group + 1
        ),
        "query heads are numbered from 0: yours begin with 1, so each group starts one too late.": (
            head_by(lambda h, group, n: max(h - 1, 0) // group)
        ),
        "the groups start one too early: query head h is in group h // group, without + "
        "1.": head_by(lambda h, group, n: (h + 1) // group),
        "the groups are in reverse order: query head 0 reads KV head 0.": head_by(
            lambda h, group, n: n - 1 - h // group
        ),
        "your groups always have two query heads: they have n_head // n_kv_head.": head_by(
            lambda h, group, n: h // 2
        ),
        "this is the group size: divide h by it to get the group of h.": (
            head_by(lambda h, group, n: group)
        ),
        "this is the group's first query head: divide, and do not multiply again.": head_by(
            lambda h, group, n: h // group * group
        ),
        "a group has n_head // n_kv_head query heads, not the difference of the two numbers.": (
            lambda h, n_head, n_kv_head: h // max(n_head - n_kv_head, 1)
        ),
        "the quotient for the group size is upside down and becomes 0: a group has n_head // "
        "n_kv_head query heads.": upside_down,
        "the group size comes from an earlier call: compute it from this call's arguments.": Anew(
            group_of_first
        ),
        "a list of KV heads is returned for one query head: return the index of its own.": (
            lambda h, n_head, n_kv_head: [i // (n_head // n_kv_head) for i in range(n_head)]
        ),
    },
    advice={
        "the type": "A head's index is an integer: divide with //.",
        "the KV head": (
            "Neighbours share: a group has n_head // n_kv_head query heads, and h // group is its "
            "index."
        ),
    },
)


# ------------------------------------------------------------------ share_keys


def keys_of(B: int, heads: int, S: int, hs: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Keys as in a model: a view of (B, S, heads, hs)."""
    return numbers(B, S, heads, hs, dtype=dtype).transpose(1, 2)


def run_keys(
    answer: Answer,
    heads: int,
    n_head: int,
    B: int = 2,
    S: int = 4,
    hs: int = 5,
    dtype: torch.dtype = torch.float64,
) -> Pairs:
    """The keys of every query head."""
    given = Arguments(k=keys_of(B, heads, S, hs, dtype))
    got = answer(given.tensors["k"], n_head)
    yield from given.changes()
    yield f"the shape, from {form(given.tensors['k'])}", form(got)
    for h in range(n_head):
        yield f"the keys of query head {h}", got[:, h]


def run_gradient(answer: Answer) -> Pairs:
    """The keys' gradients from all query heads that read them."""
    k = numbers(2, 2, 3, 4).requires_grad_()
    shared = answer(k, 6)
    yield (
        "no gradient flows through your keys, so a model would not learn",
        not shared.requires_grad,
    )
    total = (shared * numbers(2, 6, 3, 4, seed=1)).sum()
    yield "the gradient of k", gradient(total, {"k": k})["k"]


def share_by(share: Any) -> Answer:
    """share_keys as a function of the keys, the group size and the number of query heads."""
    return lambda k, n_head: share(k, n_head // k.shape[1], n_head)


def flat_reshape(k: Tensor, n_head: int) -> Tensor:
    many = torch.cat([k] * (n_head // k.shape[1]))
    return many.reshape(k.shape[0], n_head, *k.shape[2:])


SHARE_KEYS = Exercise(
    notebook="13",
    hints=(
        "With 3 KV heads and 9 query heads, in which order must the keys be: 0 1 2 0 1 2 0 1 2, "
        "or 0 0 0 1 1 1 2 2 2?",
        "Each KV head serves `n_head // k.shape[1]` query heads. `torch.repeat_interleave` "
        "repeats each entry of a dimension before moving on to the next.",
        "return k.repeat_interleave(n_head // k.shape[1], dim=1)",
    ),
    right=solutions.share_keys,
    cases=[
        Case(run_keys, heads=3, n_head=9),
        Case(run_keys, heads=2, n_head=4),
        Case(run_keys, heads=1, n_head=4),
        Case(run_keys, heads=2, n_head=2),
        Case(run_keys, heads=2, n_head=6, B=1, S=1),
        Case(run_keys, heads=4, n_head=8, B=4, S=4, hs=4),
        Case(run_keys, heads=2, n_head=10, B=3, S=7, hs=2, dtype=torch.float32),
        Case(run_keys, heads=3, n_head=6, dtype=torch.bfloat16),
        Case(run_gradient),
        Case(run_keys, heads=8, n_head=32, S=40, hs=16),
    ],
    mistakes={
        "you deal the keys out like cards: neighbours share, so the first query heads all get the "
        "first keys.": share_by(lambda k, group, H: k.repeat(1, group, 1, 1)),
        "nothing is repeated: each of the n_head query heads needs keys.": share_by(
            lambda k, group, H: k
        ),
        "each KV head is repeated n_head times: it serves n_head // k.shape[1] query "
        "heads.": share_by(lambda k, group, H: k.repeat_interleave(H, dim=1)),
        "each KV head is repeated k.shape[1] times: that is how many there are, and each serves "
        "n_head // k.shape[1].": share_by(
            lambda k, group, H: k.repeat_interleave(k.shape[1], dim=1)
        ),
        "each KV head is always repeated twice: it serves n_head // k.shape[1] query "
        "heads.": share_by(lambda k, group, H: k.repeat_interleave(2, dim=1)),
        "the group size is a quotient, n_head // k.shape[1], not the remainder.": (
            lambda k, n_head: k.repeat_interleave(n_head % k.shape[1], dim=1)
        ),
        "the group size is a quotient, n_head // k.shape[1], not the difference.": (
            lambda k, n_head: k.repeat_interleave(n_head - k.shape[1], dim=1)
        ),
        "the quotient is upside down and becomes 0: divide the larger by the smaller, n_head // "
        "k.shape[1].": lambda k, n_head: k.repeat_interleave(k.shape[1] // n_head, dim=1),
        "without dim=1 the tensor is flattened: repeat along the heads.": share_by(
            lambda k, group, H: k.repeat_interleave(group)
        ),
        "the batch is repeated: the heads are dimension 1.": share_by(
            lambda k, group, H: k.repeat_interleave(group, dim=0)
        ),
        "the positions are repeated: the heads are dimension 1.": share_by(
            lambda k, group, H: k.repeat_interleave(group, dim=2)
        ),
        "the head dimension is repeated: the heads are dimension 1.": share_by(
            lambda k, group, H: k.repeat_interleave(group, dim=3)
        ),
        "all query heads get KV head 0: that is right only if there is a single KV head.": share_by(
            lambda k, group, H: k[:, :1].expand(-1, H, -1, -1)
        ),
        "expand repeats only dimensions of size 1, but there are more KV heads: add a dimension "
        "first, as in k[:, :, None].": share_by(lambda k, group, H: k.expand(-1, H, -1, -1)),
        "the KV heads are in reverse order: query head 0 gets the first.": share_by(
            lambda k, group, H: k.flip(1).repeat_interleave(group, dim=1)
        ),
        "the group size is computed from the batch size, k.shape[0]: the heads are k.shape[1].": (
            lambda k, n_head: k.repeat_interleave(max(n_head // k.shape[0], 1), dim=1)
        ),
        "the group size is computed from the length, k.shape[2]: the heads are k.shape[1].": (
            lambda k, n_head: k.repeat_interleave(max(n_head // k.shape[2], 1), dim=1)
        ),
        "the memory is cut up in storage order, which mixes texts: repeat along "
        "the heads.": flat_reshape,
        "heads and positions are swapped: return (B, n_head, S, hs).": share_by(
            lambda k, group, H: k.repeat_interleave(group, dim=1).transpose(1, 2)
        ),
        "the group is left as a separate dimension: merge the two, (B, n_head, S, hs).": (
            share_by(lambda k, group, H: k[:, :, None].expand(-1, -1, group, -1, -1))
        ),
        "the missing heads are zeros: all query heads of a group get the same keys.": share_by(
            lambda k, group, H: torch.cat([k, k.new_zeros(len(k), H, *k.shape[2:])], 1)[:, :H]
        ),
        "the missing heads are copies of the last one: form groups of equal size.": share_by(
            lambda k, group, H: k[:, torch.arange(H).clamp(max=k.shape[1] - 1)]
        ),
        "the keys are divided by the group size: copies must equal the original.": share_by(
            lambda k, group, H: k.repeat_interleave(group, dim=1) / group
        ),
        "all query heads get the mean of the keys: each gets its own group's.": share_by(
            lambda k, group, H: k.mean(1, keepdim=True).expand(-1, H, -1, -1)
        ),
        "the keys become float32: keep the input's dtype.": share_by(
            lambda k, group, H: k.repeat_interleave(group, dim=1).float()
        ),
        "the keys are detached, so a model would not learn: leave detach() and .data "
        "out.": share_by(lambda k, group, H: k.detach().repeat_interleave(group, dim=1)),
    },
    advice={
        "the shape": (
            "(B, n_head, S, hs): each KV head n_head // k.shape[1] times, along dimension 1."
        ),
        "no gradient": "Leave detach() and no_grad() out.",
        "the keys of": (
            "Neighbours share: query head h gets KV head h // group, where group is n_head // "
            "k.shape[1]."
        ),
        "the gradient": "Keys get gradients from every query head that reads them.",
    },
    axes=[("text", "position", "number"), ("text", "head", "position", "number")],
)
