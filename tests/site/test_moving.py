"""Figures that react to a hand: what they show is what Python computes from the same data."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from browsers import blank_page, browsed, middle, open_file, texts
from notebook_fixtures import NOTEBOOKS, book, code, output, page_faults, png, write
from shapes import RMS, ROPE, model_of

from nanogpt.config import GPTConfig
from nanogpt.course.blanks.multiplications import multiplications
from nanogpt.data import CharTokenizer
from nanogpt.files import ROOT
from nanogpt.model import GPT
from nanogpt.model import Head as PackageHead
from nanogpt.site import build, moving
from nanogpt.site.plots.style import contrast

TEXT = "to be, or\nnot"
CSS = (ROOT / "nanogpt/site/templates/figures.css").read_text(encoding="utf-8")
T = len(TEXT)
IMPORTS = """
import torch
from dataclasses import replace
from torch import nn
from nanogpt import GPT, GPTConfig, complete, kv_cache
from nanogpt.attention import attend, visible
from nanogpt.sampling import draw_noise
from nanogpt.site import moving, plots
from nanogpt.course.solutions import Head, KVCache, sample
"""
RIGHT = [".------", "..-----", "...----", "....---", ".....--", "......-", "......."]
CELLS = {  # of the masks of notebook 04, over a prompt of four and four new tokens
    "no trap": RIGHT,
    "1 no prefill mask": [".aaa---", "..aa---", "...a---", *RIGHT[3:]],
    "2 last token twice": [
        *[row + "-" for row in RIGHT[:4]],
        "ppppt---",
        "pppptp--",
        "pppptpp-",
        "pppptppp",
    ],
    "3 no position": [*RIGHT[:4], "ppppp--", "pppppp-", "ppppppp"],
    "7 cache not cleared": ["o" * 7 + row for row in RIGHT],
}


def tiny_model():
    tokenizer = CharTokenizer("".join(sorted(set(TEXT))))
    shape = {"vocab_size": len(tokenizer), "block_size": 32, "n_layer": 2, "n_head": 2}
    model = GPT(GPTConfig(**shape, n_embd=24)).eval()
    seeded = torch.Generator().manual_seed(0)
    for parameter in model.parameters():  # as large as it takes to tell the weights apart
        torch.nn.init.normal_(parameter, std=0.3, generator=seeded)
    return model, tokenizer


# ------------------------------------------------------------------ what the scripts count


def passes(length: int, prompt: int, chunk: int) -> list[tuple[int, int]]:
    """The rows [first, end) of each pass while reading `length` tokens.

    The prompt is read in chunks of at most `chunk` tokens, the rest token by token.
    """
    starts = [*range(0, prompt, chunk), *range(prompt, length)]
    return list(zip(starts, [*starts[1:], length], strict=True))


def work(data: dict, prompt: int, chunk: int) -> list[dict]:
    """The cost of each pass, with a cache and without: rows and multiplications, as pairs.

    Counted as in notebook 05. Without a cache, the whole prompt is read with its last chunk.
    """
    W, L, C = data["shape"]
    costs = []
    for start, end in passes(len(data["chars"]), prompt, chunk):
        n = end - start
        again = end if end >= prompt else 0  # without a cache
        cached = n * multiplications(end, W, L, C, cached=True)
        uncached = multiplications(again, W, L, C, cached=False)
        costs.append({"rows": (n, again), "multiplications": (cached, uncached)})
    return costs


def differing(text: str, truth: str) -> list[int]:
    """The indices at which two texts of the same length differ."""
    return [i for i, (a, b) in enumerate(zip(text, truth, strict=True)) if a != b]


@pytest.fixture(scope="module")
def traps():
    """What the cell of notebook 04 gives to its figure, with a tiny model."""
    given = {}
    run = SimpleNamespace(check=lambda *_: True, figure=lambda *_, **more: given.update(more))
    nothing = dict.fromkeys(("show", "as_asked"), lambda *_, **__: None)  # what asks the referee
    names = {"run": run, "device": torch.device("cpu"), **nothing}
    cells = {cell.id: cell.source for cell in book(NOTEBOOKS[4]).cells}
    exec("\n".join([IMPORTS, cells["places"], cells["tools"]]), names)
    exec("".join(cells["show"].partition("def with_head")[1:]), names)
    model = names["tiny"](PackageHead)  # the figure's cell takes the package's heads
    prompt, noise = names["tiny_case"](5)
    trained = SimpleNamespace(model=model)
    names |= {"model": model, "trained": trained, "prompt": prompt, "noise": noise, "n": len(noise)}
    names["tokenizer"] = CharTokenizer("\n abcdefghi")
    names["truth"] = names["true_text"](model, prompt, noise)
    for trap in ("trap1", "trap2", "decode", "memory-head", "trap3", "trap7"):
        exec(cells[trap], names)
    found = {trap: names[f"trap_{trap}"](model, prompt, noise) for trap in "1237"}
    names["texts"] = found
    exec(re.search(r"^names = .*$", cells["marked"], re.M)[0], names)
    exec(cells["inside"], names)
    return given["moving"][1]


@pytest.fixture(scope="module")
def data(traps):
    """What the three figures are given."""
    model, tokenizer = tiny_model()
    decode = moving.decode(model, tokenizer.encode(TEXT)[None], TEXT)
    rows = [row + [0.0] * (T - len(row)) for row in decode["weights"][0][1]]
    triangle = moving.triangle(TEXT, rows, 6, model.config)
    return json.loads(json.dumps({"decode": decode, "triangle": triangle, "trap": traps}))


# ------------------------------------------------------------------ the data


def test_the_weights_of_a_step_are_those_with_which_the_head_mixes():
    model, tokenizer = tiny_model()
    tokens = tokenizer.encode(TEXT)[None]
    pos = torch.arange(T)
    found = moving.decode(model, tokens, TEXT)
    values = torch.tensor(found["values"][0][1])
    with torch.no_grad():
        x = model.token_embedding_table(tokens) + model.position_embedding_table(pos)
        mixed = model.blocks[0].sa.heads[1](model.blocks[0].ln1(x), pos)[0]
    for t, row in enumerate(found["weights"][0][1]):
        weights = torch.tensor(row)
        torch.testing.assert_close(weights @ values[: t + 1], mixed[t, :8], atol=0.01, rtol=0)
    sizes = {torch.tensor(found[name]).shape for name in ("queries", "keys", "values")}
    assert sizes == {(2, 2, T, moving.NUMBERS_SHOWN)}


@pytest.mark.parametrize("form", [{}, {**ROPE, "qk_norm": True, **RMS}])
def test_every_row_of_weights_sums_to_1_and_a_page_stays_small(form):
    shape = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 32, **form}
    found = moving.decode(model_of(**shape).eval(), torch.arange(16)[None], "x" * 16)
    rows = [row for heads in found["weights"] for head in heads for row in head]
    assert all(abs(sum(row) - 1) < 0.001 for row in rows)
    assert len(json.dumps(found)) < 150_000


def test_passes_read_every_row_once_and_cost_what_notebook_05_counts(data):
    assert passes(6, 4, 3) == [(0, 3), (3, 4), (4, 5), (5, 6)]
    assert passes(3, 3, 9) == [(0, 3)]
    shape = data["triangle"]["shape"]
    found = work(data["triangle"], 6, 4)
    assert [one["rows"] for one in found] == [(4, 0), (2, 6), *((1, n) for n in range(7, T + 1))]
    for n, one in enumerate(found[2:], 7):
        both = tuple(multiplications(n, *shape, cached) for cached in (True, False))
        assert one["multiplications"] == both


@pytest.mark.parametrize("trap", CELLS)
def test_the_masks_and_positions_of_a_trap_are_those_that_its_code_uses(traps, trap):
    assert [one["name"] for one in traps["traps"]] == [*CELLS]
    found = next(one for one in traps["traps"] if one["name"] == trap)
    grid = found["grid"]
    assert grid["cells"] == CELLS[trap]
    positions = [position for _, position, _ in grid["queries"]]
    assert positions == ([0, 1, 2, 3, 0, 0, 0] if "3" in trap else [*range(len(positions))])
    places = [place for _, _, place in grid["queries"]]
    assert places == ([0, 1, 2, 3, 3, 4, 5, 6] if "2" in trap else [*range(7)])
    panel = moving.panel(found)
    assert panel["q"] == positions
    assert panel["mask"] == [[letter != "-" for letter in row] for row in grid["cells"]]


def test_a_mask_that_nobody_saw_or_of_other_keys_makes_no_grid():
    seen = [{"tokens": [0, 1], "pos": [0, 1], "mask": None}]
    assert moving.grid(seen, 1, str) is None
    seen[0]["mask"] = [[True, False, False], [True, True, False]]  # a slot in reserve
    assert moving.grid(seen, 1, str) is None
    seen[0]["mask"] = [[False, False], [True, True]]
    assert moving.grid(seen, 1, str)["cells"] == ["u-", ".."]


@pytest.mark.parametrize(("scheme", "paper"), [("light", "#ffffff"), ("dark", "#14161b")])
def test_the_colours_of_drawings_can_be_read(scheme, paper):
    block = re.findall(r":root \{(.*?)\}", CSS)[scheme == "dark"]
    colours = dict(re.findall(r"--(\w+): (#\w{6})", block))
    assert {*colours} == {"kept", "now", "wrong"}
    assert min(contrast(colour, paper) for colour in colours.values()) >= 4.5


# ------------------------------------------------------------------ the page


@pytest.fixture(scope="module")
def page(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("moving")
    drawn = []
    for kind, numbers in data.items():
        shown = output(picture=png(), alt=f"the still of {kind}")
        shown.metadata["image/png"]["moving"] = {"kind": kind, "data": numbers}
        drawn.append(code("plot()", kind, [shown], tags=["hide-input"]))
    write(folder / "00_one.ipynb", *drawn, title="00 · One")
    return build.render(folder).with_name("00_one.html")


DRAWN = "document.querySelectorAll('.stage svg rect').length > 100"


@pytest.fixture
def moved(browser, page):
    """The page with the figures, in a wide window."""
    open_file(browser, page)
    browser.wait_for_function(DRAWN)
    return browser


def figure(kind):
    return f"figure[data-kind={kind}]"


def many(browser, selector):
    return browser.locator(selector).count()


def shares(weights):
    """As a figure writes weights; a half is rounded up."""
    return ["<1%" if w < 0.005 else f"{int(100 * w + 0.5)}%" for w in weights]


@browsed
def test_a_page_with_figures_keeps_no_reader_out(page):
    assert page_faults(page) == []


def check_step(browser, data, newest, layer, head, picked):
    """The picture of a step is that of Python's numbers."""
    here = figure("decode")
    weights = [[heads[newest] for heads in rows] for rows in data["weights"]]
    assert texts(browser, f"{here} .row .share") == shares(weights[layer][head])
    assert texts(browser, f"{here} .one text") == shares(
        [row[picked] for rows in weights for row in rows]
    )
    kinds = [many(browser, f"{here} .row.{kind}") for kind in ("kept", "now")]
    assert kinds == [newest, 1], "all but one come from the cache"
    at = f"{here} .row.picked"
    assert browser.evaluate(f"document.querySelector({at!r}).dataset.row") == str(picked)
    told = browser.text_content(f"{here} .told")
    assert f"Step {newest}: " in told
    assert f"layer {layer}, head {head}" in told
    share = shares(weights[layer][head])[picked]
    assert f"(position {picked}) gets a weight of {share} for its value" in told
    assert f"without a cache, {newest + 1} of each" in told


@browsed
def test_the_keyboard_steps_through_a_text_and_picks_characters_layers_and_heads(moved, data):
    numbers = data["decode"]
    here = figure("decode")
    last = numbers["weights"][0][0][-1]
    picked = last.index(max(last[:-1]))
    check_step(moved, numbers, T - 1, 0, 0, picked)
    moved.press(f"{here} svg[role=slider]", "Home")
    check_step(moved, numbers, T - 1, 0, 0, 0)
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"):
        moved.keyboard.press(key)
    check_step(moved, numbers, T - 1, 0, 0, 2)
    said = f"document.querySelector('{here} svg').getAttribute('aria-valuetext')"
    assert moved.evaluate(said) == "“ ”, position 2".replace(" ”", "␣”")
    for _ in range(4):
        moved.press(f"{here} input", "ArrowLeft")
    check_step(moved, numbers, T - 5, 0, 0, 2)
    moved.press(f"{here} .knob:nth-child(2) select", "ArrowDown")
    moved.press(f"{here} .knob:nth-child(3) select", "ArrowDown")
    check_step(moved, numbers, T - 5, 1, 1, 2)
    moved.press(f"{here} svg[role=slider]", "End")
    check_step(moved, numbers, T - 5, 1, 1, T - 5)
    assert "Both are new" in moved.text_content(f"{here} .told")
    moved.press(f"{here} input", "Home")
    check_step(moved, numbers, 0, 1, 1, 0)


@browsed
def test_a_pointer_picks_a_character_and_a_head(moved, data):
    here = figure("decode")
    moved.hover(f"{here} .row[data-row='3'] .weight")
    check_step(moved, data["decode"], T - 1, 0, 0, 3)
    moved.click(f"{here} .one[data-head='1,1']")
    check_step(moved, data["decode"], T - 1, 1, 1, 3)
    chosen = f"[...document.querySelectorAll('{here} select')].map((one) => one.selectedIndex)"
    assert moved.evaluate(chosen) == [1, 1]


def check_passes(browser, data, prompt, chunk, row):
    """The rows, the colours and the numbers of a pass are those that Python counts."""
    here = figure("triangle")
    all_passes = passes(T, prompt, chunk)
    now = next(i for i, (_, end) in enumerate(all_passes) if row < end)
    start, end = all_passes[now]
    costs_of = work(data, prompt, chunk)
    names = ("rows", "multiplications")
    pairs = [costs_of[now][name] for name in names]
    pairs += [[sum(one[name][way] for one in costs_of) for way in (0, 1)] for name in names]
    wanted = [f"{number:,}" for pair in pairs for number in pair]
    assert texts(browser, f"{here} td") == wanted
    n = end - start
    counts = {"kept": n * start, "now": n * (n + 1) // 2, "hidden": n * (n - 1) // 2}
    assert {kind: many(browser, f"{here} rect.{kind}") for kind in counts} == counts
    keys = [many(browser, f"{here} .key.{kind}") for kind in ("kept", "now", "later")]
    assert keys == [start, n, T - end]
    told = browser.text_content(f"{here} .told")
    assert f"Pass {now + 1} of {len(all_passes)}" in told
    assert f"{start} from the cache (blue), {n} new (orange)" in told
    assert f" {pairs[3][1] / pairs[3][0]:.1f} times fewer" in told


@browsed
def test_the_keyboard_moves_the_end_of_the_prompt_and_its_chunks(moved, data):
    numbers = data["triangle"]
    here = figure("triangle")
    check_passes(moved, numbers, 6, T, 6)
    moved.press(f"{here} .knob:nth-child(1) input", "ArrowLeft")
    check_passes(moved, numbers, 5, T, 5)
    moved.press(f"{here} .knob:nth-child(2) input", "Home")
    moved.keyboard.press("ArrowRight")
    moved.press(f"{here} svg", "Home")
    check_passes(moved, numbers, 5, 2, 0)
    for _ in range(4):
        moved.keyboard.press("ArrowDown")
    check_passes(moved, numbers, 5, 2, 4)
    moved.press(f"{here} .knob:nth-child(1) input", "End")
    check_passes(moved, numbers, T, 2, T - 1)


@browsed
def test_a_pointer_drags_the_end_of_the_prompt_along_the_diagonal(moved, data):
    numbers = data["triangle"]
    here = figure("triangle")
    moved.hover(f"{here} [data-cell='2,1']", force=True)
    check_passes(moved, numbers, 6, T, 2)
    x, y = middle(moved, f"{here} .handle")
    cell = moved.locator(f"{here} [data-cell='0,0']").bounding_box()["width"] + 2
    moved.mouse.move(x, y)
    moved.mouse.down()
    moved.mouse.move(x + 400, y + 3 * cell)  # beside the drawing: it is held
    check_passes(moved, numbers, 9, T, 9)
    moved.mouse.move(x, y - 8 * cell)  # above the first row
    check_passes(moved, numbers, 1, T, 1)
    moved.mouse.up()
    moved.hover(f"{here} [data-cell='4,0']", force=True)  # the drawing takes the event
    check_passes(moved, numbers, 1, T, 4)


def check_trap(browser, data, on):
    """The mask, the positions and the text of a trap are those of its run."""
    here = figure("trap")
    trap = data["traps"][on]
    truth = data["truth"]
    cells = "".join(trap["grid"]["cells"])
    letters = f"[...document.querySelectorAll('{here} [data-cell]')].map((one) => one.dataset.cell)"
    assert "".join(browser.evaluate(letters)) == cells
    wrong = sum(letter not in ".-" for letter in cells)
    assert many(browser, f"{here} rect.wrong") == many(browser, f"{here} .cross") == wrong
    apart = differing(trap["text"], truth)
    assert many(browser, f"{here} del") == len(apart)
    said = browser.text_content(f"{here} .told")
    assert said.startswith(f"{trap['name']}: {len(apart)} of {len(truth)} characters differ.")
    blanks = str.maketrans({"\n": "↵", " ": "␣"})
    for text, lines in ((truth, "true"), (trap["text"], "writes")):
        assert "".join(texts(browser, f"{here} .{lines}")) == text.translate(blanks)


@browsed
def test_the_keyboard_switches_each_trap_on(moved, data):
    traps = data["trap"]
    here = figure("trap")
    check_trap(moved, traps, 0)
    moved.evaluate(f"document.querySelector('{here} input:checked').focus()")
    for on in range(1, len(traps["traps"])):
        moved.keyboard.press("ArrowDown")
        check_trap(moved, traps, on)
    told = moved.text_content(f"{here} .told")
    assert "7 of 14 cells wrong: keys of another text are visible" in told
    moved.press(f"{here} svg", "ArrowDown")
    assert "at position 1: 7 of 14 cells wrong" in moved.text_content(f"{here} .told")


@browsed
def test_a_click_switches_a_trap_on_and_a_pointer_picks_a_query(moved, data):
    here = figure("trap")
    moved.click(f"{here} label:nth-of-type(4)")
    check_trap(moved, data["trap"], 3)
    told = f"{here} .told"
    assert "at position 4, but the code says 0: 5 of 7 cells wrong" in moved.text_content(told)
    moved.locator(f"{here} [data-cell='.']").first.hover()
    assert "at position 0: all cells correct" in moved.text_content(told)


# ------------------------------------------------------------------ every reader


@browsed
@pytest.mark.parametrize("window", ["browser", "phone"])
def test_figures_fit_the_window_and_their_words_can_be_read(window, page, request):
    browser = request.getfixturevalue(window)
    open_file(browser, page)
    browser.wait_for_function(DRAWN)
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    looks = """[...document.querySelectorAll('.stage svg text')].filter((text) => {
        const box = text.getBoundingClientRect();
        const room = text.closest('.stage').getBoundingClientRect();
        const high = parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a;
        const bare = text.hasAttribute('transform'); // it stands upright: its scale is another
        return box.left < room.left || box.right > room.right || (high < 11 && !bare);
    }).map((text) => text.textContent)"""
    assert browser.evaluate(looks) == []


@browsed
def test_a_finger_picks_a_character_on_a_phone(phone, page, data):
    open_file(phone, page)
    phone.wait_for_function(DRAWN)
    phone.tap(f"{figure('decode')} .row[data-row='5'] .weight")
    phone.wait_for_function(
        f"document.querySelector('{figure('decode')} .picked').dataset.row === '5'"
    )
    check_step(phone, data["decode"], T - 1, 0, 0, 5)


@browsed
def test_the_focused_element_is_outlined_and_changes_are_announced(moved):
    for kind in ("decode", "triangle", "trap"):
        moved.press(f"{figure(kind)} svg", "ArrowDown")
        assert moved.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        told = f"document.querySelector('{figure(kind)} .told').ariaLive"
        assert moved.evaluate(told) == "polite"


@browsed
def test_nothing_moves_by_itself_where_no_motion_is_wanted(moved):
    arrived = f"getComputedStyle(document.querySelector('{figure('decode')} .arrives'))"
    for wanted, name in (("no-preference", "arrives"), ("reduce", "none")):
        moved.emulate_media(reduced_motion=wanted)
        moved.press(f"{figure('decode')} input", "Home")
        moved.keyboard.press("ArrowRight")
        assert moved.evaluate(f"{arrived}.animationName") == name


@browsed
def test_on_paper_and_without_scripts_the_still_is_there(moved, page, chromium):
    seen = "[...document.querySelectorAll('figure.moving')].map((figure) => [...figure.children]"
    seen += ".filter((part) => part.checkVisibility()).map((part) => part.localName).join())"
    assert moved.evaluate(seen) == ["div"] * 3
    moved.emulate_media(media="print")
    assert moved.evaluate(seen) == ["picture"] * 3
    with blank_page(chromium, java_script_enabled=False) as still:
        open_file(still, page)
        assert still.evaluate(seen) == ["picture"] * 3
