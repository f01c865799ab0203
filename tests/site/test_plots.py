"""Every figure is drawn from plain data, to equal bytes, with its finding in words to be read."""

import functools
import io
import itertools
import json

import matplotlib
import pytest
from matplotlib.text import Text
from PIL import Image

from nanogpt.site import plots
from nanogpt.site.plots import style

DPI = 50


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """A coarse picture is drawn sooner."""
    monkeypatch.setattr(style, "DPI", DPI)


def summary(value):
    return {"median": value, "low": 0.9 * value, "high": 1.1 * value, "n": 5}


def system(gap, n=20, slope=0.0):
    itl = [gap + slope * i for i in range(n - 1)]
    whole = gap + sum(itl)
    mean = sum(itl) / len(itl)
    return {"ttft": summary(gap), "e2el": summary(whole), "tpot": summary(mean), "itl": itl}


TEXT = list("a $\n")
SHARES = [0.1, 0.2, 0.003, 0.697]
DOLLARS = "$3_a $$_$ \\x"  # no formula: where one were read in it, drawing would fail
SYSTEMS = {"uncached": system(1.0, slope=0.2), "cached": system(1.0)}
DUEL = {"systems": SYSTEMS, "speedup": summary(2.9)}
HISTORY = {"step": [0, 5, 10], "train": [4.2, 3.0, 2.5], "val": [4.2, 3.1, 2.7]}
HISTORY |= {"batch_loss": [3.0] * 10, "block": [64, 64, 128][: len(HISTORY["step"])]}
MASK = {"label": "a ring", "q": [3], "k": [0, 2, 3, -1], "mask": [[False, True, True, False]]}
SOFT = [[1.0, 0.0, 0.0], [0.75, 0.25, 0.0], [0.04, 0.26, 0.7]]
VALUES = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5]]
LOOKS = {"label": "step 0", "rows": [[0.1, 0.9, 0.0], [0.3, 0.3, 0.1]]}
STRIP = {"label": "x", "text": "ab\n", "green": [True, False, True], "note": "✗ 1 of 3"}
BITS = [{"label": "a", "apart": [[0, 1, 3], [0, 0, 4000]]}, {"label": "b", "apart": [[0] * 3] * 2}]
GAINS = [(1, 1, 0.8, {"bound": "calls"}), (1, 8, 2.0, {"bound": "arithmetic"}), (64, 1, 16.0, {})]
GAINS = [{"batch": b, "n_new": n, "gain": summary(x), **more} for b, n, x, more in GAINS]
CURVES = {
    "cat": ([1, 8], [summary(2.0), summary(8.0)]),
    "static": ([1, 8], [1.0, 1e-18], [2.0, 1e-9]),
}
PANELS = [{"curves": CURVES, "log": "xy", "unit": 2.0, "ylabel": "time"}, {"curves": CURVES}]
SPEEDS = {"1  per-Head": 1, "6  compiled": None, "8  rough": summary(200.0)}
ROWS = [{"rows": SPEEDS, "limit": summary(300.0), "rough": ["8  rough"], "xlabel": "speed, 1 = 1"}]
ROWS += [
    {
        "rows": dict.fromkeys(SPEEDS, 8e3),
        "base": list(SPEEDS)[:1],
        "xscale": "log",
        "xlabel": "bytes",
    }
]
COLUMNS = [[name, [[0.0, 0.5, 1.0]] * 4, name == "key"] for name in ("key", "attention weights")]
ANGLES = [[0.6 + 0.3 * p, 0.3 * p] for p in range(14)]
NAMED = MASK | {"names": ["a", "b $\n"]}
BOXES = [(0.0, 2.0, "waits"), (2.0, 3.0, "prompt"), (3.0, 4.0, "token"), (4.0, 6.0, "idle")]
BATCHED = {"name": "static batches", "rows": [{"spans": BOXES}] * 3}
CLIENT = {"name": "client 1", "spans": [(0.0, 1.0, "travels"), *BOXES[1:2]], "tokens": [5, 7]}
REQUEST = {"name": "x", "rows": [CLIENT]}

# What each figure function is called with, and words that must stand in the figure. What stands
# behind a comma is another case of the function.
FIGURES = {
    "losses": ([HISTORY, {"ln 65": 4.17, "large": 1.47}, "2.70 at last"], "2.70 at last|large"),
    "lines": ([PANELS, "two panels"], "two panels|cat static"),
    "dots": ([ROWS, "both"], "both|roofline|not measured here|200.00×|bytes|speed, 1 = 1"),
    "dots, larger": ([[{"rows": SPEEDS, "missing": "–", "xlabel": "x"}], "t", 12], "– |200.00×"),
    "masks": ([[MASK] * 4, "one rule"], "one rule|a ring|∅"),
    "masks, one of characters": ([[NAMED], "one rule"], "␣|$|↵"),
    "decode_step": (
        [TEXT, SHARES, "one key"],
        "written to the cache: 1 key and 1 value|from earlier steps: 3 keys and 3 values. The "
        "query reads all 4|computed in this step: 4 keys and 4 values|10% 20% <1% 70%",
    ),
    "attention_step": ([TEXT[:3], "scores", SOFT, "all"], "q · k"),
    "attention_step, weights": ([TEXT[:3], "weights", SOFT, "shares"], "2, 3 mask|75%"),
    "attention_step, mix": ([TEXT[:3], "mix", [SOFT, VALUES], "x"], "−0.7|0.6"),
    "triangle": ([TEXT, 3, "x", [[0.25] * 4] * 4], "3 rows in one pass|one row per step, 1 step."),
    "token_path": (
        [TEXT, COLUMNS, "x"],
        "2 rows computed, 3 read|8 rows computed, all but 2 again|key|attention weights",
    ),
    "arrows": ([ANGLES, "x", [[5, 2], [13, 10]]], "angle 86°"),
    "heads": ([[LOOKS] * 2, "x", 2], "step 0|head 1|90 |characters back"),
    "heads, of an odd number": ([[LOOKS] * 3, "x", 2], "step 0|head 1|90 |characters back"),
    "ring": ([4, [1, 6], "x"], "slot 2, which is free|7 takes slot 3, position 3 is lost"),
    "token_strips": ([[STRIP, {"label": "y", "text": "ab"}], "one trap"], "✗ 1 of 3|one trap"),
    "token_strips, not wrong": ([[STRIP] * 2, "two of three", 60, False], "two of three|✗ 1 of 3"),
    "token_strips, named": ([[STRIP], "one", 60, False, ("kept", "new")], "one|kept|new"),
    "last_bits": ([BITS, "3 differ"], "3 differ"),
    "typing_race": ([f"{DOLLARS} some text", DUEL, 0.9], "2.90×"),
    "typing_race, at rest": (["x" * 20, DUEL], "it: 20 of 20 tokens ✓|cache: 11 of 20"),
    "speedup_map": (
        [[("ours", GAINS), ("another machine", GAINS[:1])], "a map"],
        "a map|ours|another machine|▼ 0.80×|2.00×|16.0×|14.4–17.6|calls|arithmetic|batch 64|–",
    ),
    "timelines": ([[BATCHED], "idle places", "a clock"], "idle places|waits|an idle slot|a clock"),
    "timelines, named": ([[REQUEST], "one waits", "ms"], "client 1|a token"),
}


@functools.cache
def drawn(name):
    """A figure and its bytes with a footer, drawn once for all tests."""
    figure = getattr(plots, name.split(",")[0])(*FIGURES[name][0])
    return figure, style.to_png(figure, "a footer")


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_states_its_finding_in_words_that_can_be_read(name):
    figure, png = drawn(name)
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    said = " ".join(" ".join(text.get_text() for text in texts).split())
    assert not [words for words in FIGURES[name][1].split("|") if words not in said], said
    on_paper = [text for text in texts if text.get_color() not in ("white", "w")]
    assert all(style.contrast(text.get_color(), "white") >= 4.5 for text in on_paper)
    assert Image.open(io.BytesIO(png)).size[0] == round(style.WIDTH * DPI)
    json.dumps(FIGURES[name], allow_nan=False)


def test_on_a_phone_a_panel_has_only_the_rows_that_were_measured():
    panels = [{"rows": {"one": 1.0, "two": None}, "xlabel": "x"}] * 2
    figure = plots.dots(panels, "t")
    names = [[word.get_text() for word in axes.get_yticklabels()] for axes in figure.axes]
    assert names[0] == ["one", "two"]
    phone = plots.for_phone(figure)
    names = [[word.get_text() for word in axes.get_yticklabels()] for axes in phone.axes]
    assert names == [["one"], ["one"]]


def test_every_figure_function_is_drawn_here():
    named = {name for name, thing in vars(plots).items() if hasattr(thing, "__wrapped__")}
    assert {name.split(",")[0] for name in FIGURES} == named


def test_equal_data_gives_equal_bytes_whatever_the_reader_s_own_style():
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        figure = plots.lines(*FIGURES["lines"][0])
        assert style.to_png(figure, "a footer") == drawn("lines")[1]
    assert style.to_png(plots.lines(*FIGURES["lines"][0])) != drawn("lines")[1], "no footer"


@pytest.mark.parametrize("colour", [style.BLUE, style.ORANGE, style.VERMILION, "white", "black"])
def test_words_on_a_colour_and_names_in_it_can_be_read(colour):
    assert style.contrast(style.ink_on(colour), colour) >= 4.5
    assert style.contrast(style.on_paper(colour), "white") >= 4.5


@pytest.mark.parametrize("name", ["lines", "losses"])
def test_no_two_words_of_a_figure_lie_on_each_other(name):
    figure = drawn(name)[0]
    found = [text for axes in figure.axes for text in [*axes.texts, axes.xaxis.label]]
    legends = figure.legends + [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    found += figure.texts + [text for legend in legends for text in legend.get_texts()]
    boxes = [Text.get_window_extent(word).padded(-0.4) for word in found if word.get_text()]
    assert not [1 for one, other in itertools.combinations(boxes, 2) if one.overlaps(other)]


@pytest.mark.parametrize("name", FIGURES)
def test_on_a_phone_every_word_can_be_read_and_stays_on_the_figure(name):
    """420 pixels wide, a word is at least 10 high."""
    figure = style.for_phone(drawn(name)[0])
    png = Image.open(io.BytesIO(style.to_png(figure, "a footer " * 20)))
    assert png.width == int(style.PHONE * DPI * style.FINER)
    said = [text for text in figure.findobj(Text) if text.get_text()]
    assert min(text.get_fontsize() for text in said) * 420 / (72 * style.PHONE) >= 10
    placed = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        placed += [*axes.texts, axes.xaxis.label, axes.yaxis.label]
    boxes = extents(figure, [text for text in placed if text.get_text()])
    wide, high = figure.bbox.size
    assert all(box.x0 >= -2 and box.x1 <= wide + 2 for box in boxes)
    assert all(box.y0 >= -2 and box.y1 <= high + 2 for box in boxes)


def extents(figure, texts):
    """Where texts stand, in pixels of the figure as it is drawn at 100 to the inch."""
    figure.set_dpi(100)
    figure.draw_without_rendering()
    return [text.get_window_extent() for text in texts]


def test_a_long_footer_takes_lines_and_its_words_stay():
    figure = plots.lines(*FIGURES["lines"][0])
    style.to_png(figure, "measured here, and " * 20)
    (footer,) = [text for text in figure.texts if "measured" in text.get_text()]
    assert footer.get_text().split() == ("measured here, and " * 20).split()
    below, *names = extents(figure, [footer, *figure.legends[0].get_texts()])
    assert below.x1 <= figure.bbox.width
    assert below.y1 <= min(box.y0 for box in names)


def test_other_alphabets_are_drawn_without_a_flood_of_warnings(recwarn):
    style.to_png(plots.typing_race("日本語", DUEL))
    assert not recwarn.list


def test_equal_logits_have_no_place_on_a_log_scale():
    curves = {"equal": ([1, 2], [0.0, 1e-6])}
    figure = plots.lines([{"curves": curves, "log": "y", "ls": ""}], "one is equal")
    x, y = figure.axes[0].transData.transform((1, 0.0))
    assert y < 0, "below the page: on the axis stands a small number"


def test_marks_that_were_not_measured_are_open_and_the_others_filled():
    curves = {"one": ([1, 2, 4], [1.0, 2.0, 3.0]), "other": ([1, 2, 4], [3.0, 2.0, 1.0])}
    figure = plots.lines([{"curves": curves, "hollow": {"one": [2, 4]}}], "open marks")
    open_marks = [
        line.get_xydata().tolist()
        for line in figure.axes[0].lines
        if line.get_markerfacecolor() == style.PAPER
    ]
    assert open_marks == [[[2, 2]], [[4, 3]]]
