"""The judges of attention_weights and visible."""

from __future__ import annotations

import torch
from torch import Tensor

from .common import Objection, drawn, first_match, near, need, objects, shape_of, untouched

HIDDEN = float("-inf")
# Leading dimensions, queries, keys, head size, and how long the queries are.
SHAPES = [
    ((), 5, 6, 3, 1.0, torch.float32),
    ((2, 3), 4, 7, 5, 1.0, torch.float32),
    ((3,), 6, 130, 9, 1.0, torch.float64),
    ((2,), 1, 11, 17, 1.0, torch.float32),
    ((9,), 7, 4, 6, 1.0, torch.float64),
    ((2,), 3, 1200, 8, 1.0, torch.float64),
    ((2,), 5, 8, 6, 300.0, torch.float64),
    ((2,), 5, 8, 6, 1000.0, torch.float64),
]


# ------------------------------------------------------------------ attention_weights


@objects
def attention_weights(answer) -> None:
    """Scores, mask and softmax, for any leading dimensions; gradients flow through all of it."""
    for lead, T, S, hs, size, dtype in SHAPES:
        q = size * drawn(*lead, T, hs, seed=1, dtype=dtype)
        k = drawn(*lead, S, hs, seed=2, dtype=dtype)
        mask = _some_mask(T, S)
        if size == 300:  # the scores that can be seen are far below those that cannot
            scores = (q @ k.mT).flatten(0, -3)[0]
            mask = scores <= scores.median(-1, keepdim=True).values
        _check_weights(untouched(answer, q=q, k=k, mask=mask), q, k, mask)
        _check_again(answer, q, k, mask)
    _check_gradients(answer)


def _check_again(answer, q: Tensor, k: Tensor, mask: Tensor) -> None:
    """A second call of the same shapes has its own q, k and mask, and leaves gradients on."""
    need(
        torch.is_grad_enabled(),
        "after your function gradients are off for all code that follows: leave them on.",
    )
    q = -q
    k = k.flip(-2)
    mask = mask.flip(-1)
    again = answer(q, k, mask)
    if near(again, _softmax_of(q, k, mask)):
        return
    words = first_match(again, _mask_mistakes(q @ k.mT * q.shape[-1] ** -0.5, mask))
    if words:
        raise Objection(f"{words}.")
    raise Objection(
        "the first call is right, and a second one of the same shapes is not: nothing may be kept "
        "from one call to the next."
    )


def _some_mask(T: int, S: int) -> Tensor:
    """A mask that is no triangle, with a key at least for each query.  -> (T, S)"""
    mask = drawn(T, S, seed=3) > 0
    mask[torch.arange(T), torch.arange(T) % S] = True
    return mask


def _softmax_of(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return scores.masked_fill(~mask, HIDDEN).softmax(-1)


def _check_weights(weights, q: Tensor, k: Tensor, mask: Tensor) -> None:
    """Raise Objection unless these are the weights of q, k and mask."""
    right = _softmax_of(q, k, mask)
    case = f"for q {tuple(q.shape)} and k {tuple(k.shape)}"
    shape = f"{case} the weights are {tuple(right.shape)}, a row for each query; yours are"
    if not isinstance(weights, Tensor) or weights.shape != right.shape:
        turned = " Turn the last two dimensions around: k.transpose(-2, -1)." if q.ndim > 2 else ""
        raise Objection(f"{shape} {shape_of(weights)}.{turned}")
    if near(weights, right):
        same = f"{case} in {q.dtype} the weights are {weights.dtype}: keep the dtype that comes in."
        return need(weights.dtype == q.dtype, same)
    words = first_match(weights, _weight_mistakes(q, k, mask))
    if words:
        raise Objection(f"{words}.")
    need(weights.isfinite().all(), _not_finite(weights, q, k))
    leaked = (weights * ~mask).abs().max()
    need(
        leaked == 0,
        f"a key that the mask hides gets a weight of {leaked:.2g}, where scores reach "
        f"{(q @ k.mT).abs().max() * q.shape[-1] ** -0.5:.0f}: hide it with -inf.",
    )
    if near(weights, right, 1e-3):
        by = (weights - right).abs().max()
        raise Objection(
            f"{case} in {q.dtype} they are off by {by:.1e}: keep the dtype, round nothing and add "
            "nothing."
        )
    wrong = (~torch.isclose(weights, right, atol=1e-4)).flatten(0, -2).any(-1).nonzero()[0, 0]
    rows = []
    for part in (right, weights):
        row = part.flatten(0, -2)[wrong].tolist()[:7]
        rows.append([round(share, 3) for share in row])
    raise Objection(f"{case} row {wrong} of the weights begins {rows[0]}; yours begins {rows[1]}.")


def _not_finite(weights: Tensor, q: Tensor, k: Tensor) -> str:
    kind = "NaN" if weights.isnan().any() else "infinite"
    scores = (q @ k.mT).abs().max() * q.shape[-1] ** -0.5
    if scores < 50:
        return (
            f"some of your weights are {kind}, and the scores are small: 0 times infinity is NaN, "
            "and so is a row that sees no key. Fill with masked_fill."
        )
    return (
        f"some of your weights are {kind}, where scores reach {scores:.0f}: exp() of a large one "
        "overflows, and a row of which all are 0 cannot be divided by its sum. Take out the "
        "maximum of each row's own visible scores first, or use softmax, which does."
    )


def _weight_mistakes(q: Tensor, k: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """The weights of common mistakes, by the words about them."""
    mistakes = _mask_mistakes(q @ k.mT * q.shape[-1] ** -0.5, mask)
    for words, size in _scales(q.shape[-1], *mask.shape).items():
        mistakes[words] = (size * (q @ k.mT)).masked_fill(~mask, HIDDEN).softmax(-1)
    if q.ndim > 2:
        summed = _softmax_of(q, k.sum(0, keepdim=True), mask)
        first = _softmax_of(q, k, mask)[:1].expand(*q.shape[:-1], k.shape[-2])
        mistakes["the keys are summed over the texts: each text has its own"] = summed
        mistakes["every text gets the weights of the first one"] = first
    return mistakes


def _scales(hs: int, T: int, S: int) -> dict[str, float]:
    """Factors of q kᵀ that are not 1 / √hs."""
    factors = {"the scores are not divided by √hs": 1}
    factors["the scores are divided by hs, not by its square root √hs"] = 1 / hs
    factors["the scores are multiplied by √hs: divide"] = hs**0.5
    factors["the scores are divided by √S, the number of keys: hs is q.shape[-1]"] = S**-0.5
    factors["the scores are divided by √T, the number of queries: hs is q.shape[-1]"] = T**-0.5
    factors["half the scores: that is √hs for hs = 4 alone; hs is q.shape[-1]"] = 0.5
    return factors


def _mask_mistakes(scores: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """The weights of a mask or a softmax that is used in another way, by the words about it."""

    def weights(seen: Tensor) -> Tensor:
        return scores.masked_fill(~seen, HIDDEN).softmax(-1)

    T, S = mask.shape
    hidden = scores.masked_fill(~mask, HIDDEN)
    none = "the mask is not used, so the future is not hidden: row 0 of a text should give all its "
    none += "weight to character 0"
    zero = "a score of 0 still gets weight, because exp(0) is 1: hide with -inf"
    mistakes = {none: scores.softmax(-1), zero: (scores * mask).softmax(-1)}
    mistakes["every query gets the mask of the last one"] = weights(mask[-1:].expand(T, S))
    late = "you hide after the softmax, so the rows no longer sum to 1"
    mistakes[late] = scores.softmax(-1) * mask
    mistakes["where the mask is True a query may look; you hide it there"] = weights(~mask)
    for diagonal in (0, S - T):
        triangle = torch.ones(T, S).tril(diagonal).bool()
        shape = "aligned bottom right" if diagonal else "aligned top left"
        mistakes[f"the mask is a triangle of yours, {shape}: take the one that comes in"] = weights(
            triangle
        )
    mistakes["these are logarithms of weights: softmax, not log_softmax"] = hidden.log_softmax(-1)
    mistakes["these are the scores; the softmax is missing"] = hidden
    mistakes["the softmax runs down the columns; each row, a query, must sum to 1"] = (
        hidden.softmax(-2)
    )
    for axis in range(scores.ndim - 2):
        mistakes["the softmax runs over the texts: its dimension is the last, -1"] = hidden.softmax(
            axis
        )
    return mistakes


def _check_gradients(answer) -> None:
    """Raise Objection unless the gradients of q and k are those of the formula."""
    mask = _some_mask(4, 7)
    upstream = drawn(2, 4, 7, seed=6, dtype=torch.float64)
    both = []
    for weights in (answer, _softmax_of):
        q = drawn(2, 4, 5, seed=4, dtype=torch.float64).requires_grad_()
        k = drawn(2, 7, 5, seed=5, dtype=torch.float64).requires_grad_()
        with torch.enable_grad():
            out = weights(q, k, mask)
        need(
            out.requires_grad,
            "no gradient flows through your weights, so queries and keys would never learn: "
            "no detach(), no no_grad(), no new torch.tensor(…) on the way.",
        )
        need(q.requires_grad and k.requires_grad, "you turn off the gradients of what comes in.")
        both.append(torch.autograd.grad((out * upstream).sum(), (q, k), allow_unused=True))
    for name, gradient, right in zip("qk", *both, strict=True):
        need(
            gradient is not None and near(gradient, right),
            f"the weights are right, and the gradient of {name} is not: something on the way is "
            "detached, so training would teach it nothing, or something else.",
        )


# ------------------------------------------------------------------ visible


@objects
def visible(answer) -> None:
    """True where a query may look: at its own position and before, never at an empty slot."""
    pos = torch.arange(4)
    slots = torch.tensor([0, 1, 2, 3, -1, -1])
    shuffled = torch.randperm(300, generator=torch.Generator().manual_seed(0)) - 1
    far = torch.tensor([0, 40_000, 3, -1, 2**31, 39_999])
    cases = [(pos[3:], pos), (pos[1:2], pos), (pos, pos), (pos, slots), (pos[1:3], slots)]
    cases += [(pos[3:], slots), (pos[:1], slots), (pos[2:], pos[2:]), (pos[2:] + 7, pos + 6)]
    cases += [(torch.arange(250, 273), torch.arange(273)), (torch.tensor([299, 3, 120]), shuffled)]
    cases += [
        (torch.tensor([40_000, 2**31]), far),
        (torch.tensor([2**24, 2**53]), torch.tensor([2**24 + 1, 2**53 + 1, 5])),
        (pos[:1], pos[:1]),
        (torch.arange(300), shuffled),
    ]
    nine = torch.arange(9)
    early = answer(nine[2:3], nine)
    late = answer(nine[5:6], nine)
    repeated = torch.equal(early, nine[None] <= 2) and torch.equal(early, late)
    need(not repeated, "a second call of the same shapes gets the mask of the first: keep nothing.")
    for q_pos, k_pos in cases:
        mask = untouched(answer, q_pos=q_pos, k_pos=k_pos)
        shape = (len(q_pos), len(k_pos))
        case = f"queries at {_few(q_pos)}, keys at {_few(k_pos)}"
        need(
            isinstance(mask, Tensor) and tuple(mask.shape) == shape,
            f"{case}: the mask must be {shape}, a row for each query, a column for each key; "
            f"yours is {shape_of(mask)}.",
        )
        need(
            mask.dtype == torch.bool,
            f"{case}: the mask must hold True and False, and yours holds {mask.dtype}.",
        )
        right = (k_pos[None, :] <= q_pos[:, None]) & (k_pos[None, :] >= 0)
        for i, j in (mask != right).nonzero()[:1].tolist():
            look = _wrong_look(int(q_pos[i]), int(k_pos[j]), bool(mask[i, j]))
            raise Objection(f"{case}: {look}")


def _few(pos: Tensor) -> str:
    """Positions in words, of a long text its ends."""
    few = pos.tolist()
    return str(few) if len(few) < 8 else f"[{', '.join(map(str, few[:3]))} … {few[-1]}]"


def _wrong_look(query: int, key: int, sees: bool) -> str:
    if sees and key < 0:
        return f"position -1 is an empty slot, and the query at {query} sees it."
    if sees:
        return f"the query at {query} sees the key at {key}, which is the future."
    if query == key:
        return f"the query at {query} must see the key of its own position."
    far = ", however far apart" if query - key > 4 else ""
    return f"the query at {query} must see the key at {key}: compare positions{far}."
