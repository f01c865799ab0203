"""Figures of speed: the cache's speedup, and its cost."""

from __future__ import annotations

import textwrap
from itertools import accumulate
from math import log2, nan

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from . import canvas, style
from .style import BLUE, GREY, PAPER, VERMILION, Data, Look, styled

THIN = 0.85  # opacity of the map's colours
_PANEL = 0.48  # inches of a map's panel besides its rows: its title, and the names below
_ROW = 0.54  # inches of a row


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
def speedup_map(panels: list[tuple[str, list[Data]]], title: str) -> Figure:
    """The time without the cache over that with it: a panel for each model.

    A panel is its title and its rows, as in `bench.gain`: batch sizes down, new tokens across. An
    entry shows the median, the range below it and, if known, what the time without a cache is
    spent on. A dash means not measured. On a phone, batch sizes run across.
    """
    turned = style.narrow()
    sizes = []
    for _, rows in panels:
        down, across = _sides(rows, turned)
        sizes.append(len(down))
    # 1. A panel for each model, as high as it has rows; all share one logarithmic scale of colours.
    height = _PANEL * len(panels) + _ROW * sum(sizes) + (0.75 if turned else 0.42)
    ratios = {"height_ratios": sizes}
    figure, places = canvas.new_panels(height, title, rows=len(panels), gridspec_kw=ratios)
    top = max(2.0, *(row["gain"]["median"] for _, rows in panels for row in rows))
    norm = TwoSlopeNorm(0.0, -1.5, log2(top))
    # 2. Its entries, in colour and in words.
    for axes, (heading, rows) in zip(places, panels, strict=True):
        _speedups(axes, rows, norm, turned)
        axes.set_title(style.wrapped(heading, 9, style.width() - 1.1, bold=True), fontsize=9)
    marks = "slower with the cache: ▼ in every repeat, ▽ in most"
    words = f"new tokens {'down' if turned else 'across'}, from a 1-token prompt;  {marks}"
    places[-1].set_xlabel(style.wrapped(words, 9, style.width() - 1.1), fontsize=9)
    return figure


def _sides(rows: list[Data], turned: bool) -> tuple[list[int], list[int]]:
    """What runs down and what across: batch sizes and new tokens; `turned`: the reverse."""
    batches = sorted({row["batch"] for row in rows})
    lengths = sorted({row["n_new"] for row in rows})
    return (lengths, batches) if turned else (batches, lengths)


def _speedups(axes: Axes, rows: list[Data], norm: TwoSlopeNorm, turned: bool) -> None:
    """The entries of one model."""
    down, across = _sides(rows, turned)
    keys = ("n_new", "batch") if turned else ("batch", "n_new")
    entries = {(row[keys[0]], row[keys[1]]): row for row in rows}
    missing = {"gain": {"median": nan}}
    values = [[log2(entries.get((y, x), missing)["gain"]["median"]) for x in across] for y in down]
    ramp = LinearSegmentedColormap.from_list("lose-win", (VERMILION, "#f7f7f7", BLUE))
    colours = ramp.with_extremes(bad=PAPER)
    axes.imshow(values, cmap=colours, norm=norm, aspect="auto", alpha=THIN)
    for i, y in enumerate(down):
        for j, x in enumerate(across):
            _entry(axes, j, i, entries.get((y, x)))
    canvas.bare(axes)
    batches, lengths = (across, down) if turned else (down, across)
    at_batches, at_lengths = (axes.xaxis, axes.yaxis) if turned else (axes.yaxis, axes.xaxis)
    at_batches.set_ticks(range(len(batches)), [f"batch {n}" for n in batches], fontsize=8.5)
    at_lengths.set_ticks(range(len(lengths)), [f"{n:,}" for n in lengths], fontsize=8.5)


def _entry(axes: Axes, x: int, y: int, row: Data | None) -> None:
    """The words of an entry of the map, legible on its colour."""
    if row is None:
        axes.text(x, y, "–", ha="center", va="center", color=GREY)
        return
    speedup = row["gain"]
    value = speedup["median"]
    mark = "▽ " if value < 1 else ""
    if speedup["high"] < 1:
        mark = "▼ "
    red, green, blue = axes.images[0].to_rgba(np.array([log2(value)]))[0, :3]
    ground = style.mixed((red, green, blue), THIN)
    look: Look = {"color": style.ink_on(ground), "ha": "center", "va": "center"}
    digits = 2 if value < 10 else 1
    low, high = (f"{speedup[end]:.{digits}f}" for end in ("low", "high"))
    axes.text(x, y - 0.26, f"{mark}{value:.{digits}f}×", fontsize=9, weight="bold", **look)
    axes.text(x, y + 0.06, f"{low}–{high}", fontsize=7, **look)
    axes.text(x, y + 0.33, row.get("bound", ""), fontsize=7, style="italic", **look)
