"""The page that runs the model: the text that Python writes, in a real browser, from one file."""

import re
import shutil

import pytest
import torch
from checkpoint_fixtures import meta_of
from chromium import browsed
from conftest import tiny_model
from notebook_fixtures import prose, write

from nanogpt import SamplingParams, complete, load_checkpoint, save_checkpoint
from nanogpt.decoding.sampling import draw_noise
from nanogpt.publishing import site
from nanogpt.system.files import PUBLISHED

PROMPT, N_NEW, SEEDS = "KING:\n", 200, range(20)
LARGEST_SEED = 2**32 - 1
# The first pixel of the cells of the lane with a cache, as [red, green, blue, opacity].
PIXEL = "[...LANES[1].part('cells').getContext('2d').getImageData(0, 1, 1, 1).data]"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    write(folder / "00_one.ipynb", prose("Text.", "text"), title="00 · One")
    shutil.copytree(PUBLISHED / "checkpoints", folder / "checkpoints")
    return site.render(folder).with_name("live.html")


@pytest.fixture(scope="module")
def saved():
    """The model of the page as Python runs it: rounded to 16 bits, computed in 64."""
    saved = load_checkpoint(PUBLISHED / "checkpoints" / "small")
    return saved.model.half().double(), saved.tokenizer


def fill(browser, **values):
    """Fill the form in, by the names of its fields, and press its button."""
    for name, value in values.items():
        browser.evaluate(f"at({name!r}).value = {value!r}")
    browser.press("Enter", on="#form .button")


def test_it_is_one_file_that_loads_nothing_and_the_index_leads_to_it(page):
    text = page.read_text()
    assert page.stat().st_size < 1_000_000
    assert not re.search(r"https?://|<link|<img|\bsrc=|@import|url\(|fetch\(|XMLHttp", text)
    assert 'href="live.html"' in page.with_name("index.html").read_text()
    (named,) = re.findall(r'load_checkpoint\("(.*)"\)', text)
    assert load_checkpoint(named).model.n_params == load_checkpoint().model.n_params
    moved = site.live_page(page.parents[1], PUBLISHED)
    assert 'load_checkpoint("outputs/published/checkpoints/small")' in moved


@pytest.mark.slow
@browsed
def test_every_seed_gives_the_text_of_python_to_the_character(browser, page, saved):
    model, tokenizer = saved
    drawn = [draw_noise(N_NEW, 1, 65, torch.Generator().manual_seed(seed)) for seed in SEEDS]
    prompts = tokenizer.encode(PROMPT)[None].repeat(len(SEEDS), 1)
    sampling, noise = SamplingParams(temperature=0.8), torch.cat(drawn, dim=1)
    rows = complete(model, prompts, N_NEW, sampling, noise=noise)
    texts = [tokenizer.decode(row) for row in rows]
    browser.open(page)
    written = f"{list(SEEDS)}.map((seed) => write({PROMPT!r}, seed, {N_NEW}, 0.8, true))"
    assert browser.evaluate(written) == texts
    assert browser.evaluate(f"write({PROMPT!r}, 3, 60, 0.8, false)") == texts[3][: len(PROMPT) + 60]
    seed, hot = torch.Generator().manual_seed(LARGEST_SEED), SamplingParams(temperature=3.0)
    tokens = complete(model, tokenizer.encode("a")[None], 256, hot, generator=seed)[0]
    written = browser.evaluate(f"write('a', {LARGEST_SEED}, 256, 3, true)")
    assert written == tokenizer.decode(tokens)


@pytest.mark.slow
@browsed
def test_a_race_by_keyboard_ends_with_equal_texts_times_and_cells(browser, page):
    browser.show(1400)
    browser.open(page)
    fill(browser, prompt="ROMEO:\n", length="40", seed="7")
    browser.until("at('status').textContent === 'Done.'")
    texts = browser.evaluate("LANES.map((lane) => lane.box.querySelector('.code').textContent)")
    assert texts[0] == texts[1] == browser.evaluate("write('ROMEO:\\n', 7, 40, 0.8, true)")
    for lane, passes in (("plain", sum(range(7, 47))), ("cached", 46)):
        assert f"{passes:,} positions" in browser.text(f"#{lane} .count")
    assert "The same text" in browser.text("#result")
    red, _, blue, _ = browser.evaluate(PIXEL)
    assert red < blue, "the first position is kept, in blue"
    assert browser.evaluate("at('times').querySelector('.cached').points.length") == 40


@pytest.mark.slow
@browsed
def test_what_cannot_be_written_is_said_and_nothing_starts(browser, page):
    browser.open(page)
    browser.evaluate("at('form').noValidate = true")
    for values, said in [
        ({"prompt": "Zürich €"}, "ü €"),
        ({"prompt": ""}, "empty"),
        ({"prompt": "a" * 257}, "257 characters"),
        ({"prompt": "a", "length": ""}, "from 1 to 256"),
        ({"length": "9", "seed": "-1"}, "from 0 to 4,294,967,295"),
        ({"seed": "0", "temperature": "0"}, "from 0.01 to 10"),
    ]:
        fill(browser, **values)
        assert said in browser.text("#error")
        assert browser.evaluate("running") == 0


@pytest.mark.slow
@browsed
def test_a_phone_shows_it_all_and_stop_stops(browser, page):
    browser.show(420, "dark")
    browser.open(page)
    browser.evaluate("at('slowly').checked = true")
    fill(browser, length="250")
    browser.until("LANES[0].steps.length > 1")
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    browser.press("Enter", on="#stop")
    assert browser.text("#status") == "Stopped."
    steps = browser.evaluate("LANES.map((lane) => lane.steps.length)")
    assert 0 < steps[0] == steps[1] < 250
    # Timers run in the order in which they are due: after this one, the next step's has run.
    browser.evaluate("new Promise((done) => setTimeout(done, 400))")
    assert browser.evaluate("LANES.map((lane) => lane.steps.length)") == steps


@pytest.mark.parametrize("change", ["none", "cut", "newer", "huge weights"])
def test_a_folder_whose_model_cannot_run_in_a_page_gets_none(tmp_path, change):
    model = tiny_model(rope=change == "newer")
    if change == "huge weights":
        model.lm_head.weight.data[0, 0] = 1e6
    weights = tmp_path / site.WEIGHTS
    if change != "none":
        save_checkpoint(weights, model, meta_of(model))
    if change == "cut":
        weights.write_bytes(weights.read_bytes()[:-9])
    write(tmp_path / "00_one.ipynb", prose("Text.", "text"), title="00 · One")
    index = site.render(tmp_path)
    assert not index.with_name("live.html").exists()
    assert "live.html" not in index.read_text()
