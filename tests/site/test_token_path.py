"""The path of a token: every number of it is PyTorch's, and hands and keys move it."""

import base64
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from browsers import browsed, open_file, texts
from checkpoint_fixtures import meta_of
from conftest import tiny_model
from notebook_fixtures import NOTEBOOKS, book, code, output, page_faults, png, write

from nanogpt import SamplingParams, complete, load_checkpoint, save_checkpoint
from nanogpt.course.blanks.multiplications import multiplications
from nanogpt.data import CharTokenizer
from nanogpt.engines.native import rounded
from nanogpt.files import KEEPER
from nanogpt.sampling import draw_noise
from nanogpt.site import build, plots, token_path
from nanogpt.training.recipes import MODERN

LIVE_PAGE = True
CHARS = "\n ,Rabcdeghimnorstu"
PROMPT, N_NEW, TEMPERATURE, SEED = "a mer", 6, 0.7, 3
SHAPE = {"vocab_size": len(CHARS), "block_size": 64, "n_layer": 2, "n_head": 2, "n_embd": 32}
FORMS = {"the lecture's": {}, "the bundled model's": MODERN}
STAGES = (  # as the columns of the figure, from left to right
    *("token", "input", "ln1", "query", "key", "value"),
    *("weights", "mix", "proj", "attended"),
    *("ln2", "hidden", "down", "output", "lnf", "logits", "probs", "choice"),
)
MOMENTS = 2 + 12 * SHAPE["n_layer"] + 4


def named(form):
    """A tiny model of that form with its tokenizer, as a checkpoint has them."""
    model = tiny_model(**FORMS[form], **SHAPE).eval()
    seeded = torch.Generator().manual_seed(0)
    for parameter in model.parameters():  # as large as it takes to tell the numbers apart
        torch.nn.init.normal_(parameter, std=0.3, generator=seeded)
    return SimpleNamespace(model=model, tokenizer=CharTokenizer(CHARS))


def recorded(form):
    saved = named(form)
    prompt = saved.tokenizer.encode(PROMPT)[None]
    return saved, token_path.token(saved, prompt, N_NEW, TEMPERATURE, SEED)


# ------------------------------------------------------------------ in Python


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_the_stages_of_a_trace_make_up_the_models_pass(form):
    model = named(form).model
    tokens = torch.arange(9)[None] % SHAPE["vocab_size"]
    found = token_path.trace(model, tokens)
    close = torch.testing.assert_close
    close(found["logits"], model(tokens)[0][0])
    close(model.lm_head(found["lnf"]), found["logits"])
    if found["position"] is not None:
        close(found["table"] + found["position"], found["embedding"])
    x = found["embedding"]
    for layer in found["layers"]:
        heads = layer["value"].view(9, SHAPE["n_head"], -1).transpose(0, 1)
        close((layer["weights"] @ heads).transpose(0, 1).flatten(1), layer["mix"])
        close(x + layer["proj"], layer["attended"])
        close(layer["attended"] + layer["down"], layer["output"])
        assert set(layer) == {*token_path.LAYER, "weights"}
        x = layer["output"]


@pytest.mark.parametrize("form", FORMS)
def test_a_recorded_text_is_the_models_own_and_its_numbers_are_packed_whole(form):
    saved, data = recorded(form)
    prompt = saved.tokenizer.encode(PROMPT)[None]
    generator = torch.Generator().manual_seed(SEED)
    text = complete(saved.model, prompt, N_NEW, SamplingParams(TEMPERATURE), generator=generator)
    assert data["tokens"] == text[0].tolist()
    whole = [*token_path.vectors(token_path.trace(saved.model, text[:, :-1]))]
    numbers = np.frombuffer(base64.b64decode(data["packed"]), "<i2")
    assert len(numbers) == sum(map(len, whole))
    assert len(data["scales"]) == len(whole)
    for vector, scale in zip(whole, data["scales"], strict=True):
        part, numbers = numbers[: len(vector)], numbers[len(vector) :]
        np.testing.assert_allclose(part * scale, vector, atol=scale)
    json.dumps(data, allow_nan=False)


def test_the_still_draws_the_rows_of_the_last_step():
    saved, data = recorded("the lecture's")
    chars, columns = token_path.still(saved, data)
    assert chars == [CHARS[token] for token in data["tokens"][:-1]]
    assert [name for name, _, kept in columns if kept] == ["key", "value"]
    for _, rows, _ in columns:
        assert len(rows) == len(chars)
        assert {max(map(max, rows)), min(map(min, rows))} == {0, 1}
    figure = plots.token_path(chars, columns, "a title")
    rows = len(columns) * len(chars) * 2 - (len(columns) - 2) * (len(chars) - 1)
    assert len(figure.axes[0].images) == rows, "with a cache, old rows of two columns alone"


def test_notebook_02_records_little_enough_to_stay_under_a_megabyte():
    (source,) = [cell.source for cell in book(NOTEBOOKS[2]).cells if cell.id == "path"]
    assert "token_path.token(trained, text[:, :6], 8, 0.8, seed)" in source
    saved = load_checkpoint()
    prompt = saved.tokenizer.encode("First ")[None]
    assert len(json.dumps(token_path.token(saved, prompt, 8, 0.8, 42))) < 300_000


# ------------------------------------------------------------------ in JavaScript


def live_pages(folder, patch):
    """The live page of the bundled model, and one of a tiny model that nobody trained."""
    saved = named("the bundled model's")
    save_checkpoint(folder / "keeper", saved.model, meta_of(saved.model, vocabulary=CHARS))
    pages = {}
    for name, checkpoint in (("bundled", KEEPER), ("tiny", folder / "keeper")):
        patch.setattr(build, "KEEPER", checkpoint)
        path = folder / f"{name}.html"
        text = build.live_page()
        assert text is not None
        path.write_text(text, encoding="utf-8")
        pages[name] = path, load_checkpoint(checkpoint)
    return pages


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        return live_pages(tmp_path_factory.mktemp("live"), patch)


PLAIN = """(story, rows) => ({
  ...story, noise: story.noise.map((one) => [...one]),
  rows: rows.map(({ table, embedding, layers, lnf, logits }) => ({
    table: [...table], embedding: [...embedding], lnf: [...lnf], logits: [...logits],
    layers: layers.map((layer) => Object.fromEntries(Object.entries(layer).map(([name, numbers]) =>
      [name, name === "weights" ? numbers.map((head) => [...head]) : [...numbers]]))),
  })),
})"""


def stories(browser, page, prompt, seed, temperature):
    """What the page computes, row by row with a cache; and all rows of the last step without."""
    open_file(browser, page)
    asked = f"storyOf({json.dumps(prompt)}, {seed}, {temperature})"
    return browser.evaluate(
        f"((story) => [story.rows, story.again(story.rows.length)].map("
        f"(rows) => ({PLAIN})(story, rows)))({asked})"
    )


@browsed
@pytest.mark.parametrize(("name", "prompt"), [("bundled", "O Rome"), ("tiny", PROMPT)])
def test_every_stage_in_the_browser_is_pytorchs(browser, live, name, prompt):
    page, saved = live[name]
    cached, plain = stories(browser, page, prompt, 4, 0.8)
    assert cached["rows"] == plain["rows"], "to the last bit, with a cache and without one"
    model = rounded(saved.model)
    tokens = torch.tensor([cached["tokens"][:-1]])
    for dtype, near in ((torch.float64, 1e-6), (torch.float32, 2e-3)):
        found = token_path.trace(model.to(dtype), tokens)
        for part in ("table", "embedding", "lnf", "logits"):
            wanted = [row[part] for row in cached["rows"]]
            np.testing.assert_allclose(found[part], wanted, rtol=near, atol=near, err_msg=part)
        for i, layer in enumerate(found["layers"]):
            for part in token_path.LAYER:
                wanted = [row["layers"][i][part] for row in cached["rows"]]
                np.testing.assert_allclose(layer[part], wanted, rtol=near, atol=near, err_msg=part)
            for t, row in enumerate(cached["rows"]):
                wanted = row["layers"][i]["weights"]
                np.testing.assert_allclose(layer["weights"][:, t, : t + 1], wanted, atol=near)


@browsed
def test_the_text_in_the_browser_is_the_one_that_python_draws_from_the_seed(browser, live):
    page, saved = live["bundled"]
    (story, _) = stories(browser, page, "O Rome", 4, 0.8)
    n_new = len(story["tokens"]) - story["prompt"]
    generator = torch.Generator().manual_seed(4)
    noise = draw_noise(n_new, 1, len(saved.tokenizer), generator)
    np.testing.assert_allclose(story["noise"], noise[:, 0])
    prompt = saved.tokenizer.encode("O Rome")[None]
    model = rounded(saved.model).double()
    text = complete(model, prompt, n_new, SamplingParams(0.8), noise=noise)
    assert story["tokens"] == text[0].tolist()


# ------------------------------------------------------------------ the page


@pytest.fixture(scope="module")
def data():
    return {form: recorded(form) for form in FORMS}


@pytest.fixture(scope="module")
def page(tmp_path_factory, data):
    """A notebook's page with the figure of the lecture's form."""
    folder = tmp_path_factory.mktemp("path")
    still = output(picture=png(), alt="the still of a path")
    still.metadata["image/png"]["moving"] = {"kind": "token", "data": data["the lecture's"][1]}
    cells = [code("plot()", "plot", [still], tags=["hide-input"])]
    write(folder / "00_one.ipynb", *cells, title="00 · One")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "KEEPER", folder / "none")
        return build.render(folder).with_name("00_one.html")


READY = "document.querySelector('.part canvas')?.width > 0"
NEXT = "[title='The next token']"
BEFORE = "[title='The token before']"
STAGE_ON = ".part[aria-pressed=true]"


@pytest.fixture
def opened(browser, page):
    open_file(browser, page)
    browser.wait_for_function(READY)
    return browser


def column(stage):
    return f".part[data-stage={stage}]"


def rows_of(browser, stage):
    """The rows of a stage that this step has computed, and those from the cache."""
    numbers = f"document.querySelector({column(stage)!r}).dataset"
    return [int(browser.evaluate(f"{numbers}.{kind}")) for kind in ("now", "kept")]


def picked(browser):
    return browser.get_attribute(STAGE_ON, "data-stage")


def pick(browser, stage):
    browser.click(f"{column(stage)} .name")
    assert picked(browser) == stage


def walk(browser, button):
    """To the first token, or to the last one."""
    while browser.is_enabled(button):
        browser.click(button)


def step_of(browser):
    return int(browser.text_content(".lead .title").split()[1])


def panel(browser):
    return texts(browser, ".vector b")


def in_words(numbers):
    """As the panel writes numbers."""
    said = [f"{number:.2f}" for number in numbers]
    return [("0.00" if one == "-0.00" else one).replace("-", "−") for one in said]


def counted(browser):
    return [int(text.replace(",", "")) for text in texts(browser, ".work td")]


def hold(browser, cached=True):
    browser.set_checked(".steps input", not cached)


def close(found, wanted):
    """Whether numbers in words are these, but for the last digit."""
    assert len(found) == len(wanted)
    apart = [
        float(a.replace("−", "-")) - float(b.replace("−", "-"))
        for a, b in zip(found, in_words(wanted), strict=True)
    ]
    return max(map(abs, apart)) < 0.011


@browsed
def test_a_page_with_the_figure_keeps_no_reader_out(page):
    assert page_faults(page) == []


@browsed
def test_a_click_on_a_stage_shows_pythons_numbers_of_it(opened, data):
    saved, story = data["the lecture's"]
    found = token_path.trace(saved.model, torch.tensor([story["tokens"][:-1]]))
    now = len(story["tokens"]) - 2  # the last step
    walk(opened, NEXT)
    whole = {"input": found["embedding"], "lnf": found["lnf"]}
    for layer in range(SHAPE["n_layer"]):
        opened.locator(".radios input").nth(layer).click()
        stages = found["layers"][layer]
        for stage in token_path.LAYER:
            pick(opened, stage)
            assert close(panel(opened), stages[stage][now]), stage
        pick(opened, "weights")
        shares = [float(text.strip("<%")) / 100 for text in texts(opened, ".heated b")]
        np.testing.assert_allclose(shares, stages["weights"][:, now].flatten(), atol=0.006)
        q, k = (stages[name].view(now + 1, SHAPE["n_head"], -1) for name in ("query", "key"))
        scores = torch.einsum("hd,shd->hs", q[now], k) / q.shape[2] ** 0.5
        assert close(texts(opened, ".heated small"), scores.flatten())
    for stage, numbers in whole.items():
        pick(opened, stage)
        assert close(panel(opened), numbers[now]), stage


@browsed
def test_the_candidates_are_those_of_the_draw(opened, data):
    saved, story = data["the lecture's"]
    found = token_path.trace(saved.model, torch.tensor([story["tokens"][:-1]]))
    walk(opened, BEFORE)
    pick(opened, "choice")
    at = len(PROMPT) - 1  # the first step reads the prompt
    logits = found["logits"][at]
    probs = (logits / TEMPERATURE).softmax(-1)
    table = opened.evaluate(
        "[...document.querySelectorAll('.candidates tr')].slice(1)"
        ".map((row) => [...row.children].map((cell) => cell.textContent))"
    )
    times = torch.tensor(story["noise"][0]) / probs
    assert story["tokens"][len(PROMPT)] == int(times.argmin())
    for name, logit, scaled, share, noise, time in table:
        token = CHARS.index({"␣": " ", "↵": "\n"}.get(name[1], name[1]))
        said = [logit, scaled, noise]
        logits_of = [float(logits[token]), float(logits[token]) / TEMPERATURE]
        wanted = [*logits_of, story["noise"][0][token]]
        assert [float(text.replace("−", "-")) for text in said] == pytest.approx(wanted, abs=0.011)
        assert float(share.strip("<%")) / 100 == pytest.approx(float(probs[token]), abs=0.006)
        arrives = float(time.replace(",", ""))
        assert arrives == pytest.approx(float(times[token]), rel=0.01)
    drawn = opened.text_content(".candidates .drawn th")
    assert CHARS.index({"␣": " ", "↵": "\n"}.get(drawn[1], drawn[1])) == int(times.argmin())


@browsed
def test_without_a_cache_the_step_computes_every_row_and_the_work_is_counted(opened, data):
    saved, story = data["the lecture's"]
    c = saved.model.config
    shape = (c.matrix_weights, c.n_layer, c.n_embd)
    last = len(story["tokens"]) - 1
    walk(opened, BEFORE)
    read = len(PROMPT)
    totals = [0, 0]
    for step in range(N_NEW):
        n = read + step
        hold(opened)
        kept = n - 1 if step else 0
        for stage in STAGES[:-2]:
            cache = kept if stage in ("key", "value") else 0
            assert rows_of(opened, stage) == [n - kept, cache], stage
        hold(opened, cached=False)
        assert [rows_of(opened, stage) for stage in STAGES] == [[n, 0]] * 16 + [[1, 0]] * 2
        products = [multiplications(n, *shape, cached=cached) for cached in (True, False)]
        if not step:
            products[0] = products[1]
        totals = [a + b for a, b in zip(totals, products, strict=True)]
        rows = [n - kept, n]
        assert counted(opened) == [*rows, *products, *totals]
        if step < N_NEW - 1:
            opened.click(NEXT)
    assert opened.text_content(".lead .title").startswith(f"Step {N_NEW} of {N_NEW} reads ")
    assert f"at position {last - 1} " in opened.text_content(".lead .title")


@browsed
def test_the_arrow_keys_walk_along_the_stages_into_the_next_token_and_back(opened):
    opened.evaluate("document.querySelector('[title=\"The token before\"]').click()")
    assert step_of(opened) == N_NEW - 1
    opened.press(".part[aria-pressed=true]", "Home")
    seen = []
    for _ in range(MOMENTS):
        focus = opened.evaluate("document.activeElement.dataset.stage")
        assert picked(opened) == focus
        later = [stage for stage in STAGES if rows_of(opened, stage)[0] == 0]
        assert focus not in later
        seen.append(focus)
        assert ("writes" in opened.text_content(".lead .title")) == (focus == "choice")
        opened.keyboard.press("ArrowRight")
    layer = [stage for stage in STAGES if stage in (*token_path.LAYER, "weights")]
    assert seen == [*STAGES[:2], *layer * SHAPE["n_layer"], *STAGES[-4:]]
    assert picked(opened) == "token"
    assert step_of(opened) == N_NEW, "the next token"
    opened.keyboard.press("ArrowLeft")
    assert picked(opened) == "choice"
    assert step_of(opened) == N_NEW - 1
    stops = "document.querySelectorAll('.path .part[tabindex=\"0\"]').length"
    assert opened.evaluate(stops) == 1, "the stages are one stop of the Tab key"


@browsed
def test_rows_are_chosen_by_the_arrow_keys_and_by_the_pointer(opened, data):
    saved, story = data["the lecture's"]
    found = token_path.trace(saved.model, torch.tensor([story["tokens"][:-1]]))
    keys = found["layers"][0]["key"]
    pick(opened, "key")
    opened.press(".part[aria-pressed=true]", "ArrowUp")
    opened.keyboard.press("ArrowUp")
    at = int(opened.text_content(".panel .name").partition("row ")[2].partition(",")[0])
    assert close(panel(opened), keys[at])
    assert opened.evaluate("document.querySelector('.vector').classList.contains('kept')")
    box = opened.locator(f"{column('key')} .rows").bounding_box()
    opened.mouse.click(box["x"] + box["width"] / 2, box["y"] + 12 * 2 + 6)
    assert " row 2, " in opened.text_content(".panel .name")
    assert close(panel(opened), keys[2])


@browsed
def test_play_goes_on_by_itself_and_pause_stops_it(opened):
    opened.click(BEFORE)
    opened.evaluate("setTimeout = ((wait) => (act, ms) => wait(act, Math.min(ms, 40)))(setTimeout)")
    opened.press(".play", "Enter")
    assert opened.text_content(".play") == "Pause"
    assert opened.evaluate("document.querySelector('.panel > div').ariaLive") == "off"
    opened.wait_for_function(f"document.querySelector({column('ln2')!r}).ariaPressed === 'true'")
    pressed = "document.querySelector('.part[aria-pressed=true]').dataset.stage"
    here = opened.evaluate(f"(document.querySelector('.play').click(), {pressed})")
    assert opened.text_content(".play") == "Play"
    opened.evaluate("new Promise((done) => setTimeout(done, 200))")
    assert picked(opened) == here
    opened.press(".play", "Enter")
    opened.wait_for_function("document.querySelector('.play').textContent === 'Play'")
    assert f"Step {N_NEW} of {N_NEW} " in opened.text_content(".lead .title"), "the end of the text"
    assert picked(opened) == "choice"


@browsed
def test_nothing_moves_by_itself_where_no_motion_is_wanted(opened):
    cover = f"document.querySelector({column('query')!r}).querySelector('.cover')"
    for wanted, name in (("no-preference", "uncover"), ("reduce", "none")):
        opened.emulate_media(reduced_motion=wanted)
        pick(opened, "ln1")
        opened.press(STAGE_ON, "ArrowRight")
        assert picked(opened) == "query"
        assert opened.evaluate(f"getComputedStyle({cover}).animationName") == name
        assert opened.text_content(".play") == "Play", "it waits to be started"


@browsed
@pytest.mark.parametrize(("window", "groups"), [("browser", 4), ("phone", 1)])
def test_the_token_path_fits_the_window_and_its_words_can_be_read(
    page, live, window, groups, request
):
    browser = request.getfixturevalue(window)
    for path in (page, live["bundled"][0]):
        open_file(browser, path)
        browser.wait_for_function(READY)
        for stage in STAGES:
            browser.evaluate(f"document.querySelector({column(stage)!r}).click()")
            assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), stage
        small = """[...document.querySelectorAll('.token-path *')].filter((one) =>
            one.checkVisibility() && [...one.childNodes].some((node) => node.nodeType === 3) &&
            parseFloat(getComputedStyle(one).fontSize) < 10).map((one) => one.className)"""
        assert browser.evaluate(small) == []
        seen = "[...document.querySelectorAll('.columns')].filter((one) => one.checkVisibility())"
        assert browser.evaluate(f"{seen}.length") == groups


@browsed
def test_a_finger_opens_a_group_and_chooses_a_stage(phone, page):
    open_file(phone, page)
    phone.wait_for_function(READY)
    phone.locator(".group-name").nth(2).tap()
    phone.wait_for_selector(f"{column('ln2')}[aria-pressed=true]")
    phone.tap(column("hidden"))
    phone.wait_for_selector(f"{column('hidden')}[aria-pressed=true]")
    phone.tap(".steps input")
    phone.wait_for_selector(".stage[data-way=plain]")


# ------------------------------------------------------------------ on the index and the live page


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    write(folder / "00_one.ipynb", title="00 · One")
    return build.render(folder)


def test_the_index_frames_the_figure_and_holds_no_weights(index):
    text = index.read_text(encoding="utf-8")
    assert page_faults(index) == []
    assert text.count('src="live.html#token"') == 1
    assert "<strong>KV cache</strong>" in text, "the index says what it is"
    assert index.stat().st_size < 100_000, "of a site with one small notebook"
    assert index.with_name("live.html").stat().st_size < 1_500_000


@browsed
@pytest.mark.parametrize("width", [420, 1200])
def test_the_frame_is_as_high_as_the_figure_and_no_lane_runs_in_it(browser, index, width):
    browser.set_viewport_size({"width": width, "height": 900})
    open_file(browser, index)
    browser.evaluate("document.querySelector('.grows').scrollIntoView()")
    browser.wait_for_function("document.querySelector('.grows').style.height")
    high = browser.evaluate("document.querySelector('.grows').clientHeight")
    wide = browser.evaluate("document.querySelector('.grows').clientWidth")
    browser.set_viewport_size({"width": wide, "height": 900})
    open_file(browser, index.with_name("live.html"), "#token")
    browser.wait_for_function(READY)
    bottom = "document.querySelector('#path').getBoundingClientRect().bottom"
    assert browser.evaluate(f"Math.abs({bottom} - {high})") <= 2
    assert browser.evaluate("[running, LANES[0].decoding]") == [0, None]
    seen = "[...document.querySelectorAll('main > *')].filter((one) => one.checkVisibility())"
    assert browser.evaluate(f"{seen}.map((one) => one.id || one.className)") == ["hero", "path"]


@browsed
def test_prompt_seed_and_temperature_write_another_text(browser, live):
    page, saved = live["tiny"]
    browser.set_viewport_size({"width": 1200, "height": 900})
    open_file(browser, page)
    fields = browser.locator(".token-path .knob input")
    for i, (value, event) in enumerate([("2", "input"), ("ham", "change"), ("11", "change")]):
        fields.nth(i).fill(value)  # temperature, prompt, seed
        fields.nth(i).dispatch_event(event)
    for _ in range(20):
        browser.evaluate(f'document.querySelector("{NEXT}").click()')
    n_new = 15 - len("ham")
    generator = torch.Generator().manual_seed(11)
    prompt = saved.tokenizer.encode("ham")[None]
    model = rounded(saved.model).double()
    text = complete(model, prompt, n_new, SamplingParams(2.0), generator=generator)[0]
    blanks = str.maketrans({"\n": "↵", " ": "␣"})
    assert browser.text_content(".writes") == saved.tokenizer.decode(text).translate(blanks)
    for prompt, said in (("a bün", "never saw ü"), ("", "The prompt is empty")):
        fields.nth(1).fill(prompt)
        fields.nth(1).dispatch_event("change")
        assert said in browser.text_content(".token-path .note")
        assert browser.is_visible(".token-path .note")
