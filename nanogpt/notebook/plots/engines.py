"""Figures of the ladder, and of speculation."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PAPER,
    SKY,
    VERMILION,
    _letter,
    _times,
    headline,
    new_figure,
    styled,
)


@styled
def ladder(results: list[dict], titles: list[str], title: str) -> Figure:
    """Speed of every rung over the first, on a log scale, with the floor of each model drawn."""
    rows = max((result["rungs"] for result in results), key=len)
    figure, axes = new_figure(
        1.5 + 0.36 * len(rows), columns=len(results), squeeze=False, sharey=True
    )
    for axis, result, heading in zip(axes[0], results, titles, strict=True):
        base = result["rungs"][0]["tokens_per_second"]["median"]
        floor = result["limits"]["floor"]["median"] / base
        box = {"facecolor": PAPER, "lw": 0, "pad": 1.5}  # so that the line does not cross the words
        for y, row in enumerate(result["rungs"]):
            if "unavailable" in row:
                axis.text(1.15, y, "not on this machine", va="center", color=GREY, fontsize=8)
                continue
            mid, low, high = (row["speedup"][key] for key in ("median", "low", "high"))
            eight = row["label"].endswith("8-bit weights")  # not quite the same model
            kind = {"color": SKY, "hatch": "///", "edgecolor": PAPER} if eight else {"color": BLUE}
            axis.barh(y, mid - 0.9, left=0.9, height=0.62, lw=0, **kind)
            axis.errorbar(mid, y, xerr=[[mid - low], [high - mid]], color=INK, capsize=2.5, lw=1)
            number = f"{mid:.{0 if mid >= 20 else 1}f}×"
            axis.text(high * 1.12, y, number, va="center", fontsize=8.5, weight="bold", bbox=box)
        axis.axvline(floor, color=VERMILION, lw=1.6, ls="--")
        name = f"floor {floor:.0f}×"
        axis.text(
            floor, -0.8, name, color=VERMILION, ha="center", fontsize=8.5, weight="bold", bbox=box
        )
        axis.set_xscale("log")
        longest = max(
            floor, *(row["speedup"]["high"] for row in result["rungs"] if "speedup" in row)
        )
        axis.set(xlim=(0.9, 2.6 * longest), ylim=(len(rows) - 0.4, -1.2))
        axis.set_xlabel("speed, rung 1 = 1 (log scale)")
        axis.set_xticks([1, 10, 100], ["1×", "10×", "100×"])
        axis.minorticks_off()
        axis.set_yticks(range(len(rows)), [f"{row['rung']}  {row['label']}" for row in rows])
        axis.set_title(heading, fontsize=10, color=GREY)
        axis.grid(axis="y", visible=False)
        axis.grid(axis="x", visible=True)
        axis.tick_params(axis="y", length=0)
    headline(figure, title)
    return figure


@styled
def time_split(results: list[dict], titles: list[str], title: str) -> Figure:
    """What each rung's time per token goes to: arithmetic, memory, overhead, in shares of that time."""
    rows = max((result["rungs"] for result in results), key=len)
    figure, axes = new_figure(
        1.4 + 0.34 * len(rows), columns=len(results), squeeze=False, sharey=True
    )
    parts = (("arithmetic", GREEN), ("memory", ORANGE), ("overhead", PALE))
    for axis, result, name in zip(axes[0], results, titles, strict=True):
        for y, row in enumerate(result["rungs"]):
            if "split" not in row:
                axis.text(0.02, y, "not on this machine", va="center", color=GREY, fontsize=8)
                continue
            whole, left = sum(row["split"].values()), 0.0
            for part, colour in parts:
                share = row["split"][part] / whole
                axis.barh(y, share, left=left, height=0.66, color=colour)
                if share > 0.1:
                    axis.text(
                        left + share / 2,
                        y,
                        f"{share:.0%}",
                        ha="center",
                        va="center",
                        fontsize=8,
                        color=GREY if part == "overhead" else PAPER,
                        weight="bold",
                    )
                left += share
        axis.set(xlim=(0, 1), xticks=(), ylim=(len(rows) - 0.4, -1.2))
        axis.set_yticks(range(len(rows)), [f"{row['rung']}  {row['label']}" for row in rows])
        for x, (part, colour) in zip((0.0, 0.36, 0.66), parts, strict=True):
            axis.text(
                x,
                -0.85,
                part,
                color=GREY if part == "overhead" else colour,
                weight="bold",
                va="center",
            )
        axis.set_title(name, fontsize=10, color=GREY)
        axis.grid(False)
        axis.tick_params(length=0)
        for side in axis.spines.values():
            side.set_visible(False)
    headline(figure, title)
    return figure


@styled
def throughput(cells: list[dict], title: str) -> Figure:
    """Tokens of all texts together, and the time of one step, against the batch; both against batch 1."""
    figure, (left, right) = new_figure(3.3, columns=2)
    labels = list(dict.fromkeys(cell["label"] for cell in cells))
    base = next(
        cell for cell in cells if cell["label"] == labels[0]
    )  # its first: the smallest batch
    speed, step = base["tokens_per_second"]["median"], base["step"]["median"]
    for label, colour, mark in zip(labels, (VERMILION, ORANGE, GREEN, BLUE), "osD^", strict=False):
        own = [cell for cell in cells if cell["label"] == label]
        batches = [cell["batch"] for cell in own]
        left.plot(
            batches,
            [c["tokens_per_second"]["median"] / speed for c in own],
            color=colour,
            marker=mark,
            ms=5,
        )
        right.plot(
            batches,
            [c["step"]["median"] / step for c in own],
            color=colour,
            marker=mark,
            ms=5,
            label=label,
        )
    for axis, what in ((left, "tokens a second, all texts together"), (right, "time of one step")):
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(batches, batches)
        axis.yaxis.set_major_formatter(_times)
        axis.minorticks_off()
        axis.set(xlabel="texts at once")
        axis.set_title(f"{what}\n({labels[0]}, {base['batch']} text = 1)", fontsize=9, color=GREY)
        axis.grid(axis="both", visible=True)
    right.legend(fontsize=8)
    headline(figure, title)
    return figure


@styled
def drafted(strips: list[dict], title: str, columns: int = 60) -> Figure:
    """The same text from several drafts: what each of them proposed, and what the model had to say itself.

    A strip has a `label`, the `text` and, for each character, whether it was the draft's.
    """
    figure, axes = new_figure(1.15 + 0.44 * len(strips))
    for y, strip in enumerate(strips):
        own = strip["drafted"]
        for x, (char, accepted) in enumerate(zip(strip["text"][:columns], own, strict=False)):
            colour, alpha = (GREEN, 0.32) if accepted else (ORANGE, 0.85)
            axes.add_patch(Rectangle((x, y), 0.94, 0.76, color=colour, alpha=alpha, lw=0))
            _letter(axes, x + 0.47, y + 0.4, char, 6.8)
        axes.text(-0.6, y + 0.4, strip["label"], ha="right", va="center", fontsize=8.3)
        share = f"{sum(own) / len(own):.0%}"
        axes.text(
            columns + 0.5, y + 0.4, share, va="center", fontsize=8.5, weight="bold", color=GREEN
        )
    axes.text(
        0, -0.45, "proposed, and accepted", color=GREEN, weight="bold", va="center", fontsize=8.5
    )
    axes.text(20, -0.45, "the model's own", color=ORANGE, weight="bold", va="center", fontsize=8.5)
    axes.set(xlim=(-14, columns + 4), ylim=(len(strips) - 0.1, -0.8))
    axes.axis("off")
    axes.set_title(title)
    return figure


@styled
def tokens_per_pass(lines: list[dict], title: str) -> Figure:
    """Tokens that one pass of the model brings, against proposals: dots measured, lines from the agreement.

    A line has a `label`, its `agreement`, the numbers of proposals `k`, and for each `measured` and
    `predicted`.
    """
    figure, axes = new_figure(3.5)
    ks, free = lines[0]["k"], 0.0
    room = 0.07 * (max(line["predicted"][-1] for line in lines) - 1)  # from name to name
    styles = list(zip(lines, (VERMILION, ORANGE, GREEN, BLUE), "so^D", strict=False))
    for line, colour, mark in sorted(styles, key=lambda style: style[0]["predicted"][-1]):
        axes.plot(ks, line["predicted"], color=colour, lw=1.4, alpha=0.6)
        axes.plot(ks, line["measured"], mark, color=colour, ms=5.5)
        free = max(line["predicted"][-1], free + room)
        name = f"  {line['label']}: {line['agreement']:.0%} agree"
        axes.text(ks[-1], free, name, color=colour, va="center", fontsize=8.5, weight="bold")
    axes.set_xticks(ks, ks)
    axes.set(
        xlabel="proposals a pass, k",
        ylabel="tokens a pass",
        xlim=(0.5, 1.5 * max(ks)),
        ylim=(1, None),
    )
    axes.set_title(title)
    return figure


@styled
def past_floor(rows: list[dict], floor: float, title: str) -> Figure:
    """Speed over plain decoding in the same native code; `floor` is one reading of the weights a token."""
    figure, axes = new_figure(1.3 + 0.36 * len(rows))
    box = {"facecolor": PAPER, "lw": 0, "pad": 1.5}
    for y, row in enumerate(rows):
        mid, low, high = (row["speedup"][key] for key in ("median", "low", "high"))
        axes.barh(y, mid, height=0.62, lw=0, color=GREY if row.get("plain") else BLUE)
        axes.errorbar(mid, y, xerr=[[mid - low], [high - mid]], color=INK, capsize=2.5, lw=1)
        axes.text(high + 0.03, y, f"{mid:.2f}×", va="center", fontsize=8.5, weight="bold", bbox=box)
    axes.axvline(floor, color=VERMILION, lw=1.6, ls="--")
    axes.text(
        floor,
        -0.75,
        "floor: one reading for each token",
        color=VERMILION,
        ha="center",
        fontsize=8.5,
        weight="bold",
        bbox=box,
    )
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
    most = max(floor, *(row["speedup"]["high"] for row in rows))
    axes.set(ylim=(len(rows) - 0.4, -1.15), xlim=(0, 1.15 * most), xlabel="speed, best rung = 1")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.tick_params(axis="y", length=0)
    axes.set_title(title)
    return figure
