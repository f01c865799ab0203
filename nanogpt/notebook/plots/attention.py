"""Figures of who sees whom, and of what a cache holds."""

from __future__ import annotations

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .style import (
    BLUE,
    DPI,
    GREY,
    ORANGE,
    PALE,
    PAPER,
    VERMILION,
    WIDTH,
    _beside,
    _letter,
    headline,
    new_figure,
    styled,
)


@styled
def prefill_and_decode(weights: list[list[list[float]]], labels: list[str]) -> Figure:
    """Attention weights of the prefill, a square, beside those of the decode steps, one row each."""
    square, *rows = weights
    figure = Figure(figsize=(WIDTH, 3.9), dpi=DPI, layout="constrained")
    grid = figure.add_gridspec(len(rows), 2, width_ratios=(1, 1.28))
    _weights(figure.add_subplot(grid[:, 0]), square, labels[0])
    for i, (row, label) in enumerate(zip(rows, labels[1:], strict=True)):
        _weights(figure.add_subplot(grid[i, 1]), row, label)
    T = len(square)
    headline(
        figure, f"Prefill computes {T} rows of attention; every decode step after it computes one"
    )
    return figure


def _weights(axes, rows, label) -> None:
    colours = LinearSegmentedColormap.from_list("paper-blue", ("#eef4fa", BLUE)).with_extremes(
        bad=PALE
    )
    masked = [[value if value > 0 else float("nan") for value in row] for row in rows]
    axes.imshow(masked, cmap=colours, vmin=0, vmax=1, aspect="equal")
    size = len(rows[0])
    axes.set_xticks([i - 0.5 for i in range(1, size)], minor=True)
    axes.set_yticks([i - 0.5 for i in range(1, len(rows))], minor=True)
    axes.grid(False)
    axes.grid(which="minor", axis="both", color=PAPER, lw=1.4)
    axes.tick_params(which="both", length=0)
    axes.set_xticks(range(size), range(size), fontsize=7)
    axes.set_yticks(range(len(rows)), range(size - len(rows), size), fontsize=7)
    axes.set_title(label, fontsize=9, pad=4)
    for side in axes.spines.values():
        side.set_visible(False)


@styled
def cache_rows(
    steps: list[dict], chars: str, layer: str, capacity: int, room: int | None = None
) -> Figure:
    """The cache after each step given: its rows, those the step wrote, and the bytes.

    `room` is the number of steps to leave space for, so that all frames of an animation are of one size.
    """
    figure, axes = new_figure(0.95 + 0.52 * (room or len(steps)))
    for y, step in enumerate(steps):
        for slot in range(capacity):
            new = step["before"] <= slot < step["after"]
            held = slot < step["after"]
            face = ORANGE if new else BLUE if held else PAPER
            alpha, edge = (0.9 if new else 0.32, "none") if held else (1.0, PALE)
            box = Rectangle(
                (slot, y), 0.92, 0.74, facecolor=face, alpha=alpha, edgecolor=edge, lw=0.8
            )
            axes.add_patch(box)
            if held:
                _letter(
                    axes, slot + 0.46, y + 0.38, chars[slot], 9, weight="bold" if new else "normal"
                )
        axes.text(
            -0.25, y + 0.38, step["label"], ha="right", va="center", fontsize=8.5, parse_math=False
        )
        axes.text(
            capacity + 0.15, y + 0.38, f"{step['bytes']:,} B", va="center", fontsize=8.5, color=GREY
        )
    axes.set(xlim=(-3.2, capacity + 2.0), ylim=((room or len(steps)) - 0.1, -0.15))
    axes.axis("off")
    last = steps[-1]
    wrote = last["after"] - last["before"]
    axes.set_title(
        f"{layer}: this step wrote {wrote} row{'s' * (wrote != 1)} (orange) and read {last['after']}"
    )
    return figure


@styled
def shapes(walk: list[dict]) -> Figure:
    """What flows through the model: for each stage, the shapes that hooks saw in prefill and decode."""
    figure, axes = new_figure(0.9 + 0.36 * len(walk))
    largest = max(stage[mode + "_numel"] for stage in walk for mode in ("prefill", "decode"))
    for y, stage in enumerate(walk):
        axes.text(
            -0.02,
            y,
            stage["name"],
            ha="right",
            va="center",
            fontsize=8.5,
            family="DejaVu Sans Mono",
        )
        for left, mode, colour in ((0.0, "prefill", VERMILION), (1.1, "decode", BLUE)):
            width = max(stage[mode + "_numel"] / largest, 0.004)
            axes.barh(y, width, left=left, color=colour, alpha=0.35, height=0.68)
            axes.text(
                left + 0.015, y, stage[mode], va="center", fontsize=8.5, family="DejaVu Sans Mono"
            )
    axes.text(0.0, -0.85, "prefill", color=VERMILION, weight="bold", va="center")
    axes.text(1.1, -0.85, "one decode step", color=BLUE, weight="bold", va="center")
    axes.set(xlim=(-0.75, 2.1), ylim=(len(walk) - 0.4, -1.3))
    axes.axis("off")
    axes.set_title("Decode moves one token; only the keys are as long as the text")
    return figure


@styled
def masks(panels: list[dict], title: str, columns: int = 3) -> Figure:
    """Who sees whom: a panel has a `label`, the positions `q` and `k`, and `seen`, rows of booleans.

    Queries down, keys across, in the order in which the cache holds them; -1 is an empty slot. Panels
    stand in rows of `columns`, as high as their queries need.
    """
    groups = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    heights = [2.0 + max(len(panel["q"]) for panel in group) for group in groups]
    figure = Figure(figsize=(WIDTH, 0.5 + 0.135 * sum(heights)), dpi=DPI, layout="constrained")
    grid = figure.add_gridspec(len(groups), columns, height_ratios=heights)
    for row, group in enumerate(groups):
        for column, panel in enumerate(group):
            axes = figure.add_subplot(grid[row, column])
            rows = zip(panel["q"], panel["seen"], strict=True)
            shade = [
                [
                    0.0 if not s else 1.0 if p == q else 0.62
                    for s, p in zip(see, panel["k"], strict=True)
                ]
                for q, see in rows
            ]
            colours = LinearSegmentedColormap.from_list("seen", (PALE, "#9cc7e4", BLUE))
            axes.imshow(shade, cmap=colours, vmin=0, vmax=1, aspect="equal")
            axes.set_xticks([i - 0.5 for i in range(1, len(panel["k"]))], minor=True)
            axes.set_yticks([i - 0.5 for i in range(1, len(panel["q"]))], minor=True)
            axes.grid(False)
            axes.grid(which="minor", axis="both", color=PAPER, lw=1.2)
            axes.tick_params(which="both", length=0, pad=2)
            keys = ["∅" if p < 0 else p for p in panel["k"]]
            axes.set_xticks(range(len(keys)), keys, fontsize=5.5)
            axes.set_yticks(range(len(panel["q"])), panel["q"], fontsize=5.5)
            axes.set_title(panel["label"], fontsize=8.5, pad=4)
            for side in axes.spines.values():
                side.set_visible(False)
    headline(figure, title)
    return figure


@styled
def bytes_and_loss(rows: list[dict], title: str) -> Figure:
    """What each change costs in loss and saves in memory: bytes of a cache across, validation loss up."""
    figure, axes = new_figure(3.8)
    for row in rows:
        mid, low, high = (row["loss"][key] for key in ("median", "low", "high"))
        colour = VERMILION if row["table"] else BLUE
        mark = "s" if row["table"] else "o"
        axes.plot([row["bytes"]] * 2, [low, high], color=colour, lw=1.2, alpha=0.6)
        axes.plot(row["bytes"], mid, mark, color=colour, ms=6)
        axes.annotate(
            f"{row['name']}: {mid:.3f}",
            (row["bytes"], mid),
            textcoords="offset points",
            xytext=(9, row.get("up", 0)),
            va="center",
            fontsize=8.5,
        )
    axes.set_xscale("log")
    axes.set_xticks([1e4, 1e5, 1e6], ["10 kB", "100 kB", "1 MB"])
    axes.minorticks_off()
    most, least = (pick(row["bytes"] for row in rows) for pick in (max, min))
    axes.set(
        xlim=(least / 1.5, most * 5),
        xlabel="K and V of a text of 1,024 characters (log scale)",
        ylabel="validation loss",
    )
    axes.grid(axis="x", visible=True)
    axes.set_title(title)
    return figure


@styled
def loss_by_position(lines: dict[str, list[float]], width: int, block: int, title: str) -> Figure:
    """Mean loss of `width` neighbouring positions against where they stand; training ended at `block`."""
    figure, axes = new_figure(3.4)
    end = width * max(map(len, lines.values()))
    low, high = (pick(value for line in lines.values() for value in line) for pick in (min, max))
    axes.axvspan(0, block, color=PALE, alpha=0.55, lw=0, zorder=0)
    axes.text(block / 2, high, "trained here", ha="center", va="top", fontsize=8, color=GREY)
    places = zip(lines.items(), (VERMILION, ORANGE, BLUE), ("s", "^", "o"), strict=False)
    for (name, line), colour, mark in places:
        across = [width * (i + 0.5) for i in range(len(line))]
        axes.plot(across, line, color=colour, marker=mark, ms=3.5)
        text = f"{name} (no row past {block})" if across[-1] < block else name
        above = line[-1] > (low + high) / 2
        axes.annotate(
            text,
            (across[-1], line[-1]),
            textcoords="offset points",
            color=colour,
            weight="bold",
            fontsize=9,
            **_beside(across[-1] < end / 2, above),
        )
    axes.set_xticks([block * n for n in range(end // block + 1)])
    axes.set(xlabel="position in the text", ylabel="cross-entropy (nats)", xlim=(0, end))
    axes.set_ylim(low - 0.25 * (high - low), high + 0.08 * (high - low))
    axes.set_title(title)
    return figure
