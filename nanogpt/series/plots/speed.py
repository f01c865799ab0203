"""Figures of speed: the cache's speedup, and its cost."""

from __future__ import annotations

import textwrap
from itertools import accumulate

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from . import canvas, style
from .style import BLUE, GREY, PAPER, VERMILION, Data, Look, styled

THIN = 0.85  # opacity of the map's colours


@styled
def typing_race(text: str, timing: Data, share: float | None = None) -> Figure:
    """Both texts after `share` of the slower one's time; None: when the faster one is done."""
    title = f"The race: the same text, a {timing['speedup']['median']:.2f}× speedup"
    places = {"rows": 2} if style.narrow() else {"columns": 2}
    figure, both = canvas.new_panels(6.0 if style.narrow() else 3.3, title, **places)
    systems = [timing["systems"][name] for name in ("uncached", "cached")]
    # When each token arrived, in seconds from the start:
    arrivals = [list(accumulate([x["ttft"]["median"], *x["itl"]])) for x in systems]
    finish = [moments[-1] for moments in arrivals]
    clock = min(finish) if share is None else share * max(finish)
    looks = ("without a cache", VERMILION), ("with it", BLUE)
    for axes, moments, (label, colour) in zip(both, arrivals, looks, strict=True):
        done = sum(moment <= clock + 1e-12 for moment in moments)
        n = len(moments)
        _page(axes, text[:done], done / n, colour)
        heading = f"{label}: {done} of {n} tokens{' ✓' * (done == n)}"
        axes.set_title(heading, fontsize=9, color=style.on_paper(colour))
    return figure


def _page(axes: Axes, text: str, done: float, colour: str) -> None:
    """The text so far, in 13 lines of 46 characters, above a progress bar."""
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=(), yticks=())
    canvas.bare(axes)
    axes.add_patch(Rectangle((0, 0), 1, 1, color=colour, alpha=0.06, lw=0))
    axes.add_patch(Rectangle((0, 0), done, 0.025, color=colour, lw=0))
    wrapped = []
    for line in text.split("\n"):
        wrapped += textwrap.wrap(line, 46) or [""]
    font: Look = {
        "family": style.MONO,
        "fontsize": 8.6,
        "linespacing": 1.35,
        "in_layout": False,
        "parse_math": False,
    }
    axes.text(0.03, 0.975, "\n".join(wrapped[:13]), va="top", **font)


@styled
def speedup_map(cells: list[Data], rows: list[str], columns: list[int], title: str) -> Figure:
    """E2EL without the cache over E2EL with it: models and batches down, new tokens across.

    A cell has a `row`, an `n_new` and a `speedup`, a summary: median, with the range below. A dash
    means not measured: beyond the model's block or too long for this machine. On a phone, models
    run across.
    """
    turned = style.narrow()
    height = 2.0 + 0.42 * len(columns) if turned else 0.9 + 0.47 * len(rows)
    figure, (axes,) = canvas.new_panels(height, title)
    speedups = {(cell["row"], cell["n_new"]): cell["speedup"] for cell in cells}
    missing = {"median": float("nan")}
    values = []
    for row in rows:
        values.append([speedups.get((row, n), missing)["median"] for n in columns])
    ramp = LinearSegmentedColormap.from_list("lose-win", (VERMILION, "#f7f7f7", BLUE))
    colours = ramp.with_extremes(bad=PAPER)
    top = max(1.2, *(speedup["median"] for speedup in speedups.values()))
    if turned:
        values = [list(column) for column in zip(*values, strict=True)]
    axes.imshow(values, cmap=colours, norm=TwoSlopeNorm(1.0, 0.5, top), aspect="auto", alpha=THIN)
    for y, row in enumerate(rows):
        for x, n in enumerate(columns):
            place = (y, x) if turned else (x, y)
            _speedup(axes, *place, speedups.get((row, n)))
    marks = "slower with the cache: ▼ in every repeat, ▽ in most"
    canvas.bare(axes)
    if turned:
        axes.xaxis.tick_top()
        names = [style.wrapped(row, 7.5, 0.6) for row in rows]
        axes.set_xticks(range(len(rows)), names, fontsize=7.5)
        axes.set_yticks(range(len(columns)), [f"{n}" for n in columns])
        axes.set(ylabel="new tokens\n(from a 1-token prompt)")
        axes.set_xlabel(style.wrapped(marks, 9, 3.2), fontsize=9)
        return figure
    axes.set_xticks(range(len(columns)), [f"{n}" for n in columns])
    axes.set_yticks(range(len(rows)), rows, fontsize=8.5)
    axes.set_xlabel(f"new tokens (from a 1-token prompt);  {marks}")
    return figure


def _speedup(axes: Axes, x: int, y: int, speedup: Data | None) -> None:
    """The number in a cell of the map, legible on its colour."""
    if speedup is None:
        axes.text(x, y, "–", ha="center", va="center", color=GREY)
        return
    value = speedup["median"]
    mark = "▽ " if value < 1 else ""
    if speedup["high"] < 1:
        mark = "▼ "
    red, green, blue = axes.images[0].to_rgba(value)[:3]
    ground = style.mixed((red, green, blue), THIN)
    look: Look = {"color": style.ink_on(ground), "ha": "center", "va": "center"}
    axes.text(x, y - 0.14, f"{mark}{value:.2f}×", fontsize=9, weight="bold", **look)
    axes.text(x, y + 0.24, f"{speedup['low']:.2f}–{speedup['high']:.2f}", fontsize=7, **look)
