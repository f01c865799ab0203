"""The look of the pages in numbers: every text can be read, light and dark."""

import re

import pytest

from nanogpt.files import ROOT
from nanogpt.site.plots.style import contrast

CSS = (ROOT / "nanogpt/site/templates/site.css").read_text(encoding="utf-8")
TEXTS = {  # what stands on what
    "paper": "ink soft link mark warn keyword string comment number name",
    "panel": "ink soft link mark keyword string comment number name warn",
    "warn-panel": "warn",
    "mark": "paper",
    "hit": "ink link warn",
    "more": "ink",
    "less": "ink",
}
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
    for block in re.findall(r":root \{(.*?)\}", CSS, re.S)[:2]
)
SCHEMES = {"light": LIGHT, "dark": {**LIGHT, **DARK}}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ground", TEXTS)
def test_every_text_has_contrast(scheme, ground):
    colours = SCHEMES[scheme]
    for text in TEXTS[ground].split():
        assert contrast(colours[text], colours[ground]) >= 4.5, text


def test_every_colour_of_a_text_is_a_name_that_is_checked():
    rules = CSS[CSS.index("* { box-sizing") : CSS.index("@media print")]
    used = re.findall(r"(?<![\w-])color: ([^;}]+)[;}]", rules)
    known = {f"var(--{name})" for texts in TEXTS.values() for name in texts.split()}
    assert set(used) <= known | {"inherit"}
    grounds = re.findall(r"background: ([^;}]+)[;}]", rules)
    assert set(grounds) <= {f"var(--{name})" for name in TEXTS} | {"none", "#fff"}
