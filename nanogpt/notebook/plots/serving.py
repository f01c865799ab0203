"""Figures of many requests: what each spends its time on, and the load that a server carries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator

from . import canvas, style
from .style import BLUE, GREEN, GREY, INK, ORANGE, PALE, PAPER, SKY, VERMILION, styled

KINDS = {  # what a time is spent on: its name and its look
    "travels": ("on its way", {"facecolor": SKY}),
    "waits": ("waits", {"facecolor": PAPER, "ls": ":"}),
    "prompt": ("reads the prompt", {"facecolor": BLUE}),
    "token": ("a token", {"facecolor": ORANGE}),
    "idle": ("an idle place", {"facecolor": PALE, "hatch": "////"}),
}
LOAD_COLOURS = (GREY, VERMILION, BLUE, GREEN, INK, ORANGE, SKY, "#CC79A7")


@styled
def timelines(panels: Sequence[dict], title: str, clock: str) -> Figure:
    """Each request a line of boxes on one clock, which `clock` names, a panel for each schedule.

    A panel is {"name", "rows"}; a row {"spans": [(start, end, kind)]} with the kinds of KINDS, and
    perhaps its "name" and "tokens", times at which one arrives. Idle is a place in the batch that
    computes for nobody.
    """
    named = "name" in panels[0]["rows"][0]
    heights = [0.55 + (0.3 if named else 0.15) * len(panel["rows"]) for panel in panels]
    size = {"rows": len(panels), "sharex": True, "height_ratios": heights}
    figure, column = canvas.new_panels(0.8 + sum(heights), title, **size)
    for axes, panel in zip(column, panels, strict=True):
        for y, row in enumerate(panel["rows"]):
            for span in row["spans"]:
                _span(axes, y, *span)
            axes.vlines(row.get("tokens", ()), y - 0.4, y + 0.4, color=ORANGE, lw=1.1)
        axes.set_yticks(range(len(panel["rows"])), [row.get("name", "") for row in panel["rows"]])
        axes.set(ylim=(len(panel["rows"]) - 0.4, -0.6), ylabel="" if named else "requests")
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.set_title(panel["name"])
    column[-1].set(xlabel=clock, xlim=(0, None))
    _key(column[0], [row for panel in panels for row in panel["rows"]])
    return figure


def _span(axes: Axes, y: float, start: float, end: float, kind: str) -> None:
    """A time in row y: a box, or the dotted line of one who waits."""
    if kind == "waits":
        axes.plot([start, end], [y, y], color=GREY, lw=1, ls=":")
        return
    edge = {"edgecolor": GREY, "lw": 0} if kind == "idle" else {"edgecolor": PAPER, "lw": 0.5}
    axes.add_patch(Rectangle((start, y - 0.4), end - start, 0.8, **edge, **KINDS[kind][1]))


def _key(axes: Axes, rows: Sequence[dict]) -> None:
    """What the boxes of these rows mean, on the right above the first panel."""
    shown = {kind for row in rows for *_, kind in row["spans"]}
    shown |= {"token" for row in rows if row.get("tokens")}
    handles = [
        Rectangle((0, 0), 1, 1, label=words, edgecolor=GREY, **look)
        for kind, (words, look) in KINDS.items()
        if kind in shown
    ]
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    axes.legend(handles=handles, ncols=len(handles), fontsize=8, columnspacing=1.0, **place)


@styled
def load(panels: Sequence[dict], title: str) -> Figure:
    """Throughput, and the 95th percentile of the latency, against the rate of the requests.

    A panel is {"name", "curves"}, and a curve {"name", "rows"}: the rows of `bench load` from the
    lowest rate to the highest, None for all at once. Bars go from the lowest value to the highest.
    """
    size = {"rows": len(panels), "columns": 2}
    figure, places = canvas.new_panels(0.9 + 2.4 * len(panels), title, **size)
    for left, right, panel in zip(places[::2], places[1::2], panels, strict=True):
        _curves(left, panel["curves"], "tokens_per_second", 1.0)
        _curves(right, panel["curves"], "e2el_p95", 1e-3)
        canvas.log_axis(right, "y")
        right.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        left.set_ylim(0, None)
        for axes, what in ((left, "tokens a second"), (right, "p95 of a whole answer, ms")):
            axes.yaxis.set_major_formatter("{x:,.0f}")
            axes.set_title(f"{panel['name']}: {what}")
    for axes in places[-2:]:
        axes.set_xlabel("requests a second")
    canvas.names_below(figure, places[0].get_legend_handles_labels()[0])
    return figure


def _curves(axes: Axes, curves: Sequence[dict], key: str, unit: float) -> None:
    """One number of each schedule, by rate: the rates are equally far apart."""
    rates = [row["rate"] for row in curves[0]["rows"]]
    for colour, curve in zip(LOAD_COLOURS, curves, strict=False):
        look = {"color": colour, "ms": 3.5, "lw": 1.4, "elinewidth": 0.8, "label": curve["name"]}
        y, high = _spread([row[key] for row in curve["rows"]], unit)
        axes.errorbar(
            [rates.index(row["rate"]) for row in curve["rows"]], y, high, fmt="o-", **look
        )
    names = ["all at once" if rate is None else f"{rate:g}" for rate in rates]
    axes.set_xticks(range(len(rates)), names)


def _spread(summaries: Sequence[dict], unit: float = 1.0) -> tuple[np.ndarray, list]:
    """The medians, and how far the lowest and the highest value lie from them."""
    low, mid, high = np.array([style.low_mid_high(one, unit) for one in summaries]).T
    return mid, [mid - low, high - mid]
