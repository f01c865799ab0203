"""Figures of what the cache buys."""

from __future__ import annotations

from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .style import (
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PAPER,
    SKY,
    VERMILION,
    _running_median,
    _size,
    _times,
    _wrapped,
    headline,
    new_figure,
    spread,
    styled,
)


@styled
def two_bars(duel: dict, n_new: int, equal: bool) -> Figure:
    """Total time of both systems, the cached one as 1, with the spread of the runs."""
    figure, axes = new_figure(2.5)
    base = duel["systems"]["cached"]["e2el"]["median"]
    for row, name in enumerate(("cached", "uncached")):
        e2el = duel["systems"][name]["e2el"]
        low, mid, high = (e2el[key] / base for key in ("low", "median", "high"))
        axes.barh(row, mid, color=COLOURS[name], height=0.58)
        axes.errorbar(mid, row, xerr=[[mid - low], [high - mid]], color=INK, capsize=4, lw=1.2)
        axes.text(high + 0.04, row, f"  {mid:.2f}", va="center", fontweight="bold")
    axes.set(
        yticks=(0, 1),
        yticklabels=("with the cache", "without"),
        xlabel="total time (with the cache = 1)",
    )
    axes.set_xlim(0, axes.get_xlim()[1] * 1.12)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    same = f"The same {n_new} tokens" if equal else f"{n_new} tokens, NOT the same"
    axes.set_title(f"{same}, {spread(duel['speedup'])} as fast with the cache")
    return figure


@styled
def race(text: str, duel: dict, share: float | None = None) -> Figure:
    """Both texts when `share` of the slower one's time has passed; None: when the first is done."""
    figure, axes = new_figure(3.3, columns=2)
    finish = {name: _arrivals(duel, name)[-1] for name in ("uncached", "cached")}
    clock = min(finish.values()) if share is None else share * max(finish.values())
    for ax, name, label in zip(
        axes, ("uncached", "cached"), ("without the cache", "with it"), strict=True
    ):
        arrivals = _arrivals(duel, name)
        done = sum(moment <= clock + 1e-12 for moment in arrivals)
        ax.set(xlim=(0, 1), ylim=(0, 1), xticks=(), yticks=())
        ax.grid(False)
        for side in ax.spines.values():
            side.set_visible(False)
        ax.add_patch(Rectangle((0, 0), 1, 1, color=COLOURS[name], alpha=0.06, lw=0))
        ax.text(
            0.03,
            0.975,
            _wrapped(text[:done]),
            family="DejaVu Sans Mono",
            fontsize=7.6,
            va="top",
            linespacing=1.35,
            parse_math=False,
        )
        ax.add_patch(Rectangle((0, 0), done / len(arrivals), 0.025, color=COLOURS[name], lw=0))
        flag = "   ✓ finished" if done == len(arrivals) else ""
        ax.set_title(
            f"{label}: {done} of {len(arrivals)} tokens{flag}", fontsize=10, color=COLOURS[name]
        )
    headline(figure, f"The race: the same text, {duel['speedup']['median']:.1f}× as fast")
    return figure


def _arrivals(duel: dict, name: str) -> list[float]:
    system = duel["systems"][name]
    moments = [system["ttft"]["median"]]
    for gap in system["itl"]:
        moments.append(moments[-1] + gap)
    return moments


@styled
def per_token(duel: dict, title: str) -> Figure:
    """Time of each token by its place in the text, in units of the cached median."""
    figure, axes = new_figure(3.4)
    unit, highest = duel["systems"]["cached"]["tpot"]["median"], 1.0
    for name, label in (("uncached", "without the cache"), ("cached", "with it")):
        gaps = [gap / unit for gap in duel["systems"][name]["itl"]]
        axes.plot(range(2, len(gaps) + 2), gaps, color=COLOURS[name], lw=0.7, alpha=0.45)
        smooth = _running_median(gaps, 15)
        highest = max(highest, *smooth)
        axes.plot(range(2, len(gaps) + 2), smooth, color=COLOURS[name], lw=2.2)
        axes.text(
            len(gaps) + 4,
            smooth[-1],
            label,
            color=COLOURS[name],
            va="center",
            weight="bold",
            fontsize=9,
        )
    axes.set_xticks([place for place in range(0, 1025, 32) if place <= len(gaps) + 2])
    axes.set(xlabel="place in the text", ylabel="time per token\n(median with the cache = 1)")
    axes.set(xlim=(0, len(duel["systems"]["cached"]["itl"]) * 1.28), ylim=(0, 1.25 * highest))
    axes.set_title(title)
    return figure


@styled
def speedup_map(cells: list[dict], rows: list[str], columns: list[int], title: str) -> Figure:
    """E2EL without the cache over E2EL with it: models and batches down, new tokens across."""
    figure, axes = new_figure(0.9 + 0.47 * len(rows))
    table = {(cell["row"], cell["n_new"]): cell["speedup"] for cell in cells}
    missing = float("nan")
    values = [
        [table[row, n]["median"] if (row, n) in table else missing for n in columns] for row in rows
    ]
    colours = LinearSegmentedColormap.from_list("lose-win", (VERMILION, "#f7f7f7", BLUE))
    colours = colours.with_extremes(bad=PAPER)
    top = max(1.2, *(cell["speedup"]["median"] for cell in cells))
    axes.imshow(values, cmap=colours, norm=TwoSlopeNorm(1.0, 0.5, top), aspect="auto", alpha=0.85)
    for y, (row_name, row) in enumerate(zip(rows, values, strict=True)):
        for x, value in enumerate(row):
            if value != value:  # not measured: past the model's block, or too long for this machine
                axes.text(x, y, "–", ha="center", va="center", color=GREY)
                continue
            worse = table[row_name, columns[x]]["high"] < 1
            mark = "▼ " if worse else "▽ " if value < 1 else ""
            dark = value > 1 + 0.6 * (top - 1) or value < 0.65
            axes.text(
                x,
                y,
                f"{mark}{value:.2f}×",
                ha="center",
                va="center",
                fontsize=9,
                weight="bold",
                color=PAPER if dark else INK,
            )
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows, fontsize=8.5)
    axes.set(
        xlabel="new tokens (from a 1-token prompt);  slower with the cache: ▼ in every repeat, ▽ in most"
    )
    axes.grid(False)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_title(title)
    return figure


@styled
def prefill_split(cases: list[dict], title: str) -> Figure:
    """Share of the total time spent before the first token (prefill) and after it (decode)."""
    figure, axes = new_figure(0.95 + 0.42 * len(cases))
    for y, case in enumerate(cases):
        share = case["ttft"] / case["e2el"]
        axes.barh(y, share, color=ORANGE, height=0.66)
        axes.barh(y, 1 - share, left=share, color=BLUE, height=0.66, alpha=0.75)
        axes.text(
            min(share, 0.93) + 0.012,
            y,
            f"{share:.0%}",
            va="center",
            color=PAPER,
            weight="bold",
            fontsize=8.5,
        )
    axes.set_yticks(range(len(cases)), [case["label"] for case in cases])
    axes.set(xlim=(0, 1), xticks=(), ylim=(len(cases) - 0.4, -1.0))
    axes.text(0.0, -0.72, "prefill: to the first token", color=ORANGE, weight="bold", va="center")
    axes.text(1.0, -0.72, "decode: all others", color=BLUE, weight="bold", va="center", ha="right")
    axes.grid(False)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(title)
    return figure


@styled
def cache_bytes(lines: list[dict], title: str) -> Figure:
    """Bytes of K and V against length, one line for each model, both axes logarithmic."""
    figure, axes = new_figure(3.6)
    for line, colour in zip(lines, (BLUE, SKY, GREEN, ORANGE, VERMILION), strict=False):
        axes.plot(line["lengths"], line["bytes"], color=colour, marker="o", ms=3.5)
        end, top = line["lengths"][-1], line["bytes"][-1]
        axes.text(
            end * 1.25,
            top,
            f"{line['label']}: {_size(top)}",
            color=colour,
            va="center",
            fontsize=8.5,
            weight="bold",
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([2**n for n in range(0, 18, 2)], [f"{2**n:,}" for n in range(0, 18, 2)])
    axes.set_yticks([1e3, 1e6, 1e9, 1e11], ["1 kB", "1 MB", "1 GB", "100 GB"])
    axes.minorticks_off()
    axes.set(xlabel="tokens in the cache, one text", ylabel="K and V", xlim=(0.8, 2**25))
    axes.set_title(title)
    return figure


@styled
def update_cost(lengths: list[int], lines: dict[str, list[float]], title: str) -> Figure:
    """Time of one cache update against the rows held, in units of the shortest static one."""
    figure, axes = new_figure(2.9)
    unit = lines["static"][0]
    for (label, values), colour, mark in zip(lines.items(), (VERMILION, BLUE), "o^", strict=True):
        scaled = [value / unit for value in values]
        axes.plot(lengths, scaled, color=colour, marker=mark, ms=5)
        axes.text(
            lengths[-1] * 1.12,
            scaled[-1],
            label,
            color=colour,
            va="center",
            weight="bold",
            fontsize=9,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, lengths)
    axes.yaxis.set_major_formatter(_times)
    axes.minorticks_off()
    axes.set(
        xlabel="rows already in the cache",
        ylabel="time of one update\n(static, shortest = 1)",
        xlim=(lengths[0] * 0.85, lengths[-1] * 2.4),
    )
    axes.set_title(title)
    return figure


@styled
def context_cost(lengths: list[int], lines: list[dict], title: str) -> Figure:
    """Time of one decode step, and bytes of its cache, against the characters before it.

    A line has a `label`, `seconds` (a summary for each length) and `bytes`.
    """
    figure, (left, right) = new_figure(3.4, columns=2)
    unit = lines[-1]["seconds"][0]["median"]
    for line, colour, mark in zip(lines, (VERMILION, ORANGE, BLUE), "s^o", strict=False):
        low, mid, high = (
            [s[key] / unit for s in line["seconds"]] for key in ("low", "median", "high")
        )
        left.fill_between(lengths, low, high, color=colour, alpha=0.15, lw=0)
        left.plot(lengths, mid, color=colour, marker=mark, ms=5, label=line["label"])
        right.plot(lengths, line["bytes"], color=colour, marker=mark, ms=5)
        end = line["bytes"][-1]
        right.annotate(
            _size(end),
            (lengths[-1], end),
            xytext=(7, 0),
            textcoords="offset points",
            color=colour,
            va="center",
            fontsize=8.5,
            weight="bold",
        )
    step = f"time of one step\n({lines[-1]['label']}, shortest = 1)"
    for axes, what in ((left, step), (right, "K and V\n")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
        axes.set_xlabel("characters before it")
        axes.set_title(what, fontsize=9, color=GREY)
    left.set_ylim(0, None)
    left.yaxis.set_major_formatter(_times)
    left.legend(loc="upper left", fontsize=8.5)
    right.set_yscale("log")
    right.set_yticks([1e4, 1e5, 1e6, 1e7], ["10 kB", "100 kB", "1 MB", "10 MB"])
    right.minorticks_off()
    right.set_xlim(lengths[0] * 0.8, lengths[-1] * 4.5)
    headline(figure, title)
    return figure
