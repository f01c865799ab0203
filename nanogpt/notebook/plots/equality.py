"""Figures of equal tokens, of the margins of draws, of last bits, and of masks."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from . import canvas
from .style import BLUE, GREEN, INK, ORANGE, PALE, PAPER, VERMILION, styled

MARGIN = ("margins", 0.2, BLUE, "o", "margin of each draw")
CLOUDS = MARGIN, ("logit_diffs", -0.2, VERMILION, "s", "max |Δlogit| of each step")
LEVELS = [1, 2, 4, 16, 64, 256]  # float32 numbers apart


@styled
def token_strips(strips: list[dict], title: str) -> Figure:
    """Strips of characters; what differs from the truth is orange and struck out, the rest green.

    A strip has a `label`, its `text` and the `truth`, without which nothing is marked. The first 40
    characters are drawn; the count beside them is of the whole text.
    """
    rows = []
    for strip in strips:
        truth = strip.get("truth", [None] * len(strip["text"]))
        right = [b and a == b for a, b in zip(strip["text"], truth, strict=True)]
        wrong = right.count(False)
        note = (f"✗ {wrong} of {len(right)} differ", VERMILION) if wrong else ("✓ equal", GREEN)
        rows.append({**strip, "green": right, "note": note if "truth" in strip else ("", INK)})
    return _strips(rows, title, 40, (VERMILION, 0.3))[0]


@styled
def drafted(strips: list[dict], title: str) -> Figure:
    """One text from several drafts: what each proposed, and what the model had to say itself.

    A strip has a `label`, the `text`, and `drafted`: whether each character was the draft's.
    """
    rows = []
    for strip in strips:
        own = strip["drafted"]
        rows.append({**strip, "green": own, "note": (f"{sum(own) / len(own):.0%}", GREEN)})
    figure, axes = _strips(rows, title, 60, (ORANGE, 0.85))
    axes.set_ylim(top=-0.8)
    canvas.label(axes, 0, -0.45, "proposed, and accepted", GREEN)
    canvas.label(axes, 20, -0.45, "the model's own", ORANGE)
    return figure


def _strips(rows: list[dict], title: str, columns: int, other: tuple) -> tuple[Figure, Axes]:
    """Rows of characters in boxes, green or else of the colour and opacity `other`."""
    figure, axes = canvas.new_figure(1.05 + 0.44 * len(rows), title)
    for y, row in enumerate(rows):
        for x, (char, green) in enumerate(zip(row["text"][:columns], row["green"], strict=False)):
            colour, alpha = (PALE, 1) if green is None else (GREEN, 0.32) if green else other
            axes.add_patch(Rectangle((x, y), 0.94, 0.76, color=colour, alpha=alpha, lw=0))
            canvas.letter(axes, x + 0.47, y + 0.4, char, 6.8 if columns > 40 else 8)
            if colour == VERMILION:
                axes.plot((x + 0.12, x + 0.82), (y + 0.4, y + 0.4), color=VERMILION, lw=1)
        axes.text(-0.4, y + 0.4, row["label"], ha="right", va="center", fontsize=8.3)
        canvas.label(axes, columns + 0.4, y + 0.4, *row["note"], 8.3)
    axes.set(xlim=(-0.3 * columns, 1.17 * columns), ylim=(len(rows) - 0.1, -0.15))
    axes.axis("off")
    return figure, axes


@styled
def precision(reports: dict[str, dict]) -> Figure:
    """Logit differences and margins by dtype, one column of points each."""
    figure, axes = canvas.new_figure(3.4, "Where the two clouds overlap, a token can flip")
    for x, (name, report) in enumerate(reports.items()):
        for key, side, colour, mark, label in CLOUDS:
            values = report[key]  # side by side around a middle
            across = [x + side + 0.3 * (i / len(values) - 0.5) for i in range(len(values))]
            look = {"color": colour, "marker": mark, "label": label if x == 0 else None}
            axes.scatter(across, values, s=9, alpha=0.6, lw=0, **look)
        colour, mark = INK, f"✓ {report['n_new']} equal"
        if not report["equal"]:
            colour, mark = VERMILION, f"✗ {report['first_divergence']} equal, then not"
        canvas.label(axes, x, 30, f"{name}\n{mark}", colour, 9, ha="center", va="bottom")
    axes.set_yscale("log", nonpositive="mask")  # it has no 0
    axes.set(xticks=(), xlim=(-0.6, len(reports) - 0.4), ylim=(1e-17, 8000))
    axes.set_ylabel("logits (log scale)")
    axes.legend(loc="lower right", markerscale=2)
    return figure


@styled
def last_bits(panels: list[dict], title: str) -> Figure:
    """How many float32 numbers apart two ways of computing each logit are: darker is further.

    A panel has a `label` and `apart`, integers by step and character. Equal logits are white.
    """
    n = len(panels)
    figure, column = canvas.new_panels(1.1 + 1.45 * n, title, rows=n, sharex=True)
    most = max(np.max(panel["apart"]) for panel in panels)
    norm = BoundaryNorm([*LEVELS, max(most + 1, 2 * LEVELS[-1])], 256)
    colours = LinearSegmentedColormap.from_list("apart", ["#fbd5b5", VERMILION, "#4a1c00"])
    look = {"cmap": colours.with_extremes(under=PAPER), "norm": norm}
    for axes, panel in zip(column, panels, strict=True):
        place = {"aspect": "auto", "extent": (0.5, len(panel["apart"]) + 0.5, 1, 0)}
        image = axes.imshow(np.transpose(panel["apart"]), interpolation="nearest", **look, **place)
        axes.set_title(panel["label"])
        axes.set(yticks=(), ylabel="character")
        axes.grid(False)
    column[-1].set_xlabel("new token")
    bar = figure.colorbar(image, ax=column, extend="min", aspect=30)
    bar.set_ticks(LEVELS, labels=[*map(str, LEVELS[:-1]), f"{LEVELS[-1]}+"])
    bar.set_label("float32 numbers apart")
    return figure


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
    axes.set_title(panel["label"], fontsize=8.5, pad=4, color=INK)
