"""The figures that move with what was measured show what Python computes from the same data."""

import pytest
from browsers import browsed, middle, open_file, texts
from notebook_fixtures import code, output, png, write

from nanogpt.bench.ladder import BUILT, EAGER
from nanogpt.bench.roofline import breakdown, work
from nanogpt.bench.tables import shown_label
from nanogpt.config import SIZES
from nanogpt.course.blanks.multiplications import multiplications
from nanogpt.files import PUBLISHED, read_json
from nanogpt.site import build
from nanogpt.site.measured import DOES, TIME_PARTS, moving_cost, moving_ladder
from nanogpt.timing import summary

MEDIUM = SIZES["medium"]
LARGE = SIZES["lecture"]
STEP = 2e-3  # seconds: of every step, and of every multiplication
EACH = 4e-11
PEAK = 1e11
READ = 5e10


def count(T, config, cached):
    """The multiplications of the step after T tokens, by the notebook's solution."""
    return multiplications(T, config.matrix_weights, config.n_layer, config.n_embd, cached)


def timing_of(n_new, gap):
    """A timing in which the gap before the token at a place, from 2 on, is gap(place, cached)."""
    systems = {
        name: {"itl": [gap(place, name == "cached") for place in range(2, n_new + 1)]}
        for name in ("uncached", "cached")
    }
    return {"systems": systems, "speedup": {"n": 5}}


def straight(place, cached):
    """A time on the line, a little off it and the same way back in the next place."""
    return (STEP + EACH * count(place, MEDIUM, cached)) * (1.01 if place % 2 else 0.99)


def row_of(config, rung, label, microseconds):
    """A rung whose token took so long in each of three turns; rung 1 took 8,000 µs."""
    seconds = [m * 1e-6 for m in microseconds]
    need = work(config, 255, cached=rung != "1")
    return {
        "rung": rung,
        "label": label,
        "tokens_per_second": summary(1 / s for s in seconds),
        "speedup": summary(8e-3 / s for s in seconds),
        "equal": True,
        "split": breakdown(sorted(seconds)[1], need, READ, PEAK),
    }


def ladder_of(config, native):
    """A ladder with a rung that cannot be built; the last one takes `native` microseconds."""
    rows = [
        row_of(config, "1", "per-Head, no cache", (8000, 8000, 8000)),
        row_of(config, "2", "per-Head, cache by torch.cat", (2100, 2000, 1800)),
        {"rung": "6", "label": "compiled step", "unavailable": "no C++ compiler (c++)"},
        row_of(config, "7", "native loop", native),
    ]
    limits = {"peak": summary([PEAK]), "read": summary([READ]), "roofline": summary([9e3, 1e4])}
    return {"n_new": 255, "repeats": 3, "limits": limits, "rungs": rows}


COST = moving_cost(MEDIUM, timing_of(255, straight), multiplications)
LADDERS = [  # the second one is sooner than its median bandwidth allows
    ("0.84M", ladder_of(MEDIUM, (120, 100, 95)), ""),
    ("10.8M", ladder_of(LARGE, (900, 800, 790)), "another machine"),
]
LADDER = moving_ladder(LADDERS)


# ------------------------------------------------------------------ the data


@pytest.mark.parametrize("size", SIZES)
def test_the_shape_that_a_page_counts_with_has_the_weights_of_the_model(size):
    config = SIZES[size]
    kind, data = moving_cost(config, timing_of(40, lambda place, _: place), multiplications)
    assert kind == "cost"
    layers = data["layers"] * data["block"] * data["width"] ** 2
    assert layers + data["vocabulary"] * data["width"] == config.matrix_weights


def test_every_time_is_in_one_point_and_the_line_is_found():
    data = COST[1]
    places = [p for point in data["points"] for p in range(point["from"], point["to"] + 1)]
    assert places == list(range(2, 256))
    assert data["tokens"] == 255
    first = data["points"][0]
    near = [straight(place, True) for place in range(first["from"], first["to"] + 1)]
    assert first["with"] == {key: pytest.approx(v, abs=1e-7) for key, v in summary(near).items()}
    assert data["line"]["step"] == pytest.approx(STEP, rel=0.02)
    assert data["line"]["each"] == pytest.approx(EACH, rel=0.02)
    assert data["line"]["off"] < 0.01
    assert data["line"]["n"] == 2 * len(data["points"])


def test_a_line_is_found_where_some_times_are_disturbed():
    def gap(place, cached):
        return straight(place, cached) * (9 if place % 5 == 0 else 1)

    line = moving_cost(MEDIUM, timing_of(255, gap), multiplications)[1]["line"]
    assert line["step"] == pytest.approx(STEP, rel=0.05)
    assert line["each"] == pytest.approx(EACH, rel=0.05)


@pytest.mark.parametrize(
    "gap",
    [
        lambda place, cached: 1e-3,
        lambda place, cached: 1e-3 / place,
        lambda place, cached: 1e-9 * count(place, MEDIUM, cached) - 1e-3,
        lambda place, cached: straight(place, cached) * (1 if place < 8 else 9) ** (1 - cached),
    ],
    ids=["flat", "falling", "from below zero", "anywhere"],
)
def test_times_on_no_line_have_none(gap):
    assert moving_cost(MEDIUM, timing_of(12, gap), multiplications)[1]["line"] is None


def test_every_rung_has_a_line_of_what_it_does():
    assert {rung.label for rungs in (EAGER, *BUILT.values()) for rung in rungs} <= {*DOES}


def test_the_parts_of_a_token_add_up_to_its_time_and_none_is_negative():
    published = read_json(PUBLISHED / "json" / "06.json")["results"]["ladder"]
    results = [result for _, result, _ in LADDERS] + [*published.values()]
    data = moving_ladder([("a", result, "") for result in results])[1]["ladders"]
    for ladder, result in zip(data, results, strict=True):
        for row, was in zip(ladder["rungs"], result["rungs"], strict=True):
            if "unavailable" in was:
                assert row["unavailable"] == was["unavailable"]
                continue
            assert min(row["split"].values()) >= 0
            total = sum(row["split"].values())
            assert 1 / total == pytest.approx(was["tokens_per_second"]["median"])
    assert 0.0 in [row["split"]["overhead"] for row in data[1]["rungs"] if "split" in row]


# ------------------------------------------------------------------ the figures in a browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    for number, moving in (("05", COST), ("06", LADDER)):
        shown = output(picture=png(), alt=f"figure {number}")
        shown.metadata["image/png"]["moving"] = {"kind": moving[0], "data": moving[1]}
        write(folder / f"{number}_x.ipynb", code("plot()", "plot", [shown]), title=f"{number} · X")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "KEEPER", folder / "none")
        return build.render(folder).parent


def compact(number):
    """A number as the figure says it: from a million on, four digits and a word."""
    words = ((1e9, "billion"), (1e6, "million"))
    found = (f"{number / unit:.4g} {word}" for unit, word in words if number >= unit)
    return next(found, f"{number:,}")


def duration(seconds):
    """A time as the figure says it: three digits."""
    value, unit = (seconds * 1e6, "µs") if seconds < 1e-3 else (seconds * 1e3, "ms")
    return f"{value:#.3g}".rstrip(".") + f"\xa0{unit}" if seconds else "0\xa0µs"


def times(ratio):
    return f"{ratio:.1f}×" if ratio < 20 else f"{ratio:,.0f}×"


def each(browser, selector, what):
    """A JavaScript expression of each element `e` of a selector."""
    return browser.evaluate(f"[...document.querySelectorAll({selector!r})].map((e) => {what})")


def table_of(browser):
    return each(browser, ".told tr", "[...e.cells].map((cell) => cell.textContent)")


def table_at(place, layers=4, width=128):
    """What the figure has to say of a place, from the notebook's solution and the data."""
    W = layers * 12 * width**2 + 65 * width
    ways = (False, True)
    now = [multiplications(place, W, layers, width, cached) for cached in ways]
    sums, twice = (
        [sum(multiplications(T, W, layers, width, c) for T in range(1, to + 1)) for c in ways]
        for to in (place, 2 * place)
    )
    said = ["measured", "–", "–", ""]
    near = [p for p in COST[1]["points"] if p["from"] <= place <= p["to"]]
    if near and (layers, width) == (4, 128):
        a, b = (near[0][way]["median"] for way in ("without", "with"))
        where = f"measured, tokens {near[0]['from']} to {near[0]['to']}"
        said = [where, duration(a), duration(b), times(a / b)]
    return [
        ["", "without", "with", " "],
        [f"multiplications of token {place:,}", *(f"{n:,}" for n in now), times(now[0] / now[1])],
        ["for the text so far, shaded", *map(compact, sums), times(sums[0] / sums[1])],
        [
            "if that text doubles",
            *(f"{b / a:.1f} times" for a, b in zip(sums, twice, strict=True)),
            " ",
        ],
        said,
    ]


def open_figure(browser, page):
    open_file(browser, page)
    browser.wait_for_function("document.querySelector('.stage')")


@pytest.fixture
def cost(browser, pages):
    open_figure(browser, pages / "05_x.html")
    browser.wait_for_function("document.querySelector('.plot circle')")
    return browser


@pytest.fixture
def ladder(browser, pages):
    open_figure(browser, pages / "06_x.html")
    return browser


@browsed
def test_keys_move_the_place_and_the_table_is_what_python_counts(cost):
    assert table_of(cost) == table_at(128)
    cost.press(".plot", "ArrowRight")
    assert table_of(cost) == table_at(129)
    cost.keyboard.press("Home")
    assert table_of(cost) == table_at(1), "before the first gap nothing is measured"
    cost.keyboard.press("ArrowLeft")
    assert table_of(cost) == table_at(1)
    cost.keyboard.press("End")
    assert table_of(cost) == table_at(255)
    assert cost.evaluate("document.activeElement.getAttribute('aria-valuenow')") == "255"
    assert "255×" in cost.evaluate("document.activeElement.getAttribute('aria-valuetext')")
    assert cost.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@browsed
def test_a_pointer_moves_the_place(cost):
    now = "Number(document.querySelector('.plot').getAttribute('aria-valuenow'))"
    cost.press(".plot", "Home")
    cost.hover(".plot")
    place = cost.evaluate(now)
    assert abs(place - 128) <= 2
    assert table_of(cost) == table_at(place)
    (here,) = each(cost, ".here", "e.getBoundingClientRect().x")
    assert abs(here - middle(cost, ".plot")[0]) < 2, "the line stands under the pointer"


@browsed
def test_sliders_change_the_model_and_a_button_brings_back_the_one_that_was_measured(cost):
    circles = "document.querySelectorAll('.plot circle').length"
    assert cost.evaluate(circles) == 2 * len(COST[1]["points"])
    note = cost.text_content(".stage .meta")
    line = COST[1]["line"]
    assert duration(line["step"]) in note
    assert f"1 ms for {compact(1e-3 / line['each'])} multiplications" in note
    cost.press(".knob:nth-child(1) input", "ArrowRight")
    cost.press(".knob:nth-child(2) input", "ArrowRight")
    assert table_of(cost) == table_at(128, layers=5, width=160)
    assert cost.evaluate(circles) == 0
    assert cost.text_content(".stage .meta").startswith("The run measured 4 layers of width 128.")
    cost.press(".knob:nth-child(3) input", "Home")
    assert table_of(cost) == table_at(15, layers=5, width=160), "the place stays in the text"
    cost.press(".stage > button", "Enter")
    assert table_of(cost) == table_at(15)
    assert cost.evaluate(circles) == 2 * len(COST[1]["points"])
    assert cost.evaluate("document.querySelector('.stage > button').hidden")
    assert each(cost, ".knob output", "e.value") == ["4", "128", "255"]


@browsed
def test_points_and_lines_stand_where_their_times_and_counts_are(cost):
    """In one scale: a dashed line is as far above its curve as every step takes."""
    data = COST[1]
    height = "Number(e.getAttribute('cy'))"
    tops = each(cost, ".plot circle.without", height)
    seconds = [point["without"]["median"] for point in data["points"]]
    rise = (tops[0] - tops[-1]) / (seconds[-1] - seconds[0])  # pixels for a second
    step, multiplication = (rise * data["line"][name] for name in ("step", "each"))
    (ground,) = each(cost, ".plot .here", "Number(e.getAttribute('y2'))")
    for top, time in zip(tops, seconds, strict=True):
        assert ground - top == pytest.approx(rise * time, abs=0.1)
    for cached, way in ((False, "without"), (True, "with")):
        ends = each(cost, f".plot .curve.{way}", "Number(e.getAttribute('d').split(',').at(-1))")
        curve = ground - multiplication * count(255, MEDIUM, cached)
        assert ends == pytest.approx([curve, curve - step], abs=0.1)
    words = texts(cost, ".plot text")
    assert f"{duration(data['line']['step'])} in every step" in words


def said_of(ladder, i):
    """What the figure has to say of an open rung: in one line, and part by part."""
    name, result, _ = LADDERS[ladder]
    row = result["rungs"][i]
    total = sum(row["split"].values())
    speed = row["speedup"]
    shares = {part: f"{round(100 * row['split'][part] / total)} %" for part in TIME_PARTS}
    low, mid, high = (times(speed[key]) for key in ("low", "median", "high"))
    label = shown_label(row["label"])
    line = (
        f"Rung {row['rung']}, {label}, {name}: {mid} ({low} to {high}, n = 3) the speed of "
        f"rung 1; its tokens are equal. {duration(total)} a token: "
        f"{', '.join(f'{part} {share}' for part, share in shares.items())}."
    )
    return line, [f"{p} {duration(row['split'][p])}, {shares[p]}" for p in TIME_PARTS]


def open_of(browser):
    return each(browser, ".rungs button", "e.ariaExpanded === 'true'")


def parts_of(browser):
    return texts(browser, ".opened:not([hidden]) b")


@browsed
def test_enter_and_a_click_open_a_rung_into_the_parts_of_its_time(ladder):
    assert open_of(ladder) == [False] * 4
    ladder.press(".rungs li:nth-child(3) button", "Enter")
    assert [ladder.text_content(".told"), parts_of(ladder)] == [*said_of(0, 1)]
    assert open_of(ladder) == [False, True, False, False]
    assert DOES["per-Head, cache by torch.cat"] in ladder.text_content(".opened:not([hidden])")
    ladder.click(".rungs li:nth-child(5) button")
    assert [ladder.text_content(".told"), parts_of(ladder)] == [*said_of(0, 3)]
    assert open_of(ladder) == [False, False, False, True]
    ladder.press(".rungs li:nth-child(5) button", "Enter")
    assert open_of(ladder) == [False] * 4
    assert ladder.text_content(".told").startswith("Open a rung")
    assert ladder.evaluate("document.querySelector('.rungs li:nth-child(4) button').disabled")
    assert "no C++ compiler (c++)" in ladder.text_content(".rungs li:nth-child(4)")


@browsed
def test_bars_are_as_long_as_times_and_dots_stand_where_speeds_are(ladder):
    ladder.emulate_media(reduced_motion="reduce")
    ladder.click(".rungs li:nth-child(3) button")
    width = "e.getBoundingClientRect().width"
    opened = ".opened:not([hidden])"
    before, own = each(ladder, f"{opened} .time", width)
    first, second = (sum(row["split"].values()) for row in LADDERS[0][1]["rungs"][:2])
    assert own / before == pytest.approx(second / first, rel=0.01)
    parts = each(ladder, f"{opened} .timed:last-of-type .time span", width)
    split = LADDERS[0][1]["rungs"][1]["split"]
    for width, part in zip(parts, TIME_PARTS, strict=True):
        assert width / sum(parts) == pytest.approx(split[part] / second, abs=0.01)
    _, unit, ten, *_ = each(ladder, ".tick", "Number.parseFloat(e.style.left)")
    dot = each(ladder, ".dot", "Number.parseFloat(e.style.left)")[1]
    assert 10 ** ((dot - unit) / (ten - unit)) == pytest.approx(4.0, rel=0.001)


@browsed
def test_a_rung_stays_open_in_the_ladder_of_another_model(ladder):
    ladder.press(".rungs li:nth-child(5) button", "Enter")
    ladder.press(".knob select", "ArrowDown")
    assert [ladder.text_content(".told"), parts_of(ladder)] == [*said_of(1, 3)]
    assert "Published, not from this run (another machine)" in ladder.text_content(".stage .meta")
    assert "overhead 0\xa0µs, 0 %" in parts_of(ladder)
    assert "None is left" in ladder.text_content(".opened:not([hidden])")


@browsed
@pytest.mark.parametrize("window", ["browser", "phone"])
def test_both_figures_fit_the_window_and_their_words_are_large_enough(window, pages, request):
    browser = request.getfixturevalue(window)
    for page, button in (("05_x", None), ("06_x", ".rungs li:nth-child(3) button")):
        open_figure(browser, pages / f"{page}.html")
        if button:
            browser.press(button, "Enter")
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        words = "[...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())"
        scale = "(e.getScreenCTM ? e.getScreenCTM().a : 1)"
        size = f"Number.parseFloat(getComputedStyle(e).fontSize) * {scale}"
        sizes = each(browser, ".stage *", f"{words} ? {size} : 99")
        assert min(sizes) >= 11
