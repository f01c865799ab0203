"""What notebooks/teaching has for a class: its links, its numbers, and its slides as pages."""

import ast
import re

import pytest
import torch
from browsers import browsed, open_file

from nanogpt.cli import COMMANDS, main
from nanogpt.course.blanks import BLANKS
from nanogpt.course.solutions import attention_weights, visible
from nanogpt.files import ROOT
from nanogpt.site import slides
from nanogpt.site.nbfile import solution

FOLDER = ROOT / "notebooks" / "teaching"
SLIDES = sorted(FOLDER.glob("session_*.md"))


@pytest.mark.parametrize("path", [*FOLDER.glob("*.md")], ids=lambda path: path.name)
def test_every_link_and_command_is_there(path):
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (FOLDER / target).is_file(), target
    for words in re.findall(r"python -m nanogpt ([a-z]+(?: [a-z]+)?)", text):
        assert words in COMMANDS or words.split()[0] in COMMANDS, words
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make (\w+)", text):
        assert re.search(rf"^{target}:", make, re.M), target


@pytest.mark.parametrize("path", SLIDES, ids=lambda path: path.stem)
def test_slides_tell_no_solution(path):
    text = path.read_text(encoding="utf-8")
    for name in BLANKS:
        for node in ast.walk(ast.parse(solution(name))):
            if isinstance(node, ast.Return) and len(ast.unparse(node)) > 20:
                assert ast.unparse(node.value) not in text, name


def numbers(line: str) -> list[float]:
    """The numbers in the cells of a row that follow its name."""
    return [float(x) for x in re.findall(r"-?\d+(?:\.\d+)?", line.split("|", 2)[2])]


def test_the_numbers_at_the_board_are_those_of_attention():
    text = (FOLDER / "board.md").read_text(encoding="utf-8")
    given = torch.tensor(
        [numbers(x) for x in re.findall(r"^\| character \d \|.*,.*,.*", text, re.M)]
    )
    q, k, v = given[:, :4], given[:, 4:8], given[:, 8:]
    scores = [numbers(x) for x in re.findall(r"^\| query \d \|.*", text, re.M)]
    assert torch.allclose(q @ k.T / 2, torch.tensor(scores))
    where = visible(torch.arange(3), torch.arange(3))
    weights = attention_weights(q, k, where)
    told = text.partition("weight 1")[2].partition("**4.")[0]
    for row, expected in zip(re.findall(r"^\| character.*", told, re.M), weights, strict=True):
        found = numbers(row)
        assert found == pytest.approx(expected[: len(found)].tolist(), abs=0.003)
    outputs = [
        numbers(x) for x in re.findall(r"^\| character.*", text.partition("output")[2], re.M)
    ]
    assert torch.allclose(weights @ v, torch.tensor(outputs[-3:]), atol=0.03)


# ------------------------------------------------------------------ rendering


def test_slides_are_written_into_a_folder_of_their_own(tmp_path, capsys):
    out = tmp_path / "slides"
    assert main(["slides", "--out", str(out)]) == 0
    there = sorted(path.stem for path in out.glob("*.html"))
    assert there == sorted([*slides.TO_PRINT, *(path.stem for path in SLIDES)])
    for path in SLIDES:
        page = (out / f"{path.stem}.html").read_text(encoding="utf-8")
        assert page.count("<section") == len(slides.split(path))
        assert page.count("data:image/png;base64,") == path.read_text("utf-8").count("![")
        assert "http" not in page, "no slide needs a network"
    assert main(["slides", "--out", str(out)]) == 0
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "a.html").write_text("mine", encoding="utf-8")
    assert main(["slides", "--out", str(tmp_path / "theirs")]) == 2
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["a.html"]


BAD = {
    "# No front matter": "no front matter",
    "---\nmarp: true\n---\n![a](nowhere.png)": "no such PNG",
}


@pytest.mark.parametrize("text", BAD)
def test_slides_that_cannot_be_rendered_are_named(text, tmp_path):
    path = tmp_path / "session_1.md"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(slides.SlidesError, match=BAD[text]):
        slides.render(path)


FITS = """(() => {
  const slide = document.querySelector("section.on");
  const boxes = [...slide.querySelectorAll("*")].map(part => part.getBoundingClientRect());
  const inside = box => box.top >= 0 && box.left >= 0 && box.right <= innerWidth
    && box.bottom <= innerHeight;
  const whole = part => part.scrollHeight <= part.clientHeight + 4;  // a picture covers no text
  return boxes.every(inside) && [...slide.children].every(whole);
})()"""


@browsed
@pytest.mark.parametrize("path", SLIDES, ids=lambda path: path.stem)
def test_every_slide_fits_the_screen_and_keys_turn_the_page(path, tmp_path, browser):
    page = tmp_path / "page.html"
    page.write_text(slides.render(path), encoding="utf-8")
    browser.set_viewport_size({"width": 1280, "height": 900})
    open_file(browser, page)
    for number in range(1, len(slides.split(path)) + 1):
        browser.wait_for_function(
            f"document.querySelector('section.on').dataset.number.startsWith('{number} /')"
        )
        assert browser.evaluate(FITS), f"slide {number} does not fit"
        browser.keyboard.press("ArrowRight")
    assert browser.evaluate("document.querySelectorAll('section.on').length") == 1
