"""Pictures of many requests at once: who computes when, who sees whom, whose blocks they are."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator

from .canvas import PAGE, cell, grid, letters, note, page
from .labels import beside_ends
from .style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    SKY,
    VERMILION,
    headline,
    label_point,
    new_figure,
    styled,
    subtitle,
)

KINDS = {"prompt": BLUE, "token": ORANGE, "idle": PALE, "waits": None}
LOAD_COLOURS = (GREY, VERMILION, BLUE, GREEN, INK, ORANGE, SKY, "#CC79A7")
TEXTS = (SKY, ORANGE, GREEN, "#CC79A7")  # a colour for each text


@styled
def timelines(panels: Sequence[dict], title: str) -> Figure:
    """Each request a line of boxes on one clock, a panel for each schedule.

    A panel is {"name", "rows"}; a row is a list of (start, end, kind) with kind "prompt", "token",
    "idle" or "waits". Idle is a place in the batch that computes for nobody.
    """
    rows = max(len(panel["rows"]) for panel in panels)
    size = {"rows": len(panels), "sharex": True, "squeeze": False}
    figure, axes = new_figure(0.9 + len(panels) * (0.5 + 0.15 * rows), **size)
    headline(figure, title)
    for place, panel in zip(axes[:, 0], panels, strict=True):
        for y, row in enumerate(panel["rows"]):
            for start, end, kind in row:
                _span(place, (start, y), end - start, kind)
        place.set(ylim=(len(panel["rows"]), 0), yticks=[], ylabel="requests")
        place.grid(False)
        subtitle(place, panel["name"])
    end = max(end for panel in panels for row in panel["rows"] for _, end, _ in row)
    axes[-1, 0].set(xlim=(0, end * 1.01), xlabel="time on the virtual clock")
    _key(axes[0, 0], {kind for panel in panels for row in panel["rows"] for *_, kind in row})
    return figure


def _span(axes: Axes, corner: tuple, width: float, kind: str) -> None:
    if kind == "waits":
        axes.plot([corner[0], corner[0] + width], [corner[1] + 0.5] * 2, color=GREY, lw=0.8, ls=":")
        return
    look = {"facecolor": KINDS[kind], "edgecolor": "white", "lw": 0.5}
    look |= {"hatch": "////", "edgecolor": GREY, "lw": 0} if kind == "idle" else {}
    axes.add_patch(Rectangle((corner[0], corner[1] + 0.1), width, 0.8, **look))


def _key(axes: Axes, kinds: set) -> None:
    """What the boxes mean, above the first panel."""
    words = {"prompt": "reads its prompt", "token": "gets a token", "idle": "an idle place"}
    shown = [kind for kind in words if kind in kinds]
    handles = [
        Rectangle((0, 0), 1, 1, facecolor=KINDS[kind], hatch="////" if kind == "idle" else None)
        for kind in shown
    ]
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": 3, "borderaxespad": 0.2}
    axes.legend(handles, [words[kind] for kind in shown], fontsize=8.5, **place)


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
def block_tables(texts: Sequence[dict], title: str) -> Figure:
    """Where the keys and values of each text lie; shared blocks are drawn once for all.

    A text is {"name", "blocks": [(number, characters, kind)]} with kind "old" for a block that was
    found, "new" for one that was computed, and "free" for places that are not written yet.
    """
    figure, axes = page(0.15 + 0.62 * len(texts), title)
    longest = max(len(text["blocks"]) for text in texts)
    wide = min(1.3, (PAGE - 1.5) / longest)
    for i, text in enumerate(texts):
        y = 0.12 + 0.62 * i
        note(axes, 0, y + 0.19, text["name"], 9.5, va="center")
        for j, (number, chars, kind) in enumerate(text["blocks"]):
            x = 1.4 + j * wide
            cell(axes, x, y, (wide, 0.38), kind)
            font = {"fontsize": 8.5, "ha": "center", "va": "center", "parse_math": False}
            axes.text(x + wide / 2, y + 0.19, chars, family="DejaVu Sans Mono", **font)
            place = {"fontsize": 7.5, "ha": "center", "va": "top", "color": GREY}
            axes.text(x + wide / 2, y + 0.4, f"block {number}", **place)
    return figure


@styled
def gaps(panels: Sequence[dict], title: str) -> Figure:
    """The gaps between the tokens of texts that run while a long prompt enters.

    A panel is {"name", "points": [(time, gap)], "enters"}: when a gap ended, and how long it was.
    """
    size = {"columns": len(panels), "sharey": True, "squeeze": False}
    figure, axes = new_figure(2.9, **size)
    headline(figure, title)
    for place, panel in zip(axes[0], panels, strict=True):
        x, y = zip(*panel["points"], strict=True)
        place.vlines(x, 0, y, color=SKY, lw=1.4)
        place.plot(x, y, "o", color=BLUE, ms=2.6)
        place.axvline(panel["enters"], color=VERMILION, lw=1, ls="--")
        subtitle(place, panel["name"])
        place.set(xlabel="time", ylim=(0, None))
    axes[0, 0].set_ylabel("gap between two tokens")
    top = axes[0, -1].get_ylim()[1]
    enters = (panels[-1]["enters"], 0.9 * top)
    label_point(axes[0, -1], enters, "a long prompt enters", (5, 0), color=VERMILION)
    return figure


@styled
def step_cost(rows: Sequence[dict], lines: Sequence[dict], title: str) -> Figure:
    """The time of one step over the tokens it reads, and a line through each kind of step.

    A row is {"kind", "n", "cost"} with cost {"low", "median", "high"}; a line is {"kind", "start",
    "slope"}. All are in units of a step of one token.
    """
    figure, axes = new_figure(3.0)
    axes.set_title(title)
    for colour, line, up in zip((BLUE, ORANGE), lines, (9, -15), strict=True):
        of = [row for row in rows if row["kind"] == line["kind"]]
        n, mid = [row["n"] for row in of], [row["cost"]["median"] for row in of]
        low = [row["cost"]["median"] - row["cost"]["low"] for row in of]
        high = [row["cost"]["high"] - row["cost"]["median"] for row in of]
        axes.errorbar(n, mid, yerr=[low, high], fmt="o", ms=4, color=colour, capsize=2, lw=1)
        ends = [0, max(n)]
        axes.plot(ends, [line["start"] + line["slope"] * x for x in ends], color=colour, lw=1.2)
        label_point(axes, (n[-1], mid[-1]), line["kind"], (-6, up), color=colour, ha="right")
    axes.set(xlabel="tokens that the step reads", ylabel="time, a step of one token = 1")
    axes.set(ylim=(0, None), xlim=(0, None))
    return figure


@styled
def load(panels: Sequence[dict], title: str) -> Figure:
    """Throughput against the 95th percentile of the latency, a curve for each schedule.

    A panel is {"name", "curves"}, and a curve {"name", "measured", "replayed"}: rows of `bench
    load`, from the lowest rate to the highest. Measured ones have summaries, with bars from the
    lowest to the highest value; replayed ones have plain numbers, and are drawn dashed.
    """
    figure, axes = new_figure(0.6 + 2.7 * len(panels), rows=len(panels), squeeze=False)
    headline(figure, title)
    for place, panel in zip(axes[:, 0], panels, strict=True):
        ends = [_curve(place, *pair) for pair in zip(LOAD_COLOURS, panel["curves"], strict=False)]
        place.set(ylim=(0, None), ylabel="tokens a second", xscale="log")
        place.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        place.xaxis.set_major_formatter("{x:,.0f}")
        place.xaxis.set_minor_formatter("")
        subtitle(place, panel["name"])
        beside_ends(place, ends)
    axes[-1, 0].set_xlabel("95th percentile of the time to a whole answer, ms")
    return figure


def _curve(axes: Axes, colour: str, curve: dict) -> tuple:
    """Draws one schedule. -> its end, for its name."""
    x, wide = _spread([row["e2el_p95"] for row in curve["measured"]], 1000)
    y, high = _spread([row["tokens_per_second"] for row in curve["measured"]])
    axes.errorbar(x, y, high, wide, "o-", ms=3.5, lw=1.4, elinewidth=0.8, color=colour)
    dashed = [(1000 * row["e2el_p95"], row["tokens_per_second"]) for row in curve["replayed"]]
    if dashed:
        axes.plot(*zip(*dashed, strict=True), "--", lw=1.1, color=colour)
    return x[-1], y[-1], curve["name"], colour


def _spread(summaries: Sequence[dict], unit: float = 1.0) -> tuple[list, list]:
    """The medians, and how far the lowest and the highest value lie from them."""
    mid = [unit * one["median"] for one in summaries]
    low = [unit * (one["median"] - one["low"]) for one in summaries]
    high = [unit * (one["high"] - one["median"]) for one in summaries]
    return mid, [low, high]
