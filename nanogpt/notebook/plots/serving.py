"""Pictures of many requests, and of what leaves the notebook: weights, gradients, texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator

from . import canvas, style
from .canvas import PAGE, grid, letters, note, page
from .style import BLUE, GREEN, GREY, INK, ORANGE, PALE, PAPER, SKY, VERMILION, styled

KINDS = {  # what a time is spent on: its name and its look
    "travels": ("on its way", {"facecolor": SKY}),
    "waits": ("waits", {"facecolor": PAPER, "ls": ":"}),
    "prompt": ("reads the prompt", {"facecolor": BLUE}),
    "token": ("a token", {"facecolor": ORANGE}),
    "idle": ("an idle place", {"facecolor": PALE, "hatch": "////"}),
}
LOAD_COLOURS = (GREY, VERMILION, BLUE, GREEN, INK, ORANGE, SKY, "#CC79A7")
TEXTS = (SKY, ORANGE, GREEN, "#CC79A7")  # a colour for each text


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
        canvas.subtitle(axes, panel["name"])
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
def step_mask(chars: Sequence[str], texts: Sequence[int], keys: Sequence, seen, title: str):
    """The flat step: a row for each query, a column for each key, and which pairs may look.

    `keys` are (character, text) of every column, and `seen` is a table of booleans.
    """
    wide = min(0.3, (PAGE - 1.2) / len(keys))
    figure, axes = page(0.75 + wide * len(chars), title)
    x, y = 0.9, 0.55
    colours = [
        [TEXTS[text % 4] if look else "#f3f4f6" for look in row]
        for text, row in zip(texts, seen, strict=True)
    ]
    grid(axes, x, y, (wide, wide), colours)
    letters(axes, [char for char, _ in keys], (x + wide / 2, y - 0.14), (wide, 0), 9)
    letters(axes, chars, (x - 0.15, y + wide / 2), (0, wide), 9)
    note(axes, x, 0.08, "keys →", 9, color=GREY)
    note(axes, 0, y, "queries ↓", 9, color=GREY)
    return figure


@styled
def gaps(panels: Sequence[dict], title: str) -> Figure:
    """The gaps between the tokens of texts that run while a long prompt enters.

    A panel is {"name", "points": [(time, gap)], "enters"}: when a gap ended, and how long it was.
    """
    figure, row = canvas.new_panels(2.9, title, columns=len(panels), sharey=True)
    for place, panel in zip(row, panels, strict=True):
        x, y = zip(*panel["points"], strict=True)
        place.vlines(x, 0, y, color=SKY, lw=1.4)
        place.plot(x, y, "o", color=BLUE, ms=2.6)
        place.axvline(panel["enters"], color=VERMILION, lw=1, ls="--")
        canvas.subtitle(place, panel["name"])
        place.set(xlabel="time", ylim=(0, None))
    row[0].set_ylabel("gap between two tokens")
    enters = (panels[-1]["enters"], 0.9 * row[-1].get_ylim()[1])
    canvas.label_point(row[-1], enters, "a long prompt enters", (5, 0), color=VERMILION)
    return figure


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
            canvas.subtitle(axes, f"{panel['name']}: {what}", 9)
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


@styled
def losses_apart(curves: Sequence[dict], title: str) -> Figure:
    """How far the losses of two runs are apart, step by step, on a log scale.

    A curve is {"name", "apart": [difference]}; a difference of 0 is drawn at the lower edge.
    """
    figure, axes = canvas.new_figure(2.9, title)
    least = 1e-18
    for colour, curve in zip((VERMILION, BLUE, GREEN), curves, strict=False):
        y = [max(value, least) for value in curve["apart"]]
        axes.plot(range(len(y)), y, "o", ms=3.5, color=colour, label=curve["name"])
    ticks = [10.0**power for power in range(-18, 1, 3)]
    canvas.log_axis(axes, "y", ticks, ["equal", *(f"1e{power}" for power in range(-15, 1, 3))])
    most = max(1e-6, *(value for curve in curves for value in curve["apart"]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="step", ylabel="difference of the losses", ylim=(least / 3, 10 * most))
    canvas.names_below(figure, axes.get_legend_handles_labels()[0])
    return figure


@styled
def scaling(lines: Sequence[dict], title: str) -> Figure:
    """Predicted speed-up over the number of processes, a line for a link, and the ideal dotted.

    A line is {"name", "points": [(processes, speed-up)]}.
    """
    figure, axes = canvas.new_figure(3.1, title)
    for colour, line in zip((VERMILION, ORANGE, GREEN, BLUE), lines, strict=False):
        x, y = zip(*line["points"], strict=True)
        axes.plot(x, y, "o-", ms=3.2, color=colour, label=line["name"])
    axes.plot([1, x[-1]], [1, x[-1]], color=GREY, lw=0.9, ls=":")
    canvas.log_axis(axes, "x", x, base=2)
    canvas.log_axis(axes, "y", base=2)
    axes.yaxis.set_major_formatter(style.TIMES)
    axes.set(xlabel="processes", ylabel="predicted speed-up")
    axes.legend(fontsize=8.5, loc="upper left")
    return figure
