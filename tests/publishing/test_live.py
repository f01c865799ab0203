"""The page that runs the model: the text that Python writes, in a real browser, from one file."""

import re
import shutil

import pytest
import torch
from checkpoint_fixtures import meta_of
from chromium import BINARY, Chromium
from conftest import tiny_model
from notebook_fixtures import prose, write

from nanogpt import SamplingParams, complete, load_checkpoint, save_checkpoint
from nanogpt.decoding.sampling import draw_noise
from nanogpt.publishing import live, site
from nanogpt.system.files import PUBLISHED

PROMPT, N_NEW, SEEDS = "KING:\n", 200, range(20)
browsed = pytest.mark.skipif(not BINARY, reason="needs chromium or google-chrome on the PATH")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    write(folder / "00_one.ipynb", prose("Text.", "text"), title="00 · One")
    shutil.copytree(PUBLISHED / "checkpoints", folder / "checkpoints")
    return site.render(folder).with_name("live.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("profile")) as chromium:
        yield chromium


def test_it_is_one_file_that_loads_nothing_and_the_index_leads_to_it(page):
    text = page.read_text()
    assert page.stat().st_size < 1_000_000
    assert not re.search(r"https?://|<link|<img|\bsrc=|@import|url\(|fetch\(|XMLHttp", text)
    assert 'href="live.html"' in page.with_name("index.html").read_text()


@pytest.mark.slow
@browsed
def test_twenty_seeds_give_the_text_of_python_to_the_character(browser, page):
    saved = load_checkpoint(page.parents[1] / "checkpoints" / "small")
    model, prompt = saved.model.half().double(), saved.tokenizer.encode(PROMPT)[None]
    drawn = [draw_noise(N_NEW, 1, 65, torch.Generator().manual_seed(seed)) for seed in SEEDS]
    sampling = SamplingParams(temperature=0.8)
    prompts, noise = prompt.repeat(len(SEEDS), 1), torch.cat(drawn, dim=1)
    texts = [
        saved.tokenizer.decode(row)
        for row in complete(model, prompts, N_NEW, sampling, noise=noise)
    ]
    browser.open(f"file://{page}")
    written = f"{list(SEEDS)}.map((seed) => write({PROMPT!r}, seed, {N_NEW}, 0.8, true))"
    assert browser.evaluate(written) == texts
    assert browser.evaluate(f"write({PROMPT!r}, 3, 60, 0.8, false)") == texts[3][: len(PROMPT) + 60]


@pytest.mark.slow
@browsed
def test_the_noise_is_that_of_python_to_the_bit(browser, page):
    browser.open(f"file://{page}")
    for seed in (0, 42, 2**32 - 1):
        noise = draw_noise(3, 1, 65, torch.Generator().manual_seed(seed))[:, 0]
        drawn = f"((draw) => [draw(), draw(), draw()].map((row) => [...row]))(noiseOf({seed}, 65))"
        assert browser.evaluate(drawn) == noise.double().tolist()


@pytest.mark.slow
@browsed
def test_a_large_seed_and_a_hot_text_are_the_same_too(browser, page):
    saved = load_checkpoint(page.parents[1] / "checkpoints" / "small")
    model, prompt = saved.model.half().double(), saved.tokenizer.encode("a")[None]
    seed = torch.Generator().manual_seed(2**32 - 1)
    tokens = complete(model, prompt, 256, SamplingParams(temperature=3.0), generator=seed)[0]
    browser.open(f"file://{page}")
    written = browser.evaluate(f"write('a', {2**32 - 1}, 256, 3, true)")
    assert written == saved.tokenizer.decode(tokens)


DONE = """new Promise((done) => {
  const look = () => (at("status").textContent === "Done." ? done() : setTimeout(look, 20));
  look();
})"""
# The first pixel of the cells of the lane with a cache, as [red, green, blue, opacity].
PIXEL = "[...LANES[1].part('cells').getContext('2d').getImageData(0, 1, 1, 1).data]"


def fill(browser, **values):
    for name, value in values.items():
        browser.evaluate(f"at({name!r}).value = {value!r}")
    browser.evaluate("document.querySelector('#form .button').focus()")
    browser.press("Enter")


@pytest.mark.slow
@browsed
def test_a_race_by_keyboard_ends_with_equal_texts_times_and_cells(browser, page):
    browser.events.clear()
    browser.show(1400)
    browser.open(f"file://{page}")
    fill(browser, prompt="ROMEO:\n", length="40", seed="7")
    browser.evaluate(DONE)
    texts = browser.evaluate("LANES.map((lane) => lane.box.querySelector('.code').textContent)")
    assert texts[0] == texts[1] == browser.evaluate("write('ROMEO:\\n', 7, 40, 0.8, true)")
    counts = browser.evaluate("LANES.map((lane) => lane.box.querySelector('.count').textContent)")
    passes = sum(range(7, 47))
    assert counts == [f"40 of 40 characters, {n:,} positions computed" for n in (passes, 46)]
    assert browser.evaluate("at('result').textContent").startswith(
        "The same text, to the character."
    )
    red, _, blue, _ = browser.evaluate(PIXEL)
    assert red < blue, "the first position is kept, in blue"
    assert browser.evaluate("at('times').querySelector('.cached').points.length") == 40
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:"))] == []
    assert browser.complaints() == []


@pytest.mark.slow
@browsed
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"prompt": "Zürich €"}, "never saw ü € in training"),
        ({"prompt": ""}, "The prompt is empty"),
        ({"prompt": "a" * 257}, "The prompt has 257 characters. The model reads at most 256."),
        ({"length": ""}, "The number of new characters must be from 1 to 256."),
        ({"seed": "-1"}, "The seed must be from 0 to 4,294,967,295."),
        ({"temperature": "0"}, "The temperature must be from 0.01 to 10."),
    ],
)
def test_what_cannot_be_written_is_said_and_nothing_starts(browser, page, values, said):
    browser.open(f"file://{page}")
    browser.evaluate("at('form').noValidate = true")
    fill(browser, **values)
    assert said in browser.evaluate("at('error').textContent")
    assert browser.evaluate("running") == 0


@pytest.mark.slow
@browsed
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_all_and_stop_stops(browser, page, scheme):
    browser.show(420, scheme=scheme)
    browser.open(f"file://{page}")
    browser.evaluate("at('slowly').checked = true")
    fill(browser, length="250")
    browser.rest(400)
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    browser.evaluate("at('stop').focus()")
    browser.press("Enter")
    steps = browser.evaluate("LANES.map((lane) => lane.steps.length)")
    browser.rest(400)
    assert 0 < steps[0] == steps[1] < 250
    assert browser.evaluate("LANES.map((lane) => lane.steps.length)") == steps
    assert browser.evaluate("at('status').textContent") == "Stopped."


@pytest.mark.parametrize("change", ["none", "cut", "newer", "huge weights"])
def test_a_folder_whose_model_cannot_run_in_a_page_gets_none(tmp_path, change):
    model = tiny_model(rope=change == "newer")
    if change == "huge weights":
        model.lm_head.weight.data[0, 0] = 1e6
    weights = tmp_path / live.WEIGHTS
    if change != "none":
        save_checkpoint(weights, model, meta_of(model))
    if change == "cut":
        weights.write_bytes(weights.read_bytes()[:-9])
    write(tmp_path / "00_one.ipynb", prose("Text.", "text"), title="00 · One")
    index = site.render(tmp_path)
    assert not index.with_name("live.html").exists()
    assert "live.html" not in index.read_text()
