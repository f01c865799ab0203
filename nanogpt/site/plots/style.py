"""The look of all figures: one width, readable colours, footers, files and formats.

The palette is Okabe and Ito's, which colour-blind readers can tell apart. The title states the
finding, the footer the conditions. Never imports torch. Each colour has one meaning in every
figure, and is never the only sign:

    BLUE       kept, or ours: the cache, with the cache
    SKY        a second kind of BLUE
    ORANGE     made in this step: the new token, its query, a step of decoding
    VERMILION  a baseline, or wrong: no cache, the lecture's method, a mistake, a limit
    GREEN      accepted, or equal
    GREY       waiting, plain, or not measured

Curves use them in the order of `charts.LOOKS`, so the baseline comes first.

Each figure is drawn for a page, and again for a phone (`for_phone`): narrower, with text of the
same size.
"""

from __future__ import annotations

import functools
import io
import textwrap
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import matplotlib
import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

if TYPE_CHECKING:
    from ...timing import Summary  # it imports torch

Look = dict[str, Any]  # options of matplotlib, by name
Data = dict[str, Any]  # plain data of a figure, described in its function
Point = tuple[float, float]
Colour = str | tuple[float, float, float]

BLUE = "#0072B2"
VERMILION = "#D55E00"
GREEN = "#009E73"
ORANGE = "#E69F00"
SKY = "#56B4E9"
INK = "#1f2430"
GREY = "#6b7280"
PALE = "#e5e7eb"
PAPER = "#ffffff"
BLANKS = {" ": "␣", "\n": "↵"}  # blank characters, made visible
MONO = "DejaVu Sans Mono"
WIDTH = 7.6  # inches, on a page
PHONE = 3.9  # inches, on a phone
DPI = 130
FINER = 1.4  # pixel density of a phone's figure, relative to a page's
_FOOTER = 6.8  # points: the smallest words of a figure
SEPARATOR = "  ·  "  # between the parts of a footer
_SHORT = 20  # letters: a part of a footer that is not broken
_NO_BREAK = "\u00a0"  # a space where no line ends
# A box that keeps lines from crossing text.
BEHIND: Look = {"facecolor": PAPER, "lw": 0, "pad": 1.5}
STYLE = {
    **matplotlib.rcParamsDefault,  # regardless of the reader's own settings
    "backend": "agg",
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,  # of one panel of several
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": GREY,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": PALE,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
}
_width = ContextVar("width", default=WIDTH)
_again: WeakKeyDictionary[Figure, Callable[[], Figure]] = (
    WeakKeyDictionary()
)  # functions that draw a figure again


def width() -> float:
    """Width of the figure being drawn, in inches."""
    return _width.get()


def narrow() -> bool:
    """Whether a figure is being drawn for a phone."""
    return width() < WIDTH


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Decorator for every figure function: applies this style, and lets the figure be redrawn."""

    @functools.wraps(draw)
    def drawn(*args: Any, **kwargs: Any) -> Figure:
        with matplotlib.rc_context(STYLE):
            figure = draw(*args, **kwargs)
        _again[figure] = functools.partial(drawn, *args, **kwargs)
        return figure

    return drawn


def for_phone(figure: Figure) -> Figure | None:
    """The phone version of a figure; None for one that no figure function has drawn.

    It is redrawn from its data, without anything that a cell has added to the axes.
    """
    again = _again.get(figure)
    if again is None:
        return None
    before = _width.set(PHONE)
    try:
        return again()
    finally:
        _width.reset(before)


def wrapped(text: str, points: float, inches: float, bold: bool = False) -> str:
    """Wrap a text to `inches` at that font size, keeping its line breaks."""
    letters = int(72 * inches / (points * (0.61 if bold else 0.54)))
    return "\n".join(textwrap.fill(line, letters) for line in text.split("\n"))


def to_png(figure: Figure, footer: str = "", finer: float = FINER) -> bytes:
    """The figure as PNG bytes with its conditions in the footer; equal figures give equal bytes.

    `finer` is the pixel density of a phone's figure, relative to a page's.
    """
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # Characters missing from the font are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        if footer:
            _write_footer(figure, footer)
        buffer = io.BytesIO()
        dpi = DPI * (finer if figure.get_figwidth() < WIDTH else 1)
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    smaller = io.BytesIO()  # in 256 colours, which is about a third of the bytes
    few = Image.open(buffer).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(smaller, format="PNG", optimize=True)
    return smaller.getvalue()


def _write_footer(figure: Figure, footer: str) -> None:
    """Write the footer in the bottom left corner, wrapped, and make space for it."""
    wide, high = figure.get_size_inches()
    lines = wrapped(_in_parts(footer), _FOOTER, wide - 0.15)
    share = (0.08 + 1.3 * _FOOTER / 72 * (lines.count("\n") + 1)) / high
    for legend in figure.legends:  # place it on top of the footer
        legend.borderaxespad = (72 * share * high + 2) / legend.get_texts()[0].get_fontsize()
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(rect=(0, share, 1, 0.985 - share))
    place: Look = {"ha": "left", "va": "bottom", "linespacing": 1.25}
    figure.text(0.09 / wide, 0.04 / high, lines, fontsize=_FOOTER, color=GREY, **place)


def _in_parts(footer: str) -> str:
    """The footer with its short parts, such as "profile full", kept on one line when wrapped."""
    parts = footer.split(SEPARATOR)
    kept = [part.replace(" ", _NO_BREAK) if len(part) <= _SHORT else part for part in parts]
    return f"{2 * _NO_BREAK}·  ".join(kept)


def to_apng(figures: list[Figure], footer: str, milliseconds: int) -> bytes:
    """Figures as one looping animated PNG, with a 2.5 s pause on the first and last frames."""
    # One palette for all frames keeps the file small; text and flat areas lose nothing visible.
    drawn = (to_png(figure, footer, finer=1) for figure in figures)
    frames = [Image.open(io.BytesIO(png)).convert("RGB") for png in drawn]
    palette = frames[-1].quantize(64)
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    times = [2500, *[milliseconds] * (len(frames) - 2), 2500]
    buffer = io.BytesIO()
    frames[0].save(
        buffer, format="PNG", save_all=True, append_images=frames[1:], duration=times, loop=0
    )
    return buffer.getvalue()


def low_mid_high(summary: Summary, unit: float = 1.0) -> tuple[float, float, float]:
    """Low, median and high of a summary, in units of `unit`."""
    return summary["low"] / unit, summary["median"] / unit, summary["high"] / unit


def format_ratio(summary: Summary, digits: int = 1) -> str:
    """A ratio with its range: 2.4× (2.3–2.6, n = 5)."""
    low, mid, high = (f"{value:.{digits}f}" for value in low_mid_high(summary))
    return f"{mid}× ({low}–{high}, n = {summary['n']})"


def contrast(one: Colour, other: Colour) -> float:
    """The WCAG contrast ratio of two colours, from 1 to 21."""
    s = np.array([to_rgb(one), to_rgb(other)])
    linear = np.where(s <= 0.04045, s / 12.92, ((s + 0.055) / 1.055) ** 2.4)
    low, high = sorted(linear @ (0.2126, 0.7152, 0.0722))  # the luminance of each
    return float((high + 0.05) / (low + 0.05))


def ink_on(colour: Colour) -> str:
    """Black or white, whichever reads better on a colour; their contrast is at least 4.5."""
    return max("black", "white", key=lambda ink: contrast(ink, colour))


def on_paper(colour: Colour) -> str:
    """A colour for text on white: the colour, darkened if WCAG requires it for small text."""
    share = 1.0
    while contrast(mixed(colour, share, "black"), "white") < 4.5:
        share -= 0.02
    return to_hex(mixed(colour, share, "black"))


def mixed(colour: Colour, share: float, other: Colour = "white") -> tuple[float, float, float]:
    """A mix of two colours: `share` 1 is the first, 0 the other."""
    red, green, blue = share * np.array(to_rgb(colour)) + (1 - share) * np.array(to_rgb(other))
    return red, green, blue
