"""The path of a token: rows are tokens, columns are the stages of a forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import style
from .canvas import legend, letters, note, page, page_width
from .style import BLUE, ORANGE, PALE, VERMILION, styled

_Column = tuple[
    str, Sequence[Sequence[float]], bool
]  # name, one row per token, whether it is cached

ROW = 0.125  # inches: the height of a row
LEFT = 0.28  # left edge of the columns
_GAP = 0.09  # between two columns
ON_A_PHONE = ("query", "key", "value", "attention weights", "logits")


@styled
def token_path(chars: Sequence[str], columns: Sequence[_Column], title: str) -> Figure:
    """The work of a decode step in each stage, with a cache (above) and without one (below).

    The last of `chars` is the token being read. A column has a name, a row of numbers from 0 to 1
    for each token, and whether the cache keeps it. Rows that a step computes again have a colour
    of their own, and the headings count them. A phone shows only the columns ON_A_PHONE.
    """
    if style.narrow():
        columns = [column for column in columns if column[0] in ON_A_PHONE]
    high = ROW * len(chars)
    above = 0.85
    below = above + high + 0.4
    figure, axes = page(below + high + 1.06, title)
    wide = (page_width() - LEFT) / len(columns)
    for i, (name, _, _) in enumerate(columns):
        size = 8 if style.narrow() else 9.5
        words = style.wrapped(name, size, wide - _GAP / 2)
        note(axes, LEFT + i * wide, above - 0.12, words, size, "baseline", linespacing=1.1)
    # Each column has a row for each token: the newest is computed either way.
    new = len(columns)
    older = len(chars) - 1
    kept = older * sum(kept for _, _, kept in columns)
    for y, words in (
        (0.1, f"With a cache: {new} rows computed, {kept} read"),
        (below - 0.14, f"Without a cache: {new * len(chars)} rows computed, all but {new} again"),
    ):
        note(axes, 0, y, words, 9 if style.narrow() else 10.5, "baseline", weight="bold")
    _panel(axes, above, wide, chars, columns, cached=True)
    _panel(axes, below, wide, chars, columns, cached=False)
    rows = [
        ("new", "computed for the first time"),
        ("old", "read from the cache"),
        ("recomputed", "computed again, with the same result as in the step before"),
    ]
    legend(axes, below + high + 0.3, rows)
    return figure


def _panel(
    axes: Axes,
    y: float,
    wide: float,
    chars: Sequence[str],
    columns: Sequence[_Column],
    cached: bool,
) -> None:
    """One step: the rows of each column that it computes or reads; lines for the others."""
    last = len(chars) - 1
    letters(axes, chars, (0.12, y + ROW / 2), (0, ROW), 7.2)
    for i, (_, rows, kept) in enumerate(columns):
        x = LEFT + i * wide
        for t, row in enumerate(rows):
            top = y + t * ROW
            if cached and t < last and not kept:
                axes.plot([x, x + wide - _GAP], [top + ROW / 2] * 2, color=PALE, lw=0.8)
                continue
            older = BLUE if cached else VERMILION
            colour = older if t < last else ORANGE
            picture = np.array([[style.mixed(colour, 0.08 + 0.92 * share) for share in row]])
            place = (x, x + wide - _GAP, top + 0.9 * ROW, top + 0.1 * ROW)
            axes.imshow(picture, extent=place, aspect="auto", interpolation="nearest")
