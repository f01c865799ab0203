"""Figures of who attends to whom, and of what a cache holds and costs."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure

from . import style
from .labels import beside_ends, number_column
from .style import BLUE, GREY, ORANGE, PALE, PAPER, VERMILION, new_figure, styled


def _cells(axes: Axes, values, colours: Colormap, rows, columns, size: float, gap: float) -> None:
    """Values in [0, 1] as square cells with white gaps, and the names of rows and columns."""
    axes.imshow(values, cmap=colours, vmin=0, vmax=1, aspect="equal")
    axes.set_xticks([i - 0.5 for i in range(1, len(columns))], minor=True)
    axes.set_yticks([i - 0.5 for i in range(1, len(rows))], minor=True)
    style.bare(axes)
    axes.grid(which="minor", axis="both", color=PAPER, lw=gap)
    axes.set_xticks(range(len(columns)), columns, fontsize=size)
    axes.set_yticks(range(len(rows)), rows, fontsize=size)


@styled
def masks(panels: list[dict], title: str, columns: int = 3) -> Figure:
    """Who attends to whom: a panel has a `label`, positions `q` and `k`, and a (T, S) `mask`.

    Queries down, keys across, in the order in which the cache holds them; -1 is an empty slot.
    Panels stand in rows of `columns`, as high as their queries need.
    """
    groups = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    heights = [2.0 + max(len(panel["q"]) for panel in group) for group in groups]
    figure = style.blank_figure(0.5 + 0.155 * sum(heights))
    grid = figure.add_gridspec(len(groups), columns, height_ratios=heights)
    for row, group in enumerate(groups):
        for column, panel in enumerate(group):
            _mask(figure.add_subplot(grid[row, column]), panel)
    style.headline(figure, title)
    return figure


def _mask(axes: Axes, panel: dict) -> None:
    """One mask: what is allowed is blue, a query's own position darker."""
    colours = LinearSegmentedColormap.from_list("mask", (PALE, "#9cc7e4", BLUE))
    q_pos, k_pos = panel["q"], panel["k"]
    shades = [
        [
            (1.0 if p == q else 0.62) if allowed else 0.0
            for allowed, p in zip(row, k_pos, strict=True)
        ]
        for q, row in zip(q_pos, panel["mask"], strict=True)
    ]
    keys = ["∅" if p < 0 else p for p in k_pos]
    if len(keys) > 12:  # every second name, the last among them: all would touch
        keys = [key if (len(keys) - i) % 2 else "" for i, key in enumerate(keys)]
    axes.tick_params(which="both", pad=2)
    _cells(axes, shades, colours, q_pos, keys, 6.6, gap=1.2)
    axes.set_title(panel["label"], fontsize=8.5, pad=4)


@styled
def bytes_and_loss(rows: list[dict], title: str, length: int) -> Figure:
    """What each change costs in loss (left) and saves in memory (right), largest cache first.

    Loss and bytes are those of texts of `length` characters. A row has a `name`, its `loss` (a
    summary), the `bytes` of its cache, and whether it has a `table` of positions.
    """
    rows = sorted(rows, key=lambda row: -row["bytes"])
    figure, (left, right) = new_figure(1.3 + 0.34 * len(rows), columns=2, sharey=True)
    for y, row in enumerate(rows):
        colour, mark = (VERMILION, "s") if row["table"] else (BLUE, "o")
        style.error_bar(left, y, style.low_mid_high(row["loss"]))
        left.plot(row["loss"]["median"], y, mark, color=colour, ms=6)
        right.barh(y, row["bytes"], height=0.62, lw=0, color=colour)
    number_column(left, [f"{row['loss']['median']:.3f}" for row in rows])
    number_column(right, [_size(row["bytes"]) for row in rows])
    for axes in (left, right):
        style.name_rows(axes, [row["name"] for row in rows])
    style.log_axis(right, "x", [1e4, 1e5, 1e6], ["10 kB", "100 kB", "1 MB"])
    right.set_xlim(rows[-1]["bytes"] / 3, 1.3 * rows[0]["bytes"])
    left.set(ylim=(len(rows) - 0.4, -0.6), xlabel="validation loss, spread of the seeds")
    right.set_xlabel(f"K and V of {length:,} characters (log scale)")
    style.headline(figure, title)
    return figure


def _size(n: float) -> str:
    return f"{n / 1e6:.1f} MB" if n >= 1e6 else f"{n / 1e3:.0f} kB"


@styled
def loss_by_position(lines: dict[str, list[float]], width: int, block: int, title: str) -> Figure:
    """Mean loss of each `width` neighbouring positions; training saw positions up to `block`."""
    figure, axes = new_figure(3.4)
    end = width * max(map(len, lines.values()))
    values = [value for line in lines.values() for value in line]
    spread = max(values) - min(values)
    low, high = min(values) - 0.17 * spread, max(values) + 0.08 * spread
    axes.axvspan(0, block, color=PALE, alpha=0.55, lw=0, zorder=0)
    axes.text(block / 2, low, "trained here", ha="center", va="bottom", fontsize=8, color=GREY)
    looks, ends = zip(lines.items(), (VERMILION, ORANGE, BLUE), "s^o", strict=False), []
    for (name, line), colour, mark in looks:
        across = [width * (i + 0.5) for i in range(len(line))]
        axes.plot(across, line, color=colour, marker=mark, ms=3.5)
        if across[-1] < end / 2:  # a name over the line, which has no end at the right
            spot = (0.3 * width, max(line) + 0.04 * spread)
            high = max(high, max(line) + 0.24 * spread)
            style.label(axes, *spot, f"{name}\n(no row past {block})", colour, 9, va="bottom")
        else:
            ends.append((across[-1], line[-1], name.replace(", ", ",\n"), colour))
    axes.set_xticks([block * n for n in range(end // block + 1)])
    axes.set(xlabel="position in the text", ylabel="cross-entropy (nats)", xlim=(0, end))
    axes.set_ylim(low, high)
    beside_ends(axes, ends, 9)
    axes.set_title(title)
    return figure
