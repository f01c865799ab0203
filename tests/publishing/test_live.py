"""The page that runs the model: the text that Python writes, in a real browser, from one file."""

import json
import re
import shutil
from dataclasses import replace
from string import ascii_letters

import pytest
import torch
from checkpoint_fixtures import meta_of
from chromium import browsed
from conftest import tiny_model
from notebook_fixtures import page_faults, prose, write

from nanogpt import SamplingParams, complete, load_checkpoint, save_checkpoint
from nanogpt.config import MODERN
from nanogpt.engines.native import rounded
from nanogpt.files import PUBLISHED, ROOT
from nanogpt.model import GPT
from nanogpt.sampling import draw_noise
from nanogpt.series import site

PROMPT, N_NEW = "KING:\n", 100
LIVE_PAGE = True
LARGEST_SEED = 2**32 - 1
SAMPLINGS = [(0.8, None, None), (1.2, 10, None), (0.5, None, 0.9), (2.0, 20, 0.7)]
# The first pixel of the cells of the lane with a cache, as [red, green, blue, opacity].
PIXEL = "[...LANES[1].part('cells').getContext('2d').getImageData(0, 1, 1, 1).data]"


def shown(test):
    return pytest.mark.slow(browsed(test))


CHARS = "".join(sorted("\n :" + ascii_letters))  # of the models of FORMS, which nothing has trained
FAULTS = ("position", "mask", "append", "dropout")
SHAPE = {"vocab_size": len(CHARS), "block_size": 256, "n_embd": 32}
FORMS = {
    "lecture": {},
    "newer": MODERN,
    "a table, RMSNorm": {"rms_norm": True, "qk_norm": True, "bias": False},
    "rotations, LayerNorm": {"rope": True, "relu2": True},
}

# Sampling is the same in every form, and the model that ships takes the longest.
DRAWN = [("shipped", SAMPLINGS[0], 5)] + [("newer", sampling, 20) for sampling in SAMPLINGS[1:]]
DRAWN += [(name, SAMPLINGS[0], 20) for name in FORMS]
# What a position is differs from form to form.
BROKEN = [("shipped", fault) for fault in FAULTS] + [(name, "position") for name in FORMS]


def render(folder):
    write(folder / "00_one.ipynb", prose("Text.", "text"), title="00 · One")
    return site.render(folder).with_name("live.html")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page of the model that ships, and one for each of FORMS."""
    folder = tmp_path_factory.mktemp("shipped")
    shutil.copytree(PUBLISHED / "checkpoints", folder / "checkpoints")
    found = {"shipped": render(folder)}
    with pytest.MonkeyPatch.context() as patch:
        for name, form in FORMS.items():
            folder = tmp_path_factory.mktemp("form")
            model = tiny_model(**SHAPE, **form)
            save_checkpoint(folder / "keeper", model, meta_of(model, vocabulary=CHARS))
            patch.setattr(site, "KEEPER", folder / "keeper")
            found[name] = render(folder)
    return found


@pytest.fixture(scope="module")
def page(pages):
    return pages["shipped"]


def named_in(page):
    """The checkpoint that a page names in its Python."""
    (named,) = re.findall(r'load_checkpoint\("(.*)"\)', page.read_text())
    return load_checkpoint(ROOT / named)


def fill(browser, **values):
    """Fill the form in, by the names of its fields, and press its button."""
    for name, value in values.items():
        browser.evaluate(f"at({name!r}).value = {value!r}")
    browser.press("Enter", on="#form .button")


def test_it_is_one_file_that_loads_nothing_and_the_index_leads_to_it(page):
    text = page.read_text()
    assert page_faults(page.with_name("index.html")) == []
    assert page.stat().st_size < 1_500_000
    assert not re.search(r"https?://|<link|<img|\bsrc=|@import|url\(|fetch\(|XMLHttp", text)
    assert 'src="live.html#strip"' in page.with_name("index.html").read_text()


@pytest.mark.parametrize("name", ["shipped", *FORMS])
def test_it_says_which_model_it_runs(pages, name):
    text, saved = pages[name].read_text(), named_in(pages[name])
    told = text[text.index("What runs here") : text.index("<details>")]
    assert f"A GPT of {saved.model.n_params:,} parameters" in text
    losses = saved.meta["losses"]
    assert f"validation loss {losses.get('full_val', losses['val']):.3f} before" in text
    config = saved.model.config
    assert ("the form of Karpathy’s lecture" in told) is (not config.beyond_lecture)
    for field, words in site.FORMS.items():
        assert (words in told) is (field in config.beyond_lecture)


def test_the_model_that_ships_is_named_before_one_of_the_folder(tmp_path, monkeypatch):
    model = tiny_model()
    save_checkpoint(tmp_path / "checkpoints" / "small", model, meta_of(model))
    monkeypatch.setattr(site, "KEEPER", ROOT / "outputs" / "none")
    moved = site.live_page(tmp_path, PUBLISHED)
    assert 'load_checkpoint("outputs/published/checkpoints/small")' in moved
    save_checkpoint(tmp_path / "keeper", model, meta_of(model))
    monkeypatch.setattr(site, "KEEPER", tmp_path / "keeper")
    assert f'load_checkpoint("{tmp_path / "keeper"}")' in site.live_page(tmp_path, PUBLISHED)


@shown
@pytest.mark.parametrize(("name", "sampling", "n_seeds"), DRAWN)
def test_every_seed_gives_the_text_of_python_to_the_character(
    browser, pages, name, sampling, n_seeds
):
    seeds = [*range(n_seeds)]
    saved = named_in(pages[name])
    model, tokenizer, n = rounded(saved.model).double(), saved.tokenizer, len(saved.tokenizer)
    drawn = [draw_noise(N_NEW, 1, n, torch.Generator().manual_seed(seed)) for seed in seeds]
    prompts = tokenizer.encode(PROMPT)[None].repeat(n_seeds, 1)
    rows = complete(model, prompts, N_NEW, SamplingParams(*sampling), noise=torch.cat(drawn, dim=1))
    texts = [tokenizer.decode(row) for row in rows]
    browser.open(pages[name])
    names = zip(("temperature", "topK", "topP"), sampling, strict=True)
    asked = json.dumps({name: value for name, value in names if value})
    written = f"{seeds}.map((seed) => write({PROMPT!r}, seed, {N_NEW}, {asked}))"
    assert browser.evaluate(written) == texts
    uncached = f"write({PROMPT!r}, 3, 60, {asked}, false)"
    assert browser.evaluate(uncached) == texts[3][: len(PROMPT) + 60]
    seed, sampling = torch.Generator().manual_seed(LARGEST_SEED), SamplingParams(*sampling)
    tokens = complete(model, tokenizer.encode("a")[None], 256, sampling, generator=seed)[0]
    written = browser.evaluate(f"write('a', {LARGEST_SEED}, 256, {asked})")
    assert written == tokenizer.decode(tokens), "the largest seed, and a full context"


@shown
@pytest.mark.parametrize(("name", "fault"), BROKEN)
def test_a_broken_cache_goes_wrong_where_the_page_says_and_as_much(browser, pages, name, fault):
    browser.show(1400)
    browser.open(pages[name])
    written = "write('KING:\\n', seed, 40, { temperature: 0.8 }, true, fault).slice(6)"
    texts = f"(seed) => ['', '{fault}'].map((fault) => {written})"
    # A good model often forgives a prefill of six characters without a mask.
    differs = f"[...Array(50).keys()].find((seed) => new Set(({texts})(seed)).size === 2)"
    seed = browser.evaluate(differs)
    browser.evaluate(f"at('length').value = 40, at('seed').value = {seed}")
    browser.evaluate(f"document.querySelector('[value={fault}]').click()")
    browser.until("at('status').textContent === 'Done.'")
    right, wrong = browser.evaluate("LANES.map((lane) => lane.written)")
    assert [right, wrong] == browser.evaluate(f"({texts})({seed})")
    off = [i for i, (a, b) in enumerate(zip(right, wrong, strict=True)) if a != b]
    said = f"{len(off)} of 40 characters differ, from character {off[0] + 1}."
    assert browser.text("#result") == said
    assert browser.text("#cached mark").strip("\n") == wrong[off[0]].replace("\n", "↵")


@shown
def test_where_motion_is_unwanted_the_page_stands_still_and_steps_when_asked(browser, page):
    calm = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    browser.send("Emulation.setEmulatedMedia", features=calm)
    browser.open(page)
    browser.until("!running")
    assert browser.evaluate("[running, ...LANES.map((lane) => lane.steps.length)]") == [0, 40, 40]
    browser.press("Enter", on="#step")
    assert browser.text("#status") == "Step 41."
    slide = "at('topK').value = 9, at('topK').dispatchEvent(new Event('input', {bubbles: true}))"
    browser.evaluate(slide)
    assert browser.text("[for=topK] output") == "9", "while it is dragged"
    fill(browser, prompt="a" * 256)
    browser.until("!running")
    assert browser.text("#status") == "Done. The model’s context of 256 characters is full."
    assert "nothing to keep" in browser.text("#result")
    assert "“" in browser.text("#seen")


@shown
@pytest.mark.parametrize("width", [420, 1400])
def test_the_part_that_the_index_shows_fits_its_frame(browser, page, width):
    browser.show(width)
    browser.open(page.with_name("index.html"))
    frame = "document.querySelector('iframe').getBoundingClientRect()"
    wide, high = (browser.evaluate(f"{frame}.{side}") for side in ("width", "height"))
    browser.show(int(wide))
    browser.send("Page.navigate", url=f"{page.as_uri()}#strip")
    browser.loaded()
    for fault in FAULTS:
        browser.evaluate(f"document.querySelector('[value={fault}]').click()")
        assert browser.evaluate("document.body.offsetHeight") <= high, fault
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), fault


@shown
def test_a_race_by_keyboard_ends_with_equal_texts_times_and_cells(browser, page):
    browser.show(1400)
    browser.open(page)
    fill(browser, prompt="ROMEO:\n", length="40", seed="7")
    browser.until("at('status').textContent === 'Done.'")
    texts = browser.evaluate("LANES.map((lane) => lane.box.querySelector('.code').textContent)")
    wanted = browser.evaluate("write('ROMEO:\\n', 7, 40, { temperature: 0.8 })")
    assert texts == [wanted, wanted]
    for lane, passes in (("plain", sum(range(7, 47))), ("cached", 46)):
        assert f"{passes:,} positions" in browser.text(f"#{lane} .count")
    assert "The same text" in browser.text("#result")
    red, _, blue, _ = browser.evaluate(PIXEL)
    assert red < blue, "the first position is kept, in blue"
    assert browser.evaluate("at('times').querySelector('.cached').points.length") == 40


@shown
def test_what_cannot_be_written_is_said_and_nothing_starts(browser, page):
    browser.open(page)
    browser.evaluate("at('form').noValidate = true")
    for values, said in [
        ({"prompt": "Zürich\u200b €"}, "ü U+200B €"),
        ({"prompt": ""}, "empty"),
        ({"prompt": "a" * 257}, "257 characters"),
        ({"prompt": "a", "length": ""}, "from 1 to 256"),
        ({"length": "9", "seed": "-1"}, "from 0 to 4,294,967,295"),
    ]:
        fill(browser, **values)
        assert said in browser.text("#error")
        assert browser.evaluate("running") == 0


@shown
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
    assert 0 < min(steps) <= max(steps) <= min(steps) + 1 < 250, "in turns"
    # Timers run in the order in which they are due: after this one, the next step's has run.
    browser.evaluate("new Promise((done) => setTimeout(done, 400))")
    assert browser.evaluate("LANES.map((lane) => lane.steps.length)") == steps


@shown
def test_a_step_pauses_and_goes_on_to_the_same_token(browser, page):
    browser.open(page)
    fill(browser, length="9")
    browser.until("!running")
    pieces = """(() => {
      LANES[0].begin(readForm());
      let pieces = 1;
      while (!LANES[0].work(0)) pieces++;
      return [pieces, LANES[0].steps.length, LANES[0].decoding.text.length];
    })()"""
    rows = (
        len(PROMPT) * 2 * named_in(page).model.config.n_layer
    )  # each pauses in each half of a block
    assert browser.evaluate(pieces) == [rows + 1, 1, len(PROMPT) + 1]
    assert browser.evaluate("LANES[0].written") == browser.evaluate("LANES[1].written[0]")


@pytest.mark.parametrize("change", ["none", "cut", "a window", "too large"])
def test_a_folder_whose_model_cannot_run_in_a_page_gets_none(tmp_path, monkeypatch, change):
    monkeypatch.setattr(site, "KEEPER", tmp_path / "none")
    model = tiny_model(n_embd=256 if change == "too large" else 16)
    if change == "a window":
        model = GPT(replace(model.config, window=8, per_head=False))
    weights = tmp_path / "checkpoints" / "small.safetensors"
    if change != "none":
        meta = meta_of(model, config=vars(model.config))
        save_checkpoint(weights.with_suffix(""), model, meta)
    if change == "cut":
        weights.write_bytes(weights.read_bytes()[:-9])
    index = render(tmp_path).with_name("index.html")
    assert not index.with_name("live.html").exists()
    assert "live.html" not in index.read_text()
