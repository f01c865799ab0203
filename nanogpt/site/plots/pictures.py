"""Pictures on a page: attention, prefill and decode, rotations, rings."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, degrees, pi, sin
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Wedge

from . import style
from .canvas import (
    DARK,
    FILLS,
    bare,
    cells,
    grid,
    legend,
    letters,
    new_panels,
    note,
    page,
    page_width,
    pill,
    row_name,
)
from .style import BLUE, GREY, ORANGE, PALE, VERMILION, Data, Look, Point, styled

Numbers = Sequence[Sequence[float]]  # rows of a matrix
_Cells = Sequence[Sequence[float | None]]  # the same, where None is an empty cell

BOX = 0.36  # inches: the height of the cells of a decode step; and its rows
QUERY = 0.16
KEYS = 0.72
VALUES = 2.06
OUTPUT = 3.02
BELOW = 3.42
_GAP = 0.32  # inches for the characters next to an attention matrix
_STEPS = {  # of attention: its title, and the text next to it
    "scores": (
        "1  scores: q · k / √hs",
        "A row is a query,\na column is a key.\n\nA cell is their product:\nhow well the key "
        "matches\nwhat the query looks for.\n\nBlue is positive: a match.\nOrange is negative.",
    ),
    "weights": (
        "2, 3  mask and softmax",
        "Keys after the query\nare hidden (hatched).\n\nSoftmax turns each row\ninto weights "
        "that sum to 1.\n\nThe first character\ncan only see itself.",
    ),
    "mix": (
        "4  output: weights × values",
        "The output of a character\nis an average of the values\nthat it may see.\n\n"
        "This is the last character:\none weight for each value,\none row comes out.",
    ),
}


@styled
def attention_step(chars: Sequence[str], step: str, data: Sequence[Any], title: str) -> Figure:
    """One step of causal self-attention, with a few words next to it, or below on a phone.

    `step` is "scores", "weights" or "mix", and `data` its result: (T, T), queries down and keys
    across; for "mix" its operands, the weights and the values (T, hs), of which eight columns are
    drawn.
    """
    small = style.narrow()
    figure, axes = page(5.15 if small else 4.4, title)
    x = _GAP
    y = 0.55
    side = 3.3 if small else 3.75
    axes.text(0, 0.1, _STEPS[step][0], fontsize=11, weight="bold", va="center", color=GREY)
    cell = (side - 0.45 * (step == "mix")) / len(chars)
    letters(axes, chars, (x - 0.14, y + cell / 2), (0, cell))
    if step == "mix":
        weights, values = data
        _mix(axes, (x, y), side, cell, weights, values)
    else:
        letters(axes, chars, (x + cell / 2, y - 0.13), (cell, 0))
        rows: _Cells = data
        if step == "weights":  # weights on the future are zero: leave them empty
            rows = [[*row[: i + 1], *[None] * (len(row) - i - 1)] for i, row in enumerate(data)]
        _values(axes, (x, y), (cell, cell), rows, share=step == "weights")
    if small:
        parts = (part.replace("\n", " ") for part in _STEPS[step][1].split("\n\n"))
        words = style.wrapped("\n".join(parts), 10, page_width())
        note(axes, 0, y + side + 0.2, words, size=10)
    else:
        note(axes, 4.75, 0.75, _STEPS[step][1], size=12)
    return figure


def _values(
    axes: Axes, corner: Point, size: Point, rows: _Cells, share: bool = False, most: float = 0
) -> None:
    """Numbers as coloured cells: weights in blue, others blue or red; printed if they fit."""
    if share:
        most = 1.0
    elif not most:
        most = max(abs(v) for row in rows for v in row if v is not None) or 1

    def shade(v: float) -> tuple[float, float, float]:
        return style.mixed(BLUE if v >= 0 else VERMILION, 0.06 + 0.9 * min(abs(v / most), 1) ** 0.7)

    def written(v: float) -> str:
        return f"{v:.0%}" if share else f"{round(v, 1) + 0.0:.1f}".replace("-", "−")

    colours = []
    texts = []
    for row in rows:
        colours.append([None if v is None else shade(v) for v in row])
        texts.append(["" if v is None else written(v) for v in row])
    font = min(9.5, 24 * size[0])
    x, y = corner
    grid(axes, x, y, size, colours, texts if font >= 6.8 else None, font)


def _mix(
    axes: Axes, corner: Point, side: float, high: float, weights: Numbers, values: Numbers
) -> None:
    """The last row of weights as a column, times the rows of values, and their sum below."""
    x, y = corner
    row = weights[-1]
    rows = [list(v[:8]) for v in values]
    output = (np.array(row) @ np.array(rows)).tolist()
    most = float(np.abs(rows).max())
    wide = (side - 1.0) / len(output)
    right = x + 1.0
    _values(axes, corner, (0.55, high), [[w] for w in row], share=True)
    note(axes, x + 0.775, y + (side - 0.45) / 2, "×", 15, ha="center", va="center")
    _values(axes, (right, y), (wide, high), rows, most=most)
    _values(axes, (right, y + side - 0.3), (wide, 0.3), [output], most=most)
    note(axes, right - 0.1, y + side - 0.15, "output  =", ha="right", va="center")


@styled
def triangle(chars: Sequence[str], n_prompt: int, title: str, weights: Numbers) -> Figure:
    """Prefill and decode as one triangle of `weights`, queries down and keys across, (T, T).

    The first `n_prompt` rows are the prefill, in blue; each further row is a decode step, in
    orange; darker cells have more weight.
    """
    small = style.narrow()
    n = len(chars)
    side = 3.15 if small else 3.9
    cell = side / n
    figure, axes = page(side + (2.0 if small else 0.4), title)
    x = 0.34 if small else 0.62
    y = 0.3
    colours = []
    for i, row in enumerate(weights):
        phase = BLUE if i < n_prompt else ORANGE
        shades = [style.mixed(phase, 0.15 + 0.85 * weight**0.5) for weight in row[: i + 1]]
        colours.append(shades + [None] * (n - i - 1))
    grid(axes, x, y, (cell, cell), colours)
    letters(axes, chars, (x + cell / 2, y - 0.14), (cell, 0), 11)
    letters(axes, chars, (x - 0.16, y + cell / 2), (0, cell), 11)
    if not small:
        axes.text(x - 0.16, y - 0.14, "keys →", fontsize=9, color=GREY, ha="right", va="center")
    _spans(axes, x + side + (0.06 if small else 0.12), y, cell, n_prompt, n)
    return figure


def _spans(axes: Axes, x: float, y: float, cell: float, n_prompt: int, n: int) -> None:
    """Groups of rows, with their reads and writes: next to the triangle, or below on a phone."""
    later = n - n_prompt
    prefill = f"{n_prompt} rows in one pass,\nwrites {n_prompt} keys and values"
    decode = f"one row per step, {later} step{'s' * (later != 1)}.\nEach writes 1 key and 1 value\n"
    decode += "and reads the rest from the cache"
    spans = ("prefill", BLUE, prefill, 0, n_prompt), ("decode", ORANGE, decode, n_prompt, n)
    hatched = "hatched: the future, hidden"
    below = y + cell * n + 0.2
    for phase, colour, words, start, end in spans:
        top = y + cell * start + 0.03
        bottom = y + cell * end - 0.03
        axes.plot([x, x], [top, bottom], color=colour, lw=5, solid_capstyle="butt")
        if style.narrow():
            place = (0, 0.14), (below + 0.08, below + 0.08)
            axes.plot(*place, color=colour, lw=5, solid_capstyle="butt")
            flat = f"{phase}: " + words.replace("\n", " ")
            lines = style.wrapped(flat, 10, page_width() - 0.3)
            note(axes, 0.24, below, lines, 10)
            below += 0.22 + 0.2 * (lines.count("\n") + 1)
            continue
        note(axes, x + 0.16, (top + bottom) / 2 - 0.2, phase, 12, va="bottom", weight="bold")
        note(axes, x + 0.16, (top + bottom) / 2 - 0.16, words)
    if style.narrow():
        note(axes, 0, below, f"queries down, keys across; {hatched}", 8, color=GREY)
    else:
        note(axes, x + 0.16, y - 0.14, hatched, 9, va="center", color=GREY)


@styled
def decode_step(chars: Sequence[str], weights: Sequence[float], title: str) -> Figure:
    """The reads and writes of one step of decoding, in one head; all sequences are (S,).

    The query of the last of `chars` is compared with every key; `weights` (which sum to 1) mix the
    values. The last row is the work of a model without a cache in the same step.
    """
    n = len(chars)
    margin = 0.88 if style.narrow() else 1.25  # inches: where cells begin
    kinds = ["old"] * (n - 1) + ["new"]
    wide = min(0.9, (page_width() - margin) / n)
    figure, axes = page(BELOW + (1.9 if style.narrow() else 1.38), title)
    middles = [margin + wide * (i + 0.5) for i in range(n)]
    _compare(axes, middles)
    _weigh(axes, weights, middles, wide)
    _output(axes, weights, middles)
    for y in (KEYS, VALUES):
        cells(axes, margin, y, (wide, BOX), chars, kinds)
    row_name(axes, BELOW + 0.2, "no cache")
    cells(axes, margin, BELOW + 0.02, (wide, BOX), chars, ["again"] * n)
    old = f"from earlier steps: {_pairs(n - 1)}. The query reads all {n}"
    again = f"without a cache, computed in this step: {_pairs(n)}"
    new = f"computed and written to the cache: {_pairs(1)}"
    legend(axes, BELOW + 0.72, [("new", new), ("old", old), ("again", again)])
    return figure


def _compare(axes: Axes, middles: Sequence[float]) -> None:
    """The query above, and a line from it to each key."""
    row_name(axes, QUERY, "query", "this step only")
    row_name(axes, KEYS + BOX / 2, "keys", "in the cache")
    last = min(middles[-1], page_width() - 0.23)  # the whole of it stays on the page
    for x in middles:
        line: Look = {"color": DARK, "lw": 0.9, "alpha": 0.75, "zorder": 0}
        axes.plot([last, x], [QUERY, KEYS], **line)
    pill(axes, last, QUERY, "q", 0.42)


def _weigh(axes: Axes, weights: Sequence[float], middles: Sequence[float], wide: float) -> None:
    """A bar on each value: its share of the mix."""
    base = VALUES - 0.06
    tallest = max(weights)
    row_name(axes, base - 0.3, "weights", "sum to 100%")
    size = 7.0
    if wide > 0.45:
        size = 9.5
    elif wide > 0.3:
        size = 8.0
    for x, weight in zip(middles, weights, strict=True):
        high = 0.52 * weight / tallest
        axes.bar(x, -high, 0.6 * wide, base, color=BLUE, lw=0)
        font: Look = {"ha": "center", "va": "bottom", "fontsize": size}
        axes.text(x, base - high - 0.03, "<1%" if weight < 0.005 else f"{weight:.0%}", **font)


def _output(axes: Axes, weights: Sequence[float], middles: Sequence[float]) -> None:
    """A line from each value to the output, as thick as its weight."""
    row_name(axes, VALUES + BOX / 2, "values", "in the cache")
    row_name(axes, OUTPUT, "output", "this step only")
    centre = min(middles[-1], page_width() - 0.64)
    look: Look = {"color": style.mixed(BLUE, 0.55), "zorder": 0, "solid_capstyle": "butt"}
    for x, weight in zip(middles, weights, strict=True):
        axes.plot([x, centre], [VALUES + BOX, OUTPUT - 0.15], lw=0.5 + 7 * weight, **look)
    pill(axes, centre, OUTPUT, "mix of values", 1.24, "old")


def _pairs(count: int) -> str:
    s = "s" * (count != 1)
    return f"{count} key{s} and {count} value{s}"


@styled
def heads(panels: Sequence[Data], title: str, columns: int) -> Figure:
    """How far back each head of a layer attends, in panels, `columns` per row.

    A panel has a `label` and its `rows`, one per head: its mean weight on the character itself,
    on the one before it, and so on. Darker is more; large ones are printed, in percent.
    """
    n = len(panels[0]["rows"])
    small = style.narrow()
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure, places = new_panels(
        0.9 + (0.45 + 0.32 * n) * rows, title, rows, columns, sharex=True, sharey=True
    )
    for axes in places[len(panels) :]:
        axes.remove()
    places = places[: len(panels)]
    for axes, panel in zip(places, panels, strict=True):
        colours = []
        for row in panel["rows"]:
            colours.append([style.mixed(BLUE, weight**0.7) for weight in row])
        grid(axes, 0, 0, (1, 1), colours)
        for i, row in enumerate(panel["rows"]):
            for j, share in enumerate(row):
                if share >= 0.2:
                    words = {"ha": "center", "color": style.ink_on(style.mixed(BLUE, share**0.7))}
                    size = 7.5 if small else 10
                    note(axes, j + 0.5, i + 0.5, f"{100 * share:.0f}", size, "center", **words)
        bare(axes)
        axes.set(xlim=(0, len(row)), ylim=(n, 0))
        axes.set_xticks([j + 0.5 for j in range(len(row))], [f"{j}" for j in range(len(row))])
        axes.set_yticks([i + 0.5 for i in range(n)], [f"head {i}" for i in range(n)])
        label = style.wrapped(panel["label"], 8.5, 0.95, bold=True) if small else panel["label"]
        axes.set_title(label, fontsize=8.5 if small else 10.5, color=style.INK)
        axes.tick_params(labelsize=8 if small else 9.5)
    for axes in places[-columns:]:
        axes.set_xlabel("characters back", fontsize=8 if small else 9.5)
        axes.tick_params(labelbottom=True)  # upper row, above an empty panel
    return figure


@styled
def arrows(angles: Sequence[Point], title: str, pairs: Sequence[tuple[int, int]]) -> Figure:
    """Rotary embeddings in one pair of dimensions: arrows that rotate with the position.

    `angles[p]` are those of a query and a key at position p, in radians. Above, a dial for each of
    the first six positions; below, two large ones: a query and an earlier key, each of `pairs`.
    """
    small = style.narrow()
    wide = page_width()
    figure, axes = page(6.1 if small else 4.15, title, equal=True)
    across = 3 if small else 6
    for position, turned in enumerate(angles[:6]):
        centre = ((position % across + 0.5) * wide / across, 0.5 + 1.3 * (position // across))
        _dial(axes, centre, 0.42, *turned)
        note(axes, centre[0], centre[1] + 0.5, f"position {position}", 10, ha="center")
    for i, (later, earlier) in enumerate(pairs):
        centre = (wide * (0.25 + 0.5 * i), 3.6) if small else (wide * (0.13 + 0.5 * i), 2.4)
        between = _angle(axes, centre, angles[later][0], angles[earlier][1])
        words = f"query at {later}\nkey at {earlier}\ndistance {later - earlier}\n\n"
        words += f"angle {between:.0f}°".replace("-", "−")
        if small:
            note(axes, centre[0], 4.55, words.replace("\n\n", "\n"), 10, ha="center")
        else:
            note(axes, centre[0] + 1.1, 1.7, words, 12)
    rows = [("new", "the query, rotated by its position"), ("old", "the key, rotated by its own")]
    legend(axes, 5.65 if small else 3.7, rows)
    return figure


def _angle(axes: Axes, centre: Point, query: float, key: float) -> float:
    """A large dial with the angle between its arrows. Returns the angle in degrees."""
    _dial(axes, centre, 0.85, query, key)
    between = degrees((query - key + pi) % (2 * pi) - pi)
    start, end = sorted((-degrees(key), -degrees(key) - between))
    look: Look = {"facecolor": PALE, "edgecolor": GREY, "lw": 0.8}
    axes.add_patch(Wedge(centre, 0.45 * 0.85, start, end, **look))
    return between


def _dial(axes: Axes, centre: Point, radius: float, query: float, key: float) -> None:
    """A circle with the arrows of a query and a key."""
    axes.add_patch(Circle(centre, radius, facecolor="#f6f7f9", edgecolor="#b6bbc4", lw=0.8))
    for turned, colour in ((key, BLUE), (query, ORANGE)):
        tip = centre[0] + radius * cos(turned), centre[1] - radius * sin(turned)
        look: Look = {"arrowstyle": "-|>", "color": colour, "lw": 2.4, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", tip, xytext=centre, arrowprops=look)


@styled
def ring(capacity: int, positions: Sequence[int], title: str) -> Figure:
    """The slots of a rolling cache after each of `positions`: position p is in slot p % capacity.

    The slot that the next position overwrites is orange. On a phone the rings are stacked.
    """
    small = style.narrow()
    wide = page_width() / len(positions)
    end = 2.1 * len(positions)
    figure, axes = page(end + 1.2 if small else 3.75, title, equal=True)
    for i, last in enumerate(positions):
        lost = last + 1 - capacity
        words = f"position {last + 1} takes slot {(last + 1) % capacity}"
        words += f",\nposition {lost} is lost" if lost >= 0 else ",\nwhich is free"
        if small:
            _ring(axes, (0.95, 1.05 + 2.1 * i), 0.83, capacity, last)
            note(axes, 1.98, 1.05 + 2.1 * i, words, 9, "center")
        else:
            _ring(axes, ((i + 0.5) * wide, 1.3), min(1.02, 0.45 * wide), capacity, last)
            note(axes, (i + 0.5) * wide, 2.58, words, 10.5, ha="center")
    rows = [
        ("new", "the slot that the next position overwrites"),
        ("old", "a position that is kept"),
    ]
    legend(axes, end + 0.2 if small else 3.37, rows)
    x, y = (0, end + 0.65) if small else (4.2, 3.3)
    words = "large: the position held\nsmall: the slot index"
    note(axes, x, y, words, 10 if small else 10.5)
    return figure


def _ring(axes: Axes, centre: Point, radius: float, capacity: int, last: int) -> None:
    """One ring, slot 0 at the top, on clockwise: the position that each slot holds."""
    x, y = centre
    note(axes, x, y, f"after\nposition\n{last}", 10, ha="center", va="center")
    for slot in range(capacity):
        held = last - (last - slot) % capacity
        kind = "old" if held >= 0 else "free"
        if slot == (last + 1) % capacity:
            kind = "new"
        first = 360 * slot / capacity - 90
        turn = 360 / capacity
        look: Look = {"width": 0.46 * radius, "lw": 1, **FILLS[kind]}
        axes.add_patch(Wedge(centre, radius, first - turn / 2, first + turn / 2, **look))
        across = cos(first * pi / 180)
        down = sin(first * pi / 180)
        font: Look = {"ha": "center", "va": "center_baseline"}
        number = f"{held}" if held >= 0 else ""
        outside = x + 1.12 * radius * across, y + 1.12 * radius * down
        inside = x + 0.77 * radius * across, y + 0.77 * radius * down
        axes.text(*outside, f"{slot}", fontsize=8.5, color=GREY, **font)
        axes.text(*inside, number, fontsize=12, weight="bold", **font)
