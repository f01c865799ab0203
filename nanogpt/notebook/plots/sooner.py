"""Pictures of two ideas of notebook 11: updates that count in all directions, look-up tables."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from . import style
from .canvas import PAGE, cells, name, note, page
from .style import BLUE, GREEN, VERMILION, new_figure, styled

LEFT, HIGH, APART = 1.55, 0.36, 0.52  # inches: where cells begin, how high they are, their rows


@styled
def singular_values(updates: dict[str, Sequence[float]], title: str) -> Figure:
    """The singular values of some updates of a matrix, largest first, each as a share of it."""
    figure, axes = new_figure(3.2)
    looks = zip(updates.items(), (VERMILION, GREEN, BLUE), (":", "--", "-"), strict=False)
    for (label, values), colour, dashes in looks:
        shares = [value / max(values) for value in values]
        axes.plot(range(1, len(shares) + 1), shares, color=colour, ls=dashes, label=label)
    style.log_axis(axes, "y", [1e-4, 1e-3, 0.01, 0.1, 1], ["0.01%", "0.1%", "1%", "10%", "100%"])
    axes.set_ylim(1e-4, 1.5)
    axes.set(xlabel="direction, strongest first", ylabel="length, of the strongest")
    axes.legend(loc="lower left")
    axes.set_title(title)
    return figure


@styled
def look_ups(chars: Sequence[str], title: str) -> Figure:
    """The rows added up for the last of `chars`: its own, its pair's and its triple's."""
    figure, axes = page(4 * APART + 0.55, title)
    wide = min(0.5, (PAGE - LEFT) / (len(chars) + 7))
    kinds = ["free"] * len(chars)
    name(axes, 0.2, "text", "read so far")
    cells(axes, LEFT, 0.02, (wide, HIGH), chars, [*kinds[:-1], "new"])
    tables = ("characters", "pairs", "triples")
    for row, table in enumerate(tables, 1):
        y, last = 0.02 + row * APART + 0.1, "".join(chars[-row:])
        name(axes, y + HIGH / 2, table, f"{row} character{'s' * (row > 1)}")
        at = len(chars) - row
        cells(axes, LEFT + at * wide, y, (wide, HIGH), chars[at:], ["old"] * row)
        shown = "".join(style.BLANKS.get(c, c) for c in last)
        note(axes, LEFT + (len(chars) + 0.5) * wide, y + 0.06, f"→  row “{shown}” of this table")
    sum_of = "The three rows are added, and go into the first block: no matrix is multiplied."
    note(axes, LEFT, 0.25 + 4 * APART, sum_of)
    return figure
