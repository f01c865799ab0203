"""Figures of speed: what the cache buys and costs, the ladder of engines, speculation."""

from __future__ import annotations

import textwrap
from itertools import accumulate

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from . import canvas, style
from .style import BEHIND, BLUE, GREEN, GREY, INK, ORANGE, PALE, PAPER, VERMILION, styled

THIN = 0.85  # how opaque the colours of the map are
PARTS = {"arithmetic": GREEN, "memory": ORANGE, "overhead": PALE}


@styled
def typing_race(text: str, duel: dict, share: float | None = None) -> Figure:
    """Both texts when `share` of the slower one's time has passed; None: when the first is done."""
    title = f"The race: the same text, {duel['speedup']['median']:.2f}× as fast"
    figure, columns = canvas.new_panels(3.3, title, columns=2)
    systems = [duel["systems"][name] for name in ("uncached", "cached")]
    # When each token came, in seconds from the start:
    arrivals = [list(accumulate([x["ttft"]["median"], *x["itl"]])) for x in systems]
    finish = [moments[-1] for moments in arrivals]
    clock = min(finish) if share is None else share * max(finish)
    looks = ("without a cache", VERMILION), ("with it", BLUE)
    for axes, moments, (label, colour) in zip(columns, arrivals, looks, strict=True):
        done, n = sum(moment <= clock + 1e-12 for moment in moments), len(moments)
        _page(axes, text[:done], done / n, colour)
        heading = f"{label}: {done} of {n} tokens{' ✓' * (done == n)}"
        axes.set_title(heading, fontsize=9, color=style.on_paper(colour))
    return figure


def _page(axes: Axes, text: str, done: float, colour: str) -> None:
    """A text so far, in 13 lines of 46 characters, over a bar of the share that is done."""
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=(), yticks=())
    canvas.bare(axes)
    axes.add_patch(Rectangle((0, 0), 1, 1, color=colour, alpha=0.06, lw=0))
    axes.add_patch(Rectangle((0, 0), done, 0.025, color=colour, lw=0))
    wrapped = [piece for line in text.split("\n") for piece in textwrap.wrap(line, 46) or [""]]
    font = {
        "family": style.MONO,
        "fontsize": 8.6,
        "linespacing": 1.35,
        "in_layout": False,
        "parse_math": False,
    }
    axes.text(0.03, 0.975, "\n".join(wrapped[:13]), va="top", **font)


@styled
def speedup_map(cells: list[dict], rows: list[str], columns: list[int], title: str) -> Figure:
    """E2EL without the cache over E2EL with it: models and batches down, new tokens across.

    A cell has its `row`, its `n_new` and its `speedup`, a summary: the median, and below it the
    range. What was not measured, past the model's block or too long for this machine, is a dash.
    """
    figure, axes = canvas.new_figure(0.9 + 0.47 * len(rows), title)
    found = {(cell["row"], cell["n_new"]): cell["speedup"] for cell in cells}
    missing = {"median": float("nan")}
    values = [[found.get((row, n), missing)["median"] for n in columns] for row in rows]
    colours = LinearSegmentedColormap.from_list("lose-win", (VERMILION, "#f7f7f7", BLUE))
    colours = colours.with_extremes(bad=PAPER)
    top = max(1.2, *(speedup["median"] for speedup in found.values()))
    axes.imshow(values, cmap=colours, norm=TwoSlopeNorm(1.0, 0.5, top), aspect="auto", alpha=THIN)
    for y, row in enumerate(rows):
        for x, n in enumerate(columns):
            _speedup(axes, x, y, found.get((row, n)))
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows, fontsize=8.5)
    marks = "slower with the cache: ▼ in every repeat, ▽ in most"
    axes.set_xlabel(f"new tokens (from a 1-token prompt);  {marks}")
    canvas.bare(axes)
    return figure


def _speedup(axes: Axes, x: int, y: int, speedup: dict | None) -> None:
    """The number in a cell of the map, legible on its colour."""
    if speedup is None:
        axes.text(x, y, "–", ha="center", va="center", color=GREY)
        return
    value = speedup["median"]
    mark = "▼ " if speedup["high"] < 1 else "▽ " if value < 1 else ""
    ground = style.mixed(axes.images[0].to_rgba(value)[:3], THIN)
    look = {"color": style.ink_on(ground), "ha": "center", "va": "center"}
    axes.text(x, y - 0.14, f"{mark}{value:.2f}×", fontsize=9, weight="bold", **look)
    axes.text(x, y + 0.24, f"{speedup['low']:.2f}–{speedup['high']:.2f}", fontsize=7, **look)


@styled
def ladder(results: list[dict], titles: list[str], title: str) -> Figure:
    """Speed of every rung over the first, all on one log axis, with the roofline of each model.

    A result has its `rungs` and its `limits`, whose "roofline" is a summary of tokens a second.
    """
    names = max(map(_names, results), key=len)
    size = {"columns": len(results), "sharex": True, "sharey": True}
    figure, columns = canvas.new_panels(1.5 + 0.36 * len(names), title, **size)
    for axes, result, heading in zip(columns, results, titles, strict=True):
        first = result["rungs"][0]["tokens_per_second"]["median"]
        limit = style.low_mid_high(result["limits"]["roofline"], first)
        canvas.limit_band(axes, limit, -0.8, f"roofline {limit[1]:.0f}×")
        _rungs(axes, result["rungs"])
        axes.set(ylim=(len(names) - 0.4, -1.2), xlabel="speed, rung 1 = 1 (log scale)")
        canvas.log_axis(axes, "x", [1, 10, 100, 1000], ["1×", "10×", "100×", "1,000×"])
        canvas.name_rows(axes, names)
        axes.set_title(heading)
    return figure


def _names(result: dict) -> list[str]:
    return [f"{row.get('rung', '')}  {row['label']}".strip() for row in result["rungs"]]


def _rungs(axes: Axes, rungs: list[dict]) -> None:
    """The dots of one ladder, with their ranges and numbers."""
    numbers = []
    for y, row in enumerate(rungs):
        if "unavailable" in row:
            canvas.note(axes, 1.15, y, "not measured here", 8, "center", color=GREY, bbox=BEHIND)
            numbers.append("")
            continue
        low, mid, high = style.low_mid_high(row["speedup"])
        rounded = row["label"].endswith("8-bit weights")  # not quite the same model
        axes.plot([low, high], [y, y], color=INK, lw=1)
        axes.plot(mid, y, "D" if rounded else "o", ms=7, color=BLUE, mfc=PAPER if rounded else BLUE)
        numbers.append(f"{mid:.{0 if mid >= 20 else 1}f}×")
    canvas.number_column(axes, numbers)


@styled
def time_split(results: list[dict], titles: list[str], title: str) -> Figure:
    """What the time of each rung goes to, in shares of PARTS, a panel for each result.

    A result has `rungs`; each of them has its `label` and its `split`, {part: time}.
    """
    names = max(map(_names, results), key=len)
    size = {"columns": len(results), "sharey": True}
    figure, columns = canvas.new_panels(1.4 + 0.34 * len(names), title, **size)
    for axes, result, heading in zip(columns, results, titles, strict=True):
        splits = [row.get("split", {}) for row in result["rungs"]]
        rows = [{part: s / sum(split.values()) for part, s in split.items()} for split in splits]
        canvas.shares(axes, names, rows, PARTS)
        axes.set_title(heading)
    return figure


@styled
def speeds(rows: list[dict], title: str, xlabel: str, limit: dict | None = None) -> Figure:
    """Speeds as bars, with their ranges; `limit`, a summary too, reads the weights once a token.

    A row has a `label`, its `speedup` (a summary), and `plain` where it is what others build on.
    """
    figure, axes = canvas.new_figure(1.4 + 0.36 * len(rows), title)
    spans = [style.low_mid_high(row["speedup"]) for row in rows]
    most = max(high for *_, high in spans)
    if limit:
        reach = style.low_mid_high(limit)
        canvas.limit_band(axes, reach, -0.75, "roofline: every weight read once a token")
        most = max(most, *reach)
    colours = [GREY if row.get("plain") else BLUE for row in rows]
    canvas.whiskers(axes, spans)
    middles = [mid for _, mid, _ in spans]
    axes.barh(range(len(rows)), middles, color=colours, height=0.62, lw=0)
    canvas.number_column(axes, [f"{mid:.2f}×" for _, mid, _ in spans])
    canvas.name_rows(axes, [row["label"] for row in rows])
    top = -1.15 if limit else -0.6
    axes.set(ylim=(len(rows) - 0.4, top), xlim=(0, 1.05 * most), xlabel=xlabel)
    return figure
