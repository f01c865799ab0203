"""Figures of equal tokens, margins and last bits."""

from __future__ import annotations

from matplotlib.colors import BoundaryNorm, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .style import GREEN, GREY, INK, PAPER, VERMILION, _letter, headline, new_figure, styled


@styled
def token_strips(strips: list[dict], title: str, columns: int = 40) -> Figure:
    """Rows of characters; those that differ from the reference are red and struck out, the rest green.

    The first `columns` are drawn; the count beside them is of the whole text.
    """
    figure, axes = new_figure(0.9 + 0.44 * len(strips))
    for y, strip in enumerate(strips):
        text, truth = strip["text"][:columns], strip["truth"][:columns]
        for x, (char, right) in enumerate(zip(text, truth, strict=True)):
            colour = GREEN if char == right else VERMILION
            axes.add_patch(Rectangle((x, y), 0.94, 0.76, color=colour, alpha=0.3, lw=0))
            _letter(axes, x + 0.47, y + 0.4, char, 8)
            if char != right:
                axes.plot((x + 0.12, x + 0.82), (y + 0.4, y + 0.4), color=VERMILION, lw=1)
        wrong = sum(a != b for a, b in zip(strip["text"], strip["truth"], strict=True))
        axes.text(-0.4, y + 0.4, strip["label"], ha="right", va="center", fontsize=8.3)
        mark = "✓ equal" if not wrong else f"✗ {wrong} of {len(strip['text'])} differ"
        axes.text(
            columns + 0.3,
            y + 0.4,
            mark,
            va="center",
            fontsize=8.3,
            color=GREEN if not wrong else VERMILION,
        )
    axes.set(xlim=(-12.5, columns + 8), ylim=(len(strips) - 0.1, -0.15))
    axes.axis("off")
    axes.set_title(title)
    return figure


@styled
def margins(report: dict) -> Figure:
    """Rounding differences of the logits under the margins by which the draws were decided."""
    figure, axes = new_figure(3.6)
    steps = range(1, report["n_new"] + 1)
    floor = 1e-8
    axes.scatter(
        steps,
        report["margins"],
        s=13,
        color=GREEN,
        marker="o",
        label="margin of the draw",
        zorder=3,
    )
    axes.plot(
        steps,
        [d or float("nan") for d in report["logit_diffs"]],
        color=VERMILION,
        lw=1.1,
        label="max |Δlogit|, cached against uncached",
    )
    axes.set_yscale("log")
    axes.set(xlabel="new token", ylabel="logits (log scale)", xlim=(0, report["n_new"] + 1))
    axes.set_ylim(top=60 * max(report["margins"]))  # room for the legend above all points
    axes.legend(loc="upper right", ncols=2)
    ratio = report["min_margin"] / max(report["max_logit_diff"], floor)
    axes.set_title(f"The closest draw was decided by {ratio:,.0f} times what the logits differ by")
    return figure


@styled
def precision(reports: dict[str, dict]) -> Figure:
    """Logit differences and margins by dtype, one column of points each."""
    figure, axes = new_figure(3.4)
    for x, (name, report) in enumerate(reports.items()):
        for shift, key, colour, marker in (
            (-0.2, "logit_diffs", VERMILION, "s"),
            (0.2, "margins", GREEN, "o"),
        ):
            values = report[key]
            across = [x + shift + 0.3 * (i / len(values) - 0.5) for i in range(len(values))]
            heights = [value or float("nan") for value in values]  # a log scale has no 0
            axes.scatter(across, heights, s=9, color=colour, marker=marker, alpha=0.6, lw=0)
        mark = (
            f"✓ {report['n_new']} equal"
            if report["equal"]
            else f"✗ {report['first_divergence']} equal, then not"
        )
        axes.text(
            x,
            30,
            f"{name}\n{mark}",
            ha="center",
            va="bottom",
            fontsize=9,
            weight="bold",
            color=INK if report["equal"] else VERMILION,
        )
    axes.set_yscale("log")
    axes.set(
        xticks=(), xlim=(-0.6, len(reports) - 0.4), ylim=(1e-17, 8000), ylabel="logits (log scale)"
    )
    for height, label, colour in (
        (0.30, "● margin of each draw", GREEN),
        (0.22, "■ max |Δlogit| of each step", VERMILION),
    ):
        axes.text(
            0.99, height, label, color=colour, ha="right", transform=axes.transAxes, weight="bold"
        )
    axes.set_title("The precision sets the gap: where the two clouds overlap, tokens can flip")
    return figure


@styled
def last_bits(panels: list[dict], title: str) -> Figure:
    """How many numbers apart two ways of computing each logit are: one picture each, darker is further.

    A panel has a `label` and `apart`, whole numbers by step and character. Equal ones are left white.
    """
    figure, all_axes = new_figure(
        1.1 + 1.45 * len(panels), rows=len(panels), sharex=True, squeeze=False
    )
    most = max(1, max(max(map(max, panel["apart"])) for panel in panels))
    levels = [1, 2, 4, 16, 64, 256]
    norm = BoundaryNorm([*levels, max(most + 1, 2 * levels[-1])], 256)
    colours = LinearSegmentedColormap.from_list("apart", ["#fbd5b5", VERMILION, "#4a1c00"])
    colours = colours.with_extremes(under=PAPER)
    for axes, panel in zip(all_axes[:, 0], panels, strict=True):
        rows = [list(column) for column in zip(*panel["apart"], strict=True)]
        extent = (0.5, len(panel["apart"]) + 0.5, len(rows), 0)
        image = axes.imshow(
            rows, aspect="auto", interpolation="nearest", cmap=colours, norm=norm, extent=extent
        )
        axes.set_title(panel["label"], fontsize=9.5, color=GREY)
        axes.set(yticks=(), ylabel="character")
        axes.grid(False)
    all_axes[-1, 0].set_xlabel("new token")
    bar = figure.colorbar(image, ax=all_axes[:, 0].tolist(), extend="min", aspect=30)
    bar.set_ticks(levels, labels=[*map(str, levels[:-1]), f"{levels[-1]}+"])
    bar.set_label("float32 numbers apart")
    headline(figure, title)
    return figure
