"""Every figure is drawn from plain data, to equal bytes, with its finding in the title."""

import functools
import io
import itertools
import json

import matplotlib
import pytest
from matplotlib.patches import Wedge
from matplotlib.text import Text
from PIL import Image

from nanogpt.notebook import plots
from nanogpt.notebook.plots import canvas, style

DPI = 50


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """A coarse picture is drawn sooner."""
    monkeypatch.setattr(style, "DPI", DPI)


def summary(value):
    return {"median": value, "low": 0.9 * value, "high": 1.1 * value, "n": 5}


def system(gap, n=20, slope=0.0):
    itl = [gap + slope * i for i in range(n - 1)]
    whole, mean = gap + sum(itl), sum(itl) / len(itl)
    return {"ttft": summary(gap), "e2el": summary(whole), "tpot": summary(mean), "itl": itl}


def rung(number, label, speed, **more):
    speeds = {"speedup": summary(speed), "tokens_per_second": summary(3 * speed)}
    return {"rung": number, "label": label, **speeds, **more}


DOLLARS = "$3_a $$_$ \\x"  # no formula: where one were read in it, drawing would fail
DUEL = {
    "systems": {"uncached": system(1.0, slope=0.2), "cached": system(1.0)},
    "speedup": summary(2.9),
}
HISTORY = {
    "step": [0, 5, 10],
    "train": [4.2, 3.0, 2.5],
    "val": [4.2, 3.1, 2.7],
    "batch_loss": [3.0] * 10,
}
TRIAL = {"rate": [0.5, 1.0, 0.5], "step": [0, 1, 2, 3], "val": [4.2, 3.0, 2.9, 2.5]}
LINE = {"label": "lecture", "loss": 1.81, "curve": [[0.0, 4.2], [9.0, 2.0], [96.0, 1.81]]}
PANELS = [
    {
        "title": "block 32",
        "lines": [LINE | {"seconds": summary(96.0)}, LINE | {"label": "sprint+"}],
    },
    {"title": "block 64", "lines": [LINE | {"label": "a new one"}]},
]
IDEAS = [{"name": "a", "loss": summary(2.1)}, {"name": "b", "loss": summary(1.7)}]

MASK = {"label": "a ring", "q": [3], "k": [0, 2, 3, -1], "mask": [[False, True, True, False]]}
COSTS = [
    {"name": "MHA", "loss": summary(1.7), "bytes": 2e6, "table": True},
    {"name": "MQA", "loss": summary(1.6), "bytes": 8e3, "table": False},
]
CURVES = {"table": [2.0, 1.9], "rotary": [2.0, 1.9, 3.0, 3.5], "window": [2.0, 1.9, 1.9, 1.8]}

TEXT = list("a $\n")
SHARES = [0.1, 0.2, 0.003, 0.697]
SCORES = [[0.5, -1.0, 2.0], [1.0, -0.04, 3.0], [-2.0, 0.0, 1.0]]
MASKED = [[0.5, None, None], [1.0, -0.04, None], [-2.0, 0.0, 1.0]]
SOFT = [[1.0, 0.0, 0.0], [0.75, 0.25, 0.0], [0.04, 0.26, 0.7]]

STRIP = {"label": "x", "text": "ab\n", "truth": "ac\n"}
REPORT = {
    "equal": True,
    "n_new": 3,
    "first_divergence": None,
    "logit_diffs": [0.0, 1e-6, 2e-6],
    "margins": [0.5, 1.0, 0.01],
    "min_margin": 0.01,
    "max_logit_diff": 2e-6,
}
BITS = [
    {"label": "usual", "apart": [[0, 1, 3], [0, 0, 4000]]},
    {"label": "exact", "apart": [[0] * 3] * 2},
]

CELLS = [
    {"row": "small", "n_new": 1, "speedup": summary(0.8)},
    {"row": "small", "n_new": 8, "speedup": summary(2.0)},
    {"row": "article", "n_new": 1, "speedup": summary(0.9)},
]
CASE = {"label": "1 + 9", "share": summary(0.25)}
BYTES = [{"label": "GPT-2", "lengths": [1, 1024], "bytes": [73_728, 75_497_472]}]
UPDATES = {"cat": [summary(2.0), summary(8.0)], "static": [summary(1.0)] * 2}
CONTEXT = [
    {"label": label, "seconds": [summary(2.0), summary(2.0 * grows)], "bytes": [9e3, 9e3 * grows]}
    for label, grows in (("all", 9), ("ring", 1))
]

PARTS = {"arithmetic": 1e-6, "memory": 2e-6, "overhead": 1e-5}
LADDER = {
    "limits": {"roofline": summary(900.0)},
    "rungs": [
        rung("1", "per-Head", 1.0, split=PARTS),
        {"rung": "6", "label": "compiled step", "unavailable": "no compiler"},
        rung("7", "native", 200.0, split=PARTS),
        rung("8", "native, 8-bit weights", 250.0),
    ],
}
BATCHES = [
    {"label": name, "batch": n, "tokens_per_second": summary(9.0 * n), "step": summary(2.0)}
    for name in ("static", "native")
    for n in (1, 8)
]
DRAFTED = {"label": "a table", "text": "ab\n", "drafted": [True, False, True]}
PASSES = {"k": [1, 4], "measured": [1.6, 2.1], "predicted": [1.6, 2.2]}
PASSES = {"label": "a table", "acceptance_rate": 0.64, **PASSES}
NO_DRAFT = {"label": "no draft", "plain": True, "speedup": {"median": 1.0, "low": 1.0, "high": 1.0}}
LEAP = {"label": "8 bits, k = 4", "speedup": summary(2.0)}

BOXES = [[(0.0, 2.0, "waits"), (2.0, 3.0, "prompt"), (3.0, 4.0, "token"), (4.0, 6.0, "idle")]]
SEEN = [[True, True, False], [False, False, True]]
TABLES = [{"name": "a text", "blocks": [(0, "ab$ ", "old"), (3, "cd", "new")]}]
STEPS = [{"kind": kind, "n": n, "cost": summary(n)} for kind in ("a", "b") for n in (1, 4)]
LINES = [{"kind": kind, "start": 1.0, "slope": 0.1} for kind in ("a", "b")]
GAPS = {"name": "in chunks", "points": [(1.0, 1.1), (2.0, 1.0)], "enters": 1.5}
SPEED = {"tokens_per_second": summary(9.0), "e2el_p95": summary(0.2)}
REPLAYED = {"tokens_per_second": 9.0, "e2el_p95": 0.2}
LOADS = [{"name": "one at a time", "measured": [SPEED] * 2, "replayed": [REPLAYED] * 2}]
LOADS += [{"name": "a server", "measured": [SPEED], "replayed": []}]
LOADS = [{"name": "a model", "curves": LOADS}]
WIRES = [
    {"ours": "a.weight", "how": how, "theirs": "b.weight" if kind != "none" else "", "kind": kind}
    for how, kind in (("copied", "copied"), ("folded", "changed"), ("refused", "none"))
]
APART = [{"name": "float32", "apart": [0.0, 1e-6]}, {"name": "float64", "apart": [0.0, 1e-15]}]
STEP = [{"name": "1 process", "parts": {"computes": 9.0, "exchanges": 1.0}, "range": [8.0, 12.0]}]
LINKS = [{"name": "small", "lines": [{"name": "slow", "points": [(1, 1.0), (2, 1.5), (4, 0.6)]}]}]
SPANS = [(0.0, 1.0, "on its way"), (1.0, 2.0, "in the queue"), (2.0, 4.0, "reads the prompt")]
LIVES = [{"name": "one client", "rows": [{"name": "client 1", "spans": SPANS, "tokens": [5, 7]}]}]

# What each figure function is called with; what stands behind a comma is another case of it.
FIGURES = {
    "characters": [{"a": 6, "B": 2, "$": 1, " ": 1}],
    "batch": [["ab $"], ["b $\n"]],
    "losses": [HISTORY, {"ln 65": 4.17, "a large model": 1.47}, "2.70 at last"],
    "schedules": [{"a": TRIAL, "b": TRIAL}, "b falls"],
    "recipes": [PANELS, "15 times sooner"],
    "ideas": [[*IDEAS, {"name": "c", "loss": summary(1.8)}], "from 2.1 to 1.7"],
    "singular_values": [{"a gradient": [3.0, 0.1, 0.02], "Muon": [1.1, 1.0, 0.9]}, "all count"],
    "look_ups": [TEXT, "rows, no arithmetic"],
    "masks": [[MASK] * 4, "one rule"],
    "bytes_and_loss": [COSTS, "4× less", 64],
    "loss_by_position": [CURVES, 8, 16, "it ends"],
    "decode_step": [TEXT, SHARES, "one key, one value"],
    "decode_step, a window and drafts": [TEXT, [0, *SHARES[1:]], "two keys"],
    "attention_steps": [TEXT[:3], SCORES, MASKED, SOFT, "an average of what came before"],
    "attention_steps, with values": [TEXT[:3], SCORES, MASKED, SOFT, "an average"],
    "attention_steps, one": [TEXT[:3], SCORES, MASKED, SOFT, "weights"],
    "triangle, with weights": [TEXT, 3, "three rows, then one"],
    "triangle": [TEXT, 3, "three rows, then one"],
    "sharing": [6, [["MHA", 6], ["GQA", 2], ["MQA", 1]], "one third, one sixth"],
    "arrows": [[[0.6 + 0.3 * p, 0.3 * p] for p in range(14)], "the distance decides"],
    "ring": [4, [1, 3, 6], "the oldest goes"],
    "token_strips": [[STRIP], "one trap", 3],
    "token_strips, equal": [[STRIP | {"truth": STRIP["text"]}], "no trap", 3],
    "margins": [REPORT],
    "precision": [{"float32": REPORT}],
    "last_bits": [BITS, "3 differ"],
    "last_bits, none": [BITS[1:], "0 differ"],
    "two_bars": [DUEL, 20, True],
    "two_bars, unequal": [DUEL, 20, False],
    "typing_race": [f"{DOLLARS} some text", DUEL, 0.9],
    "typing_race, at rest": ["x" * 20, DUEL],
    "per_token": [DUEL, "slopes"],
    "speedup_map": [CELLS, ["small", "article"], [1, 8], "a map"],
    "prefill_split": [[CASE], "a split"],
    "cache_bytes": [BYTES, "half a megabyte"],
    "update_cost": [[64, 99], UPDATES, "4×"],
    "context_cost": [[64, 512], CONTEXT, "9×"],
    "ladder": [[LADDER], ["small"], "200× at the top"],
    "ladder, two sizes": [[LADDER] * 2, ["a", "b"], "both"],
    "time_split": [[LADDER], ["small"], "77% overhead"],
    "throughput": [BATCHES, "8 texts, 8×"],
    "drafted": [[DRAFTED] * 2, "two of three"],
    "tokens_per_pass": [[PASSES] * 2, "up to 2.1"],
    "speculation_speed": [[NO_DRAFT, LEAP], summary(1.3), "2× the best rung"],
    "timelines": [[{"name": "static batches", "rows": BOXES}], "idle places"],
    "step_mask": [TEXT[:2], [0, 1], [["a", 0], [" ", 0], ["$", 1]], SEEN, "its own text"],
    "block_tables": [TABLES, "named twice"],
    "gaps": [[GAPS] * 2, "one spike, then flat"],
    "step_cost": [STEPS, LINES, "2.4 times the shortest"],
    "load": [LOADS * 2, "6 times the load"],
    "wiring": [WIRES, "one is folded", ["ours", "theirs"]],
    "losses_apart": [APART, "to rounding"],
    "step_parts": [STEP, "a tenth is exchange"],
    "scaling": [LINKS * 2, "no gain from 4"],
    "request_lines": [LIVES * 2, "it waits for a place"],
}
OPTIONS = {
    "decode_step, a window and drafts": {
        "new": [2, 3],
        "unread": [0],
        "labels": [4, 5, 6, 7],
        "again": True,
    },
    "attention_steps, with values": {"values": [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5]]},
    "attention_steps, one": {"panel": "weights"},
    "triangle, with weights": {"weights": [[1 / (i + 1)] * 4 for i in range(4)]},
}
# Words that a figure makes of its data; every other figure is given its finding as a title.
FOUND = {
    "characters": ["4 characters"],
    "batch": ["4 lessons"],
    "bytes_and_loss": ["1.600", "8 kB"],
    "loss_by_position": ["no row past 16"],
    "token_strips": ["✗ 1 of 3"],
    "token_strips, equal": ["✓ equal"],
    "margins": ["5,000 times"],
    "precision": ["✓ 3 equal"],
    "two_bars": ["The same 20 tokens, 2.9× (2.6–3.2, n = 5)"],
    "two_bars, unequal": ["NOT the same"],
    "typing_race": ["2.9×"],
    "typing_race, at rest": ["with it: 20 of 20 tokens ✓ finished", "cache: 11 of 20"],
    "drafted": ["67%"],
    "tokens_per_pass": ["a table: 64% accepted"],
    "speculation_speed": ["2.00×"],
    "ideas": ["1.700 (−0.400)", "1.800 (+0.100)"],
    "speedup_map": ["▼ 0.80×", " 2.00×", "0.99 –"],
    "ladder": ["roofline 300×"],
    "triangle": ["3 rows in one pass", "one row a step, 1 step."],
    "sharing": ["6 key/value heads all bytes", "2 key/value heads 1/3", "1 key/value head 1/6"],
    "ring": [
        "position 2 takes slot 2, which is free",
        "position 4 takes slot 0, position 0 is lost",
        "position 7 takes slot 3, position 3 is lost",
    ],
    "decode_step": [
        "written to the cache: 1 key and 1 value",
        "from earlier steps: 3 keys and 3 values. The query reads all 4",
        "10% 20% <1% 70%",
    ],
    "decode_step, a window and drafts": [
        "written to the cache: 2 keys and 2 values",
        "from earlier steps: 1 key and 1 value. The last query reads all 3",
        "outside the window, not read: 1 key and 1 value",
        "without a cache, computed in this step: 4 keys and 4 values",
        "4 5 6 7",
    ],
    "attention_steps, with values": ["1 scores", "2 mask", "3 weights", "4 output", "−0.7", "0.6"],
    "attention_steps, one": ["75%", "3 weights: softmax of each row"],
}


@functools.cache
def drawn(name):
    """A figure and its bytes with a footer, drawn once for all tests."""
    figure = getattr(plots, name.split(",")[0])(*FIGURES[name], **OPTIONS.get(name, {}))
    return figure, style.to_png(figure, "a footer")


def words(name):
    """All words in a figure, with single spaces."""
    figure = drawn(name)[0]
    texts = [figure.get_suptitle(), *(axes.get_title(loc="left") for axes in figure.axes)]
    texts += [text.get_text() for axes in figure.axes for text in axes.texts]
    return " ".join(" ".join(texts).split())


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_states_its_finding_at_the_one_width(name):
    titles = [value for value in FIGURES[name] if isinstance(value, str)][-1:]
    for found in FOUND.get(name, titles):
        assert found in words(name)
    assert Image.open(io.BytesIO(drawn(name)[1])).size[0] == round(style.WIDTH * DPI)


def test_every_figure_function_is_drawn_here():
    named = {name for name, thing in vars(plots).items() if hasattr(thing, "__wrapped__")}
    assert {name.split(",")[0] for name in FIGURES} == named


def test_data_for_figures_is_plain_json():
    json.dumps(FIGURES, allow_nan=False)


@pytest.mark.parametrize("name", ["decode_step", "recipes"])
def test_equal_data_gives_equal_bytes_whatever_the_reader_s_own_style(name):
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        figure = getattr(plots, name)(*FIGURES[name])
        assert style.to_png(figure, "a footer") == drawn(name)[1]
    assert style.to_png(getattr(plots, name)(*FIGURES[name])) != drawn(name)[1], "no footer"


def test_an_animation_is_one_png_with_all_its_frames():
    frames = [plots.typing_race("some text", DUEL, seconds) for seconds in (0.1, 0.9)]
    image = Image.open(io.BytesIO(plots.to_apng(frames, "a footer")))
    assert (image.format, image.n_frames) == ("PNG", 2)


def test_one_step_of_attention_stands_alone_and_weights_shade_a_triangle():
    assert "q · k" not in words("attention_steps, one")
    assert drawn("triangle, with weights")[1] != drawn("triangle")[1]


def test_arrows_at_one_distance_stand_at_one_angle():
    axes = drawn("arrows")[0].axes[0]
    large = [text.get_text().split("\n") for text in axes.texts if "distance" in text.get_text()]
    assert [lines[:3] for lines in large] == [
        ["query at 5", "key at 2", "distance 3"],
        ["query at 13", "key at 10", "distance 3"],
    ]
    assert [lines[-1] for lines in large] == ["angle 86°"] * 2  # 0.6 + 3 · 0.3 radians
    wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
    assert len({round(wedge.theta2 - wedge.theta1, 6) for wedge in wedges}) == 1


PALETTE = [style.BLUE, style.ORANGE, style.SKY, style.GREEN, style.VERMILION, "white", "black"]


@pytest.mark.parametrize("colour", PALETTE)
def test_words_on_a_colour_and_names_in_it_can_be_read(colour):
    assert style.contrast(style.ink_on(colour), colour) >= 4.5
    assert style.contrast(style.on_paper(colour), "white") >= 4.5
    assert style.on_paper(style.BLUE) == style.BLUE.lower()


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.1], [3.0, 1.0, 2.0], [2.0, 1.9, 1.0, 1.05]])
def test_labels_keep_their_order_and_stand_apart(values):
    places = canvas.apart(values, 0.5)
    ranks = sorted(range(len(values)), key=lambda i: values[i])
    steps = [places[b] - places[a] for a, b in itertools.pairwise(ranks)]
    assert all(step >= 0.5 - 1e-9 for step in steps)
    assert sum(places) == pytest.approx(sum(values))
    assert canvas.apart([3.0, 1.0, 2.0], 0.5) == pytest.approx([3.0, 1.0, 2.0]), "no need to move"


@pytest.mark.parametrize("name", ["time_split", "prefill_split", "speedup_map"])
def test_numbers_on_colours_are_black_or_white(name):
    texts = [text for axes in drawn(name)[0].axes for text in axes.texts]
    numbers = [text for text in texts if text.get_text()[-1] in "%×"]
    assert numbers
    assert {text.get_color() for text in numbers} <= {"black", "white"}


def test_a_limit_has_its_spread_and_no_number_stands_on_a_bar_or_on_it():
    axes = drawn("ladder")[0].axes[0]
    spans = [patch.get_bbox() for patch in axes.patches if patch.get_alpha() == 0.16]
    assert [(b.x0, b.x1) for b in spans] == [pytest.approx((270.0, 330.0))]  # 900 ± 10% over 3
    numbers = [text for text in axes.texts if text.get_text() in ("1.0×", "200×", "250×")]
    assert len(numbers) == 3
    assert all(number.get_window_extent().x0 > axes.get_window_extent().x1 for number in numbers)


@pytest.mark.parametrize("name", ["recipes", "schedules", "loss_by_position", "losses"])
def test_no_two_words_of_a_figure_lie_on_each_other(name):
    figure = drawn(name)[0]
    found = [text for axes in figure.axes for text in [*axes.texts, axes.xaxis.label]]
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    found += figure.texts + [text for legend in legends for text in legend.get_texts()]
    boxes = [Text.get_window_extent(word).padded(-0.4) for word in found if word.get_text()]
    assert not [1 for one, other in itertools.combinations(boxes, 2) if one.overlaps(other)]


def test_other_alphabets_are_drawn_without_a_flood_of_warnings(recwarn):
    style.to_png(plots.characters({"日": 3, "本": 2, "語": 1}))
    assert not recwarn.list


def test_of_many_characters_the_most_frequent_are_drawn():
    axes = plots.characters({chr(33 + i): 900 - i for i in range(90)}).axes[0]
    assert len(axes.patches) == len(axes.get_xticks()) == 70


def test_equal_logits_have_no_place_on_a_log_scale():
    clouds = drawn("precision")[0].axes[0].collections
    heights = [y for cloud in clouds for _, y in cloud.get_offsets().filled(float("nan"))]
    assert min(height for height in heights if height == height) >= 1e-6
