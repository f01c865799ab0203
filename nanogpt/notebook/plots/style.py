"""One function per figure: plain dicts and lists in, a matplotlib Figure out. Never imports torch.

One size, one palette (Okabe and Ito's, which colour-blind readers tell apart), a title that states
the finding, and room for a footer with the conditions. Colours never carry a meaning alone.
"""

from __future__ import annotations

import functools
import io
import textwrap
import warnings

import matplotlib.lines
from matplotlib.figure import Figure

BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"


SKY, INK, GREY, PALE, PAPER = "#56B4E9", "#1f2430", "#6b7280", "#e5e7eb", "#ffffff"


BLANKS = {" ": "␣", "\n": "↵"}  # what cannot be seen, made visible


COLOURS = {"uncached": VERMILION, "cached": BLUE, "train": SKY, "val": BLUE}


WIDTH, DPI = 7.6, 130


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
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing"
        )  # other alphabets: drawn as boxes
        if footer:
            figure.get_layout_engine().set(rect=(0, 0.055, 1, 0.93))
            figure.text(0.012, 0.012, footer, fontsize=6.8, color=GREY, ha="left", va="bottom")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def to_apng(
    figures: list[Figure], footer: str = "", milliseconds: int = 120, hold: int = 2500
) -> bytes:
    """Figures as one animated PNG that loops and rests on its last frame."""
    from PIL import Image

    # One palette for all frames keeps the file small; text and flat areas lose nothing visible.
    frames = [Image.open(io.BytesIO(to_png(figure, footer))).convert("RGB") for figure in figures]
    palette = frames[-1].quantize(64)
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    buffer = io.BytesIO()
    times = [milliseconds] * (len(frames) - 1) + [hold]
    frames[0].save(
        buffer, format="PNG", save_all=True, append_images=frames[1:], duration=times, loop=0
    )
    return buffer.getvalue()


def spread(summary: dict, digits: int = 1) -> str:
    """A ratio with its spread: 2.4× (2.3–2.6, n = 5)."""
    low, high = summary["low"], summary["high"]
    return (
        f"{summary['median']:.{digits}f}× ({low:.{digits}f}–{high:.{digits}f}, n = {summary['n']})"
    )


def _wrapped(text: str, width: int = 46, lines: int = 13) -> str:
    wrapped = [piece for line in text.split("\n") for piece in (textwrap.wrap(line, width) or [""])]
    return "\n".join(wrapped[:lines])


def _letter(axes, x: float, y: float, char: str, size: float, weight: str = "normal") -> None:
    """One character of text in the middle of its box, blanks made visible."""
    axes.text(
        x,
        y,
        BLANKS.get(char, char),
        ha="center",
        va="center",
        family="DejaVu Sans Mono",
        fontsize=size,
        weight=weight,
        parse_math=False,
    )


def _running_median(values: list[float], width: int) -> list[float]:
    half = width // 2
    parts = (sorted(values[max(0, i - half) : i + half + 1]) for i in range(len(values)))
    return [part[len(part) // 2] for part in parts]


def _times(value: float, _=None) -> str:
    return f"{value:g}×"


def _size(n: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n >= unit:
            return f"{n / unit:.3g} {name}"
    return f"{n:.0f} B"


def _beside(left: bool, above: bool) -> dict:
    if left:  # a short line: its name stands below where it ends
        return {"xytext": (14, -16), "ha": "left", "va": "top"}
    return {"xytext": (-4, -12 if above else 9), "ha": "right", "va": "top" if above else "bottom"}
