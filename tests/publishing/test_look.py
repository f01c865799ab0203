"""The look of the pages in numbers: every text can be read, light and dark."""

import re

import pytest

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
