"""Figures of notebook 01: characters, batches, losses, recipes."""

from __future__ import annotations

import matplotlib.lines
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .style import (
    BLANKS,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    SKY,
    VERMILION,
    _letter,
    headline,
    new_figure,
    styled,
)


@styled
def characters(counts: dict[str, int]) -> Figure:
    """How often each character stands in the corpus, most frequent first."""
    figure, axes = new_figure(3.0)
    everything = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ordered, total = everything[:70], sum(counts.values())  # more could not be read
    names = [BLANKS.get(char, char) for char, _ in ordered]
    colours = [
        BLUE if char.islower() else ORANGE if char.isupper() else GREY for char, _ in ordered
    ]
    axes.bar(range(len(ordered)), [100 * n / total for _, n in ordered], color=colours, width=0.8)
    axes.set_xticks(
        range(len(ordered)), names, family="DejaVu Sans Mono", fontsize=7, parse_math=False
    )
    axes.set(ylabel="share of the text (%)", xlim=(-0.8, len(ordered) - 0.2))
    axes.tick_params(axis="x", length=0)
    keys = ((BLUE, "lower case"), (ORANGE, "upper case"), (GREY, "␣ ↵ and the rest"))
    for i, (colour, label) in enumerate(keys):
        axes.text(
            0.98,
            0.92 - 0.09 * i,
            label,
            color=colour,
            transform=axes.transAxes,
            ha="right",
            weight="bold",
        )
    half, running = 0, 0
    for _, n in everything:
        half, running = half + 1, running + n
        if running >= total / 2:
            break
    axes.set_title(
        f"{len(counts)} characters make the whole text, and {half} of them make half of it"
    )
    return figure


@styled
def batch(x: list[str], y: list[str]) -> Figure:
    """Rows of a batch, inputs and, below each, the same characters one place on."""
    figure, axes = new_figure(0.95 + 0.62 * len(x))
    columns = len(x[0])
    for row, (given, wanted) in enumerate(zip(x, y, strict=True)):
        for col in range(columns):
            for text, dy, colour in ((given, 0.0, SKY), (wanted, 0.42, ORANGE)):
                axes.add_patch(
                    Rectangle((col, row + dy), 0.94, 0.38, color=colour, alpha=0.28, lw=0)
                )
                _letter(axes, col + 0.47, row + dy + 0.2, text[col], 8.5)
        axes.text(-0.3, row + 0.2, "x", ha="right", va="center", color=BLUE, weight="bold")
        axes.text(-0.3, row + 0.62, "y", ha="right", va="center", color=VERMILION, weight="bold")
    axes.set(xlim=(-0.9, columns), ylim=(len(x) - 0.1, -0.1))
    axes.axis("off")
    axes.set_title(f"Every window is {columns} lessons: y is x, one character on")
    return figure


@styled
def losses(history: dict, references: dict[str, float], title: str) -> Figure:
    """Training and validation loss by step; `references` are horizontal lines with their names."""
    figure, axes = new_figure(3.6)
    steps = history["step"]
    raw = history["batch_loss"]
    axes.plot(range(1, len(raw) + 1), raw, color=PALE, lw=0.8, zorder=1)
    axes.plot(steps, history["train"], color=SKY, ls="--", marker="s", ms=3.5, label="train")
    axes.plot(steps, history["val"], color=BLUE, marker="o", ms=3.5, label="validation")
    for name, value in references.items():
        axes.axhline(value, color=GREY, lw=0.9, ls=":")
        below = value < min(
            history["val"]
        )  # left and below, right and above: where the curves leave room
        x, va, ha = (0, "top", "left") if below else (steps[-1], "bottom", "right")
        axes.text(x, value, f" {name} ", va=va, ha=ha, fontsize=7.5, color=GREY)
    axes.legend(loc="upper right", bbox_to_anchor=(1.0, 0.93))
    axes.set(xlabel="step", ylabel="cross-entropy (nats per character)", xlim=(0, steps[-1]))
    axes.set_title(title)
    return figure


@styled
def schedules(runs: dict[str, dict], title: str) -> Figure:
    """Left: the learning rate of each run by step. Right: the loss on the way, and where it ends."""
    figure, (left, right) = new_figure(3.2, columns=2)
    for (name, run), colour, style in zip(
        runs.items(), (VERMILION, ORANGE, BLUE), (":", "--", "-"), strict=False
    ):
        left.plot(run["rate"], color=colour, ls=style, label=name)
        right.plot(run["step"], run["val"], color=colour, ls=style, marker="o", ms=3)
        right.text(
            run["step"][-1],
            run["val"][-1],
            f" {run['val'][-1]:.2f}",
            color=colour,
            va="center",
            fontsize=8.5,
        )
    left.legend(loc="upper right", bbox_to_anchor=(1.0, 0.9), fontsize=8)
    left.set(xlabel="step", ylabel="learning rate (AdamW)", ylim=(0, None))
    late = [value for run in runs.values() for value in run["val"][2:]]
    right.set(xlabel="step", ylabel="validation loss", ylim=(min(late) - 0.05, max(late) + 0.1))
    headline(figure, title)
    return figure


@styled
def recipes(panels: list[dict], title: str) -> Figure:
    """Loss against seconds of training, one panel for each block size: only equal blocks compare."""
    widths = [max(2.2, len(panel["lines"])) for panel in panels]
    figure, axes = new_figure(4.0, columns=len(panels), squeeze=False, width_ratios=widths)
    colours = {
        "lecture": VERMILION,
        "nanoGPT's": ORANGE,
        "fast": GREEN,
        "sprint": SKY,
        "sprint+": BLUE,
    }
    for axis, panel in zip(axes[0], panels, strict=True):
        until = max(line["curve"][-1][0] for line in panel["lines"])
        ends = [line["curve"][-1][1] for line in panel["lines"]]
        place = (0.0, 0.0)
        for line in sorted(panel["lines"], key=lambda line: line["curve"][-1][0]):
            colour = colours.get(line["label"], GREY)
            seconds, losses = zip(*[point for point in line["curve"] if point[0] > 0], strict=True)
            axis.plot(seconds, losses, color=colour, lw=1.6)
            axis.plot(seconds[-1], losses[-1], "o", color=colour, ms=4.5)
            close = seconds[-1] < 1.6 * place[0] and abs(losses[-1] - place[1]) < 0.04
            where = (
                {"xytext": (5, 5), "ha": "left"} if close else {"xytext": (0, -13), "ha": "center"}
            )
            if len(panel["lines"]) < 4:  # a narrow panel has room to the left of its curves only
                where = {"xytext": (4, -13), "ha": "right"}
            axis.annotate(
                f"{line['loss']:.3f}",
                (seconds[-1], losses[-1]),
                color=colour,
                fontsize=7.5,
                textcoords="offset points",
                weight="bold",
                **where,
            )
            place = seconds[-1], losses[-1]
        axis.set_xscale("log")
        axis.set_xticks([1, 3, 10, 30, 100, 300], ["1", "3", "10", "30", "100", "300"])
        axis.minorticks_off()
        axis.set(
            xlim=(1, 1.7 * until),
            ylim=(min(ends) - 0.07, max(ends) + 0.55),
            xlabel="seconds (log scale)",
        )
        axis.set_title(panel["title"], fontsize=10, color=GREY)
    axes[0][0].set_ylabel("validation loss, nats per character")
    names = dict.fromkeys(line["label"] for panel in panels for line in panel["lines"])
    handles = [
        matplotlib.lines.Line2D([], [], color=colours.get(name, GREY), label=name) for name in names
    ]
    axes[0][0].legend(handles=handles, loc="lower left", fontsize=8.5)
    headline(figure, title)
    return figure


@styled
def ideas(rows: list[dict], title: str) -> Figure:
    """The loss that each rung ends at with the same seconds, and what its idea bought."""
    figure, axes = new_figure(1.1 + 0.4 * len(rows))
    worst, best = (pick(row["loss"]["median"] for row in rows) for pick in (max, min))
    before = None
    for y, row in enumerate(rows):
        mid, low, high = (row["loss"][key] for key in ("median", "low", "high"))
        if before is not None:
            axes.plot(
                [before, mid], [y, y], color=SKY, lw=6, alpha=0.4, solid_capstyle="butt", zorder=0
            )
        axes.plot([low, high], [y, y], color=BLUE, lw=1)
        axes.plot(mid, y, "o", color=BLUE, ms=6)
        change = "" if before is None else f"  ({mid - before:+.3f})".replace("-", "−")
        axes.text(
            min(low, before or low),
            y,
            f"{mid:.3f}{change}   ",
            va="center",
            ha="right",
            fontsize=8.5,
        )
        before = mid
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    room = worst - best
    limits = (best - 0.42 * room, worst + 0.08 * room)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=limits, xlabel="validation loss")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.tick_params(axis="y", length=0)
    axes.set_title(title)
    return figure
