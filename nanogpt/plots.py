"""One function per figure: plain dicts and lists in, a matplotlib Figure out. Never imports torch.

One size, one palette (Okabe and Ito's, which colour-blind readers tell apart), a title that states
the finding, and room for a footer with the conditions. Colours never carry a meaning alone.
"""

from __future__ import annotations

import functools
import io
import textwrap
import warnings

import matplotlib
import matplotlib.lines
from matplotlib.colors import BoundaryNorm, LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY, INK, GREY, PALE, PAPER = "#56B4E9", "#1f2430", "#6b7280", "#e5e7eb", "#ffffff"
BLANKS = {" ": "␣", "\n": "↵"}  # what cannot be seen, made visible
COLOURS = {"uncached": VERMILION, "cached": BLUE, "train": SKY, "val": BLUE}
WIDTH, DPI = 7.6, 130

STYLE = {
    "figure.facecolor": PAPER, "axes.facecolor": PAPER, "savefig.facecolor": PAPER,
    "font.family": "DejaVu Sans", "font.size": 9.5, "text.color": INK,
    "axes.labelcolor": INK, "axes.edgecolor": GREY, "axes.linewidth": 0.8,
    "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlesize": 11.5, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titlepad": 10,
    "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True,
    "grid.color": PALE, "grid.linewidth": 0.8,
    "xtick.color": GREY, "ytick.color": GREY, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "lines.linewidth": 1.8, "legend.frameon": False,
}  # fmt: skip


def styled(draw):
    """The house style around a figure function, whatever the reader's own rcParams are."""

    @functools.wraps(draw)
    def wrapper(*args, **kwargs):
        with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE, "backend": "agg"}):
            return draw(*args, **kwargs)

    return wrapper


def new_figure(height: float = 3.4, columns: int = 1, rows: int = 1, **kwargs):
    """A figure of the one width, with its axes."""
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    return figure, figure.subplots(rows, columns, **kwargs)


def headline(figure: Figure, text: str) -> None:
    """The finding, above all axes, flush left."""
    figure.suptitle(text, x=0.012, ha="left", fontsize=11.5, fontweight="bold")


def to_png(figure: Figure, footer: str = "") -> bytes:
    """The figure as PNG bytes with its conditions in the footer; equal figures give equal bytes."""
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # other alphabets: drawn as boxes
        if footer:
            figure.get_layout_engine().set(rect=(0, 0.055, 1, 0.93))
            figure.text(0.012, 0.012, footer, fontsize=6.8, color=GREY, ha="left", va="bottom")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def to_apng(figures: list[Figure], footer: str = "", milliseconds: int = 120, hold: int = 2500) -> bytes:
    """Figures as one animated PNG that loops and rests on its last frame."""
    from PIL import Image

    # One palette for all frames keeps the file small; text and flat areas lose nothing visible.
    frames = [Image.open(io.BytesIO(to_png(figure, footer))).convert("RGB") for figure in figures]
    palette = frames[-1].quantize(64)
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    buffer = io.BytesIO()
    times = [milliseconds] * (len(frames) - 1) + [hold]
    frames[0].save(buffer, format="PNG", save_all=True, append_images=frames[1:], duration=times, loop=0)
    return buffer.getvalue()


def spread(summary: dict, digits: int = 1) -> str:
    """A ratio with its spread: 2.4× (2.3–2.6, n = 5)."""
    low, high = summary["low"], summary["high"]
    return f"{summary['median']:.{digits}f}× ({low:.{digits}f}–{high:.{digits}f}, n = {summary['n']})"


# ------------------------------------------------------------------ 00


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
        yticks=(0, 1), yticklabels=("with the cache", "without"), xlabel="total time (with the cache = 1)"
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
    for ax, name, label in zip(axes, ("uncached", "cached"), ("without the cache", "with it"), strict=True):
        arrivals = _arrivals(duel, name)
        done = sum(moment <= clock + 1e-12 for moment in arrivals)
        ax.set(xlim=(0, 1), ylim=(0, 1), xticks=(), yticks=())
        ax.grid(False)
        for side in ax.spines.values():
            side.set_visible(False)
        ax.add_patch(Rectangle((0, 0), 1, 1, color=COLOURS[name], alpha=0.06, lw=0))
        ax.text(0.03, 0.975, _wrapped(text[:done]), family="DejaVu Sans Mono", fontsize=7.6, va="top",
                linespacing=1.35, parse_math=False)  # fmt: skip
        ax.add_patch(Rectangle((0, 0), done / len(arrivals), 0.025, color=COLOURS[name], lw=0))
        flag = "   ✓ finished" if done == len(arrivals) else ""
        ax.set_title(f"{label}: {done} of {len(arrivals)} tokens{flag}", fontsize=10, color=COLOURS[name])
    headline(figure, f"The race: the same text, {duel['speedup']['median']:.1f}× as fast")
    return figure


def _arrivals(duel: dict, name: str) -> list[float]:
    system = duel["systems"][name]
    moments = [system["ttft"]["median"]]
    for gap in system["itl"]:
        moments.append(moments[-1] + gap)
    return moments


def _wrapped(text: str, width: int = 46, lines: int = 13) -> str:
    wrapped = [piece for line in text.split("\n") for piece in (textwrap.wrap(line, width) or [""])]
    return "\n".join(wrapped[:lines])


# ------------------------------------------------------------------ 01


@styled
def characters(counts: dict[str, int]) -> Figure:
    """How often each character stands in the corpus, most frequent first."""
    figure, axes = new_figure(3.0)
    everything = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ordered, total = everything[:70], sum(counts.values())  # more could not be read
    names = [BLANKS.get(char, char) for char, _ in ordered]
    colours = [BLUE if char.islower() else ORANGE if char.isupper() else GREY for char, _ in ordered]
    axes.bar(range(len(ordered)), [100 * n / total for _, n in ordered], color=colours, width=0.8)
    axes.set_xticks(range(len(ordered)), names, family="DejaVu Sans Mono", fontsize=7, parse_math=False)
    axes.set(ylabel="share of the text (%)", xlim=(-0.8, len(ordered) - 0.2))
    axes.tick_params(axis="x", length=0)
    keys = ((BLUE, "lower case"), (ORANGE, "upper case"), (GREY, "␣ ↵ and the rest"))
    for i, (colour, label) in enumerate(keys):
        axes.text(
            0.98, 0.92 - 0.09 * i, label, color=colour, transform=axes.transAxes, ha="right", weight="bold"
        )
    half, running = 0, 0
    for _, n in everything:
        half, running = half + 1, running + n
        if running >= total / 2:
            break
    axes.set_title(f"{len(counts)} characters make the whole text, and {half} of them make half of it")
    return figure


@styled
def batch(x: list[str], y: list[str]) -> Figure:
    """Rows of a batch, inputs and, below each, the same characters one place on."""
    figure, axes = new_figure(0.95 + 0.62 * len(x))
    columns = len(x[0])
    for row, (given, wanted) in enumerate(zip(x, y, strict=True)):
        for col in range(columns):
            for text, dy, colour in ((given, 0.0, SKY), (wanted, 0.42, ORANGE)):
                axes.add_patch(Rectangle((col, row + dy), 0.94, 0.38, color=colour, alpha=0.28, lw=0))
                _letter(axes, col + 0.47, row + dy + 0.2, text[col], 8.5)
        axes.text(-0.3, row + 0.2, "x", ha="right", va="center", color=BLUE, weight="bold")
        axes.text(-0.3, row + 0.62, "y", ha="right", va="center", color=VERMILION, weight="bold")
    axes.set(xlim=(-0.9, columns), ylim=(len(x) - 0.1, -0.1))
    axes.axis("off")
    axes.set_title(f"Every window is {columns} lessons: y is x, one character on")
    return figure


def _letter(axes, x: float, y: float, char: str, size: float, weight: str = "normal") -> None:
    """One character of text in the middle of its box, blanks made visible."""
    axes.text(x, y, BLANKS.get(char, char), ha="center", va="center", family="DejaVu Sans Mono",
              fontsize=size, weight=weight, parse_math=False)  # fmt: skip


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
        below = value < min(history["val"])  # left and below, right and above: where the curves leave room
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
            run["step"][-1], run["val"][-1], f" {run['val'][-1]:.2f}", color=colour, va="center", fontsize=8.5
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
    colours = {"lecture": VERMILION, "nanoGPT's": ORANGE, "fast": GREEN, "sprint": SKY, "sprint+": BLUE}
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
            where = {"xytext": (5, 5), "ha": "left"} if close else {"xytext": (0, -13), "ha": "center"}
            if len(panel["lines"]) < 4:  # a narrow panel has room to the left of its curves only
                where = {"xytext": (4, -13), "ha": "right"}
            axis.annotate(f"{line['loss']:.3f}", (seconds[-1], losses[-1]), color=colour, fontsize=7.5,
                          textcoords="offset points", weight="bold", **where)  # fmt: skip
            place = seconds[-1], losses[-1]
        axis.set_xscale("log")
        axis.set_xticks([1, 3, 10, 30, 100, 300], ["1", "3", "10", "30", "100", "300"])
        axis.minorticks_off()
        axis.set(
            xlim=(1, 1.7 * until), ylim=(min(ends) - 0.07, max(ends) + 0.55), xlabel="seconds (log scale)"
        )
        axis.set_title(panel["title"], fontsize=10, color=GREY)
    axes[0][0].set_ylabel("validation loss, nats per character")
    names = dict.fromkeys(line["label"] for panel in panels for line in panel["lines"])
    handles = [matplotlib.lines.Line2D([], [], color=colours.get(name, GREY), label=name) for name in names]
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
            axes.plot([before, mid], [y, y], color=SKY, lw=6, alpha=0.4, solid_capstyle="butt", zorder=0)
        axes.plot([low, high], [y, y], color=BLUE, lw=1)
        axes.plot(mid, y, "o", color=BLUE, ms=6)
        change = "" if before is None else f"  ({mid - before:+.3f})".replace("-", "−")
        axes.text(min(low, before or low), y, f"{mid:.3f}{change}   ", va="center", ha="right", fontsize=8.5)
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


# ------------------------------------------------------------------ 02


@styled
def prefill_and_decode(weights: list[list[list[float]]], labels: list[str]) -> Figure:
    """Attention weights of the prefill, a square, beside those of the decode steps, one row each."""
    square, *rows = weights
    figure = Figure(figsize=(WIDTH, 3.9), dpi=DPI, layout="constrained")
    grid = figure.add_gridspec(len(rows), 2, width_ratios=(1, 1.28))
    _weights(figure.add_subplot(grid[:, 0]), square, labels[0])
    for i, (row, label) in enumerate(zip(rows, labels[1:], strict=True)):
        _weights(figure.add_subplot(grid[i, 1]), row, label)
    T = len(square)
    headline(figure, f"Prefill computes {T} rows of attention; every decode step after it computes one")
    return figure


def _weights(axes, rows, label) -> None:
    colours = LinearSegmentedColormap.from_list("paper-blue", ("#eef4fa", BLUE)).with_extremes(bad=PALE)
    masked = [[value if value > 0 else float("nan") for value in row] for row in rows]
    axes.imshow(masked, cmap=colours, vmin=0, vmax=1, aspect="equal")
    size = len(rows[0])
    axes.set_xticks([i - 0.5 for i in range(1, size)], minor=True)
    axes.set_yticks([i - 0.5 for i in range(1, len(rows))], minor=True)
    axes.grid(False)
    axes.grid(which="minor", axis="both", color=PAPER, lw=1.4)
    axes.tick_params(which="both", length=0)
    axes.set_xticks(range(size), range(size), fontsize=7)
    axes.set_yticks(range(len(rows)), range(size - len(rows), size), fontsize=7)
    axes.set_title(label, fontsize=9, pad=4)
    for side in axes.spines.values():
        side.set_visible(False)


@styled
def cache_rows(steps: list[dict], chars: str, layer: str, capacity: int, room: int | None = None) -> Figure:
    """The cache after each step given: its rows, those the step wrote, and the bytes.

    `room` is the number of steps to leave space for, so that all frames of an animation are of one size.
    """
    figure, axes = new_figure(0.95 + 0.52 * (room or len(steps)))
    for y, step in enumerate(steps):
        for slot in range(capacity):
            new = step["before"] <= slot < step["after"]
            held = slot < step["after"]
            face = ORANGE if new else BLUE if held else PAPER
            alpha, edge = (0.9 if new else 0.32, "none") if held else (1.0, PALE)
            box = Rectangle((slot, y), 0.92, 0.74, facecolor=face, alpha=alpha, edgecolor=edge, lw=0.8)
            axes.add_patch(box)
            if held:
                _letter(axes, slot + 0.46, y + 0.38, chars[slot], 9, weight="bold" if new else "normal")
        axes.text(-0.25, y + 0.38, step["label"], ha="right", va="center", fontsize=8.5, parse_math=False)
        axes.text(capacity + 0.15, y + 0.38, f"{step['bytes']:,} B", va="center", fontsize=8.5, color=GREY)
    axes.set(xlim=(-3.2, capacity + 2.0), ylim=((room or len(steps)) - 0.1, -0.15))
    axes.axis("off")
    last = steps[-1]
    wrote = last["after"] - last["before"]
    axes.set_title(
        f"{layer}: this step wrote {wrote} row{'s' * (wrote != 1)} (orange) and read {last['after']}"
    )
    return figure


@styled
def shapes(walk: list[dict]) -> Figure:
    """What flows through the model: for each stage, the shapes that hooks saw in prefill and decode."""
    figure, axes = new_figure(0.9 + 0.36 * len(walk))
    largest = max(stage[mode + "_numel"] for stage in walk for mode in ("prefill", "decode"))
    for y, stage in enumerate(walk):
        axes.text(-0.02, y, stage["name"], ha="right", va="center", fontsize=8.5, family="DejaVu Sans Mono")
        for left, mode, colour in ((0.0, "prefill", VERMILION), (1.1, "decode", BLUE)):
            width = max(stage[mode + "_numel"] / largest, 0.004)
            axes.barh(y, width, left=left, color=colour, alpha=0.35, height=0.68)
            axes.text(left + 0.015, y, stage[mode], va="center", fontsize=8.5, family="DejaVu Sans Mono")
    axes.text(0.0, -0.85, "prefill", color=VERMILION, weight="bold", va="center")
    axes.text(1.1, -0.85, "one decode step", color=BLUE, weight="bold", va="center")
    axes.set(xlim=(-0.75, 2.1), ylim=(len(walk) - 0.4, -1.3))
    axes.axis("off")
    axes.set_title("Decode moves one token; only the keys are as long as the text")
    return figure


# ------------------------------------------------------------------ 03


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
            columns + 0.3, y + 0.4, mark, va="center", fontsize=8.3, color=GREEN if not wrong else VERMILION
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
        steps, report["margins"], s=13, color=GREEN, marker="o", label="margin of the draw", zorder=3
    )
    axes.plot(steps, [d or float("nan") for d in report["logit_diffs"]], color=VERMILION, lw=1.1,
              label="max |Δlogit|, cached against uncached")  # fmt: skip
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
        axes.text(x, 30, f"{name}\n{mark}", ha="center", va="bottom", fontsize=9, weight="bold",
                  color=INK if report["equal"] else VERMILION)  # fmt: skip
    axes.set_yscale("log")
    axes.set(xticks=(), xlim=(-0.6, len(reports) - 0.4), ylim=(1e-17, 8000), ylabel="logits (log scale)")
    for height, label, colour in (
        (0.30, "● margin of each draw", GREEN),
        (0.22, "■ max |Δlogit| of each step", VERMILION),
    ):
        axes.text(0.99, height, label, color=colour, ha="right", transform=axes.transAxes, weight="bold")
    axes.set_title("The precision sets the gap: where the two clouds overlap, tokens can flip")
    return figure


@styled
def last_bits(panels: list[dict], title: str) -> Figure:
    """How many numbers apart two ways of computing each logit are: one picture each, darker is further.

    A panel has a `label` and `apart`, whole numbers by step and character. Equal ones are left white.
    """
    figure, all_axes = new_figure(1.1 + 1.45 * len(panels), rows=len(panels), sharex=True, squeeze=False)
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


# ------------------------------------------------------------------ 04


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
            len(gaps) + 4, smooth[-1], label, color=COLOURS[name], va="center", weight="bold", fontsize=9
        )
    axes.set_xticks([place for place in range(0, 1025, 32) if place <= len(gaps) + 2])
    axes.set(xlabel="place in the text", ylabel="time per token\n(median with the cache = 1)")
    axes.set(xlim=(0, len(duel["systems"]["cached"]["itl"]) * 1.28), ylim=(0, 1.25 * highest))
    axes.set_title(title)
    return figure


def _running_median(values: list[float], width: int) -> list[float]:
    half = width // 2
    parts = (sorted(values[max(0, i - half) : i + half + 1]) for i in range(len(values)))
    return [part[len(part) // 2] for part in parts]


@styled
def speedup_map(cells: list[dict], rows: list[str], columns: list[int], title: str) -> Figure:
    """E2EL without the cache over E2EL with it: models and batches down, new tokens across."""
    figure, axes = new_figure(0.9 + 0.47 * len(rows))
    table = {(cell["row"], cell["n_new"]): cell["speedup"] for cell in cells}
    missing = float("nan")
    values = [[table[row, n]["median"] if (row, n) in table else missing for n in columns] for row in rows]
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
            axes.text(x, y, f"{mark}{value:.2f}×", ha="center", va="center", fontsize=9, weight="bold",
                      color=PAPER if dark else INK)  # fmt: skip
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
            min(share, 0.93) + 0.012, y, f"{share:.0%}", va="center", color=PAPER, weight="bold", fontsize=8.5
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


# ------------------------------------------------------------------ 05


@styled
def ladder(results: list[dict], titles: list[str], title: str) -> Figure:
    """Speed of every rung over the first, on a log scale, with the floor of each model drawn."""
    rows = max((result["rungs"] for result in results), key=len)
    figure, axes = new_figure(1.5 + 0.36 * len(rows), columns=len(results), squeeze=False, sharey=True)
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
        axis.text(floor, -0.8, name, color=VERMILION, ha="center", fontsize=8.5, weight="bold", bbox=box)
        axis.set_xscale("log")
        longest = max(floor, *(row["speedup"]["high"] for row in result["rungs"] if "speedup" in row))
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
    figure, axes = new_figure(1.4 + 0.34 * len(rows), columns=len(results), squeeze=False, sharey=True)
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
                    axis.text(left + share / 2, y, f"{share:.0%}", ha="center", va="center", fontsize=8,
                              color=GREY if part == "overhead" else PAPER, weight="bold")  # fmt: skip
                left += share
        axis.set(xlim=(0, 1), xticks=(), ylim=(len(rows) - 0.4, -1.2))
        axis.set_yticks(range(len(rows)), [f"{row['rung']}  {row['label']}" for row in rows])
        for x, (part, colour) in zip((0.0, 0.36, 0.66), parts, strict=True):
            axis.text(
                x, -0.85, part, color=GREY if part == "overhead" else colour, weight="bold", va="center"
            )
        axis.set_title(name, fontsize=10, color=GREY)
        axis.grid(False)
        axis.tick_params(length=0)
        for side in axis.spines.values():
            side.set_visible(False)
    headline(figure, title)
    return figure


def _times(value: float, _=None) -> str:
    return f"{value:g}×"


@styled
def throughput(cells: list[dict], title: str) -> Figure:
    """Tokens of all texts together, and the time of one step, against the batch; both against batch 1."""
    figure, (left, right) = new_figure(3.3, columns=2)
    labels = list(dict.fromkeys(cell["label"] for cell in cells))
    base = next(cell for cell in cells if cell["label"] == labels[0])  # its first: the smallest batch
    speed, step = base["tokens_per_second"]["median"], base["step"]["median"]
    for label, colour, mark in zip(labels, (VERMILION, ORANGE, GREEN, BLUE), "osD^", strict=False):
        own = [cell for cell in cells if cell["label"] == label]
        batches = [cell["batch"] for cell in own]
        left.plot(
            batches, [c["tokens_per_second"]["median"] / speed for c in own], color=colour, marker=mark, ms=5
        )
        right.plot(
            batches, [c["step"]["median"] / step for c in own], color=colour, marker=mark, ms=5, label=label
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
def cache_bytes(lines: list[dict], title: str) -> Figure:
    """Bytes of K and V against length, one line for each model, both axes logarithmic."""
    figure, axes = new_figure(3.6)
    for line, colour in zip(lines, (BLUE, SKY, GREEN, ORANGE, VERMILION), strict=False):
        axes.plot(line["lengths"], line["bytes"], color=colour, marker="o", ms=3.5)
        end, top = line["lengths"][-1], line["bytes"][-1]
        axes.text(end * 1.25, top, f"{line['label']}: {_size(top)}", color=colour, va="center", fontsize=8.5,
                  weight="bold")  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([2**n for n in range(0, 18, 2)], [f"{2**n:,}" for n in range(0, 18, 2)])
    axes.set_yticks([1e3, 1e6, 1e9, 1e11], ["1 kB", "1 MB", "1 GB", "100 GB"])
    axes.minorticks_off()
    axes.set(xlabel="tokens in the cache, one text", ylabel="K and V", xlim=(0.8, 2**25))
    axes.set_title(title)
    return figure


def _size(n: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n >= unit:
            return f"{n / unit:.3g} {name}"
    return f"{n:.0f} B"


@styled
def update_cost(lengths: list[int], lines: dict[str, list[float]], title: str) -> Figure:
    """Time of one cache update against the rows held, in units of the shortest static one."""
    figure, axes = new_figure(2.9)
    unit = lines["static"][0]
    for (label, values), colour, mark in zip(lines.items(), (VERMILION, BLUE), "o^", strict=True):
        scaled = [value / unit for value in values]
        axes.plot(lengths, scaled, color=colour, marker=mark, ms=5)
        axes.text(lengths[-1] * 1.12, scaled[-1], label, color=colour, va="center", weight="bold", fontsize=9)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, lengths)
    axes.yaxis.set_major_formatter(_times)
    axes.minorticks_off()
    axes.set(xlabel="rows already in the cache", ylabel="time of one update\n(static, shortest = 1)",
             xlim=(lengths[0] * 0.85, lengths[-1] * 2.4))  # fmt: skip
    axes.set_title(title)
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
        axes.text(columns + 0.5, y + 0.4, share, va="center", fontsize=8.5, weight="bold", color=GREEN)
    axes.text(0, -0.45, "proposed, and accepted", color=GREEN, weight="bold", va="center", fontsize=8.5)
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
    axes.set(xlabel="proposals a pass, k", ylabel="tokens a pass", xlim=(0.5, 1.5 * max(ks)), ylim=(1, None))
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
    axes.text(floor, -0.75, "floor: one reading for each token", color=VERMILION, ha="center", fontsize=8.5,
              weight="bold", bbox=box)  # fmt: skip
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
    most = max(floor, *(row["speedup"]["high"] for row in rows))
    axes.set(ylim=(len(rows) - 0.4, -1.15), xlim=(0, 1.15 * most), xlabel="speed, best rung = 1")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.tick_params(axis="y", length=0)
    axes.set_title(title)
    return figure


# ------------------------------------------------------------------ 06


@styled
def masks(panels: list[dict], title: str, columns: int = 3) -> Figure:
    """Who sees whom: a panel has a `label`, the positions `q` and `k`, and `seen`, rows of booleans.

    Queries down, keys across, in the order in which the cache holds them; -1 is an empty slot. Panels
    stand in rows of `columns`, as high as their queries need.
    """
    groups = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    heights = [2.0 + max(len(panel["q"]) for panel in group) for group in groups]
    figure = Figure(figsize=(WIDTH, 0.5 + 0.135 * sum(heights)), dpi=DPI, layout="constrained")
    grid = figure.add_gridspec(len(groups), columns, height_ratios=heights)
    for row, group in enumerate(groups):
        for column, panel in enumerate(group):
            axes = figure.add_subplot(grid[row, column])
            rows = zip(panel["q"], panel["seen"], strict=True)
            shade = [[0.0 if not s else 1.0 if p == q else 0.62 for s, p in zip(see, panel["k"], strict=True)]
                     for q, see in rows]  # fmt: skip
            colours = LinearSegmentedColormap.from_list("seen", (PALE, "#9cc7e4", BLUE))
            axes.imshow(shade, cmap=colours, vmin=0, vmax=1, aspect="equal")
            axes.set_xticks([i - 0.5 for i in range(1, len(panel["k"]))], minor=True)
            axes.set_yticks([i - 0.5 for i in range(1, len(panel["q"]))], minor=True)
            axes.grid(False)
            axes.grid(which="minor", axis="both", color=PAPER, lw=1.2)
            axes.tick_params(which="both", length=0, pad=2)
            keys = ["∅" if p < 0 else p for p in panel["k"]]
            axes.set_xticks(range(len(keys)), keys, fontsize=5.5)
            axes.set_yticks(range(len(panel["q"])), panel["q"], fontsize=5.5)
            axes.set_title(panel["label"], fontsize=8.5, pad=4)
            for side in axes.spines.values():
                side.set_visible(False)
    headline(figure, title)
    return figure


@styled
def bytes_and_loss(rows: list[dict], title: str) -> Figure:
    """What each change costs in loss and saves in memory: bytes of a cache across, validation loss up."""
    figure, axes = new_figure(3.8)
    for row in rows:
        mid, low, high = (row["loss"][key] for key in ("median", "low", "high"))
        colour = VERMILION if row["table"] else BLUE
        mark = "s" if row["table"] else "o"
        axes.plot([row["bytes"]] * 2, [low, high], color=colour, lw=1.2, alpha=0.6)
        axes.plot(row["bytes"], mid, mark, color=colour, ms=6)
        axes.annotate(f"{row['name']}: {mid:.3f}", (row["bytes"], mid), textcoords="offset points",
                      xytext=(9, row.get("up", 0)), va="center", fontsize=8.5)  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks([1e4, 1e5, 1e6], ["10 kB", "100 kB", "1 MB"])
    axes.minorticks_off()
    most, least = (pick(row["bytes"] for row in rows) for pick in (max, min))
    axes.set(xlim=(least / 1.5, most * 5), xlabel="K and V of a text of 1,024 characters (log scale)",
             ylabel="validation loss")  # fmt: skip
    axes.grid(axis="x", visible=True)
    axes.set_title(title)
    return figure


@styled
def loss_by_position(lines: dict[str, list[float]], width: int, block: int, title: str) -> Figure:
    """Mean loss of `width` neighbouring positions against where they stand; training ended at `block`."""
    figure, axes = new_figure(3.4)
    end = width * max(map(len, lines.values()))
    low, high = (pick(value for line in lines.values() for value in line) for pick in (min, max))
    axes.axvspan(0, block, color=PALE, alpha=0.55, lw=0, zorder=0)
    axes.text(block / 2, high, "trained here", ha="center", va="top", fontsize=8, color=GREY)
    places = zip(lines.items(), (VERMILION, ORANGE, BLUE), ("s", "^", "o"), strict=False)
    for (name, line), colour, mark in places:
        across = [width * (i + 0.5) for i in range(len(line))]
        axes.plot(across, line, color=colour, marker=mark, ms=3.5)
        text = f"{name} (no row past {block})" if across[-1] < block else name
        above = line[-1] > (low + high) / 2
        axes.annotate(text, (across[-1], line[-1]), textcoords="offset points", color=colour, weight="bold",
                      fontsize=9, **_beside(across[-1] < end / 2, above))  # fmt: skip
    axes.set_xticks([block * n for n in range(end // block + 1)])
    axes.set(xlabel="position in the text", ylabel="cross-entropy (nats)", xlim=(0, end))
    axes.set_ylim(low - 0.25 * (high - low), high + 0.08 * (high - low))
    axes.set_title(title)
    return figure


def _beside(left: bool, above: bool) -> dict:
    if left:  # a short line: its name stands below where it ends
        return {"xytext": (14, -16), "ha": "left", "va": "top"}
    return {"xytext": (-4, -12 if above else 9), "ha": "right", "va": "top" if above else "bottom"}


@styled
def context_cost(lengths: list[int], lines: list[dict], title: str) -> Figure:
    """Time of one decode step, and bytes of its cache, against the characters before it.

    A line has a `label`, `seconds` (a summary for each length) and `bytes`.
    """
    figure, (left, right) = new_figure(3.4, columns=2)
    unit = lines[-1]["seconds"][0]["median"]
    for line, colour, mark in zip(lines, (VERMILION, ORANGE, BLUE), "s^o", strict=False):
        low, mid, high = ([s[key] / unit for s in line["seconds"]] for key in ("low", "median", "high"))
        left.fill_between(lengths, low, high, color=colour, alpha=0.15, lw=0)
        left.plot(lengths, mid, color=colour, marker=mark, ms=5, label=line["label"])
        right.plot(lengths, line["bytes"], color=colour, marker=mark, ms=5)
        end = line["bytes"][-1]
        right.annotate(_size(end), (lengths[-1], end), xytext=(7, 0), textcoords="offset points",
                       color=colour, va="center", fontsize=8.5, weight="bold")  # fmt: skip
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
