"""Numbers in prose do not come loose from what a run printed."""

import re

import nbformat
import pytest
from notebook_fixtures import code, output, prose

from nanogpt.files import PUBLISHED
from nanogpt.site.nbfile import alt_text, ours

# The notebook, the number, and why nothing has to print it.
STANDS = {
    ("02", "124"): "the name of a GPT-2",
    ("05", "30"): "the shape of SmolLM2",
    ("05", "135"): "the shape of SmolLM2",
    ("05", "13"): "the number of a notebook",
    ("05", "0.74"): "measured on an H200, in outputs/gpu",
    ("05", "0.93"): "measured on an H200, in outputs/gpu",
    ("05", "2,047"): "measured on an H200, in outputs/gpu",
    ("05", "2.11"): "measured on an H200, in outputs/gpu",
    ("11", "260"): "a calculation",
    ("11", "1.60"): "made up for a question",
    ("11", "128"): "made up for a question",
}
NUMBER = re.compile(r"(?<![\w.^-])\d(?:[\d,_]*\d)?(?:\.\d+)?(?:e-?\d+)?")
UNIT = re.compile(r" ?(?:%|×|times\b|[mµ]?s\b|seconds\b|minutes\b|[kMG]B\b)")
ASIDE = re.compile(  # code, headings, the box's minutes, list numbers, names of dtypes, links
    r"```[\s\S]*?```|`[^`]*`|^#+ .*|^- \*Minutes\*.*|^ *\d+\.\s|\d+[- ]bits?\b|\]\((?!http)[^)]*\)",
    re.M,
)


def values(text: str) -> set[float]:
    return {float(re.sub("[,_]", "", number)) for number in NUMBER.findall(text)}


def loose_numbers(nb) -> list[str]:
    """What an executed notebook's prose says in digits, and none of its cells prints or sets.

    Years, whole numbers to 12 without a unit, and sentences with a link to a source are aside.
    """
    known = set()
    loose = []
    for cell in (cell for cell in nb.cells if cell.cell_type == "code"):
        known |= values(cell.source)
        for out in cell.outputs:
            data = out.get("data", {})
            known |= values(f"{out.get('text')} {data.get('text/plain')} {alt_text(out)}")
    texts = (cell for cell in nb.cells if cell.cell_type == "markdown")
    for cell in (cell for cell in texts if not ours(cell).get("generated")):
        for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n|\n- ", ASIDE.sub(" ", cell.source)):
            for found in () if "](http" in sentence else NUMBER.finditer(sentence):
                (value,) = values(found[0])
                counts = value in range(13) and not UNIT.match(sentence, found.end())
                if not (counts or value in range(1900, 2040) or value in known):
                    loose.append(f"{cell.id}: {found[0]} in “{' '.join(sentence.split())}”")
    return loose


def test_a_number_that_no_cell_prints_is_found():
    printed = code("print(n / 3)  # of 65", "run", [output("1,000 tokens in 2.50 s")])
    sound = "# 99 ways\n\nOf 65, 1000 took 2.5 s in 2026, as 03 said of 12 (`99`, float32, GPT-2)."
    named = "Another took [77 s](https://example.org/1)."
    cells = [printed, prose(f"{sound} {named}", "sound"), prose("It is 8× and 2.6 s.", "loose")]
    found = loose_numbers(nbformat.v4.new_notebook(cells=cells))
    assert [one.split(" in ")[0] for one in found] == ["loose: 8", "loose: 2.6"]


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_number_in_published_prose_comes_from_its_run(path):
    found = loose_numbers(nbformat.read(path, as_version=4))
    stands = [number for notebook, number in STANDS if notebook == path.stem[:2]]
    assert [one for one in found if one.split()[1] not in stands] == []
