"""Figures of what the cache buys, and of what it costs in bytes."""

from __future__ import annotations

import textwrap
from itertools import accumulate

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from . import canvas, style
from .style import BLUE, COLOURS, GREY, ORANGE, PAPER, VERMILION, styled

THIN = 0.85  # how opaque the colours of the map are


@styled
def two_bars(duel: dict, n_new: int, equal: bool) -> Figure:
    """Total time of both systems, the cached one as 1, with the range of the runs."""
    same = f"The same {n_new} tokens" if equal else f"{n_new} tokens, NOT the same"
    faster = style.format_ratio(duel["speedup"])
    figure, axes = canvas.new_figure(2.5, f"{same}, {faster} as fast with the cache")
    base, names = duel["systems"]["cached"]["e2el"]["median"], ("uncached", "cached")
    spans = [style.low_mid_high(duel["systems"][name]["e2el"], base) for name in names]
    canvas.bars(axes, spans, [COLOURS[name] for name in names], height=0.58)
    canvas.number_column(axes, [f"{mid:.2f}" for _, mid, _ in spans], 9.5)
    canvas.name_rows(axes, ("without", "with the cache"))
    axes.set(xlabel="total time (with the cache = 1)", ylim=(1.5, -0.5))
    return figure


@styled
def typing_race(text: str, duel: dict, share: float | None = None) -> Figure:
    """Both texts when `share` of the slower one's time has passed; None: when the first is done."""
    title = f"The race: the same text, {duel['speedup']['median']:.1f}× as fast"
    figure, columns = canvas.new_panels(3.3, title, columns=2)
    arrivals = {}  # of each token, in seconds from the start
    for name in ("uncached", "cached"):
        system = duel["systems"][name]
        arrivals[name] = list(accumulate([system["ttft"]["median"], *system["itl"]]))
    finish = [moments[-1] for moments in arrivals.values()]
    clock = min(finish) if share is None else share * max(finish)
    labels = ("without the cache", "with it")
    for axes, (name, moments), label in zip(columns, arrivals.items(), labels, strict=True):
        done, n = sum(moment <= clock + 1e-12 for moment in moments), len(moments)
        _page(axes, text[:done], done / n, COLOURS[name])
        flag = "   ✓ finished" if done == n else ""
        colour = style.on_paper(COLOURS[name])
        axes.set_title(f"{label}: {done} of {n} tokens{flag}", fontsize=10, color=colour)
    return figure


def _page(axes: Axes, text: str, done: float, colour: str, width: int = 46, lines: int = 13):
    """A text so far, in lines of `width` characters, over a bar of the share that is done."""
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=(), yticks=())
    canvas.bare(axes)
    axes.add_patch(Rectangle((0, 0), 1, 1, color=colour, alpha=0.06, lw=0))
    axes.add_patch(Rectangle((0, 0), done, 0.025, color=colour, lw=0))
    wrapped = [piece for line in text.split("\n") for piece in textwrap.wrap(line, width) or [""]]
    font = {"family": style.MONO, "fontsize": 7.6, "linespacing": 1.35, "parse_math": False}
    axes.text(0.03, 0.975, "\n".join(wrapped[:lines]), va="top", **font)


@styled
def per_token(duel: dict, title: str) -> Figure:
    """Time of each token by its place in the text, in units of the cached median.

    A point is the median of 15 neighbours, the band goes from the smallest to the largest of them.
    """
    figure, axes = canvas.new_figure(3.4, title)
    unit, ends = duel["systems"]["cached"]["tpot"]["median"], []
    for name, label in (("uncached", "without the cache"), ("cached", "with it")):
        gaps = [gap / unit for gap in duel["systems"][name]["itl"]]
        places, spans = range(2, len(gaps) + 2), _running_spans(gaps, 15)
        canvas.line_with_band(axes, places, spans, color=COLOURS[name], lw=2.2)
        ends.append((places[-1], spans[-1][1], label, COLOURS[name]))
    axes.set_xticks(range(0, len(gaps) + 3, 32))
    axes.set(xlabel="place in the text", ylim=(0, None))
    axes.set_ylabel("time per token\n(median with the cache = 1)")
    canvas.beside_ends(axes, ends, 9)
    return figure


def _running_spans(values: list[float], width: int) -> list[tuple[float, float, float]]:
    half = width // 2
    parts = (sorted(values[max(0, i - half) : i + half + 1]) for i in range(len(values)))
    return [(part[0], part[len(part) // 2], part[-1]) for part in parts]


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
def prefill_split(cases: list[dict], title: str) -> Figure:
    """Share of the total time spent before the first token (prefill) and after it (decode).

    A case has its `label` and the `share` of the prefill, a summary: its range is drawn, too.
    """
    figure, axes = canvas.new_figure(0.95 + 0.42 * len(cases), title)
    spans = [style.low_mid_high(case["share"]) for case in cases]
    first, others = "prefill: to the first token", "decode: all others"
    rows = [{first: mid, others: 1 - mid} for _, mid, _ in spans]
    names = [case["label"] for case in cases]
    canvas.shares(axes, names, rows, {first: ORANGE, others: BLUE})
    canvas.whiskers(axes, spans)
    return figure


@styled
def update_cost(lengths: list[int], lines: dict[str, list[dict]], title: str) -> Figure:
    """Time of one cache update against the rows held, in units of the shortest static one.

    `lines` has for each design a summary for each length; bands are their range.
    """
    figure, axes = canvas.new_figure(2.9, title)
    unit = lines["static"][0]["median"]
    for (name, values), colour, mark in zip(lines.items(), (VERMILION, BLUE), "o^", strict=True):
        spans = [style.low_mid_high(value, unit) for value in values]
        canvas.line_with_band(axes, lengths, spans, color=colour, marker=mark, label=name)
    canvas.log_axis(axes, "x", lengths, [f"{n:,}" for n in lengths], base=2)
    canvas.log_axis(axes, "y")
    axes.yaxis.set_major_formatter(style.format_times)
    axes.set(xlabel="rows already in the cache")
    axes.set_ylabel("time of one update\n(static, shortest = 1)")
    axes.legend(loc="upper left")
    return figure


@styled
def context_cost(lengths: list[int], lines: list[dict], title: str) -> Figure:
    """Time of one decode step, and bytes of its cache, against the characters before it.

    A line has a `label`, `seconds` (a summary for each length) and `bytes`.
    """
    figure, (left, right) = canvas.new_panels(3.4, title, columns=2)
    unit = lines[-1]["seconds"][0]["median"]
    for line, colour, mark in zip(lines, (VERMILION, ORANGE, BLUE), "s^o", strict=False):
        spans = [style.low_mid_high(summary, unit) for summary in line["seconds"]]
        canvas.line_with_band(left, lengths, spans, color=colour, marker=mark, label=line["label"])
        right.plot(lengths, line["bytes"], color=colour, marker=mark, ms=5)
        end, look = line["bytes"][-1], {"color": colour, "va": "center"}
        canvas.label_point(right, (lengths[-1], end), style.format_bytes(end), (7, 0), **look)
    step = f"time of one step\n({lines[-1]['label']}, shortest = 1)"
    for axes, what in ((left, step), (right, "K and V\n")):
        canvas.log_axis(axes, "x", lengths, [f"{n:,}" for n in lengths], base=2)
        axes.set_xlabel("characters before it")
        canvas.subtitle(axes, what, 9)
    left.set_ylim(0, None)
    left.yaxis.set_major_formatter(style.format_times)
    left.legend(loc="upper left", fontsize=8.5)
    canvas.log_axis(right, "y", [1e4, 1e5, 1e6, 1e7], ["10 kB", "100 kB", "1 MB", "10 MB"])
    right.set_xlim(lengths[0] * 0.8, lengths[-1] * 4.5)
    return figure
