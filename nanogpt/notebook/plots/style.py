"""The look of every figure, and the parts that figures share. Never imports torch.

One width, and one palette: Okabe and Ito's, which colour-blind readers tell apart. The title states
the finding, the footer the conditions. Colours never carry a meaning alone.
"""

from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .colour import ink_on, on_paper

BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY, INK, GREY, PALE, PAPER = "#56B4E9", "#1f2430", "#6b7280", "#e5e7eb", "#ffffff"
COLOURS = {"uncached": VERMILION, "cached": BLUE, "train": SKY, "val": BLUE}
BLANKS = {" ": "␣", "\n": "↵"}  # what cannot be seen, made visible
MONO = "DejaVu Sans Mono"
WIDTH, DPI = 7.6, 130
BEHIND = {"facecolor": PAPER, "lw": 0, "pad": 1.5}  # a box that keeps lines from crossing words
STYLE = {
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": PALE,
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
}


def styled(draw):
    """The house style around a figure function, whatever the reader's own rcParams are."""

    @functools.wraps(draw)
    def wrapper(*args, **kwargs):
        with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE, "backend": "agg"}):
            return draw(*args, **kwargs)

    return wrapper


def blank_figure(height: float) -> Figure:
    """A figure of the one width, without axes; the height is in inches."""
    return Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")


def new_figure(height: float = 3.4, columns: int = 1, rows: int = 1, **kwargs):
    """A figure of the one width, with its axes."""
    figure = blank_figure(height)
    return figure, figure.subplots(rows, columns, **kwargs)


def to_png(figure: Figure, footer: str = "") -> bytes:
    """The figure as PNG bytes with its conditions in the footer; equal figures give equal bytes."""
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}), warnings.catch_warnings():
        # Characters of other alphabets are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        if footer:
            figure.get_layout_engine().set(rect=(0, 0.055, 1, 0.93))
            figure.text(0.012, 0.012, footer, fontsize=6.8, color=GREY, ha="left", va="bottom")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return _in_few_colours(buffer)


def _in_few_colours(png: io.BytesIO) -> bytes:
    """The same picture in 256 colours, which is about a third of the bytes."""
    from PIL import Image

    smaller = io.BytesIO()
    few = Image.open(png).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(smaller, format="PNG", optimize=True)
    return smaller.getvalue()


def to_apng(
    figures: list[Figure], footer: str = "", milliseconds: int = 120, hold: int = 2500
) -> bytes:
    """Figures as one animated PNG that loops and rests `hold` milliseconds on its last frame."""
    from PIL import Image

    # One palette for all frames keeps the file small; text and flat areas lose nothing visible.
    frames = [Image.open(io.BytesIO(to_png(figure, footer))).convert("RGB") for figure in figures]
    palette = frames[-1].quantize(64)
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    times = [milliseconds] * (len(frames) - 1) + [hold]
    animation = {"save_all": True, "append_images": frames[1:], "duration": times, "loop": 0}
    buffer = io.BytesIO()
    frames[0].save(buffer, format="PNG", **animation)
    return buffer.getvalue()


def low_mid_high(summary: dict, unit: float = 1.0) -> tuple[float, float, float]:
    """Low, median and high of a summary, in units of `unit`."""
    low, mid, high = (summary[key] / unit for key in ("low", "median", "high"))
    return low, mid, high


def format_ratio(summary: dict, digits: int = 1) -> str:
    """A ratio with its range: 2.4× (2.3–2.6, n = 5)."""
    low, mid, high = (f"{value:.{digits}f}" for value in low_mid_high(summary))
    return f"{mid}× ({low}–{high}, n = {summary['n']})"


def format_times(value: float, _position=None) -> str:
    """A tick of an axis of ratios."""
    return f"{value:g}×"


def format_signed(change: float) -> str:
    """A change to three digits, with a plus or a typographic minus."""
    return f"{change:+.3f}".replace("-", "−")


def headline(figure: Figure, text: str) -> None:
    """The finding, above all axes, flush left."""
    figure.suptitle(text, x=0.012, ha="left", fontsize=11.5, fontweight="bold")


def subtitle(axes: Axes, text: str, size: float = 10) -> None:
    """What one panel of several shows."""
    axes.set_title(text, fontsize=size, color=GREY)


def label(
    axes: Axes, x: float, y: float, text: str, colour: str = INK, size: float = 8.5, **kwargs
) -> None:
    """A bold name in the colour of what it names (or darker), level with y, from x on."""
    kwargs = {"va": "center", "weight": "bold", **kwargs}
    axes.text(x, y, text, color=on_paper(colour), fontsize=size, **kwargs)


def number_on(axes: Axes, x: float, y: float, text: str, ground, size: float = 8.5, **kw) -> None:
    """A bold number on a coloured ground, black or white, whichever can be read; level with y."""
    kw = {"va": "center", "weight": "bold", "fontsize": size, **kw}
    axes.text(x, y, text, color=ink_on(ground), **kw)


def label_point(axes: Axes, point: tuple, text: str, offset: tuple, **kwargs) -> None:
    """A name `offset` typographic points away from a point of the data."""
    kwargs = {"fontsize": 8.5, "weight": "bold", "va": "baseline", **kwargs}
    kwargs["color"] = on_paper(kwargs.get("color", INK))
    axes.annotate(text, point, xytext=offset, textcoords="offset points", **kwargs)


def letter(axes: Axes, x: float, y: float, char: str, size: float, weight: str = "normal") -> None:
    """One character of text around (x, y), blanks made visible; a dollar starts no formula."""
    font = {"family": MONO, "fontsize": size, "weight": weight, "parse_math": False}
    axes.text(x, y, BLANKS.get(char, char), ha="center", va="center", **font)


def tile(axes: Axes, x: float, y: float, char: str, colour: str, alpha: float, size: float) -> None:
    """One character in a coloured box; rows of tiles are 1 high, with a gap between them."""
    axes.add_patch(Rectangle((x, y), 0.94, 0.76, color=colour, alpha=alpha, lw=0))
    letter(axes, x + 0.47, y + 0.4, char, size)


def bare(axes: Axes) -> None:
    """No frame, no grid, no tick marks: for pictures made of boxes."""
    axes.grid(False)
    axes.tick_params(which="both", length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def grid_across(axes: Axes) -> None:
    """Grid lines for values that run to the right, none for the rows."""
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Horizontal bars, one for each name, from the top down."""
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    grid_across(axes)


def error_bar(
    axes: Axes, y: float, span: tuple[float, float, float], capsize: float = 2.5, lw: float = 1
) -> None:
    """The range of a horizontal bar; `span` is its low, middle and high."""
    low, mid, high = span
    axes.errorbar(mid, y, xerr=[[mid - low], [high - mid]], color=INK, capsize=capsize, lw=lw)


def line_with_band(axes: Axes, x: Sequence, spans: Sequence[tuple], **look) -> None:
    """A line through the middles, in a band from the lows to the highs."""
    low, mid, high = zip(*spans, strict=True)
    axes.fill_between(x, low, high, color=look["color"], alpha=0.15, lw=0)
    axes.plot(x, mid, **{"ms": 5, **look})


def steps_between(low: float, high: float) -> tuple[list[float], list[str]]:
    """1, 2, 5, 10 … between two ratios, for the ticks of a log axis, and their names."""
    steps = [digit * 10.0**power for power in range(-3, 6) for digit in (1, 2, 5)]
    steps = [step for step in steps if low <= step <= high]
    return steps, [format_times(step) for step in steps]


def log_axis(axes: Axes, which: str, ticks: Sequence = (), names=None, base: int = 10) -> None:
    """A log axis ("x" or "y") with the ticks given, written as plain numbers, and no minor ones."""
    getattr(axes, f"set_{which}scale")("log", base=base)
    if len(ticks):
        getattr(axes, f"set_{which}ticks")(ticks, ticks if names is None else names)
    axes.minorticks_off()
