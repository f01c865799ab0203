"""Figures of equal tokens, last bits and masks."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from . import canvas, style
from .style import (
    BLANKS,
    BLUE,
    GREEN,
    INK,
    MONO,
    ORANGE,
    PALE,
    PAPER,
    VERMILION,
    Data,
    Look,
    styled,
)

LEVELS = [1, 2, 4, 16, 64, 256]  # float32 numbers apart


@styled
def token_strips(
    strips: list[Data],
    title: str,
    columns: int = 40,
    wrong: bool = True,
    names: tuple[str, str] | None = None,
) -> Figure:
    """Strips of characters, the first `columns` of each; some are green, the others orange.

    A strip has a `label` and a `text`; a marked strip also has `green`, a flag per character, and a
    `note` on the whole text. With `wrong`, the other characters are red and struck out. `names`
    are the legend: what green means, and what the other colour means. On a phone a strip is wrapped
    below its label.
    """
    other = (VERMILION, 0.3) if wrong else (ORANGE, 0.85)
    folded = style.narrow()
    across = min(columns, 30) if folded else columns
    step = 0.85 + -(-columns // across) if folded else 1
    height = (0.7 if folded else 1.05) + 0.44 * step * len(strips)
    figure, (axes,) = canvas.new_panels(height, title)
    for i, strip in enumerate(strips):
        top = step * i + 0.7 * folded
        _strip(axes, top, strip, columns, across, other)
        label = strip["label"]
        note = strip.get("note", "")
        if folded:
            axes.text(0, top - 0.32, label, va="center", fontsize=9)
            canvas.label(axes, across, top - 0.32, note, size=9, ha="right")
        else:
            axes.text(-0.4, top + 0.4, label, ha="right", va="center", fontsize=8.3)
            canvas.label(axes, across + 0.4, top + 0.4, note, size=8.3)
    sides = (0, across) if folded else (-0.3 * columns, 1.17 * columns)
    axes.set(xlim=sides, ylim=(step * len(strips) - 0.1, -0.15))
    axes.axis("off")
    if names:
        colours = ((GREEN, 0.32), other)
        boxes = [
            Rectangle((0, 0), 1, 1, color=colour, alpha=alpha, lw=0, label=name)
            for name, (colour, alpha) in zip(names, colours, strict=True)
        ]
        figure.set_figheight(figure.get_figheight() + 0.3)
        canvas.names_below(figure, boxes)
    return figure


def _strip(
    axes: Axes, top: float, strip: Data, columns: int, across: int, other: tuple[str, float]
) -> None:
    """The characters of a strip in lines of `across` characters, from `top` down."""
    marks = strip.get("green", [None] * columns)
    size = 8 if across <= 40 else 6.8
    for i, (char, green) in enumerate(zip(strip["text"][:columns], marks, strict=False)):
        x = i % across
        y = top + i // across
        look = other
        if green is None:
            look = (PALE, 1)
        elif green:
            look = (GREEN, 0.32)
        colour, alpha = look
        axes.add_patch(Rectangle((x, y), 0.94, 0.76, color=colour, alpha=alpha, lw=0))
        canvas.letter(axes, x + 0.47, y + 0.4, char, size)
        if colour == VERMILION:
            axes.plot((x + 0.12, x + 0.82), (y + 0.4, y + 0.4), color=VERMILION, lw=1)


@styled
def last_bits(panels: list[Data], title: str) -> Figure:
    """The distance of two computations of each logit, in float32 numbers: darker is further.

    A panel has a `label` and `apart`, integers by step and character. Equal logits are white.
    """
    n = len(panels)
    figure, column = canvas.new_panels(1.1 + 1.45 * n, title, rows=n, sharex=True)
    most = max(np.max(panel["apart"]) for panel in panels)
    norm = BoundaryNorm([*LEVELS, max(most + 1, 2 * LEVELS[-1])], 256)
    colours = LinearSegmentedColormap.from_list("apart", ["#fbd5b5", VERMILION, "#4a1c00"])
    for axes, panel in zip(column, panels, strict=True):
        image = axes.imshow(
            np.transpose(panel["apart"]),
            interpolation="nearest",
            cmap=colours.with_extremes(under=PAPER),
            norm=norm,
            aspect="auto",
            extent=(0.5, len(panel["apart"]) + 0.5, 1, 0),
        )
        axes.set(**canvas.fit_names(title=panel["label"]))
        axes.set(yticks=(), ylabel="character")
        axes.grid(False)
    column[-1].set_xlabel("new token")
    where = "bottom" if style.narrow() else "right"
    bar = figure.colorbar(image, ax=column, extend="min", aspect=30, location=where)
    bar.set_ticks(LEVELS, labels=[*map(str, LEVELS[:-1]), f"{LEVELS[-1]}+"])
    bar.set_label("float32 numbers apart")
    return figure


@styled
def masks(panels: list[Data], title: str) -> Figure:
    """Attention masks, in panels with a `label`, positions `q` and `k`, and a (T, S) `mask`.

    Queries down, keys across, in the order of the cache; -1 is an empty slot. `names`, for the
    queries and the keys, replace the positions. There are three panels per row, two on a phone,
    each as high as its queries need; a single panel is as wide as the page.
    """
    columns = min(len(panels), 2 if style.narrow() else 3)
    rows = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    heights = []
    for row in rows:
        heights.append(2.0 + max(len(panel["q"]) for panel in row))
    cell = 0.0612 * style.width() / columns  # inches, with the space around a panel
    height = 0.5 + cell * sum(heights) + 0.2 * len(rows) * style.narrow()
    figure, places = canvas.new_panels(height, title, len(rows), columns, height_ratios=heights)
    for axes in places[len(panels) :]:
        axes.remove()
    for axes, panel in zip(places, panels, strict=False):
        _mask(axes, panel)
        if style.narrow():
            axes.set_title(style.wrapped(axes.get_title("left"), 8.5, 3.4 / columns, bold=True))
    return figure


def _mask(axes: Axes, panel: Data) -> None:
    """One mask: visible keys are blue, a query's own position darker."""
    colours = LinearSegmentedColormap.from_list("mask", (PALE, "#9cc7e4", BLUE))
    q_pos = panel["q"]
    k_pos = panel["k"]
    shades = np.where(np.equal.outer(q_pos, k_pos), 1.0, 0.62) * np.array(panel["mask"])
    queries = q_pos
    keys = ["∅" if p < 0 else p for p in k_pos]
    if len(keys) > 12:  # every second name, including the last, so that they do not touch
        keys = [key if (len(keys) - i) % 2 else "" for i, key in enumerate(keys)]
    font: Look = {"fontsize": 6.8}
    if "names" in panel:
        query_names, key_names = panel["names"]
        queries = [BLANKS.get(char, char) for char in query_names]
        keys = [BLANKS.get(char, char) for char in key_names]
        font = {"fontsize": 10, "family": MONO, "parse_math": False}
    axes.pcolormesh(shades, cmap=colours, vmin=0, vmax=1, edgecolors=PAPER, lw=1.2)
    axes.set_aspect("equal")
    axes.invert_yaxis()
    canvas.bare(axes)
    axes.tick_params(pad=2)
    axes.set_xticks(np.arange(len(keys)) + 0.5, keys, **font)
    axes.set_yticks(np.arange(len(queries)) + 0.5, queries, **font)
    axes.set_title(panel["label"], fontsize=8.5, pad=4, color=INK)
