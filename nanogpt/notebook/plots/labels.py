"""Labels that do not collide: numbers in a column, names beside the ends of lines, a limit."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import style
from .colour import on_paper
from .style import BEHIND, VERMILION


def apart(values: Sequence[float], gap: float) -> list[float]:
    """Heights for labels: near their `values`, in the same order, at least `gap` apart."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    pools = []  # neighbours that push each other: the sum of their places, and how many they are
    for rank, i in enumerate(order):
        pools.append([values[i] - rank * gap, 1])
        while len(pools) > 1 and pools[-2][0] * pools[-1][1] > pools[-1][0] * pools[-2][1]:
            total, count = pools.pop()
            pools[-1] = [pools[-1][0] + total, pools[-1][1] + count]
    levels = [total / count for total, count in pools for _ in range(count)]
    places = dict(zip(order, levels, strict=True))
    return [places[i] + gap * order.index(i) for i in range(len(values))]


def beside_ends(axes: Axes, ends: Sequence[tuple], size: float = 8.5) -> None:
    """Names right of the axes, level with the ends of lines or joined to them by a thin line.

    An end is its x, its y, the name and the colour. Call it when the limits of y are set.
    """
    low, high = sorted(axes.get_ylim())
    rows = axes.get_gridspec().nrows
    inches = axes.figure.get_figheight() * 0.62 / rows  # about what axes take of the height
    places = apart([end[1] for end in ends], (high - low) * size * 1.25 / 72 / inches)
    for (x, y, name, colour), place in zip(ends, places, strict=True):
        font = {"color": on_paper(colour), "fontsize": size, "weight": "bold", "va": "center"}
        thin = {
            "arrowstyle": "-",
            "color": colour,
            "lw": 0.6,
            "alpha": 0.6,
            "shrinkA": 1,
            "shrinkB": 2,
        }
        where = {"xytext": (1.03, place), "textcoords": axes.get_yaxis_transform()}
        axes.annotate(
            name, (x, y), **where, arrowprops=thin, annotation_clip=False, zorder=1, **font
        )


def limit_band(axes: Axes, limit: dict | float, y: float, name: str) -> float:
    """A limit across all bars: a band from low to high, a dashed median, its name level with y.

    `limit` is a summary or, where its spread is not known, a number. Returns its highest value.
    """
    known = isinstance(limit, dict)
    low, mid, high = style.low_mid_high(limit) if known else (limit,) * 3
    axes.axvspan(low, high, color=VERMILION, alpha=0.16, lw=0, zorder=0)
    axes.axvline(mid, color=VERMILION, lw=1.6, ls="--", zorder=0.5)
    place = {"ha": "center", "va": "center", "bbox": BEHIND}
    style.label(axes, mid, y, name, VERMILION, **place)
    return high


def number_column(axes: Axes, texts: Sequence[str], size: float = 8.5) -> None:
    """The number of each row of bars right of the axes, where no bar and no limit can reach it."""
    for y, text in enumerate(texts):
        style.label(axes, 1.02, y, text, size=size, transform=axes.get_yaxis_transform())


def panels_over_names(height: float, columns: int = 1, **ratios) -> tuple[Figure, list, Axes]:
    """A figure with a row of panels, and below them empty axes for `names_below`."""
    figure = style.blank_figure(height)
    grid = figure.add_gridspec(2, columns, height_ratios=(height - 0.5, 0.16), **ratios)
    panels = [figure.add_subplot(grid[0, column]) for column in range(columns)]
    below = figure.add_subplot(grid[1, :])
    below.axis("off")
    return figure, panels, below


def names_below(below: Axes, handles: Sequence[Artist]) -> None:
    """One line of names under all panels, for the lines and marks given."""
    below.legend(handles=handles, loc="center", ncols=len(handles), fontsize=9, borderaxespad=0)
