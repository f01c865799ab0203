"""Parts of drawn pictures: a page measured in inches, cells, arrows, a legend in words.

On such a page x runs to the right and y down, both in inches from the top left corner.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from . import style
from .colour import ink_on
from .style import BLUE, GREY, INK, ORANGE, PALE, PAPER, VERMILION

PAGE = style.WIDTH - 0.2  # inches that a page is wide
FILLS = {  # what a cell is: its fill, its edge, its hatch
    "old": ("#bcdcf0", BLUE, None),
    "new": (ORANGE, "#8a5f00", None),
    "unread": (PALE, "#b6bbc4", None),
    "again": (PAPER, VERMILION, "////"),
    "free": (PAPER, "#b6bbc4", None),
}


def page(height: float, title: str, equal: bool = False) -> tuple[Figure, Axes]:
    """A figure with one page without a frame, `height` inches high below its title.

    `equal`: circles stay round whatever the footer takes.
    """
    figure = style.blank_figure((height + 0.4) * (1.07 if equal else 1))
    axes = figure.add_subplot()
    axes.set(xlim=(-0.04, PAGE), ylim=(height, 0))
    if equal:
        axes.set_aspect("equal", anchor="N")
    axes.axis("off")
    style.headline(figure, title)
    return figure, axes


def cell(axes: Axes, x: float, y: float, size: tuple, kind: str = "old", text: str = "") -> None:
    """A box with one character (or a short text) in it; `kind` is one of FILLS."""
    fill, edge, hatch = FILLS[kind]
    width, height = size
    look = {"facecolor": fill, "edgecolor": edge, "lw": 0.9, "hatch": hatch, "hatch_linewidth": 0.6}
    axes.add_patch(Rectangle((x + 0.03, y), width - 0.06, height, **look))
    font = {"family": style.MONO if len(text) == 1 else None, "parse_math": False}
    behind = {"bbox": style.BEHIND} if hatch else {}
    shown = style.BLANKS.get(text, text)
    font |= {"ha": "center", "va": "center_baseline", "weight": "bold", "fontsize": 11.5}
    colour = GREY if kind == "unread" else INK
    axes.text(x + width / 2, y + height / 2, shown, color=colour, **font, **behind)


def cells(axes: Axes, x: float, y: float, size: tuple, texts: Sequence, kinds: Sequence) -> None:
    """A row of cells without gaps."""
    for i, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
        cell(axes, x + i * size[0], y, size, kind, text)


def pill(axes: Axes, x: float, y: float, text: str, width: float, kind: str = "new") -> None:
    """A rounded box around the point (x, y), for what passes by and is not kept."""
    fill, edge, _ = FILLS[kind]
    corner, shape = (x - width / 2, y - 0.15), "round,pad=0,rounding_size=0.15"
    axes.add_patch(FancyBboxPatch(corner, width, 0.3, shape, facecolor=fill, edgecolor=edge))
    font = {"ha": "center", "va": "center_baseline", "weight": "bold", "fontsize": 10.5}
    axes.text(x, y, text, parse_math=False, **font)


def name(axes: Axes, y: float, text: str, note: str = "", colour: str = INK) -> None:
    """The name of a row on the left edge, level with y, and a grey note under it."""
    up = 0.09 if note else 0.0
    axes.text(0, y - up, text, fontsize=11, weight="bold", va="center", color=colour)
    if note:
        axes.text(0, y + up + 0.02, note, fontsize=9, va="center", color=GREY)


def legend(axes: Axes, y: float, rows: Sequence[tuple[str, str]]) -> None:
    """What each kind of cell means, a line of words each, from y down."""
    for i, (kind, words) in enumerate(rows):
        fill, edge, hatch = FILLS[kind]
        look = {"facecolor": fill, "edgecolor": edge, "hatch": hatch, "lw": 0.9}
        axes.add_patch(Rectangle((0.02, y + 0.26 * i - 0.08), 0.24, 0.16, **look))
        axes.text(0.36, y + 0.26 * i, words, fontsize=10.5, va="center_baseline")


def grid(
    axes: Axes, x: float, y: float, size: tuple, colours: Sequence, texts=None, font=8
) -> None:
    """Rows of coloured cells with white gaps, from (x, y) on; None is a hatched, empty cell.

    `texts` are the words in the cells, row by row, and `font` is their size in points.
    """
    width, height = size
    for i, row in enumerate(colours):
        for j, colour in enumerate(row):
            left, top = x + j * width, y + i * height
            look = {"facecolor": colour, "edgecolor": PAPER, "lw": 0.9}
            if colour is None:
                look = {"facecolor": PAPER, "edgecolor": "#d3d8df", "lw": 0, "hatch": "///"}
            axes.add_patch(Rectangle((left, top), width, height, **look))
            if texts and colour is not None:
                place = {"ha": "center", "va": "center_baseline", "fontsize": font}
                middle = left + width / 2, top + height / 2
                axes.text(*middle, texts[i][j], color=ink_on(colour), **place)


def letters(axes: Axes, chars: Sequence[str], start: tuple, step: tuple, size: float = 10) -> None:
    """Characters in a row or a column: the first at `start`, each `step` further."""
    for i, char in enumerate(chars):
        style.letter(axes, start[0] + i * step[0], start[1] + i * step[1], char, size, "bold")


def note(axes: Axes, x: float, y: float, text: str, size: float = 10.5, **kwargs) -> None:
    """Lines of words from (x, y) to the right and down."""
    kwargs = {"va": "top", "linespacing": 1.45, "parse_math": False, **kwargs}
    axes.text(x, y, text, fontsize=size, **kwargs)
