"""Figures of the ladder of engines, and of speculation."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import canvas, style
from .style import BLUE, GREEN, GREY, ORANGE, PALE, PAPER, SKY, VERMILION, styled

PARTS = (("arithmetic", GREEN), ("memory", ORANGE), ("overhead", PALE))


@styled
def ladder(results: list[dict], titles: list[str], title: str) -> Figure:
    """Speed of every rung over the first, on a log scale, with the roofline of each model.

    A result has its `rungs` and its `limits`, whose "roofline" is a summary of tokens a second: as
    many as this machine's memory can serve when each reads every weight once.
    """
    names = _rung_names(results)
    figure, columns = _ladders(1.5 + 0.36 * len(names), title, results)
    for axes, result, heading in zip(columns, results, titles, strict=True):
        first = result["rungs"][0]["tokens_per_second"]["median"]
        roofline = result["limits"]["roofline"]
        limit = {key: roofline[key] / first for key in ("low", "median", "high")}
        reach = canvas.limit_band(axes, limit, -0.8, f"roofline {limit['median']:.0f}×")
        measured = [_rung(axes, y, row) for y, row in enumerate(result["rungs"])]
        canvas.number_column(axes, [_times(row) for row in result["rungs"]])
        canvas.log_axis(axes, "x", [1, 10, 100], ["1×", "10×", "100×"])
        axes.set(xlim=(0.9, 1.4 * max(reach, *measured)), ylim=(len(names) - 0.4, -1.2))
        axes.set_xlabel("speed, rung 1 = 1 (log scale)")
        canvas.name_rows(axes, names)
        canvas.subtitle(axes, heading)
    return figure


def _rung_names(results: list[dict]) -> list[str]:
    rungs = max((result["rungs"] for result in results), key=len)
    return [f"{row['rung']}  {row['label']}" for row in rungs]


def _ladders(height: float, title: str, results: list[dict]):
    return canvas.new_panels(height, title, columns=len(results), sharey=True)


def _rung(axes: Axes, y: int, row: dict) -> float:
    """One rung's bar; returns the highest speed, 0 where it was not measured."""
    if "unavailable" in row:
        axes.text(1.15, y, "not measured here", va="center", color=GREY, fontsize=8)
        return 0.0
    _, mid, high = span = style.low_mid_high(row["speedup"])
    look = {"color": BLUE}
    if row["label"].endswith("8-bit weights"):  # not quite the same model
        look = {"color": SKY, "hatch": "///", "edgecolor": PAPER}
    axes.barh(y, mid - 0.9, left=0.9, height=0.62, lw=0, **look)
    canvas.error_bar(axes, y, span)
    return high


def _times(row: dict) -> str:
    """The speed of a rung in words; nothing where it was not measured."""
    if "unavailable" in row:
        return ""
    speed = row["speedup"]["median"]
    return f"{speed:.{0 if speed >= 20 else 1}f}×"


@styled
def time_split(results: list[dict], titles: list[str], title: str) -> Figure:
    """What each rung's time per token goes to: arithmetic, memory and overhead, in shares."""
    names = _rung_names(results)
    figure, columns = _ladders(1.4 + 0.34 * len(names), title, results)
    for axes, result, heading in zip(columns, results, titles, strict=True):
        for y, row in enumerate(result["rungs"]):
            if "split" in row:
                _shares(axes, y, row["split"])
            else:
                axes.text(0.02, y, "not measured here", va="center", color=GREY, fontsize=8)
        axes.set(xlim=(0, 1), xticks=(), ylim=(len(names) - 0.4, -1.2))
        axes.set_yticks(range(len(names)), names)
        for x, (part, colour) in zip((0.0, 0.36, 0.66), PARTS, strict=True):
            canvas.label(axes, x, -0.85, part, GREY if colour == PALE else colour, 9.5)
        canvas.subtitle(axes, heading)
        canvas.bare(axes)
    return figure


def _shares(axes: Axes, y: int, split: dict[str, float]) -> None:
    """One bar of length 1, in parts; a part of over 10% has its number on it."""
    left = 0.0
    for part, colour in PARTS:
        share = split[part] / sum(split.values())
        axes.barh(y, share, left=left, height=0.66, color=colour)
        if share > 0.1:
            canvas.number_on(axes, left + share / 2, y, f"{share:.0%}", colour, ha="center")
        left += share


@styled
def throughput(cells: list[dict], title: str) -> Figure:
    """Tokens of all texts together, and the time of one step, against the batch size.

    Both are relative to the first cell: the smallest batch of the first engine. Bands are the
    range of the repeats.
    """
    figure, (left, right) = canvas.new_panels(3.3, title, columns=2)
    labels, base = list(dict.fromkeys(cell["label"] for cell in cells)), cells[0]
    panels = (
        (left, "tokens_per_second", "tokens a second, all texts together"),
        (right, "step", "time of one step"),
    )
    for axes, key, what in panels:
        looks = zip(labels, (VERMILION, ORANGE, GREEN, BLUE), "osD^", strict=False)
        for label, colour, mark in looks:
            own = [cell for cell in cells if cell["label"] == label]
            batches = [cell["batch"] for cell in own]
            spans = [style.low_mid_high(cell[key], base[key]["median"]) for cell in own]
            canvas.line_with_band(axes, batches, spans, color=colour, marker=mark, label=label)
        canvas.log_axis(axes, "x", batches, base=2)
        canvas.log_axis(axes, "y")  # first, as it sets the limits
        canvas.log_axis(axes, "y", *canvas.steps_between(*axes.get_ylim()))
        axes.set(xlabel="texts at once")
        canvas.subtitle(axes, f"{what}\n({base['label']}, {base['batch']} text = 1)", 9)
        axes.grid(axis="both", visible=True)
    right.legend(fontsize=8)
    return figure


@styled
def drafted(strips: list[dict], title: str, columns: int = 60) -> Figure:
    """One text from several drafts: what each proposed, and what the model had to say itself.

    A strip has a `label`, the `text`, and `drafted`: whether each character was the draft's.
    """
    figure, axes = canvas.new_figure(1.15 + 0.44 * len(strips), title)
    for y, strip in enumerate(strips):
        own = strip["drafted"]
        for x, (char, accepted) in enumerate(zip(strip["text"][:columns], own, strict=False)):
            colour, alpha = (GREEN, 0.32) if accepted else (ORANGE, 0.85)
            canvas.tile(axes, x, y, char, colour, alpha, 6.8)
        axes.text(-0.6, y + 0.4, strip["label"], ha="right", va="center", fontsize=8.3)
        canvas.label(axes, columns + 0.5, y + 0.4, f"{sum(own) / len(own):.0%}", GREEN)
    canvas.label(axes, 0, -0.45, "proposed, and accepted", GREEN)
    canvas.label(axes, 20, -0.45, "the model's own", ORANGE)
    axes.set(xlim=(-14, columns + 4), ylim=(len(strips) - 0.1, -0.8))
    axes.axis("off")
    return figure


@styled
def tokens_per_pass(lines: list[dict], title: str) -> Figure:
    """Tokens that one pass of the model brings, against the number of proposals.

    A line has a `label`, its `acceptance_rate`, the numbers of proposals `k`, and for each
    `measured` (drawn as dots) and `predicted` from that rate (drawn as lines).
    """
    figure, axes = canvas.new_figure(3.5, title)
    ks, free = lines[0]["k"], 0.0
    gap = 0.07 * (max(line["predicted"][-1] for line in lines) - 1)  # from name to name
    looks = zip(lines, (VERMILION, ORANGE, GREEN, BLUE), "so^D", strict=False)
    for line, colour, mark in sorted(looks, key=lambda look: look[0]["predicted"][-1]):
        axes.plot(ks, line["predicted"], color=colour, lw=1.4, alpha=0.6)
        axes.plot(ks, line["measured"], mark, color=colour, ms=5.5)
        free = max(line["predicted"][-1], free + gap)
        name = f"  {line['label']}: {line['acceptance_rate']:.0%} accepted"
        canvas.label(axes, ks[-1], free, name, colour)
    axes.set_xticks(ks, ks)
    axes.set(xlabel="proposals a pass, k", ylabel="tokens a pass")
    axes.set(xlim=(0.5, 1.5 * max(ks)), ylim=(1, None))
    return figure


@styled
def speculation_speed(rows: list[dict], limit: dict | float, title: str) -> Figure:
    """Speed over plain decoding in the same native code; `limit` reads the weights once a token.

    A row has a `label`, its `speedup` (a summary), and `plain` where nothing is drafted; `limit`
    is a summary of the same ratio, or its median alone.
    """
    figure, axes = canvas.new_figure(1.3 + 0.36 * len(rows), title)
    reach = canvas.limit_band(axes, limit, -0.75, "roofline: every weight read once a token")
    for y, row in enumerate(rows):
        _, mid, _ = span = style.low_mid_high(row["speedup"])
        axes.barh(y, mid, height=0.62, lw=0, color=GREY if row.get("plain") else BLUE)
        canvas.error_bar(axes, y, span)
    canvas.number_column(axes, [f"{row['speedup']['median']:.2f}×" for row in rows])
    canvas.name_rows(axes, [row["label"] for row in rows])
    most = max(reach, *(row["speedup"]["high"] for row in rows))
    axes.set(ylim=(len(rows) - 0.4, -1.15), xlim=(0, 1.05 * most), xlabel="speed, best rung = 1")
    return figure
