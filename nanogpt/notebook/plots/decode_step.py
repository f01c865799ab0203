"""One picture of one decode step: the query, the keys, the weights, the values and what is kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .canvas import FILLS, PAGE, cells, legend, name, page, pill
from .colour import mixed
from .style import BLUE, GREY, styled

LEFT, BOX = 1.25, 0.36  # where the cells begin, and their height, in inches
QUERY, KEYS, VALUES, OUTPUT, BELOW = 0.16, 0.72, 2.06, 3.02, 3.42  # rows, from the top down


@styled
def decode_step(
    chars: Sequence[str],
    weights: Sequence[float],
    title: str,
    *,
    new: Collection[int] | None = None,
    unread: Collection[int] = (),
    labels: Sequence | None = None,
    again: bool = False,
) -> Figure:
    """What one step of decoding reads and writes, in one head; all sequences are (S,).

    The query of the last of `chars` meets the key of each; `weights` (they sum to 1) mix the
    values. `new` are the indices whose key and value this step writes (None: the last), `unread`
    those outside a window, `labels` what stands below the keys (positions, say). `again` adds
    the row that a model without a cache computes.
    """
    kinds = _kinds(len(chars), {len(chars) - 1} if new is None else new, unread)
    words = _words(kinds, again)
    figure, axes = page(BELOW + (0.6 if again else 0) + 0.26 * len(words), title)
    wide = min(0.9, (PAGE - LEFT) / len(chars))
    middles = [LEFT + wide * (i + 0.5) for i in range(len(chars))]
    _compare(axes, chars, kinds, middles, labels)
    _weigh(axes, weights, kinds, middles, wide)
    _mix(axes, weights, kinds, middles)
    for y in (KEYS, VALUES):
        cells(axes, LEFT, y, (wide, BOX), chars, kinds)
    if again:
        _again(axes, chars, wide)
    legend(axes, BELOW + (0.72 if again else 0.12), words)
    return figure


def _kinds(size: int, new: Collection[int], unread: Collection[int]) -> list[str]:
    return ["new" if i in new else "unread" if i in unread else "old" for i in range(size)]


def _compare(axes: Axes, chars, kinds, middles, labels) -> None:
    """The query above, and a line from it to each key that it reads."""
    name(axes, QUERY, "query", "this step only")
    name(axes, KEYS + BOX / 2, "keys", "in the cache")
    last = min(middles[-1], PAGE - 0.23)  # the whole of it stays on the page
    for x, kind in zip(middles, kinds, strict=True):
        if kind != "unread":
            line = {"color": FILLS["new"][1], "lw": 0.9, "alpha": 0.75, "zorder": 0}
            axes.plot([last, x], [QUERY, KEYS], **line)
    pill(axes, last, QUERY, "q", 0.42)
    for x, text in zip(middles, labels or (), strict=False):
        font = {"ha": "center", "va": "top", "fontsize": 9, "color": GREY}
        axes.text(x, KEYS + BOX + 0.03, text, **font)


def _weigh(axes: Axes, weights, kinds, middles, wide: float) -> None:
    """A bar on each value: the share of it in the mix."""
    base, tallest = VALUES - 0.06, max(weights)
    name(axes, base - 0.3, "weights", "sum to 100%")
    for x, weight, kind in zip(middles, weights, kinds, strict=True):
        if kind == "unread":
            continue
        high = 0.52 * weight / tallest
        axes.add_patch(Rectangle((x - 0.3 * wide, base - high), 0.6 * wide, high, color=BLUE, lw=0))
        font = {"ha": "center", "va": "bottom", "fontsize": 9.5 if wide > 0.45 else 8}
        axes.text(x, base - high - 0.03, "<1%" if weight < 0.005 else f"{weight:.0%}", **font)


def _mix(axes: Axes, weights, kinds, middles) -> None:
    """A line from each value to the output, as thick as its weight."""
    name(axes, VALUES + BOX / 2, "values", "in the cache")
    name(axes, OUTPUT, "output", "this step only")
    centre = min(middles[-1], PAGE - 0.64)
    for x, weight, kind in zip(middles, weights, kinds, strict=True):
        if kind != "unread":
            lw = 0.5 + 7 * weight
            ends = [x, centre], [VALUES + BOX, OUTPUT - 0.15]
            axes.plot(*ends, color=mixed(BLUE, 0.55), lw=lw, zorder=0, solid_capstyle="butt")
    pill(axes, centre, OUTPUT, "mix of values", 1.24, "old")


def _again(axes: Axes, chars, wide: float) -> None:
    """The keys and values that a model without a cache computes in the same step."""
    name(axes, BELOW + 0.2, "no cache")
    cells(axes, LEFT, BELOW + 0.02, (wide, BOX), chars, ["again"] * len(chars))


def _words(kinds: Sequence[str], again: bool) -> list[tuple[str, str]]:
    """What is written, what is read and what is not, for the legend."""
    wrote, skipped = kinds.count("new"), kinds.count("unread")
    read, old = len(kinds) - skipped, kinds.count("old")
    query = "The query" if wrote == 1 else "The last query"
    rows = [
        ("new", f"computed and written to the cache: {_pairs(wrote)}"),
        ("old", f"from earlier steps: {_pairs(old)}. {query} reads all {read}"),
    ]
    if skipped:
        rows.append(("unread", f"outside the window, not read: {_pairs(skipped)}"))
    if again:
        rows.append(("again", f"without a cache, computed in this step: {_pairs(len(kinds))}"))
    return rows


def _pairs(count: int) -> str:
    s = "s" * (count != 1)
    return f"{count} key{s} and {count} value{s}"
