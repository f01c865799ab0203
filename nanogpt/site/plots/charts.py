"""Charts: losses, request timelines, and curves and numbers with their ranges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator

from . import canvas, style
from .style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PAPER,
    SKY,
    VERMILION,
    Data,
    Look,
    styled,
)

if TYPE_CHECKING:
    from ...timing import Summary  # it imports torch

LOOKS = (  # colours and marks of curves
    (VERMILION, "s"),
    (BLUE, "o"),
    (ORANGE, "^"),
    (GREEN, "D"),
    (GREY, "v"),
    (SKY, "P"),
    (INK, "X"),
    ("#CC79A7", "."),
)
_KINDS: dict[str, tuple[str, Look]] = {  # spans in a timeline: name and look
    "travels": ("in transit", {"facecolor": SKY}),
    "waits": ("waits", {"color": GREY, "lw": 1, "ls": ":"}),
    "prompt": ("prefill", {"facecolor": BLUE}),
    "token": ("a token", {"facecolor": ORANGE}),
    "idle": ("an idle slot", {"facecolor": PALE, "hatch": "////"}),
}


@styled
def losses(history: Data, references: dict[str, float], title: str) -> Figure:
    """Training and validation loss by step; `references` are named horizontal lines."""
    figure, (axes,) = canvas.new_panels(3.8, title)
    most = 5 if style.narrow() else 8
    axes.locator_params(axis="x", nbins=most)
    steps = history["step"]
    raw = history["batch_loss"]
    axes.plot(range(1, len(raw) + 1), raw, color="#c3c8d0", lw=0.8, zorder=1, label="each batch")
    axes.plot(steps, history["train"], color=SKY, ls="--", marker="s", ms=3.5, label="train")
    axes.plot(steps, history["val"], color=BLUE, marker="o", ms=3.5, label="validation")
    _stages(axes, steps, history["block"])
    for name, value in references.items():
        axes.axhline(value, color=GREY, lw=0.9, ls=":")
        # Where the curves leave space: on the left below a low line, on the right above a high one.
        low = value < min(history["val"])
        look: Look = {"textcoords": "offset points", "fontsize": 8.5, "bbox": style.BEHIND}
        if low:
            axes.annotate(name, (0, value), (5, -4), va="top", ha="left", **look)
        else:
            axes.annotate(name, (steps[-1], value), (-4, 4), va="bottom", ha="right", **look)
    axes.set(xlabel="step", ylabel="cross-entropy (nats per character)", xlim=(0, steps[-1]))
    axes.set_ylim(min([*references.values(), *raw, *history["train"]]) - 0.3, None)
    canvas.names_below(figure, axes.get_legend_handles_labels()[0])
    return figure


def _stages(axes: Axes, steps: Sequence[int], blocks: Sequence[int]) -> None:
    """Thin lines where the block grows, with the new length at the bottom."""
    for begin, before, after in zip(steps, blocks, blocks[1:], strict=False):
        if after != before:
            axes.axvline(begin, color=GREY, lw=0.9)
            look: Look = {
                "xycoords": axes.get_xaxis_transform(),
                "textcoords": "offset points",
                "fontsize": 8.5,
                "color": GREY,
                "va": "bottom",
            }
            axes.annotate(f"block {after}", (begin, 0), (3, 4), **look)


@styled
def lines(panels: Sequence[Data], title: str) -> Figure:
    """Curves in panels, two per row (one on a phone), with the first panel's legend below.

    A panel is {"curves": {name: (x, y)}}, where y has numbers, or summaries, which are drawn with
    their range; an optional third sequence is drawn as open marks. Options of a panel: "hollow",
    the x values by curve name whose marks are open; "log", the logarithmic axes, for example "xy";
    "unit", the number that is drawn as 1; "first", the style index of its first curve; "ls", where
    "" means that points are not joined; "levels", dashed horizontal lines; "shade", a range of x
    shaded behind the curves. All others, such as xlabel, are passed to the axes.
    """
    columns = 1 if style.narrow() else min(len(panels), 2)
    rows = -(-len(panels) // columns)
    figure, places = canvas.new_panels(0.8 + 2.6 * rows, title, rows, columns)
    for axes, panel in zip(places, panels, strict=True):
        _curves(axes, **panel)
    canvas.names_below(figure, places[0].get_legend_handles_labels()[0])
    return figure


def _curves(
    axes: Axes,
    curves: Data,
    log: str = "",
    unit: float = 1.0,
    ls: str = "-",
    first: int = 0,
    levels: Sequence[float] = (),
    shade: tuple[float, float] | None = None,
    hollow: dict[str, Sequence[float]] | None = None,
    **settings: Any,
) -> None:
    looks = LOOKS[first:]
    for level in levels:
        axes.axhline(level, color=GREY, lw=1, ls="--", zorder=0)
    if shade:
        axes.axvspan(*shade, color=PALE, alpha=0.55, lw=0, zorder=0)
    for (name, (x, y, *marks)), (colour, mark) in zip(curves.items(), looks, strict=False):
        low, mid, high = zip(*(_range(value, unit) for value in y), strict=True)
        axes.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
        look: Look = {
            "marker": mark,
            "ms": 4,
            "ls": ls,
            "markevery": max(1, len(x) // 20) if ls else 1,
        }
        axes.plot(x, mid, color=colour, label=name, **look)
        if marks:
            axes.plot(x, *marks, mark, color=colour, ms=7, mfc="none")
        for place, value in zip(x, mid, strict=True):
            if hollow and place in hollow.get(name, ()):
                axes.plot(place, value, mark, color=colour, ms=5, mfc=PAPER)
    if "x" in log:
        axes.set_xscale("log")
        axes.set_xticks(x, [f"{tick:,}" for tick in x])
    if "y" in log:
        axes.set_yscale("log")
        bottom, top = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if top < 1000 * bottom else (1,)))
        axes.yaxis.set_major_formatter("{x:,g}")
    axes.minorticks_off()
    axes.grid(axis="both", visible=True)
    axes.set(**canvas.fit_names(**settings))


def _range(value: Summary | float, unit: float) -> tuple[float, float, float]:
    """Low, median and high of a summary, in units of `unit`; a number is repeated three times."""
    if isinstance(value, dict):
        return style.low_mid_high(value, unit)
    return value / unit, value / unit, value / unit


@styled
def dots(panels: Sequence[Data], title: str, size: float | None = None) -> Figure:
    """Numbers as dots with their ranges, one per row, in side-by-side panels that share the rows.

    On a phone the panels are stacked, without the rows that were not measured. `size` is the font
    size on a page, in points. A panel is
    {"rows": {name: value}}: a summary, a number, or None if nothing was measured. Options of a
    panel: "missing", the text for None; "limit", a summary drawn as a band across all rows;
    "limited", its label; "base", the names of the baselines; "rough", the names with open marks;
    "form", which formats a number; "zero", a vertical line. All others are passed to the axes.
    """
    small = style.narrow()
    n = len(panels)
    every: list[str] = max((list(panel["rows"]) for panel in panels), key=len)
    names = [every] * n
    if small:
        names = [[x for x in every if panel["rows"].get(x) is not None] for panel in panels]
    words = [[style.wrapped(x, 9, 1.3) if small else x for x in row] for row in names]
    heights = [sum(1 + word.count("\n") / 2 for word in row) for row in words]
    if small:
        height = 0.5 + sum(0.9 + 0.33 * high for high in heights)
        places: Data = {"rows": n, "height_ratios": [0.9 + 0.33 * high for high in heights]}
    else:
        height = 1.5 + 0.36 * heights[0]
        places = {"columns": n, "sharey": True}
    same = len({panel["xlabel"] for panel in panels}) == 1
    figure, column = canvas.new_panels(height, title, sharex=same, **places)
    for axes, panel, row, labels in zip(column, panels, names, words, strict=True):
        _dots(axes, row, **panel)
        axes.set_yticks(range(len(row)), labels)
        axes.tick_params(labelbottom=True)
        _resize(axes, 9 if small else size)
    return figure


def _resize(axes: Axes, size: float | None) -> None:
    """Set the font size of all texts of the axes, in points; None leaves them as they are."""
    if size:
        axes.tick_params(labelsize=size)
        for text in (*axes.texts, axes.xaxis.label):
            text.set_fontsize(size)
        axes.set_title(axes.get_title("left"), fontsize=size)


def _dots(
    axes: Axes,
    names: Sequence[str],
    rows: dict[str, Summary | float | None],
    form: Callable[[float], str] = "{:.2f}×".format,
    limit: Summary | None = None,
    limited: str = "roofline",
    base: Sequence[str] = (),
    rough: Sequence[str] = (),
    missing: str = "not measured here",
    zero: float | None = None,
    **settings: Any,
) -> None:
    beside = axes.get_yaxis_transform()  # x as a fraction of the axes, y as a row index
    for y, name in enumerate(names):
        value = rows.get(name)
        if value is None:
            look: Look = {"transform": beside, "bbox": style.BEHIND}
            canvas.note(axes, 0.03, y, missing, 8, "center", **look)
            continue
        low, mid, high = _range(value, 1.0)
        axes.plot([low, high], [y, y], color=INK, lw=1)
        colour, mark = (VERMILION, "s") if name in base else (BLUE, "o")
        axes.plot(mid, y, mark, ms=7, color=colour, mfc=PAPER if name in rough else colour)
        canvas.label(axes, 1.02, y, form(mid), transform=beside)
    if limit:
        low, mid, high = style.low_mid_high(limit)
        axes.axvspan(low, high, color=VERMILION, alpha=0.16, lw=0, zorder=0)
        axes.axvline(mid, color=VERMILION, lw=1.6, ls="--", zorder=0.5)
        canvas.label(axes, mid, -0.8, limited, VERMILION, ha="center", bbox=style.BEHIND)
    if zero is not None:
        axes.axvline(zero, color=GREY, lw=1, zorder=0)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.set(ylim=(len(names) - 0.4, -1.2 if limit else -0.6), **canvas.fit_names(**settings))
    axes.minorticks_off()


@styled
def timelines(panels: Sequence[Data], title: str, clock: str) -> Figure:
    """Timelines of requests, one row of boxes each, in a panel per schedule.

    `clock` is the label of the time axis. A panel is {"name", "rows"}; a row is {"spans": [(start,
    end, kind)]} with kinds from _KINDS, and maybe "name" and "tokens", the arrival times of its
    tokens. Idle is a batch slot whose computation is wasted.
    """
    by_name = "name" in panels[0]["rows"][0]
    row_height = 0.3 if by_name else 0.15
    heights = [0.55 + row_height * len(panel["rows"]) for panel in panels]
    figure, column = canvas.new_panels(
        1.1 + sum(heights), title, rows=len(panels), sharex=True, height_ratios=heights
    )
    for axes, panel in zip(column, panels, strict=True):
        for y, row in enumerate(panel["rows"]):
            for span in row["spans"]:
                _span(axes, y, *span)
            times = row.get("tokens")
            if times:
                axes.vlines(times, y - 0.4, y + 0.4, color=ORANGE, lw=1.1, label=_KINDS["token"][0])
        axes.set_yticks(range(len(panel["rows"])), [row.get("name", "") for row in panel["rows"]])
        axes.set(ylim=(len(panel["rows"]) - 0.4, -0.6), ylabel="" if by_name else "requests")
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.set(**canvas.fit_names(panel["name"]))
    column[-1].set(xlabel=clock, xlim=(0, None))
    handles: dict[str, Artist] = {}  # by name, without duplicates
    for axes in column:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles[name] = handle
    canvas.names_below(figure, [*handles.values()])
    return figure


def _span(axes: Axes, y: float, start: float, end: float, kind: str) -> None:
    """A span in row y: a box, or a dotted line while a request waits."""
    name, look = _KINDS[kind]
    if kind == "waits":
        axes.plot([start, end], [y, y], label=name, **look)
        return
    edge: Look = {"edgecolor": PAPER, "lw": 0.5}
    if kind == "idle":
        edge = {"edgecolor": GREY, "lw": 0}
    axes.add_patch(Rectangle((start, y - 0.4), end - start, 0.8, label=name, **edge, **look))
