"""Pictures of many requests, and of what leaves the notebook: weights, gradients, texts."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator

from . import canvas, style
from .canvas import PAGE, cell, grid, letters, note, page
from .style import BLUE, GREEN, GREY, INK, ORANGE, PALE, PAPER, SKY, VERMILION, styled

KINDS = {  # what a time is spent on: its colour; None is a dotted line
    "prompt": BLUE,
    "token": ORANGE,
    "idle": PALE,
    "waits": None,
    "on its way": SKY,
    "in the queue": None,
    "reads the prompt": BLUE,
}
LOAD_COLOURS = (GREY, VERMILION, BLUE, GREEN, INK, ORANGE, SKY, "#CC79A7")
TEXTS = (SKY, ORANGE, GREEN, "#CC79A7")  # a colour for each text


@styled
def timelines(panels: Sequence[dict], title: str) -> Figure:
    """Each request a line of boxes on one clock, a panel for each schedule.

    A panel is {"name", "rows"}; a row is a list of (start, end, kind) with kind "prompt", "token",
    "idle" or "waits". Idle is a place in the batch that computes for nobody.
    """
    rows = max(len(panel["rows"]) for panel in panels)
    high, n = 0.9 + len(panels) * (0.5 + 0.15 * rows), len(panels)
    figure, column = canvas.new_panels(high, title, rows=n, sharex=True)
    for place, panel in zip(column, panels, strict=True):
        for y, row in enumerate(panel["rows"]):
            for start, end, kind in row:
                look = {"edgecolor": "white", "lw": 0.5}
                look = {"hatch": "////", "edgecolor": GREY, "lw": 0} if kind == "idle" else look
                _span(place, (start, end), (y + 0.5, 0.4), kind, 0.8, look)
        place.set(ylim=(len(panel["rows"]), 0), yticks=[], ylabel="requests")
        place.grid(False)
        canvas.subtitle(place, panel["name"])
    end = max(end for panel in panels for row in panel["rows"] for _, end, _ in row)
    column[-1].set(xlim=(0, end * 1.01), xlabel="time on the virtual clock")
    kinds = {kind for panel in panels for row in panel["rows"] for *_, kind in row}
    words = {"prompt": "reads its prompt", "token": "gets a token", "idle": "an idle place"}
    shown = {kind: text for kind, text in words.items() if kind in kinds}
    hatches = {"idle": {"hatch": "////"}}
    boxes = [{"facecolor": KINDS[kind], **hatches.get(kind, {})} for kind in shown]
    _key(column[0], list(shown.values()), boxes, fontsize=8.5)
    return figure


def _span(axes: Axes, ends: tuple, middle: tuple, kind: str, thin: float, look: dict) -> None:
    """A time between its ends as a box, around `middle`: y and half of its height; or a line."""
    (start, end), (y, half), colour = ends, middle, KINDS[kind]
    if colour is None:
        axes.plot([start, end], [y, y], color=GREY, lw=thin, ls=":")
        return
    axes.add_patch(Rectangle((start, y - half), end - start, 2 * half, facecolor=colour, **look))


def _key(axes: Axes, words: Sequence[str], boxes: Sequence[dict], **look) -> None:
    """What the boxes mean, on the right above the first panel."""
    handles = [Rectangle((0, 0), 1, 1, **box) for box in boxes]
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    axes.legend(handles, words, ncols=len(words), **place, **look)


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
def step_cost(rows: Sequence[dict], lines: Sequence[dict], title: str) -> Figure:
    """The time of one step over the tokens it reads, and a line through each kind of step.

    A row is {"kind", "n", "cost"} with cost {"low", "median", "high"}; a line is {"kind", "start",
    "slope"}. All are in units of a step of one token.
    """
    figure, axes = canvas.new_figure(3.0, title)
    for colour, line, up in zip((BLUE, ORANGE), lines, (9, -15), strict=True):
        of = [row for row in rows if row["kind"] == line["kind"]]
        n, (mid, apart) = [row["n"] for row in of], _spread([row["cost"] for row in of])
        axes.errorbar(n, mid, yerr=apart, fmt="o", ms=4, color=colour, capsize=2, lw=1)
        ends = [0, max(n)]
        axes.plot(ends, [line["start"] + line["slope"] * x for x in ends], color=colour, lw=1.2)
        canvas.label_point(axes, (n[-1], mid[-1]), line["kind"], (-6, up), color=colour, ha="right")
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
    figure, column = canvas.new_panels(0.6 + 2.7 * len(panels), title, rows=len(panels))
    for place, panel in zip(column, panels, strict=True):
        ends = [_curve(place, *pair) for pair in zip(LOAD_COLOURS, panel["curves"], strict=False)]
        place.set(ylim=(0, None), ylabel="tokens a second", xscale="log")
        place.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        place.xaxis.set_major_formatter("{x:,.0f}")
        place.xaxis.set_minor_formatter("")
        canvas.subtitle(place, panel["name"])
        canvas.beside_ends(place, ends)
    column[-1].set_xlabel("95th percentile of the time to a whole answer, ms")
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


WIRES = {  # what becomes of a tensor: its line, its fill, its dashes
    "copied": (GREEN, "#d5efe5", "-"),
    "changed": ("#8a5f00", "#fbe9c8", "-"),
    "none": (VERMILION, "#f9ddcc", "--"),
}
PARTS = {"computes": BLUE, "waits for the other": PALE, "exchanges": ORANGE}


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
        canvas.label(axes, sum(middle) / 2, y + 0.12, row["how"], colour, 8, **place)
    return figure


@styled
def losses_apart(curves: Sequence[dict], title: str) -> Figure:
    """How far the losses of two runs are apart, step by step, on a log scale.

    A curve is {"name", "apart": [difference]}; a difference of 0 is drawn at the lower edge.
    """
    figure, axes = canvas.new_figure(2.9, title)
    least = 1e-18
    for colour, curve in zip((VERMILION, BLUE, GREEN), curves, strict=False):
        y = [max(value, least) for value in curve["apart"]]
        axes.plot(range(len(y)), y, lw=0.8, color=colour, alpha=0.35)
        axes.plot(range(len(y)), y, "o", ms=3.5, color=colour, label=curve["name"])
    ticks = [10.0**power for power in range(-18, 1, 3)]
    canvas.log_axis(axes, "y", ticks, ["equal", *(f"1e{power}" for power in range(-15, 1, 3))])
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
    figure, axes = canvas.new_figure(0.95 + 0.42 * len(rows), title, pad=22)
    for y, row in enumerate(rows):
        start = 0.0
        for part, colour in PARTS.items():
            width = row["parts"].get(part, 0.0)
            edge = {"edgecolor": GREY, "lw": 0.5} if part.startswith("waits") else {}
            axes.barh(y, width, 0.62, left=start, color=colour, **edge)
            start += width
        low, high = row.get("range") or (start, start)
        if high > low:
            canvas.error_bar(axes, y, (min(low, start), start, max(high, start)))
        canvas.label(axes, max(start, high), y, f"  {start:.1f} ms", size=8.5)
    canvas.name_rows(axes, [row["name"] for row in rows])
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
    figure, row = canvas.new_panels(3.1, title, columns=len(panels), sharey=True)
    lines = [line for panel in panels for line in panel["lines"]]
    least, ticks = min(y for one in lines for _, y in one["points"]), [2.0**n for n in range(-9, 9)]
    for place, panel in zip(row, panels, strict=True):
        for colour, line in zip((VERMILION, ORANGE, GREEN, BLUE), panel["lines"], strict=False):
            x, y = zip(*line["points"], strict=True)
            place.plot(x, y, "o-", ms=3.2, color=colour, label=line["name"])
        place.plot([1, x[-1]], [1, x[-1]], color=GREY, lw=0.9, ls=":")
        canvas.log_axis(place, "x", x, base=2)
        canvas.log_axis(place, "y", [tick for tick in ticks if least / 2 < tick <= x[-1]], base=2)
        place.yaxis.set_major_formatter(style.format_times)
        place.set(xlabel="processes")
        canvas.subtitle(place, panel["name"])
    row[0].set_ylabel("predicted speed-up")
    row[0].legend(fontsize=8.5, loc="upper left")
    return figure


@styled
def request_lines(panels: Sequence[dict], title: str) -> Figure:
    """Requests from the first byte sent to the last token, a line for each.

    A panel is {"name", "rows"}, a row {"name", "spans": [(start, end, kind)], "tokens": [time]} in
    milliseconds, with the kinds of KINDS.
    """
    heights = [0.55 + 0.3 * len(panel["rows"]) for panel in panels]
    size = {"rows": len(panels), "sharex": True, "height_ratios": heights}
    figure, column = canvas.new_panels(0.8 + sum(heights), title, **size)
    for place, panel in zip(column, panels, strict=True):
        for y, row in enumerate(panel["rows"]):
            for start, end, kind in row["spans"]:
                _span(place, (start, end), (y, 0.3), kind, 1.2, {"lw": 0})
            place.vlines(row["tokens"], y - 0.3, y + 0.3, color=ORANGE, lw=1.1)
        place.set_yticks(range(len(panel["rows"])), [row["name"] for row in panel["rows"]])
        place.tick_params(axis="y", length=0)
        place.set_ylim(len(panel["rows"]) - 0.4, -0.6)
        place.grid(axis="y", visible=False)
        canvas.subtitle(place, panel["name"])
    column[-1].set(xlabel="milliseconds since the request was sent", xlim=(0, None))
    words = ("on its way", "in the queue", "reads the prompt", "a token arrives")
    colours = [*(KINDS[kind] for kind in words[:3]), ORANGE]
    boxes = [
        {"facecolor": colour or PAPER, "edgecolor": GREY, "ls": "-" if colour else ":"}
        for colour in colours
    ]
    _key(column[0], words, boxes, fontsize=8, columnspacing=1.0)
    return figure
