"""Pictures of what leaves the notebook: weights, gradients, texts over a wire."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.ticker import MaxNLocator

from . import style
from .canvas import PAGE, note, page
from .style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PAPER,
    SKY,
    VERMILION,
    error_bar,
    format_times,
    headline,
    label,
    log_axis,
    name_rows,
    new_figure,
    styled,
    subtitle,
)

WIRES = {  # what becomes of a tensor: its line, its fill, its dashes
    "copied": (GREEN, "#d5efe5", "-"),
    "changed": ("#8a5f00", "#fbe9c8", "-"),
    "none": (VERMILION, "#f9ddcc", "--"),
}
PARTS = {"computes": BLUE, "waits for the other": style.PALE, "exchanges": ORANGE}
KINDS = {"on its way": SKY, "in the queue": None, "reads the prompt": BLUE}


@styled
def wiring(rows: Sequence[dict], title: str, heads: tuple[str, str]) -> Figure:
    """Our tensors on the left, another program's on the right, and what is done on the way.

    A row is {"ours", "how", "theirs", "kind"}; kind is "copied", "changed" or "none": there is no
    counterpart.
    """
    high, middle = 0.31, (2.5, 4.1)
    figure, axes = page(0.45 + high * len(rows), title)
    for x, text in zip((0, middle[1]), heads, strict=True):
        note(axes, x, 0.02, text, 10.5, weight="bold")
    for i, row in enumerate(rows):
        y = 0.34 + high * i
        colour, fill, dashes = WIRES[row["kind"]]
        for left, right, text in ((0, middle[0], row["ours"]), (middle[1], PAGE, row["theirs"])):
            if text:
                look = {"facecolor": fill, "edgecolor": colour, "lw": 0.7, "ls": dashes}
                axes.add_patch(Rectangle((left, y), right - left - 0.02, high - 0.07, **look))
                note(axes, left + 0.07, y + 0.12, text, 8.3, va="center", family=style.MONO)
        ends = ((middle[0] + 0.03, y + 0.12), (middle[1] - 0.05, y + 0.12))
        shape = "-|>" if row["kind"] != "none" else "-"
        look = {"arrowstyle": shape, "mutation_scale": 9, "color": colour, "ls": dashes, "lw": 1.1}
        axes.add_patch(FancyArrowPatch(*ends, shrinkA=0, shrinkB=0, **look))
        place = {"ha": "center", "va": "center", "bbox": {**style.BEHIND, "pad": 1}}
        label(axes, sum(middle) / 2, y + 0.12, row["how"], colour, 8, **place)
    return figure


@styled
def losses_apart(curves: Sequence[dict], title: str) -> Figure:
    """How far the losses of two runs are apart, step by step, on a log scale.

    A curve is {"name", "apart": [difference]}; a difference of 0 is drawn at the lower edge.
    """
    figure, axes = new_figure(2.9)
    axes.set_title(title)
    least = 1e-18
    for colour, curve in zip((VERMILION, BLUE, GREEN), curves, strict=False):
        y = [max(value, least) for value in curve["apart"]]
        axes.plot(range(len(y)), y, lw=0.8, color=colour, alpha=0.35)
        axes.plot(range(len(y)), y, "o", ms=3.5, color=colour, label=curve["name"])
    ticks = [10.0**power for power in range(-18, 1, 3)]
    log_axis(axes, "y", ticks, ["equal", *(f"1e{power}" for power in range(-15, 1, 3))])
    most = max(1e-6, *(value for curve in curves for value in curve["apart"]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="step", ylabel="difference of the losses", ylim=(least / 3, 10 * most))
    solid = {"frameon": True, "facecolor": PAPER, "edgecolor": PAPER, "framealpha": 1}
    place = {"loc": "center", "bbox_to_anchor": (0.5, 0.55), "ncols": len(curves)}
    axes.legend(**place, **solid, fontsize=9)
    return figure


@styled
def step_parts(rows: Sequence[dict], title: str) -> Figure:
    """Where the time of a training step goes, a bar for each row.

    A row is {"name", "parts": {part: milliseconds}} with the parts of PARTS, and perhaps "range",
    the lowest and the highest of the sum.
    """
    figure, axes = new_figure(0.95 + 0.42 * len(rows))
    axes.set_title(title, pad=22)
    for y, row in enumerate(rows):
        start = 0.0
        for part, colour in PARTS.items():
            width = row["parts"].get(part, 0.0)
            edge = {"edgecolor": GREY, "lw": 0.5} if part.startswith("waits") else {}
            axes.barh(y, width, 0.62, left=start, color=colour, **edge)
            start += width
        low, high = row.get("range") or (start, start)
        if high > low:
            error_bar(axes, y, (min(low, start), start, max(high, start)))
        label(axes, max(start, high), y, f"  {start:.1f} ms", size=8.5)
    name_rows(axes, [row["name"] for row in rows])
    most = max(max(sum(row["parts"].values()), *(row.get("range") or [0])) for row in rows)
    axes.set(xlabel="milliseconds of a step", ylim=(len(rows) - 0.5, -0.5), xlim=(0, 1.16 * most))
    handles = [
        Rectangle((0, 0), 1, 1, facecolor=colour, edgecolor=GREY, lw=0.3)
        for colour in PARTS.values()
    ]
    place = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "ncols": 3, "borderaxespad": 0.1}
    axes.legend(handles, list(PARTS), fontsize=8.5, **place)
    return figure


@styled
def scaling(panels: Sequence[dict], title: str) -> Figure:
    """Predicted speed-up over the number of processes, a panel for each model, a line for a link.

    A panel is {"name", "lines": [{"name", "points": [(processes, speed-up)]}]}.
    """
    figure, axes = new_figure(3.1, columns=len(panels), sharey=True, squeeze=False)
    lines = [line for panel in panels for line in panel["lines"]]
    least, ticks = (
        min(y for line in lines for _, y in line["points"]),
        [2.0**n for n in range(-9, 9)],
    )
    headline(figure, title)
    for place, panel in zip(axes[0], panels, strict=True):
        for colour, line in zip((VERMILION, ORANGE, GREEN, BLUE), panel["lines"], strict=False):
            x, y = zip(*line["points"], strict=True)
            place.plot(x, y, "o-", ms=3.2, color=colour, label=line["name"])
        place.plot([1, x[-1]], [1, x[-1]], color=GREY, lw=0.9, ls=":")
        log_axis(place, "x", x, base=2)
        log_axis(place, "y", [tick for tick in ticks if least / 2 < tick <= x[-1]], base=2)
        place.yaxis.set_major_formatter(format_times)
        place.set(xlabel="processes")
        subtitle(place, panel["name"])
    axes[0, 0].set_ylabel("predicted speed-up")
    axes[0, 0].legend(fontsize=8.5, loc="upper left")
    return figure


@styled
def request_lines(panels: Sequence[dict], title: str) -> Figure:
    """Requests from the first byte sent to the last token, a line for each.

    A panel is {"name", "rows"}, a row {"name", "spans": [(start, end, kind)], "tokens": [time]} in
    milliseconds, with the kinds of KINDS.
    """
    heights = [0.55 + 0.3 * len(panel["rows"]) for panel in panels]
    size = {"rows": len(panels), "sharex": True, "squeeze": False}
    figure, axes = new_figure(0.8 + sum(heights), **size, gridspec_kw={"height_ratios": heights})
    headline(figure, title)
    for place, panel in zip(axes[:, 0], panels, strict=True):
        for y, row in enumerate(panel["rows"]):
            for span in row["spans"]:
                _span(place, y, *span)
            place.vlines(row["tokens"], y - 0.3, y + 0.3, color=ORANGE, lw=1.1)
        place.set_yticks(range(len(panel["rows"])), [row["name"] for row in panel["rows"]])
        place.tick_params(axis="y", length=0)
        place.set_ylim(len(panel["rows"]) - 0.4, -0.6)
        place.grid(axis="y", visible=False)
        subtitle(place, panel["name"])
    axes[-1, 0].set(xlabel="milliseconds since the request was sent", xlim=(0, None))
    _key(axes[0, 0])
    return figure


def _span(axes: Axes, y: float, start: float, end: float, kind: str) -> None:
    if KINDS[kind] is None:
        axes.plot([start, end], [y, y], color=GREY, lw=1.2, ls=":")
        return
    axes.add_patch(Rectangle((start, y - 0.3), end - start, 0.6, facecolor=KINDS[kind], lw=0))


def _key(axes: Axes) -> None:
    """What the marks mean, above the first panel."""
    handles = [
        Rectangle((0, 0), 1, 1, facecolor=c or PAPER, edgecolor=GREY, ls="-" if c else ":")
        for c in (*KINDS.values(), ORANGE)
    ]
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": 4, "borderaxespad": 0.2}
    axes.legend(handles, [*KINDS, "a token arrives"], fontsize=8, columnspacing=1.0, **place)
