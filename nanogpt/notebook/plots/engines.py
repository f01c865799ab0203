"""Figures of the ladder of engines, and of speculation."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from . import canvas, style
from .style import BLUE, GREEN, GREY, ORANGE, PALE, PAPER, SKY, VERMILION, styled

PARTS = {"arithmetic": GREEN, "memory": ORANGE, "overhead": PALE}


@styled
def ladder(results: list[dict], titles: list[str], title: str) -> Figure:
    """Speed of every rung over the first, on a log scale, with the roofline of each model.

    A result has its `rungs` and its `limits`, whose "roofline" is a summary of tokens a second: as
    many as this machine's memory can serve when each reads every weight once.
    """
    names = _rung_names(results)
    size = {"columns": len(results), "sharey": True}
    figure, columns = canvas.new_panels(1.5 + 0.36 * len(names), title, **size)
    for axes, result, heading in zip(columns, results, titles, strict=True):
        first = result["rungs"][0]["tokens_per_second"]["median"]
        roofline = result["limits"]["roofline"]
        limit = {key: roofline[key] / first for key in ("low", "median", "high")}
        reach = canvas.limit_band(axes, limit, -0.8, f"roofline {limit['median']:.0f}×")
        highest = _rungs(axes, result["rungs"])
        canvas.log_axis(axes, "x", [1, 10, 100], ["1×", "10×", "100×"])
        axes.set(xlim=(0.9, 1.4 * max(reach, highest)), ylim=(len(names) - 0.4, -1.2))
        axes.set_xlabel("speed, rung 1 = 1 (log scale)")
        canvas.name_rows(axes, names)
        canvas.subtitle(axes, heading)
    return figure


def _rung_names(results: list[dict]) -> list[str]:
    rungs = max((result["rungs"] for result in results), key=len)
    return [f"{row['rung']}  {row['label']}" for row in rungs]


def _rungs(axes: Axes, rungs: list[dict]) -> float:
    """The bars of one ladder; returns the highest speed."""
    nothing = (0.9, 0.9, 0.9)  # no bar: where the axis begins
    spans = [style.low_mid_high(row["speedup"]) if "speedup" in row else nothing for row in rungs]
    bars = canvas.bars(axes, spans, BLUE, left=0.9, height=0.62)
    numbers = []
    for y, (row, bar, (_, mid, _)) in enumerate(zip(rungs, bars, spans, strict=True)):
        if "unavailable" in row:
            axes.text(1.15, y, "not measured here", va="center", color=GREY, fontsize=8)
        elif row["label"].endswith("8-bit weights"):  # not quite the same model
            bar.set(facecolor=SKY, hatch="///", edgecolor=PAPER)
        digits = 0 if mid >= 20 else 1
        numbers.append("" if "unavailable" in row else f"{mid:.{digits}f}×")
    canvas.number_column(axes, numbers)
    return max(high for _, _, high in spans)


@styled
def time_split(results: list[dict], titles: list[str], title: str) -> Figure:
    """What each rung's time per token goes to: arithmetic, memory and overhead, in shares."""
    names = _rung_names(results)
    size = {"columns": len(results), "sharey": True}
    figure, columns = canvas.new_panels(1.4 + 0.34 * len(names), title, **size)
    for axes, result, heading in zip(columns, results, titles, strict=True):
        splits = [row.get("split", {}) for row in result["rungs"]]
        rows = [{part: s / sum(split.values()) for part, s in split.items()} for split in splits]
        canvas.shares(axes, names, rows, PARTS)
        canvas.subtitle(axes, heading)
    return figure


@styled
def throughput(cells: list[dict], title: str) -> Figure:
    """Tokens of all texts together, and the time of one step, against the batch size.

    Both are relative to the first cell: the smallest batch of the first engine. Bands are the
    range of the repeats.
    """
    figure, panels = canvas.new_panels(3.3, title, columns=2)
    labels, base = list(dict.fromkeys(cell["label"] for cell in cells)), cells[0]
    shown = {"tokens_per_second": "tokens a second, all texts together", "step": "time of one step"}
    for axes, (key, what) in zip(panels, shown.items(), strict=True):
        looks = zip(labels, (VERMILION, ORANGE, GREEN, BLUE), "osD^", strict=False)
        for label, colour, mark in looks:
            own = [cell for cell in cells if cell["label"] == label]
            batches = [cell["batch"] for cell in own]
            spans = [style.low_mid_high(cell[key], base[key]["median"]) for cell in own]
            canvas.line_with_band(axes, batches, spans, color=colour, marker=mark, label=label)
        canvas.log_axis(axes, "x", batches, base=2)
        canvas.log_axis(axes, "y")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(style.format_times)
        axes.set(xlabel="texts at once")
        canvas.subtitle(axes, f"{what}\n({base['label']}, {base['batch']} text = 1)", 9)
        axes.grid(axis="both", visible=True)
    axes.legend(fontsize=8)
    return figure


@styled
def tokens_per_pass(lines: list[dict], title: str) -> Figure:
    """Tokens that one pass of the model brings, against the number of proposals.

    A line has a `label`, its `acceptance_rate`, the numbers of proposals `k`, and for each
    `measured` (drawn as dots) and `predicted` from that rate (drawn as lines).
    """
    figure, axes = canvas.new_figure(3.5, title)
    ks, ends = lines[0]["k"], []
    looks = zip(lines, (VERMILION, ORANGE, GREEN, BLUE), "so^D", strict=False)
    for line, colour, mark in looks:
        axes.plot(ks, line["predicted"], color=colour, lw=1.4, alpha=0.6)
        axes.plot(ks, line["measured"], mark, color=colour, ms=5.5)
        name = f"{line['label']}: {line['acceptance_rate']:.0%} accepted"
        ends.append((ks[-1], line["predicted"][-1], name, colour))
    axes.set_xticks(ks, ks)
    axes.set(xlabel="proposals a pass, k", ylabel="tokens a pass", ylim=(1, None))
    canvas.beside_ends(axes, ends)
    return figure


@styled
def speculation_speed(rows: list[dict], limit: dict, title: str) -> Figure:
    """Speed over plain decoding in the same native code; `limit` reads the weights once a token.

    A row has a `label`, its `speedup` (a summary), and `plain` where nothing is drafted; `limit`
    is a summary of the same ratio.
    """
    figure, axes = canvas.new_figure(1.3 + 0.36 * len(rows), title)
    reach = canvas.limit_band(axes, limit, -0.75, "roofline: every weight read once a token")
    spans = [style.low_mid_high(row["speedup"]) for row in rows]
    colours = [GREY if row.get("plain") else BLUE for row in rows]
    canvas.bars(axes, spans, colours, height=0.62)
    canvas.number_column(axes, [f"{mid:.2f}×" for _, mid, _ in spans])
    canvas.name_rows(axes, [row["label"] for row in rows])
    most = max(reach, *(high for _, _, high in spans))
    axes.set(ylim=(len(rows) - 0.4, -1.15), xlim=(0, 1.05 * most), xlabel="speed, best rung = 1")
    return figure
