"""The teaching plan: minutes, blanks, wrong answers, files and links are those of the series."""

import ast
import re

import pytest
import torch
from browsers import browsed, open_file
from notebook_fixtures import NOTEBOOKS, book

from nanogpt.cli import COMMANDS, main
from nanogpt.course.blanks import BLANKS
from nanogpt.course.solutions import attention_weights, visible
from nanogpt.files import ROOT
from nanogpt.site import slides
from nanogpt.site.html import minutes
from nanogpt.site.nbfile import BRANCHES, solution, tagged

FOLDER = ROOT / "notebooks" / "teaching"
TEXT = (FOLDER / "README.md").read_text(encoding="utf-8")
SLIDES = sorted(FOLDER.glob("session_*.md"))
MOST = 90  # minutes of a session
BY_NUMBER = {path.name[:2]: path for path in NOTEBOOKS}


def section(title: str) -> str:
    """The part of the plan below a heading that begins with these words."""
    return re.search(rf"^## {re.escape(title)}.*?(?=^## |\Z)", TEXT, re.M | re.S)[0]


def rows(text: str, head: str) -> list[list[str]]:
    """The rows of all tables whose first row begins with these cells."""
    found = []
    for table in re.findall(r"(?:^\|.*\|\n)+", text, re.M):
        first, _, *rest = table.splitlines()
        if first.startswith(f"| {head} |"):
            found += [[cell.strip() for cell in line.strip("|").split("|")] for line in rest]
    return found


def quoted(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def blanks(number: str) -> list[str]:
    """The functions and classes that a notebook's blanks ask for."""
    cells = [cell.source for cell in book(BY_NUMBER[number]).cells if tagged(cell, "blank")]
    return [re.search(r"^(?:def|class) (\w+)", source, re.M)[1] for source in cells]


def read_and_all(number: str) -> tuple[int, int]:
    """The minutes that a notebook's box says: to read, and with the blanks."""
    return minutes(book(BY_NUMBER[number]))


SESSIONS = [f"Session {n}" for n in (1, 2, 3, 4)]
each = pytest.mark.parametrize("title", SESSIONS)


@each
def test_the_minutes_of_a_session_follow_each_other_and_fill_90(title):
    at = 0
    for span, *_ in rows(section(title), "minutes | kind"):
        start, end = map(int, span.split("–"))
        assert start == at
        assert end > start
        at = end
    assert at <= MOST
    assert at >= 80, "a session is 90 minutes"


@each
def test_a_session_has_the_notebooks_minutes_and_blanks(title):
    """Each blank is done once, in class or at home, and there is time for what is done in class."""
    plan = rows(section(title), "minutes | kind")
    for number, read, whole, in_class, at_home in rows(section(title), "notebook | to read"):
        assert (int(read), int(whole)) == read_and_all(number)
        assert sorted(quoted(in_class) + quoted(at_home)) == sorted(blanks(number))
        given = 0
        written = []
        for span, kind, what in plan:
            start, end = map(int, span.split("–"))
            if kind == f"notebook {number}":
                given += end - start
                written += quoted(what)
        assert written == quoted(in_class)
        for_blanks = (int(whole) - int(read)) * len(written) / max(1, len(blanks(number)))
        assert given >= int(read) + for_blanks, f"{number}: {given} minutes are too few"


def test_the_sessions_cover_the_spine_once():
    numbers = [row[0] for title in SESSIONS for row in rows(section(title), "notebook | to read")]
    assert numbers == sorted(set(BY_NUMBER) - set(BRANCHES))


def test_the_weekend_has_the_notebooks_minutes():
    found = []
    for _, names, said in rows(section("A weekend"), "block"):
        numbers = re.findall(r"\d\d", names)
        found += numbers
        if numbers:
            assert int(said) == sum(read_and_all(number)[1] for number in numbers)
            assert int(said) <= MOST
    assert found == sorted(set(BY_NUMBER) - set(BRANCHES))
    branches = rows(section("A weekend"), "branch")
    assert {number: after for number, after, *_ in branches} == BRANCHES
    for number, _, said, _ in branches:
        assert int(said) == read_and_all(number)[1]


@each
def test_the_wrong_answers_are_those_that_the_pages_know(title):
    listed = rows(section(title), "blank | what the check says")
    assert listed
    for cell, words, question in listed:
        (name,) = quoted(cell)
        assert any(words in message for message in BLANKS[name].mistakes), (name, words)
        assert question


@each
def test_a_session_says_all_that_a_teacher_needs(title):
    text = section(title)
    assert all(f"**{word}**" in text for word in ("Prepare", "Ask", "Show"))
    questions = re.findall(r"^- \*(.+?)\*(.*?)(?=^- |\n\n)", text, re.M | re.S)
    assert len(questions) >= 4
    for question, expected in questions:
        assert question.endswith("?"), question
        assert expected.strip(), f"{question}: no answer"
    shown = re.findall(r"figures/\w+\.png", text)
    deck = (FOLDER / f"session_{title[-1]}.md").read_text(encoding="utf-8")
    assert set(shown) <= set(re.findall(r"figures/\w+\.png", deck))


def test_every_slide_that_the_plan_names_is_there():
    for title, path in zip(SESSIONS, SLIDES, strict=True):
        named = re.findall(r"[Ss]lides? (\d+)(?: (?:to|and) (\d+))?", section(title))
        last = len(slides.split(path))
        assert named
        assert all(int(n) <= last for pair in named for n in pair if n)


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


@pytest.mark.parametrize("path", SLIDES, ids=lambda path: path.stem)
def test_every_slide_has_a_note_for_the_speaker(path):
    notes = slides.notes(path)
    assert len(notes) == len(slides.split(path))
    assert all(notes)


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


def test_the_exam_has_as_many_points_as_it_says():
    questions, _, answers = (FOLDER / "exam.md").read_text(encoding="utf-8").partition("\n---\n")
    points = [int(n) for n in re.findall(r"^\d+\. \*\((\d+) points\)\*", questions, re.M)]
    assert f"Ten questions, {sum(points)} points" in questions
    assert len(points) == len(re.findall(r"^\d+\. ", answers, re.M)) == 10


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
