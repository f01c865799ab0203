"""Colours that can be read: contrast as WCAG defines it, and words that reach 4.5 of it."""

from __future__ import annotations

from matplotlib.colors import to_hex, to_rgb

ENOUGH = 4.5  # the contrast that small words need


def luminance(colour) -> float:
    """How light a colour is, from 0 to 1."""
    c = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]


def contrast(one, other) -> float:
    """The contrast of two colours, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def ink_on(colour) -> str:
    """Black or white, whichever reads better on a colour; their contrast is at least 4.5."""
    return max("black", "white", key=lambda ink: contrast(ink, colour))


def on_paper(colour) -> str:
    """A colour for words on white: the colour itself, or as much darker as it must be."""
    share = 1.0
    while contrast(mixed(colour, share, "black"), "white") < ENOUGH:
        share -= 0.02
    return to_hex(mixed(colour, share, "black"))


def mixed(colour, share: float, other="white") -> tuple[float, float, float]:
    """A mix of two colours: `share` 1 is the first, 0 the other."""
    pair = zip(to_rgb(colour), to_rgb(other), strict=True)
    return tuple(share * one + (1 - share) * two for one, two in pair)
