"""Batches of texts of different lengths, padded on the left or on the right.

What one pass without a cache does with padding is not the cache's fault: so that is compared with
each text alone first, and the cache then with that pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from .contract import Model
from .errors import ERRORS, NotOffered, OutOfTime, first_line
from .judging import judge
from .reference import Reference
from .report import Judgement, Mistake, Verdict
from .scripts import padding_script


@dataclass(frozen=True, eq=False)
class Padding:
    """A padded batch and the pieces in which it is read; all (B, T) but `texts`."""

    name: str
    ids: Tensor
    mask: Tensor  # 0 at padding
    texts: tuple[Tensor, ...]  # each without padding, (1, t)
    lengths: tuple[int, ...]
    right: bool = False

    def read(self, model: Model, cached: bool) -> Tensor:
        """The logits of all columns, 0 at padding.  -> (B, T, V)"""
        lengths = list(self.lengths) if cached else None
        logits = model.padded(self.ids, self.mask, lengths)
        return torch.where(self.mask[..., None] > 0, logits, 0)

    def unpadded(self, logits: list[Tensor]) -> Tensor:
        """Logits of each text alone, (t, V), at the columns of its tokens.  -> (B, T, V)"""
        placed = logits[0].new_zeros(*self.ids.shape, logits[0].shape[-1])
        for row, one in enumerate(logits):
            placed[row, self.mask[row] > 0] = one
        return placed


def left_padding(ids: Tensor, n: int) -> Padding:
    """Texts whose first columns are padding.  (B, T)"""
    rows = len(ids)
    n = n if rows < 4 else min(n, 48)
    pads = [min(pad, n - 4) for pad in (0, 5, n // 3, 1, n // 2, 2, 16, 3)][:rows]
    if rows == 2:
        pads = [3, 8]  # as if batches are padded to a multiple
    place = torch.arange(n) - torch.tensor(pads)[:, None]  # in its own text
    real = place >= 0
    ids = ids.gather(1, place.clamp(min=0))
    texts = tuple(row[seen][None] for row, seen in zip(ids, real, strict=True))
    lengths = (n // 2, 1, 1, 3, 1, n - n // 2 - 6)
    name = f"left padding of {rows} texts of {n} tokens"
    return Padding(name, ids, real.long(), texts, lengths)


def right_padding(ids: Tensor) -> Padding:
    """Prompts padded on the right, then single tokens: the padding stays in between.  (3, T)"""
    n = ids.shape[1]
    prompt = n // 2
    new = 6
    pads = torch.tensor([0, 3, n // 4])
    columns = torch.arange(prompt + new)
    padding = (columns >= prompt - pads[:, None]) & (columns < prompt)
    place = torch.where(padding, 0, columns - pads[:, None] * (columns >= prompt))
    padded = ids.gather(1, place)
    texts = tuple(row[~unseen][None] for row, unseen in zip(padded, padding, strict=True))
    lengths = (prompt, *[1] * new)
    name = f"right padding of prompts of {prompt} tokens"
    return Padding(name, padded, (~padding).long(), texts, lengths, right=True)


def judge_padding(reference: Reference, padding: Padding) -> tuple[Judgement, Judgement]:
    """Judge a padded batch read through the cache, and read in one pass. Raises NotOffered."""
    model, yard = reference.model, reference.yard
    # 1. One pass, against each text alone.
    alone = padding.unpadded(reference.expected([one[0] for one in padding.texts]))
    try:
        plain = padding.read(model, cached=False)
    except OutOfTime:
        raise
    except model.refusals as refusal:
        raise NotOffered(first_line(refusal)) from None
    except ERRORS as error:
        words = f"one pass without a cache fails with {type(error).__name__}"
        raise NotOffered(f"{words}: {first_line(error)}") from None
    name = f"{padding.name} in one pass, against each text alone"
    once = judge(yard, name, list(plain), list(alone), partial(padding.read, model, cached=False))
    if padding.right and not once.verdict.sound:
        raise NotOffered("one pass without a cache does not read right padding either")
    # 2. The cache, against that pass; NaN there is not its fault.
    wanted = alone if padding.right else plain
    seen = plain.isfinite().all(-1, keepdim=True)
    wanted = torch.where(seen, wanted, 0)

    def read() -> Tensor:
        return torch.where(seen, padding.read(model, cached=True), 0)

    against = "against each text alone" if padding.right else "against one pass"
    name = f"{padding.name} through the cache, {against}"
    try:
        finding = judge(yard, name, list(read()), list(wanted), read)
    except OutOfTime:
        raise
    except model.refusals as refusal:
        raise NotOffered(first_line(refusal)) from None
    except ERRORS as error:
        words = f"it fails with {type(error).__name__}: {first_line(error)}"
        finding = Judgement(name, Verdict.BUG, words, math.inf)
    # 3. A bug gets its kind of mistake and a script.
    if finding.verdict is Verdict.BUG:
        finding.mistake, finding.cause = _mistake(reference, padding)
        finding.code = padding_script(model, finding, padding.ids, padding.mask, padding.lengths)
    return finding, once


def _mistake(reference: Reference, padding: Padding) -> tuple[Mistake | None, str]:
    """The mistake of a padded batch, if it is that the padding is read as text."""
    model, yard = reference.model, reference.yard
    other = torch.where(padding.mask > 0, padding.ids, (padding.ids + 1) % model.vocab_size)
    try:
        usual = padding.read(model, cached=True)
        changed = replace(padding, ids=other).read(model, cached=True)
    except ERRORS:
        return None, ""
    if float(yard.sizes(changed, usual).max()) > yard.inside:
        return Mistake.MASK, "the logits depend on what the padding is: it is read as text"
    return None, "what the padding is has no influence; its place, or the positions, may have"
