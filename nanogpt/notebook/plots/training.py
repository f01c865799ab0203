"""Figures of notebooks 01 and 11: characters, batches, losses, recipes, and two of their ideas."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from matplotlib.figure import Figure

from . import canvas, style
from .canvas import PAGE, cells, page, row_name
from .style import BLUE, GREEN, GREY, INK, ORANGE, SKY, VERMILION, styled

MOST_BARS = 70  # more could not be read
RECIPES = {"lecture": VERMILION, "nanoGPT's": ORANGE, "fast": GREEN, "sprint": SKY, "sprint+": BLUE}


@styled
def characters(counts: dict[str, int]) -> Figure:
    """How often each character stands in the corpus, most frequent first."""
    everything = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    total = sum(counts.values())
    reached = accumulate(n for _, n in everything)
    half = 1 + sum(running < total / 2 for running in reached)
    title = f"{len(counts)} characters make the whole text, and {half} of them make half of it"
    figure, axes = canvas.new_figure(3.0, title)
    chars, numbers = zip(*everything[:MOST_BARS], strict=True)
    colours = [BLUE if c.islower() else ORANGE if c.isupper() else GREY for c in chars]
    shares = [100 * n / total for n in numbers]
    for colour, name in ((BLUE, "lower case"), (ORANGE, "upper case"), (GREY, "␣ ↵ and the rest")):
        own = [share * (mine == colour) for share, mine in zip(shares, colours, strict=True)]
        axes.bar(range(len(chars)), own, color=colour, width=0.8, label=name)
    font = {"family": style.MONO, "fontsize": 7, "parse_math": False}
    axes.set_xticks(range(len(chars)), [style.BLANKS.get(c, c) for c in chars], **font)
    axes.set(ylabel="share of the text (%)", xlim=(-0.8, len(chars) - 0.2))
    axes.tick_params(axis="x", length=0)
    axes.legend()
    return figure


@styled
def batch(x: list[str], y: list[str]) -> Figure:
    """Windows of a batch: inputs, and under each the same characters one place on."""
    columns = len(x[0])
    figure, axes = page(len(x), f"Every window is {columns} lessons: y is x, one character on")
    wide = (PAGE - 0.3) / columns
    for i, pair in enumerate(zip(x, y, strict=True)):
        for part, text, kind, top in zip("xy", pair, ("old", "new"), (0, 0.42), strict=True):
            row_name(axes, i + top + 0.18, part)
            cells(axes, 0.3, i + top, (wide, 0.36), text, [kind] * columns)
    return figure


@styled
def losses(history: dict, references: dict[str, float], title: str) -> Figure:
    """Training and validation loss by step; `references` are horizontal lines with their names."""
    figure, axes = canvas.new_figure(3.8, title)
    steps, raw = history["step"], history["batch_loss"]
    axes.plot(range(1, len(raw) + 1), raw, color="#c3c8d0", lw=0.8, zorder=1, label="each batch")
    axes.plot(steps, history["train"], color=SKY, ls="--", marker="s", ms=3.5, label="train")
    axes.plot(steps, history["val"], color=BLUE, marker="o", ms=3.5, label="validation")
    for name, value in references.items():
        axes.axhline(value, color=GREY, lw=0.9, ls=":")
        # Where the curves leave space: on the left under a low line, on the right over a high one.
        low = value < min(history["val"])
        x, dy, va, ha = (0, -3, "top", "left") if low else (steps[-1], 3, "bottom", "right")
        font = {"fontsize": 8.5, "color": INK, "weight": "normal", "bbox": style.BEHIND}
        canvas.label_point(axes, (x, value), f" {name} ", (0, dy), va=va, ha=ha, **font)
    axes.set(xlabel="step", ylabel="cross-entropy (nats per character)", xlim=(0, steps[-1]))
    axes.set_ylim(min([*references.values(), *raw, *history["train"]]) - 0.25, None)
    canvas.names_below(figure, axes.get_legend_handles_labels()[0])
    return figure


@styled
def schedules(runs: dict[str, dict], title: str) -> Figure:
    """Left: the learning rate of each run by step. Right: its loss by step, and where it ends."""
    figure, (left, right) = canvas.new_panels(3.5, title, columns=2)
    ends = []
    looks = zip(runs.items(), (VERMILION, ORANGE, BLUE), (":", "--", "-"), strict=False)
    for (name, run), colour, dashes in looks:
        left.plot(run["rate"], color=colour, ls=dashes, label=name)
        right.plot(run["step"], run["val"], color=colour, ls=dashes, marker="o", ms=3)
        ends.append((run["step"][-1], run["val"][-1], f"{run['val'][-1]:.2f}", colour))
    canvas.names_below(figure, left.get_legend_handles_labels()[0])
    left.set(xlabel="step", ylabel="learning rate (AdamW)", ylim=(0, None))
    late = [value for run in runs.values() for value in run["val"][2:]]
    right.set(xlabel="step", ylabel="validation loss", ylim=(min(late) - 0.05, max(late) + 0.1))
    canvas.beside_ends(right, ends)
    return figure


@styled
def recipes(lines: list[dict], title: str) -> Figure:
    """Loss against seconds of training at one block size; dotted, where the first line ends.

    A line is {"label", "loss", "curve": [(seconds, loss)], "seconds"}. Beside its end stands its
    full validation loss; a bar through the end shows the seconds of all seeds. The second line of a
    label is dashed.
    """
    figure, axes = canvas.new_figure(3.9, title)
    ends, labels = [], set()
    for line in lines:
        name, colour = line["label"], RECIPES.get(line["label"], GREY)
        seconds, values = zip(*[point for point in line["curve"] if point[0] > 0], strict=True)
        axes.plot(seconds, values, color=colour, lw=1.6, ls="--" if name in labels else "-")
        axes.plot(seconds[-1], values[-1], "o", color=colour, ms=4.5)
        axes.hlines(values[-1], line["seconds"]["low"], line["seconds"]["high"], color=colour)
        ends.append((seconds[-1], values[-1], f"{name} {line['loss']:.3f}", colour))
        labels.add(name)
    axes.axhline(ends[0][1], color=GREY, lw=0.9, ls=":")
    canvas.log_axis(axes, "x", [1, 10, 100])
    longest, losses = max(end[0] for end in ends), [end[1] for end in ends]
    axes.set(xlim=(1, 1.3 * longest), xlabel="seconds (log scale)")
    axes.set(ylim=(min(losses) - 0.07, max(losses) + 0.55), ylabel="validation loss (nats)")
    canvas.beside_ends(axes, ends)
    return figure


@styled
def ideas(rows: list[dict], title: str) -> Figure:
    """The loss that each line ends at with the same seconds, and what it bought."""
    figure, axes = canvas.new_figure(1.1 + 0.4 * len(rows), title)
    losses = [row["loss"]["median"] for row in rows]
    for y, row in enumerate(rows):
        low, mid, high = style.low_mid_high(row["loss"])
        text, left = f"{mid:.3f}", low
        if y:
            before = losses[y - 1]
            bar = {"lw": 6, "alpha": 0.4, "solid_capstyle": "butt", "zorder": 0}
            axes.plot([before, mid], [y, y], color=SKY, **bar)
            gain = f"{mid - before:+.3f}".replace("-", "−")
            text, left = f"{text}  ({gain})", min(low, before)
        axes.plot([low, high], [y, y], color=BLUE, lw=1)
        axes.plot(mid, y, "o", color=BLUE, ms=6)
        axes.text(left, y, f"{text}   ", va="center", ha="right", fontsize=8.5)
    canvas.name_rows(axes, [row["name"] for row in rows])
    best, gain = min(losses), max(losses) - min(losses)
    limits = (best - 0.42 * gain, max(losses) + 0.08 * gain)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=limits, xlabel="validation loss")
    return figure


@styled
def singular_values(updates: dict[str, Sequence[float]], title: str) -> Figure:
    """The singular values of some updates of a matrix, largest first, each as a share of it."""
    figure, axes = canvas.new_figure(3.2, title)
    looks = zip(updates.items(), (VERMILION, GREEN, BLUE), (":", "--", "-"), strict=False)
    for (label, values), colour, dashes in looks:
        shares = [value / max(values) for value in values]
        axes.plot(range(1, len(shares) + 1), shares, color=colour, ls=dashes, label=label)
    canvas.log_axis(axes, "y", [1e-4, 1e-3, 0.01, 0.1, 1], ["0.01%", "0.1%", "1%", "10%", "100%"])
    axes.set_ylim(1e-4, 1.5)
    axes.set(xlabel="direction, strongest first", ylabel="length, of the strongest")
    axes.legend(loc="lower left")
    return figure
