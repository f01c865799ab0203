"""Pictures of designs: shared heads, arrows that rotate, rings, masks, and what each costs."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import cos, degrees, pi, sin

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Wedge

from . import canvas, style
from .canvas import FILLS, PAGE, cell, legend, note, page
from .style import BLUE, GREY, ORANGE, PALE, PAPER, VERMILION, styled


@styled
def sharing(n_head: int, kinds: Sequence[tuple[str, int]], title: str) -> Figure:
    """Which query heads share a key/value head; a kind is its name and its key/value heads.

    Every head beyond the first of a group is one whose keys and values need not be cached.
    """
    figure, axes = page(2.9, title, equal=True)
    wide = PAGE / len(kinds)
    for i, (kind, n_kv_head) in enumerate(kinds):
        _heads(axes, (i + 0.5) * wide, 0.86 * wide, kind, n_head, n_kv_head)
    legend(axes, 2.5, [("new", "query heads"), ("old", "key/value heads: what the cache holds")])
    return figure


def _heads(axes: Axes, middle: float, wide: float, kind: str, n_head: int, n_kv_head: int) -> None:
    """One panel: query heads above, key/value heads below, and who reads which."""
    step, group = wide / n_head, n_head // n_kv_head
    left, box = middle - wide / 2, min(0.3, 0.9 * wide / n_head)
    note(axes, middle, 0.05, kind, 13, ha="center", weight="bold")
    for head in range(n_head):
        x, shared = left + (head + 0.5) * step, left + (head // group + 0.5) * group * step
        axes.plot([x, shared], [0.65, 1.4], color=GREY, lw=1.3, zorder=0)
        axes.add_patch(Circle((x, 0.62), box / 2 - 0.01, **FILLS["new"]))
    for i in range(n_kv_head):
        x = left + (i + 0.5) * group * step
        cell(axes, x - box / 2 - 0.03, 1.3, (box + 0.06, box))
    share = Fraction(n_kv_head, n_head)
    size = "all bytes (1×)" if share == 1 else f"{share} of the bytes"
    words = f"{n_kv_head} key/value head{'s' * (n_kv_head != 1)}\n{size}"
    note(axes, middle, 1.72, words, 10.5, ha="center")


@styled
def arrows(angles: Sequence[tuple[float, float]], title: str, pairs: Sequence) -> Figure:
    """Rotary embeddings in one pair of dimensions: arrows that turn with the position.

    `angles[p]` are those of a query and a key at position p, in radians. Above, a dial for each of
    the first six positions; below, two large ones: a query and an earlier key, each of `pairs`.
    """
    figure, axes = page(4.15, title, equal=True)
    for position, turned in enumerate(angles[:6]):
        centre = ((position + 0.5) * PAGE / 6, 0.5)
        _dial(axes, centre, 0.42, *turned)
        note(axes, centre[0], 1.0, f"position {position}", 10, ha="center")
    for i, (later, earlier) in enumerate(pairs):
        query, key = angles[later][0], angles[earlier][1]
        centre = (PAGE * (0.13 + 0.5 * i), 2.4)
        _dial(axes, centre, 0.85, query, key)
        between = degrees((query - key + pi) % (2 * pi) - pi)
        ends = sorted((-degrees(key), -degrees(key) - between))
        look = {"facecolor": PALE, "edgecolor": GREY, "lw": 0.8}
        axes.add_patch(Wedge(centre, 0.45 * 0.85, *ends, **look))
        words = f"query at {later}\nkey at {earlier}\ndistance {later - earlier}\n\n"
        words += f"angle {between:.0f}°".replace("-", "−")
        note(axes, centre[0] + 1.1, 1.7, words, 12)
    rows = [("new", "the query, turned by its position"), ("old", "the key, turned by its own")]
    legend(axes, 3.7, rows)
    return figure


def _dial(axes: Axes, centre: tuple, radius: float, query: float, key: float) -> None:
    """A circle with the arrows of a query and a key."""
    axes.add_patch(Circle(centre, radius, facecolor="#f6f7f9", edgecolor="#b6bbc4", lw=0.8))
    for turned, colour in ((key, BLUE), (query, ORANGE)):
        tip = centre[0] + radius * cos(turned), centre[1] - radius * sin(turned)
        look = {"arrowstyle": "-|>", "color": colour, "lw": 2.4, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", tip, xytext=centre, arrowprops=look)


@styled
def ring(capacity: int, positions: Sequence[int], title: str) -> Figure:
    """The slots of a rolling cache after each of `positions`: position p lies in slot p % capacity.

    The slot that the next position overwrites is orange.
    """
    figure, axes = page(3.75, title, equal=True)
    wide = PAGE / len(positions)
    for i, last in enumerate(positions):
        _ring(axes, ((i + 0.5) * wide, 1.3), min(1.02, 0.45 * wide), capacity, last)
        lost = last + 1 - capacity
        words = f"position {last + 1} takes slot {(last + 1) % capacity}"
        words += f",\nposition {lost} is lost" if lost >= 0 else ",\nwhich is free"
        note(axes, (i + 0.5) * wide, 2.58, words, 10.5, ha="center")
    rows = [("new", "the slot that the next position takes"), ("old", "a position that is kept")]
    legend(axes, 3.37, rows)
    note(axes, 4.2, 3.3, "large: the position held\nsmall: the number of the slot")
    return figure


def _ring(axes: Axes, centre: tuple, radius: float, capacity: int, last: int) -> None:
    """One ring, slot 0 at the top, on clockwise: the position that each slot holds."""
    note(axes, *centre, f"after\nposition\n{last}", 10, ha="center", va="center")
    for slot in range(capacity):
        held = last - (last - slot) % capacity
        kind = "new" if slot == (last + 1) % capacity else "old" if held >= 0 else "free"
        first, turn = 360 * slot / capacity - 90, 360 / capacity
        look = {"width": 0.46 * radius, "lw": 1, **FILLS[kind]}
        axes.add_patch(Wedge(centre, radius, first - turn / 2, first + turn / 2, **look))
        turned = np.array((cos(first * pi / 180), sin(first * pi / 180)))
        font = {"ha": "center", "va": "center_baseline"}
        inside, outside = (centre + share * radius * turned for share in (0.77, 1.12))
        axes.text(*outside, slot, fontsize=8.5, color=GREY, **font)
        axes.text(*inside, held if held >= 0 else "", fontsize=12, weight="bold", **font)


@styled
def masks(panels: list[dict], title: str) -> Figure:
    """Who attends to whom: a panel has a `label`, positions `q` and `k`, and a (T, S) `mask`.

    Queries down, keys across, in the order in which the cache holds them; -1 is an empty slot.
    Panels stand in rows of three, as high as their queries need.
    """
    rows = [panels[i : i + 3] for i in range(0, len(panels), 3)]
    heights = [2.0 + max(len(panel["q"]) for panel in row) for row in rows]
    size = {"rows": len(rows), "columns": 3, "height_ratios": heights}
    figure, places = canvas.new_panels(0.5 + 0.155 * sum(heights), title, **size)
    for axes in places[len(panels) :]:
        axes.remove()
    for axes, panel in zip(places, panels, strict=False):
        _mask(axes, panel)
    return figure


def _mask(axes: Axes, panel: dict) -> None:
    """One mask: what is allowed is blue, a query's own position darker."""
    colours = LinearSegmentedColormap.from_list("mask", (PALE, "#9cc7e4", BLUE))
    q_pos, k_pos = panel["q"], panel["k"]
    shades = np.where(np.equal.outer(q_pos, k_pos), 1.0, 0.62) * np.array(panel["mask"])
    keys = ["∅" if p < 0 else p for p in k_pos]
    if len(keys) > 12:  # every second name, the last among them: all would touch
        keys = [key if (len(keys) - i) % 2 else "" for i, key in enumerate(keys)]
    axes.pcolormesh(shades, cmap=colours, vmin=0, vmax=1, edgecolors=PAPER, lw=1.2)
    axes.set_aspect("equal")
    axes.invert_yaxis()
    canvas.bare(axes)
    axes.tick_params(pad=2, labelsize=6.6)
    axes.set_xticks(np.arange(len(keys)) + 0.5, keys)
    axes.set_yticks(np.arange(len(q_pos)) + 0.5, q_pos)
    axes.set_title(panel["label"], fontsize=8.5, pad=4)


@styled
def bytes_and_loss(rows: list[dict], title: str, length: int) -> Figure:
    """What each change costs in loss (left) and saves in memory (right), largest cache first.

    Loss and bytes are those of texts of `length` characters. A row has a `name`, its `loss` (a
    summary), the `bytes` of its cache, and whether it has a `table` of positions.
    """
    rows = sorted(rows, key=lambda row: -row["bytes"])
    figure, (left, right) = canvas.new_panels(1.3 + 0.34 * len(rows), title, columns=2, sharey=True)
    losses = [style.low_mid_high(row["loss"]) for row in rows]
    canvas.whiskers(left, losses)
    for y, row in enumerate(rows):
        colour, mark = (VERMILION, "s") if row["table"] else (BLUE, "o")
        left.plot(losses[y][1], y, mark, color=colour, ms=6)
        right.barh(y, row["bytes"], height=0.62, lw=0, color=colour)
    canvas.number_column(left, [f"{mid:.3f}" for _, mid, _ in losses])
    canvas.number_column(right, [style.format_bytes(row["bytes"]) for row in rows])
    for axes in (left, right):
        canvas.name_rows(axes, [row["name"] for row in rows])
    canvas.log_axis(right, "x", [1e4, 1e5, 1e6], ["10 kB", "100 kB", "1 MB"])
    right.set_xlim(rows[-1]["bytes"] / 3, 1.3 * rows[0]["bytes"])
    left.set(ylim=(len(rows) - 0.4, -0.6), xlabel="validation loss, spread of the seeds")
    right.set_xlabel(f"K and V of {length:,} characters (log scale)")
    return figure


@styled
def loss_by_position(lines: dict[str, list[float]], width: int, block: int, title: str) -> Figure:
    """Mean loss of each `width` neighbouring positions; training saw positions up to `block`."""
    figure, axes = canvas.new_figure(3.4, title)
    axes.axvspan(0, block, color=PALE, alpha=0.55, lw=0, zorder=0, label="trained here")
    end = width * max(map(len, lines.values()))
    looks = zip(lines.items(), (VERMILION, ORANGE, BLUE), "s^o", strict=False)
    for (name, line), colour, mark in looks:
        short = width * len(line) <= block < end
        name += f" (no row past {block})" if short else ""
        across = [width * (i + 0.5) for i in range(len(line))]
        axes.plot(across, line, color=colour, marker=mark, ms=3.5, label=name)
    axes.set_xticks(range(0, end + 1, block))
    axes.set(xlabel="position in the text", ylabel="cross-entropy (nats)", xlim=(0, end))
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
