"""pdoc's page of the public names: none is missing, and one file is all it takes."""

import re
from pathlib import Path

import pytest

import nanogpt
from nanogpt.files import ROOT
from nanogpt.site import api_page as subject


@pytest.fixture(scope="module")
def page():
    text = subject.api_page()
    assert text is not None, "pdoc is one of the test tools"
    return text


def test_every_public_name_has_an_entry_with_its_docstring(page):
    entries = dict(re.findall(r'<section id="(\w+)">(.*?)</section>', page, re.S))
    assert set(nanogpt.__all__) <= entries.keys()
    mute = [name for name in nanogpt.__all__ if 'class="docstring"' not in entries[name]]
    assert mute == []


def test_the_classes_that_public_ones_inherit_from_take_and_return_have_entries(page):
    names = set(re.findall(r'<section id="(\w+)">', page))
    assert {"KVCache", "Engine", "LanguageModel"} <= names, "inherited from"
    assert {"Checkpoint", "Comparison", "Corpus", "Output", "Positions", "Report"} <= names
    assert '<a href="#KVCache">' in page, "a link where it is named"


def test_the_api_page_loads_nothing_and_shows_no_path_of_this_machine(page):
    assert re.findall(r"<(?:script|link)\b", page) == []
    loaded = re.findall(r'(?:src="|url\()(?!data:)[^")]+', page)
    assert loaded == []
    assert str(ROOT) not in page
    assert f"{Path.home()}/" not in page
    assert 'href="index.html"' in page


def test_without_pdoc_there_is_no_page(monkeypatch):
    monkeypatch.setattr(subject, "find_spec", lambda name: None)
    assert subject.api_page.__wrapped__() is None
