"""Pictures of designs: heads that share keys, arrows that rotate, the slots of a ring."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import cos, degrees, pi, sin

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Wedge

from .canvas import FILLS, PAGE, cell, legend, note, page
from .style import BLUE, GREY, ORANGE, PALE, styled

QUERY = FILLS["new"][1]  # dark orange: lines that must be seen on paper


@styled
def sharing(n_head: int, kinds: Sequence[tuple[str, int]], title: str) -> Figure:
    """Which query heads share a key/value head; a kind is its name and its key/value heads.

    Every head beyond the first of a group is one whose keys and values need not be cached.
    """
    figure, axes = page(2.9, title, equal=True)
    wide = PAGE / len(kinds)
    for i, (kind, n_kv_head) in enumerate(kinds):
        _heads(axes, (i + 0.5) * wide, 0.86 * wide, kind, n_head, n_kv_head)
    legend(axes, 2.5, [("new", "query heads"), ("old", "key/value heads: what the cache holds")])
    return figure


def _heads(axes: Axes, middle: float, wide: float, kind: str, n_head: int, n_kv_head: int) -> None:
    """One panel: query heads above, key/value heads below, and who reads which."""
    step, group = wide / n_head, n_head // n_kv_head
    left, box = middle - wide / 2, min(0.3, 0.9 * wide / n_head)
    note(axes, middle, 0.05, kind, 13, ha="center", weight="bold")
    for head in range(n_head):
        x, shared = left + (head + 0.5) * step, left + (head // group + 0.5) * group * step
        axes.plot([x, shared], [0.65, 1.4], color=GREY, lw=1.3, zorder=0)
        look = {"facecolor": ORANGE, "edgecolor": QUERY}
        axes.add_patch(Circle((x, 0.62), box / 2 - 0.01, **look))
    for i in range(n_kv_head):
        x = left + (i + 0.5) * group * step
        cell(axes, x - box / 2 - 0.03, 1.3, (box + 0.06, box))
    share = Fraction(n_kv_head, n_head)
    size = "all bytes (1×)" if share == 1 else f"{share} of the bytes"
    words = f"{n_kv_head} key/value head{'s' * (n_kv_head != 1)}\n{size}"
    note(axes, middle, 1.72, words, 10.5, ha="center")


@styled
def arrows(
    angles: Sequence[tuple[float, float]],
    title: str,
    *,
    pairs: Sequence[tuple[int, int]] = ((5, 2), (13, 10)),
    dials: Sequence[int] = (0, 1, 2, 3, 4, 5),
) -> Figure:
    """Rotary embeddings in one pair of dimensions: arrows that turn with the position.

    `angles[p]` are those of a query and a key at position p, in radians. Above, a dial for each of
    the positions `dials`; below, two large ones: a query and an earlier key, each of `pairs`.
    """
    figure, axes = page(4.15, title, equal=True)
    wide = PAGE / len(dials)
    for i, position in enumerate(dials):
        centre = ((i + 0.5) * wide, 0.5)
        _dial(axes, centre, 0.42, *angles[position])
        note(axes, centre[0], 1.0, f"position {position}", 10, ha="center")
    for i, (later, earlier) in enumerate(pairs):
        query, key = angles[later][0], angles[earlier][1]
        centre = (PAGE * (0.13 + 0.5 * i), 2.4)
        _dial(axes, centre, 0.85, query, key, angle=True)
        between = degrees((query - key + pi) % (2 * pi) - pi)
        words = (
            f"query at {later}\nkey at {earlier}\ndistance {later - earlier}\n\n"
            f"angle {between:.0f}°".replace("-", "−")
        )
        note(axes, centre[0] + 1.1, 1.7, words, 12)
    legend(
        axes,
        3.7,
        [("new", "the query, turned by its position"), ("old", "the key, turned by its own")],
    )
    return figure


def _dial(axes: Axes, centre: tuple, radius: float, query: float, key: float, angle=False) -> None:
    """A circle with the arrows of a query and a key, and maybe the angle between them."""
    axes.add_patch(Circle(centre, radius, facecolor="#f6f7f9", edgecolor="#b6bbc4", lw=0.8))
    if angle:
        start, turn = degrees(key), degrees((query - key + pi) % (2 * pi) - pi)
        ends = sorted((-start, -start - turn))
        look = {"facecolor": PALE, "edgecolor": GREY, "lw": 0.8}
        axes.add_patch(Wedge(centre, 0.45 * radius, *ends, **look))
    for turned, colour in ((key, BLUE), (query, ORANGE)):
        tip = centre[0] + radius * cos(turned), centre[1] - radius * sin(turned)
        look = {"arrowstyle": "-|>", "color": colour, "lw": 2.4, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", tip, xytext=centre, arrowprops=look)


@styled
def ring(capacity: int, positions: Sequence[int], title: str) -> Figure:
    """The slots of a rolling cache after each of `positions`: position p lies in slot p % capacity.

    The slot that the next position overwrites is orange.
    """
    figure, axes = page(3.75, title, equal=True)
    wide = PAGE / len(positions)
    for i, last in enumerate(positions):
        _ring(axes, ((i + 0.5) * wide, 1.3), min(1.02, 0.45 * wide), capacity, last)
        lost = last + 1 - capacity
        words = f"position {last + 1} takes slot {(last + 1) % capacity}"
        words += f",\nposition {lost} is lost" if lost >= 0 else ",\nwhich is free"
        note(axes, (i + 0.5) * wide, 2.58, words, 10.5, ha="center")
    rows = [("new", "the slot that the next position takes"), ("old", "a position that is kept")]
    legend(axes, 3.37, rows)
    note(axes, 4.2, 3.3, "large: the position held\nsmall: the number of the slot")
    return figure


def _ring(axes: Axes, centre: tuple, radius: float, capacity: int, last: int) -> None:
    """One ring, slot 0 at the top, on clockwise: the position that each slot holds."""
    note(axes, *centre, f"after\nposition\n{last}", 10, ha="center", va="center")
    for slot in range(capacity):
        held = last - (last - slot) % capacity
        kind = "new" if slot == (last + 1) % capacity else "old" if held >= 0 else "free"
        fill, edge, _ = FILLS[kind]
        first, turn = 360 * slot / capacity - 90, 360 / capacity
        look = {"width": 0.46 * radius, "facecolor": fill, "edgecolor": edge, "lw": 1}
        axes.add_patch(Wedge(centre, radius, first - turn / 2, first + turn / 2, **look))
        for share, text, font in _slot_words(slot, held):
            x, y = (
                c + share * radius * f(first * pi / 180)
                for c, f in zip(centre, (cos, sin), strict=True)
            )
            axes.text(x, y, text, ha="center", va="center_baseline", **font)


def _slot_words(slot: int, held: int):
    """What stands in a slot and outside it: how far from the centre, the words, their font."""
    if held >= 0:
        yield 0.77, str(held), {"fontsize": 12, "weight": "bold"}
    yield 1.12, str(slot), {"fontsize": 8.5, "color": GREY}
