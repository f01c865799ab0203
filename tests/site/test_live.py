"""The page that runs the model: the text that Python writes, in a real browser, from one file."""

import contextlib
import io
import json
import re
from statistics import median, quantiles
from string import ascii_letters

import pytest
import torch
from browsers import browsed, open_file
from checkpoint_fixtures import meta_of
from conftest import tiny_model
from notebook_fixtures import page_faults, prose, write

from nanogpt import RollingCache, SamplingParams, complete, load_checkpoint, save_checkpoint
from nanogpt.attention import attention_weights
from nanogpt.decoder.config import beyond_lecture
from nanogpt.decoder.model import CausalSelfAttention
from nanogpt.engines.native import rounded
from nanogpt.files import ROOT
from nanogpt.sampling import draw_noise, sample
from nanogpt.site import build
from nanogpt.training.recipes import MODERN

PROMPT = "KING:\n"
N_NEW = 100  # past the block of the small models
LIVE_PAGE = True
LARGEST_SEED = 2**32 - 1
SAMPLINGS = [(0.8, None, None), (1.2, 10, None), (0.5, None, 0.9), (2.0, 20, 0.7)]
# The first row of pixels of the cells of the lane with a cache: red, green, blue, opacity, red, …
PIXELS = "((cells) => [...cells.getContext('2d').getImageData(0, 1, cells.width, 1).data])"
PIXELS += "(LANES[1].part('cells'))"


CHARS = "".join(sorted("\n :" + ascii_letters))  # of SHAPES, which nothing has trained
FAULTS = ("position", "mask", "append", "dropout")
BLOCK = 64
SHAPE = {"vocab_size": len(CHARS), "block_size": BLOCK, "n_embd": 32}
# Of the bundled model's form: four heads; one, whose pairs turn slowly.
SHAPES = {"small": {}, "one head, slow": {"n_layer": 1, "n_head": 1, "rope_base": 1e6}}
DRAWN = [("small", sampling) for sampling in SAMPLINGS] + [("one head, slow", SAMPLINGS[0])]
DRAWN += [("shipped", SAMPLINGS[0])]


def render(folder):
    write(folder / "00_one.ipynb", prose("Text.", "text"), title="00 · One")
    return build.render(folder).with_name("live.html")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page of the model that ships, and one for each of SHAPES."""
    found = {"shipped": render(tmp_path_factory.mktemp("shipped"))}
    with pytest.MonkeyPatch.context() as patch:
        for name, shape in SHAPES.items():
            folder = tmp_path_factory.mktemp("shape")
            model = tiny_model(**MODERN, **SHAPE | shape)
            save_checkpoint(folder / "keeper", model, meta_of(model, vocabulary=CHARS))
            patch.setattr(build, "KEEPER", folder / "keeper")
            found[name] = folder / "live.html"
            found[name].write_text(build.live_page(), encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def page(pages):
    return pages["shipped"]


def named_in(page):
    """The checkpoint that a page names in its Python."""
    (named,) = re.findall(r'load_checkpoint\("(.*)"\)', page.read_text(encoding="utf-8"))
    return load_checkpoint(ROOT / named)


def windowed(page):
    """The model of a page as it runs there: its weights rounded, past its block a window."""
    model = rounded(named_in(page).model).double()
    for block in model.blocks:
        block.sa.window = model.config.block_size
    return model


def in_python(page, prompt, n_new, seeds, sampling):
    """The texts of these seeds, by the package."""
    model = windowed(page)
    tokenizer = named_in(page).tokenizer
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    noise = [draw_noise(n_new, 1, len(tokenizer), generator) for generator in generators]
    prompts = tokenizer.encode(prompt)[None].repeat(len(seeds), 1)
    sampling = SamplingParams(*sampling)
    noise = torch.cat(noise, dim=1)
    rows = complete(model, prompts, n_new, sampling, cache=RollingCache, noise=noise)
    return [tokenizer.decode(row) for row in rows]


def begun(browser, page, n_new=N_NEW, **values):
    """Open a page and let both lanes write so many characters after the PROMPT."""
    open_file(browser, page)
    fill(browser, prompt=PROMPT, length=str(n_new), **values)
    browser.wait_for_function("!running && LANES[0].steps.length")


def fill(browser, **values):
    """Fill the form in, by the names of its fields, and press its button."""
    for name, value in values.items():
        browser.evaluate(f"at({name!r}).value = {value!r}")
    browser.press("#form .button", "Enter")


def test_the_live_page_is_one_file_that_loads_nothing_and_the_index_links_to_it(page):
    text = page.read_text(encoding="utf-8")
    assert page_faults(page.with_name("index.html")) == []
    assert page.stat().st_size < 1_500_000
    assert not re.search(r"https?://|<link|<img|\bsrc=|@import|url\(|fetch\(|XMLHttp", text)
    assert 'src="live.html#strip"' in page.with_name("index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["shipped", *SHAPES])
def test_the_live_page_names_its_model_and_the_only_architecture_it_computes(pages, name):
    text = pages[name].read_text(encoding="utf-8")
    saved = named_in(pages[name])
    assert f"A GPT of {saved.model.n_params:,} parameters" in text
    losses = saved.meta["losses"]
    assert f"validation loss {losses.get('full_val', losses['val']):.3f} before" in text
    assert {**beyond_lecture(saved.model.config), "rope_base": 0} == {**MODERN, "rope_base": 0}
    told = text[text.index("What runs here") : text.index("<details>")]
    assert "The JavaScript supports only this architecture." in told


def test_the_live_page_names_its_checkpoint_as_readers_find_it(pages):
    assert 'load_checkpoint("outputs/keeper/keeper")' in pages["shipped"].read_text("utf-8")
    small = pages["small"]
    assert f'load_checkpoint("{small.with_name("keeper")}")' in small.read_text("utf-8")


@browsed
@pytest.mark.parametrize(("name", "sampling"), DRAWN)
def test_every_seed_gives_the_text_of_python_to_the_character(browser, pages, name, sampling):
    seeds = [0, 1, 2, LARGEST_SEED]
    texts = in_python(pages[name], PROMPT, N_NEW, seeds, sampling)
    open_file(browser, pages[name])
    names = zip(("temperature", "topK", "topP"), sampling, strict=True)
    asked = json.dumps({name: value for name, value in names if value})
    each = f"(seed) => write({PROMPT!r}, seed, {N_NEW}, {asked}, seed > 0)"  # one without a cache
    assert browser.evaluate(f"{seeds}.map({each})") == texts


@torch.no_grad()
def redrawn(page, text, preset):
    """A preset's text, each new character drawn by Python after those before it, in one pass."""
    tokenizer = named_in(page).tokenizer
    n_new = len(text) - len(preset["prompt"])
    noise = draw_noise(n_new, 1, len(tokenizer), torch.Generator().manual_seed(preset["seed"]))
    logits = windowed(page)(tokenizer.encode(text)[None, :-1])[0][0, -n_new:]
    drawn = sample(logits, noise[:, 0], SamplingParams(*SAMPLINGS[0]))
    return preset["prompt"] + tokenizer.decode(drawn[:, 0])


@browsed
def test_a_preset_is_a_click_and_reads_as_in_python(browser, page):
    open_file(browser, page)
    buttons = browser.locator("#presets button")
    pressed = "(all) => all.map((button) => button.getAttribute('aria-pressed'))"
    assert buttons.evaluate_all(pressed) == ["true", "false", "false"], "it opens with the first"
    browser.evaluate("at('topK').value = 3")
    buttons.nth(1).click()
    assert buttons.evaluate_all(pressed) == ["false", "true", "false"]
    browser.wait_for_function("LANES[1].done")
    text = browser.text_content("#cached .code")
    assert len(text) == len(build.PRESETS[1]["prompt"]) + build.PRESETS[1]["length"]
    assert text == redrawn(page, text, build.PRESETS[1])
    browser.press("#stop", "Enter")
    browser.evaluate("at('seed').value = 9, label()")
    assert buttons.evaluate_all(pressed) == ["false"] * 3


@browsed
def test_600_characters_are_read_long_before_the_plain_way_has_them(browser, page):
    open_file(browser, page)
    browser.press("#presets button:last-of-type", "Enter")
    browser.wait_for_function("LANES[1].done")
    text = browser.text_content("#cached .code")
    assert len(text) == len(build.PRESETS[2]["prompt"]) + 600
    assert text == redrawn(page, text, build.PRESETS[2])
    browser.wait_for_function("LANES[0].steps.length > 11")
    assert " s more" in browser.text_content("#plain .count")
    browser.press("#stop", "Enter")
    written = browser.evaluate("LANES[0].steps.length")
    assert 11 < written < 600
    assert f"The same {written} characters." in browser.text_content("#result")


@browsed
def test_the_python_that_the_page_shows_prints_its_text(browser, pages):
    begun(browser, pages["small"], seed="5", topK="9")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(browser.text_content("details pre"), {})
    for lane in ("plain", "cached"):
        assert browser.text_content(f"#{lane} .code") + "\n" == printed.getvalue()


@browsed
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_cache_goes_wrong_where_the_page_says_and_as_much(browser, pages, fault):
    open_file(browser, pages["small"])
    written = "write('KING:\\n', seed, 40, { temperature: 0.8 }, true, fault).slice(6)"
    texts = f"(seed) => ['', '{fault}'].map((fault) => {written})"
    differs = f"[...Array(9).keys()].find((seed) => new Set(({texts})(seed)).size === 2)"
    seed = browser.evaluate(differs)
    browser.evaluate(f"document.querySelector('[value={fault}]').checked = true")
    fill(browser, prompt=PROMPT, length="40", seed=str(seed))
    browser.wait_for_function("at('status').textContent === 'Done.'")
    right, wrong = browser.evaluate("LANES.map((lane) => lane.written)")
    assert [right, wrong] == browser.evaluate(f"({texts})({seed})")
    off = [i for i, (a, b) in enumerate(zip(right, wrong, strict=True)) if a != b]
    said = f"{len(off)} of 40 characters differ, from character {off[0] + 1}."
    assert browser.text_content("#result") == said
    assert browser.text_content("#cached .first") == wrong[off[0]]
    assert browser.evaluate("LANES[1].code.querySelectorAll('.off').length") == len(off) - 1


@browsed
def test_with_reduced_motion_the_page_stands_still_and_steps_when_asked(browser, pages):
    browser.emulate_media(reduced_motion="reduce")
    open_file(browser, pages["small"])
    browser.wait_for_function("!running")
    assert browser.evaluate("[running, ...LANES.map((lane) => lane.steps.length)]") == [0, 40, 40]
    browser.press("#step", "Enter")
    assert browser.text_content("#status") == "Step 41."
    slide = "at('topK').value = 9, at('topK').dispatchEvent(new Event('input', {bubbles: true}))"
    browser.evaluate(slide)
    assert browser.text_content("[for=topK] output") == "9", "while it is dragged"
    fill(browser, prompt="a" * BLOCK, length="1")
    browser.wait_for_function("!running")
    assert browser.text_content("#status") == "Done."
    assert "nothing cached yet" in browser.text_content("#result")
    assert "“" in browser.text_content("#seen")


@browsed
@pytest.mark.parametrize("width", [420, 1400])
def test_the_part_that_the_index_shows_fits_its_frame(browser, page, width):
    browser.set_viewport_size({"width": width, "height": 900})
    open_file(browser, page.with_name("index.html"))
    frame = browser.locator("iframe").first.bounding_box()
    browser.set_viewport_size({"width": int(frame["width"]), "height": 900})
    open_file(browser, page, "#strip")
    browser.wait_for_function("LANES[0].steps.length > 11")
    browser.press("#stop", "Enter")
    assert "speedup here was" in browser.text_content("#result")
    assert browser.evaluate("document.body.offsetHeight") <= frame["height"]
    for fault in FAULTS:
        browser.evaluate(f"document.querySelector('[value={fault}]').click()")
        assert browser.evaluate("document.body.offsetHeight") <= frame["height"], fault
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), fault


@browsed
def test_a_race_by_keyboard_ends_with_equal_texts_times_and_cells(browser, pages):
    begun(browser, pages["small"], seed="7")
    texts = browser.evaluate("LANES.map((lane) => lane.code.textContent)")
    wanted = browser.evaluate(f"write({PROMPT!r}, 7, {N_NEW}, {{ temperature: 0.8 }})")
    assert texts == [wanted, wanted]
    for lane, passes in (("plain", sum(range(6, 106))), ("cached", 105)):
        assert f"{passes:,} positions" in browser.text_content(f"#{lane} .count")
    assert browser.evaluate("at('times').querySelector('.cached').points.length") == N_NEW
    pixels = browser.evaluate(PIXELS)
    bluer = [blue - red for red, blue in zip(pixels[::4], pixels[2::4], strict=True)]
    there = [int(len(bluer) * place / 105) for place in (20, 80)]
    assert [bluer[at] > 99 for at in there] == [False, True], "of 105, 64 are kept, in blue"


@browsed
def test_how_much_faster_is_said_by_medians_over_equal_characters(browser, pages):
    begun(browser, pages["small"], 60)
    steps = browser.evaluate("LANES.map((lane) => lane.steps)")
    # After a slow one, which reads the prompt, steps of 1, 2, … times the shortest.
    many = [1000, *range(1, 8)]
    low, _, high = quantiles(many[1:], method="inclusive")
    found = browser.evaluate(f"pace({many}.map((n) => n * SHORTEST))")
    unit = browser.evaluate("SHORTEST")
    assert [found[key] / unit for key in ("low", "median", "high")] == pytest.approx([low, 4, high])
    found = browser.evaluate("pace([1, 0, 0, 0, SHORTEST, 0, 0])")
    assert [found["n"], found["median"]] == [4, unit / 4], "short steps are timed together"
    taken = "LANES.forEach((lane, i) => { lane.steps = lane.steps.map((_, n) => STEPS[i][n]) })"
    plain, cached = [[unit * 50 * (i + 1) for i in range(60)], [unit * 2] * 60]
    browser.evaluate(f"{taken.replace('STEPS', json.dumps([plain, cached]))}, report()")
    ratio = median(plain[1:]) / median(cached[1:])
    assert "By the median of 59 steps" in browser.text_content("#result")
    assert f"speedup here was {ratio:.1f}×" in browser.text_content("#result")
    # The plain way was stopped: only what both have written counts.
    browser.evaluate("LANES[0].steps.length = 30, LANES[0].decoding.text.length = 36, report()")
    ratio = median(plain[1:30]) / median(cached[1:30])
    read = sum(range(6, 36)) / 35
    said = browser.text_content("#result")
    assert "The same 30 characters" in said
    assert f"speedup here was {ratio:.1f}×" in said
    assert f"{read:.1f} times fewer positions" in said
    assert [len(lane) for lane in steps] == [60, 60]


# ---------------------------------------------------------------- what the model looked at


@torch.no_grad()
def looked_at(page, text, n_prompt):
    """For each new character of a text: weights (layer, head, place), and its probabilities."""
    model = windowed(page)
    tokenizer = named_in(page).tokenizer
    seen = []

    class Watched(CausalSelfAttention):
        def attend(self, q, k, v, mask, dropout=0.0):
            seen.append(attention_weights(q, k, mask)[0])
            return seen[-1] @ v

    for block in model.blocks:
        block.sa.__class__ = Watched
    logits = model(tokenizer.encode(text)[None, :-1])[0][0, n_prompt - 1 :]
    weights = torch.stack(seen)[:, :, n_prompt - 1 :]  # (layer, head, new, place)
    return weights.permute(2, 0, 1, 3), (logits / SAMPLINGS[0][0]).softmax(-1)


def percents(words):
    return [float(number) / 100 for number in re.findall(r"([\d.]+)%", words)]


@browsed
def test_a_character_shows_what_the_model_looked_at_when_it_wrote_it(browser, pages):
    begun(browser, pages["small"], seed="3")
    text = browser.text_content("#cached .code")
    weights, probs = looked_at(pages["small"], text, len(PROMPT))
    vocabulary = named_in(pages["small"]).tokenizer.chars
    heat = "LANES[L].letters.map((letter) => Number(letter.style.getPropertyValue('--heat')))"
    # Both ways, the mean and a head, the first character and one past the block.
    for lane, i, layer, head in ((0, 0, 1, "mean"), (1, N_NEW - 3, 0, 1), (0, N_NEW - 9, 1, 0)):
        browser.evaluate(f"at('layer').value = {layer}, at('head').value = {head!r}")
        letter = browser.evaluate_handle(f"LANES[{lane}].letters[{len(PROMPT) + i}]")
        letter.as_element().hover()
        each = weights[i, layer].mean(0) if head == "mean" else weights[i, layer, head]
        found = browser.evaluate(heat.replace("L]", f"{lane}]"))
        assert found[: len(each)] == pytest.approx((each / each.max()).tolist(), abs=1e-4)
        assert set(found[len(PROMPT) + i :]) == {0}
        token = vocabulary.index(text[len(PROMPT) + i])
        others = probs[i].clone()
        others[token] = 0
        wanted = [probs[i, token], *others.topk(2).values, each.max()]
        said = browser.text_content("#picked")
        assert percents(said) == pytest.approx([float(x) for x in wanted], rel=0.06, abs=1e-3)
        assert f"Character {i + 1}: " in said
    browser.hover("#settings")
    assert not any(browser.evaluate(heat.replace("L]", "0]")))
    assert "Point at" in browser.text_content("#picked")


@browsed
def test_the_arrow_keys_walk_through_the_text_and_the_tab_key_leaves_it(browser, pages):
    begun(browser, pages["small"])
    browser.press("#cached .code", "ArrowRight")
    focused = "LANES[1].letters.indexOf(document.activeElement) - LANES[1].prompt"
    assert browser.evaluate(focused) == 0
    for key, there in (("ArrowRight", 1), ("End", 99), ("ArrowRight", 99), ("ArrowLeft", 98)):
        browser.keyboard.press(key)
        assert browser.evaluate(focused) == there
        assert f"Character {there + 1}:" in browser.text_content("#picked")
    top = "document.activeElement.offsetTop"
    low = browser.evaluate(top)
    browser.keyboard.press("ArrowUp")
    high = browser.evaluate(top)
    assert high < low
    browser.keyboard.press("ArrowDown")
    assert browser.evaluate(top) == low
    stops = "document.querySelectorAll('#cached [tabindex=\"0\"]').length"
    assert browser.evaluate(stops) == 1, "the text is one stop of the Tab key"
    browser.keyboard.press("Tab")
    assert browser.evaluate("LANES[1].code.contains(document.activeElement)") is False
    assert "Character" in browser.text_content("#picked"), (
        "it stays chosen while another head is picked"
    )
    here = browser.evaluate("chosen.i")
    browser.press("#before", "Enter")
    assert browser.evaluate("chosen.i") == here - 1
    browser.press("#cached .picked", "Escape")
    assert "Point at" in browser.text_content("#picked")
    assert browser.evaluate("document.activeElement === LANES[1].code")


@browsed
def test_a_finger_chooses_a_character_too(phone, pages):
    begun(phone, pages["small"])
    phone.evaluate_handle("LANES[1].letters[20]").as_element().tap()
    phone.wait_for_function("chosen")
    assert f"Character {21 - len(PROMPT)}:" in phone.text_content("#picked")
    assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth")


@browsed
def test_whatever_can_have_the_focus_has_a_name(browser, pages):
    begun(browser, pages["small"])
    browser.press("#plain .code", "End")
    tools = browser.context.new_cdp_session(browser)
    nodes = tools.send("Accessibility.getFullAXTree")["nodes"]
    named = {}
    for node in nodes:
        about = {each["name"]: each["value"].get("value") for each in node.get("properties", [])}
        if about.get("focusable") and not node["ignored"]:
            named[node["nodeId"]] = node["role"]["value"], node.get("name", {}).get("value")
    assert len(named) > 20
    assert [role for role, name in named.values() if not name] == []


@browsed
def test_a_prompt_that_cannot_be_encoded_is_reported_and_nothing_starts(browser, page):
    open_file(browser, page)
    browser.evaluate("at('form').noValidate = true")
    for values, said in [
        ({"prompt": "Zürich\u200b €"}, "ü U+200B €"),
        ({"prompt": ""}, "empty"),
        ({"prompt": "a" * 257}, "257 characters"),
        ({"prompt": "a", "length": ""}, "from 1 to 600"),
        ({"length": "9", "seed": "-1"}, "from 0 to 4,294,967,295"),
    ]:
        fill(browser, **values)
        assert said in browser.text_content("#error")
        assert browser.evaluate("running") == 0


@browsed
def test_a_phone_shows_it_all_and_stop_stops(phone, page):
    open_file(phone, page)
    phone.evaluate("at('slowly').checked = true")
    fill(phone, length="250")
    phone.wait_for_function("LANES[0].steps.length > 1")
    assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth")
    phone.press("#stop", "Enter")
    assert phone.text_content("#status") == "Stopped."
    steps = phone.evaluate("LANES.map((lane) => lane.steps.length)")
    assert 0 < min(steps) <= max(steps) <= min(steps) + 1 < 250, "in turns"
    # Timers run in the order in which they are due: after this one, the next step's has run.
    phone.evaluate("new Promise((done) => setTimeout(done, 400))")
    assert phone.evaluate("LANES.map((lane) => lane.steps.length)") == steps


@browsed
def test_a_step_pauses_and_goes_on_to_the_same_token(browser, pages):
    begun(browser, pages["small"], 9)
    pieces = """(() => {
      LANES[0].begin(readForm());
      let pieces = 1;
      while (!LANES[0].work(0)) pieces++;
      return [pieces, LANES[0].steps.length, LANES[0].decoding.text.length];
    })()"""
    # Each row pauses in each half of a block.
    rows = len(PROMPT) * 2 * named_in(pages["small"]).model.config.n_layer
    assert browser.evaluate(pieces) == [rows + 1, 1, len(PROMPT) + 1]
    assert browser.evaluate("LANES[0].written") == browser.evaluate("LANES[1].written[0]")


@pytest.mark.parametrize("change", ["none", "cut", "a window", "the lecture's form", "too large"])
def test_a_checkpoint_that_cannot_run_in_a_page_gets_none(tmp_path, monkeypatch, change):
    form = {} if change == "the lecture's form" else MODERN
    form = form | {"n_embd": 256 if change == "too large" else 16}
    model = tiny_model(**form, **({"window": 8} if change == "a window" else {}))
    keeper = tmp_path / "keeper"
    monkeypatch.setattr(build, "KEEPER", keeper)
    if change != "none":
        save_checkpoint(keeper, model, meta_of(model))
    if change == "cut":
        weights = keeper.with_suffix(".safetensors")
        weights.write_bytes(weights.read_bytes()[:-9])
    index = render(tmp_path).with_name("index.html")
    assert not index.with_name("live.html").exists()
    assert "live.html" not in index.read_text(encoding="utf-8")
