"""The museum's page: one file, all exhibits, searched and filtered without a mouse."""

import re

import pytest
from browsers import browsed, open_file
from notebook_fixtures import page_faults

from nanogpt.site.museum_page import museum_page
from nanogpt.verify import museum

NAMES = [path.stem for path in museum.exhibits()]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("museum") / "museum.html"
    (path.parent / "index.html").touch()
    (path.parent / "04_eight_traps.html").touch()
    path.write_text(museum_page({"04_eight_traps", "05_x"}), encoding="utf-8")
    return path


def test_every_exhibit_has_a_room_with_its_thread_in_one_small_file(page):
    text = page.read_text(encoding="utf-8")
    assert page.stat().st_size < 1_000_000
    assert page_faults(page, "museum.js") == []
    rooms = re.findall(r'<article class="bug" id="(\w+)"', text)
    assert sorted(rooms) == NAMES
    traps = ["tinyllm_17", "onnxruntime_genai_2354", "mlx_vlm_1983", "ng_video_lecture_16"]
    traps += ["llms_from_scratch_1048", "fairseq_757", "lag_llama_81"]
    assert rooms[: len(traps)] == traps
    assert text.count('<div class="turned"') >= len(NAMES) - 2
    assert f"{len(NAMES)} bugs convicted, their {len(NAMES)} repairs acquitted" in text


def test_without_verdicts_there_is_no_page(monkeypatch, tmp_path):
    monkeypatch.setattr(museum, "VERDICTS_FILE", tmp_path / "verdicts.json")
    assert museum_page(set()) is None


@browsed
def test_the_museum_is_searched_and_filtered_with_the_keyboard(page, browser):
    shown = "[...document.querySelectorAll('.bug:not([hidden])')].map((bug) => bug.id)"
    for width in (420, 1400):
        browser.set_viewport_size({"width": width, "height": 900})
        open_file(browser, page)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert len(browser.evaluate(shown)) == len(NAMES)
    browser.fill("#find input", "VLLM 43810")
    assert browser.evaluate(shown) == ["vllm_43810"]
    browser.press("#find input", "Enter")
    assert browser.evaluate("document.activeElement.closest('.bug').id") == "vllm_43810"
    browser.evaluate("location.hash = '#pytorch_108108'")
    browser.wait_for_function("!document.getElementById('pytorch_108108').hidden")
    assert len(browser.evaluate(shown)) == len(NAMES)
    browser.check("[value=rollback]")
    assert set(browser.evaluate(shown)) < set(NAMES)
