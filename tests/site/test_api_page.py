"""The page of the public names: none is missing, none is mute, and it reads like the others."""

import inspect
import re
from pathlib import Path

import pytest
from notebook_fixtures import page_faults

import nanogpt
from nanogpt.files import ROOT
from nanogpt.site import api_page as subject
from nanogpt.site.api_page import ApiEntry, api_page, read_sections


@pytest.fixture(scope="module")
def sections():
    return read_sections()


@pytest.fixture(scope="module")
def page():
    text = api_page()
    assert text is not None, "pdoc is one of the test tools"
    return text


def flat(entries: tuple[ApiEntry, ...]):
    for entry in entries:
        yield entry
        yield from flat(entry.members)


def words(html: str) -> str:
    return re.sub(r"<[^>]+>", "", html).replace("&gt;", ">").replace("&lt;", "<")


@pytest.mark.parametrize("name", nanogpt.__all__)
def test_a_public_name_has_its_signature_and_says_what_it_does(name, sections):
    found = [entry for section in sections for entry in section.entries if entry.name == name]
    assert len(found) == 1
    (entry,) = found
    assert re.search(rf"\b{name}\b", words(entry.signature))
    assert len(words(entry.text).split()) > 3
    value = getattr(nanogpt, name)
    if inspect.isfunction(value):
        shown = words(entry.signature)
        assert all(parameter in shown for parameter in inspect.signature(value).parameters)


def test_inherited_members_are_on_the_api_page(sections):
    names = {entry.name for section in sections for entry in section.entries}
    assert {"KVCache", "Engine", "LanguageModel"} <= names
    public = [one for section in sections for one in section.entries if one.is_public]
    bases = {base for entry in public for base in entry.bases}
    assert bases <= names


def test_no_text_of_another_library_and_no_private_name(sections):
    every = [entry for section in sections for entry in flat(section.entries)]
    assert [entry.anchor for entry in every if "Define the computation" in entry.text] == []
    assert [entry.anchor for entry in every if entry.name.startswith("_")] == []
    assert [entry.anchor for entry in every if " object at 0x" in entry.signature] == []
    assert [entry.anchor for entry in every if "ForwardRef" in entry.signature] == []
    assert [entry.anchor for entry in every if "&lt;" in entry.signature] == []


def test_the_page_can_be_read_by_everyone(page, tmp_path):
    path = tmp_path / "api.html"
    path.write_text(page, encoding="utf-8")
    (tmp_path / "index.html").touch()
    faults = [fault for fault in page_faults(path) if not fault.startswith("script not ours")]
    assert faults == []
    assert "<script" not in page
    assert "https://" not in page.replace("https://github.com/", "")
    assert len(page) < 1_500_000


def test_types_that_are_taken_or_returned_are_on_the_page(sections):
    names = {entry.name for section in sections for entry in section.entries}
    assert {"Checkpoint", "Comparison", "Corpus", "Output", "Positions", "Report"} <= names
    shown = {one.name: words(one.signature) for section in sections for one in section.entries}
    assert "LEARNED = 'learned'" in shown["Positions"].replace("&#39;", "'")
    assert "steps: int = option(2000" in shown["TrainConfig"], "the fields with what they mean"


def test_no_path_of_this_machine_is_on_the_page(page):
    assert str(ROOT) not in page
    assert str(Path.home()) + "/" not in page


def test_names_in_a_text_are_links_to_it(page):
    assert '<a href="#KVCache"><code>KVCache</code></a>' in page


def test_without_pdoc_there_is_no_page(monkeypatch):
    monkeypatch.setattr(subject, "find_spec", lambda name: None)
    assert api_page() is None
