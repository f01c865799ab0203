"""Tools for all figures: figures and panels, axes, labels that do not collide, pages.

A page is a drawing without axes: x runs to the right and y down, both in inches from the top left
corner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from . import style
from .style import (
    BEHIND,
    BLUE,
    GREY,
    INK,
    ORANGE,
    PAPER,
    VERMILION,
    Colour,
    Look,
    Point,
    ink_on,
    on_paper,
)

DARK = "#8a5f00"  # dark orange, for lines that must be visible on paper
FILLS: dict[str, Look] = {  # by kind of cell
    "old": {"facecolor": "#bcdcf0", "edgecolor": BLUE},
    "new": {"facecolor": ORANGE, "edgecolor": DARK},
    "recomputed": {"facecolor": "#f4cbb3", "edgecolor": VERMILION},
    "again": {"facecolor": PAPER, "edgecolor": VERMILION, "hatch": "////"},
    "free": {"facecolor": PAPER, "edgecolor": "#b6bbc4"},
}


def new_panels(
    height: float, title: str, rows: int = 1, columns: int = 1, **kwargs: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of the standard width, `height` inches high, with axes in rows under one title.

    A title of several lines makes it higher.
    """
    title = style.wrapped(title, 11.5, style.width() - 0.1, bold=True)
    size = style.width(), height + 0.19 * title.count("\n")
    figure = Figure(figsize=size, dpi=style.DPI, layout="constrained")
    figure.suptitle(title, x=0.09 / style.width(), ha="left", fontsize=11.5, fontweight="bold")
    places = figure.subplots(rows, columns, squeeze=False, **kwargs)
    return figure, places.flatten().tolist()


def fit_names(title: str = "", xlabel: str = "", ylabel: str = "", **settings: Any) -> Look:
    """Settings of axes, with names wrapped as needed on a phone."""
    names = {"title": title, "xlabel": xlabel, "ylabel": ylabel}
    if style.narrow():
        names["title"] = style.wrapped(title.strip(), 9.5, 3.4, bold=True)
        names["xlabel"] = style.wrapped(xlabel, 9.5, 3.0)
        names["ylabel"] = style.wrapped(ylabel, 9.5, 2.2)
    return {**{name: words for name, words in names.items() if words}, **settings}


def label(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    colour: str = INK,
    size: float = 8.5,
    **kwargs: Any,
) -> None:
    """A bold label in the colour of its curve (or darker), level with y, starting at x."""
    font: Look = {"fontsize": size, "va": "center", "weight": "bold", **kwargs}
    axes.text(x, y, text, color=on_paper(colour), **font)


def letter(axes: Axes, x: float, y: float, char: str, size: float, **font: Any) -> None:
    """One character of text centred on (x, y), with visible blanks; a dollar is only a dollar."""
    font = {"family": style.MONO, "fontsize": size, "ha": "center", "va": "center", **font}
    axes.text(x, y, style.BLANKS.get(char, char), parse_math=False, **font)


def bare(axes: Axes) -> None:
    """Remove frame, grid and tick marks: for pictures made of boxes."""
    axes.grid(False)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


def names_below(figure: Figure, handles: Sequence[Artist]) -> None:
    """A legend below all panels, with four names per line, or two long ones.

    On a phone, half as many.
    """
    columns = 4 if max(len(str(handle.get_label())) for handle in handles) < 20 else 2
    if style.narrow():
        columns //= 2
        lines = -(-len(handles) // columns)
        figure.set_figheight(figure.get_figheight() + 0.19 * (lines - 1))
    figure.legend(
        handles=handles,
        ncols=min(len(handles), columns),
        fontsize=9,
        loc="outside lower center",
        borderaxespad=1.8,
    )


# ------------------------------------------------------------------ pages


def page_width() -> float:
    """Width of the page being drawn, in inches."""
    return style.width() - 0.2


def page(height: float, title: str, equal: bool = False) -> tuple[Figure, Axes]:
    """A figure with one page without a frame, `height` inches high below its title.

    `equal`: circles stay round whatever the height of the footer.
    """
    figure, (axes,) = new_panels((height + 0.4) * (1.07 if equal else 1), title)
    axes.set(xlim=(-0.04, page_width()), ylim=(height, 0))
    if equal:
        axes.set_aspect("equal", anchor="N")
    axes.axis("off")
    return figure, axes


def cells(
    axes: Axes, x: float, y: float, size: Point, texts: Sequence[str], kinds: Sequence[str]
) -> None:
    """A row of boxes without gaps, with a character in each; kinds are keys of FILLS."""
    width, height = size
    for i, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
        left_edge = x + i * width
        look: Look = {"lw": 0.9, "hatch_linewidth": 0.6, **FILLS[kind]}
        axes.add_patch(Rectangle((left_edge + 0.03, y), width - 0.06, height, **look))
        font: Look = {"va": "center_baseline", "weight": "bold"}
        if "hatch" in look:
            font["bbox"] = BEHIND
        letter(axes, left_edge + width / 2, y + height / 2, text, 11.5, **font)


def pill(axes: Axes, x: float, y: float, text: str, width: float, kind: str = "new") -> None:
    """A rounded box centred on (x, y), for something that is used and not kept."""
    corner = (x - width / 2, y - 0.15)
    shape = "round,pad=0,rounding_size=0.15"
    axes.add_patch(FancyBboxPatch(corner, width, 0.3, shape, **FILLS[kind]))
    font: Look = {"ha": "center", "va": "center_baseline", "weight": "bold", "fontsize": 10.5}
    axes.text(x, y, text, parse_math=False, **font)


def row_name(axes: Axes, y: float, text: str, note: str = "") -> None:
    """The name of a row at the left edge, level with y, with a grey note below it."""
    up = 0.09 if note else 0.0
    smaller = style.narrow()
    axes.text(0, y - up, text, fontsize=11 - smaller, weight="bold", va="center")
    if note:
        axes.text(0, y + up + 0.02, note, fontsize=9 - smaller, va="center", color=GREY)


def legend(axes: Axes, y: float, rows: Sequence[tuple[str, str]]) -> None:
    """The kinds of cells with their meanings, from y down."""
    size = 10 if style.narrow() else 10.5
    for kind, words in rows:
        lines = style.wrapped(words, size, page_width() - 0.4)
        more = lines.count("\n")
        axes.add_patch(Rectangle((0.02, y - 0.08), 0.24, 0.16, lw=0.9, **FILLS[kind]))
        look: Look = {"va": "center" if more else "center_baseline", "linespacing": 1.25}
        axes.text(0.36, y + 0.085 * more, lines, fontsize=size, **look)
        y += 0.26 + 0.17 * more


def grid(
    axes: Axes,
    x: float,
    y: float,
    size: Point,
    colours: Sequence[Sequence[Colour | None]],
    texts: Sequence[Sequence[str]] | None = None,
    font: float = 8,
) -> None:
    """Rows of coloured cells with white gaps, starting at (x, y); None is a hatched, empty cell.

    `texts` are the texts in the cells, row by row, and `font` is their size in points.
    """
    width, height = size
    for i, row in enumerate(colours):
        for j, colour in enumerate(row):
            left_edge = x + j * width
            top = y + i * height
            look: Look = {"facecolor": colour, "edgecolor": PAPER, "lw": 0.9}
            if colour is None:
                look = {"facecolor": PAPER, "edgecolor": "#d3d8df", "lw": 0, "hatch": "///"}
            axes.add_patch(Rectangle((left_edge, top), width, height, **look))
            if texts and colour is not None:
                place: Look = {"ha": "center", "va": "center_baseline", "fontsize": font}
                x_middle = left_edge + width / 2
                y_middle = top + height / 2
                axes.text(x_middle, y_middle, texts[i][j], color=ink_on(colour), **place)


def letters(axes: Axes, chars: Sequence[str], start: Point, step: Point, size: float = 10) -> None:
    """Characters in a row or a column: the first at `start`, each `step` further."""
    for i, char in enumerate(chars):
        letter(axes, start[0] + i * step[0], start[1] + i * step[1], char, size, weight="bold")


def note(
    axes: Axes, x: float, y: float, text: str, size: float = 10.5, va: str = "top", **font: Any
) -> None:
    """Lines of text, starting at (x, y)."""
    look: Look = {"va": va, "linespacing": 1.45, "parse_math": False, **font}
    axes.text(x, y, text, fontsize=size, **look)
