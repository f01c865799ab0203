"""The look of the pages in numbers: every text can be read, light and dark; figures keep hues."""

import colorsys
import re

import pytest

from nanogpt.notebook.plots import style
from nanogpt.system.files import ROOT

CSS = (ROOT / "nanogpt/publishing/site.css").read_text(encoding="utf-8")
TEXTS = {  # what stands on what
    "paper": "ink soft link mark warn keyword string comment number name",
    "panel": "ink soft link mark keyword string comment number name warn",
    "warn-panel": "warn",
    "mark": "paper",
    "hit": "ink link",
    "more": "ink",
    "less": "ink",
}
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
    for block in re.findall(r":root \{(.*?)\}", CSS, re.S)[:2]
)
SCHEMES = {"light": LIGHT, "dark": {**LIGHT, **DARK}}


def rgb(colour: str) -> list[float]:
    return [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def contrast(one: list[float], other: list[float]) -> float:
    """The ratio of WCAG 2, 1 to 21."""

    def luminance(colour):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def on_dark(colour: list[float], paper: list[float]) -> list[float]:
    """What a figure's colour becomes: `invert(1) hue-rotate(180deg) brightness(1.2)`, screened."""
    turn = [[-0.574, 1.43, 0.144], [0.426, 0.43, 0.144], [0.426, 1.43, -0.856]]
    inverted = [1 - c for c in colour]
    turned = [sum(m * c for m, c in zip(row, inverted, strict=True)) for row in turn]
    lit = [min(1, max(0, min(1, max(0, c)) * 1.2)) for c in turned]
    return [1 - (1 - c) * (1 - p) for c, p in zip(lit, paper, strict=True)]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ground", TEXTS)
def test_every_text_has_contrast(scheme, ground):
    colours = {name: rgb(colour) for name, colour in SCHEMES[scheme].items()}
    for text in TEXTS[ground].split():
        assert contrast(colours[text], colours[ground]) >= 4.5, text


def test_every_colour_of_a_text_is_a_name_that_is_checked():
    rules = CSS[CSS.index("* { box-sizing") : CSS.index("@media print")]
    used = re.findall(r"(?<![\w-])color: ([^;}]+)[;}]", rules)
    known = {f"var(--{name})" for texts in TEXTS.values() for name in texts.split()}
    assert set(used) <= known | {"inherit"}
    grounds = re.findall(r"background: ([^;}]+)[;}]", rules)
    assert set(grounds) <= {f"var(--{name})" for name in TEXTS} | {"none", "#fff"}


def test_figures_keep_their_hues_on_dark_pages_and_their_words_can_be_read():
    assert "invert(1) hue-rotate(180deg) brightness(1.2); mix-blend-mode: screen" in CSS
    paper = rgb(SCHEMES["dark"]["paper"])
    assert on_dark(rgb(style.PAPER), paper) == pytest.approx(paper), "a slab"
    for words in (style.INK, style.GREY):
        assert contrast(on_dark(rgb(words), paper), paper) > 4.5
    for colour in map(rgb, (style.BLUE, style.VERMILION, style.GREEN, style.ORANGE, style.SKY)):
        dark = on_dark(colour, paper)
        turned = abs(colorsys.rgb_to_hls(*colour)[0] - colorsys.rgb_to_hls(*dark)[0]) * 360
        assert min(turned, 360 - turned) < 15
        assert contrast(dark, paper) > 3
