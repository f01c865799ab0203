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
from nanogpt.notebook.plots import colour as colours
from nanogpt.notebook.plots import labels, style


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
    "ideas": [IDEAS, "from 2.1 to 1.7"],
    "singular_values": [{"a gradient": [3.0, 0.1, 0.02], "Muon": [1.1, 1.0, 0.9]}, "all count"],
    "look_ups": [TEXT, "rows, no arithmetic"],
    "masks": [[MASK] * 4, "one rule"],
    "bytes_and_loss": [COSTS, "4× less", 64],
    "loss_by_position": [CURVES, 8, 16, "it ends"],
    "decode_step": [TEXT, SHARES, "one key, one value"],
    "attention_steps": [TEXT[:3], SCORES, MASKED, SOFT, "an average of what came before"],
    "triangle": [TEXT, 3, "three rows, then one"],
    "sharing": [6, [["MHA", 6], ["GQA", 2], ["MQA", 1]], "one third, one sixth"],
    "arrows": [[[0.6 + 0.3 * p, 0.3 * p] for p in range(14)], "the distance decides"],
    "ring": [4, [1, 3, 6], "the oldest goes"],
    "token_strips": [[STRIP], "one trap", 3],
    "margins": [REPORT],
    "precision": [{"float32": REPORT}],
    "last_bits": [BITS, "3 differ"],
    "last_bits, none": [BITS[1:], "0 differ"],
    "two_bars": [DUEL, 20, True],
    "two_bars, unequal": [DUEL, 20, False],
    "typing_race": [f"{DOLLARS} some text", DUEL, 0.9],
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
# Words that a figure makes of its data; every other figure is given its finding as a title.
FOUND = {
    "characters": "4 characters",
    "batch": "4 lessons",
    "bytes_and_loss": "1.600",
    "loss_by_position": "no row past 16",
    "token_strips": "✗ 1 of 3",
    "margins": "5,000 times",
    "precision": "✓ 3 equal",
    "two_bars": "The same 20 tokens, 2.9× (2.6–3.2, n = 5)",
    "two_bars, unequal": "NOT the same",
    "typing_race": "2.9×",
    "drafted": "67%",
    "tokens_per_pass": "a table: 64% accepted",
    "speculation_speed": "2.00×",
}


def draw(name):
    return getattr(plots, name.split(",")[0])(*FIGURES[name])


@functools.cache
def figure_of(name):
    """A figure with its footer and its bytes, drawn once for all tests."""
    figure = draw(name)
    return figure, style.to_png(figure, "a footer")


def drawn(name):
    """A figure's words and its bytes."""
    figure, png = figure_of(name)
    return words(figure), png


def words(figure):
    texts = [figure.get_suptitle(), *(axes.get_title(loc="left") for axes in figure.axes)]
    return " ".join(texts + [text.get_text() for axes in figure.axes for text in axes.texts])


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_states_its_finding_at_the_one_width(name):
    text, png = drawn(name)
    titles = [value for value in FIGURES[name] if isinstance(value, str)][-1:]
    assert FOUND.get(name, *titles) in text
    assert Image.open(io.BytesIO(png)).size[0] == round(style.WIDTH * style.DPI)
    assert len(png) < 150_000


def test_every_figure_function_is_drawn_here():
    named = {name for name, thing in vars(plots).items() if hasattr(thing, "__wrapped__")}
    assert {name.split(",")[0] for name in FIGURES} == named


def test_data_for_figures_is_plain_json():
    json.dumps(FIGURES, allow_nan=False)


@pytest.mark.parametrize("name", ["decode_step", "recipes"])
def test_equal_data_gives_equal_bytes_whatever_the_reader_s_own_style(name):
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        assert style.to_png(draw(name), "a footer") == drawn(name)[1]


def test_the_footer_is_drawn():
    assert style.to_png(draw("masks"), "another footer") != drawn("masks")[1]


def test_an_animation_is_one_png_with_all_its_frames():
    frames = [plots.typing_race("some text", DUEL, seconds) for seconds in (0.1, 0.9)]
    image = Image.open(io.BytesIO(plots.to_apng(frames, "a footer")))
    assert (image.format, image.n_frames) == ("PNG", 2)


def test_the_race_rests_when_the_first_is_finished():
    text = words(plots.typing_race("x" * 20, DUEL))
    assert "with it: 20 of 20 tokens   ✓ finished" in text
    assert "without the cache: 20 of 20" not in text


def test_what_loses_is_marked_and_what_was_not_measured_is_a_dash():
    text, _ = drawn("speedup_map")
    assert "▼ 0.80×" in text
    assert " 2.00×" in text
    assert "–" in text.split()


def test_a_decode_step_says_what_it_writes_and_what_it_reads():
    text, _ = drawn("decode_step")
    assert "written to the cache: 1 key and 1 value" in text
    assert "from earlier steps: 3 keys and 3 values. The query reads all 4" in text
    assert {"10%", "20%", "<1%", "70%"} <= set(text.split())


def test_a_decode_step_shows_a_window_several_drafts_and_what_no_cache_costs():
    options = {"new": [2, 3], "unread": [0], "labels": [4, 5, 6, 7], "again": True}
    text = words(plots.decode_step(TEXT, [0, *SHARES[1:]], "t", **options))
    assert "written to the cache: 2 keys and 2 values" in text
    assert "from earlier steps: 1 key and 1 value. The last query reads all 3" in text
    assert "outside the window, not read: 1 key and 1 value" in text
    assert "without a cache, computed in this step: 4 keys and 4 values" in text
    assert "4 5 6 7" in text


def test_attention_is_shown_in_four_steps_or_one():
    values = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5]]
    text = words(plots.attention_steps("abc", SCORES, MASKED, SOFT, "t", values=values))
    assert all(step in text for step in ("scores", "mask", "softmax of each row", "output"))
    assert {"−2.0", "0.0", "−1.0", "75%", "−0.7", "0.6"} <= set(
        text.split()
    )  # the last two: the mix
    alone = words(plots.attention_steps("abc", SCORES, MASKED, SOFT, "t", panel="weights"))
    assert "75%" in alone
    assert "q · k" not in alone


def test_a_triangle_says_which_rows_are_computed_together():
    text, _ = drawn("triangle")
    assert "3 rows in one pass" in text
    assert "one row a step, 1 step." in text
    weights = [[1 / (i + 1)] * 4 for i in range(4)]
    assert style.to_png(plots.triangle(TEXT, 3, "t", weights=weights)) != style.to_png(
        plots.triangle(TEXT, 3, "t")
    )


def test_heads_that_share_are_counted_beside_their_bytes():
    text = " ".join(drawn("sharing")[0].split())
    for counted in ("6 key/value heads all bytes", "2 key/value heads 1/3", "1 key/value head 1/6"):
        assert counted in text


def test_arrows_at_one_distance_stand_at_one_angle():
    axes = figure_of("arrows")[0].axes[0]
    large = [text.get_text().split("\n") for text in axes.texts if "distance" in text.get_text()]
    assert [lines[:3] for lines in large] == [
        ["query at 5", "key at 2", "distance 3"],
        ["query at 13", "key at 10", "distance 3"],
    ]
    assert [lines[-1] for lines in large] == ["angle 86°"] * 2  # 0.6 + 3 · 0.3 radians
    wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
    assert len({round(wedge.theta2 - wedge.theta1, 6) for wedge in wedges}) == 1


def test_a_ring_loses_its_oldest_position_only_when_it_is_full():
    text = " ".join(drawn("ring")[0].split())
    assert "position 2 takes slot 2, which is free" in text
    assert "position 4 takes slot 0, position 0 is lost" in text
    assert "position 7 takes slot 3, position 3 is lost" in text


@pytest.mark.parametrize("colour", [style.ORANGE, style.SKY, style.GREEN, style.VERMILION])
def test_names_in_the_colour_of_a_line_can_be_read_on_paper(colour):
    assert colours.contrast(colours.on_paper(colour), "white") >= 4.5
    assert colours.on_paper(style.BLUE) == style.BLUE.lower()


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.1], [3.0, 1.0, 2.0], [2.0, 1.9, 1.0, 1.05]])
def test_labels_keep_their_order_and_stand_apart(values):
    places = labels.apart(values, 0.5)
    ranks = sorted(range(len(values)), key=lambda i: values[i])
    steps = [places[b] - places[a] for a, b in itertools.pairwise(ranks)]
    assert all(step >= 0.5 - 1e-9 for step in steps)
    assert sum(places) == pytest.approx(sum(values))


def test_labels_that_do_not_collide_stay_where_they_are():
    assert labels.apart([3.0, 1.0, 2.0], 0.5) == pytest.approx([3.0, 1.0, 2.0])


@pytest.mark.parametrize("name", ["time_split", "prefill_split", "speedup_map"])
def test_numbers_on_colours_are_black_or_white(name):
    numbers = [
        text
        for axes in figure_of(name)[0].axes
        for text in axes.texts
        if text.get_text()[-1] in "%×"
    ]
    assert numbers
    assert {text.get_color() for text in numbers} <= {"black", "white"}


def test_a_limit_is_drawn_with_its_spread():
    axes = figure_of("ladder")[0].axes[0]
    spans = [patch.get_bbox() for patch in axes.patches if patch.get_alpha() == 0.16]
    assert [(b.x0, b.x1) for b in spans] == [pytest.approx((270.0, 330.0))]  # 900 ± 10% over 3
    assert "roofline 300×" in drawn("ladder")[0]
    assert "floor" not in drawn("ladder")[0] + drawn("speculation_speed")[0]


def test_no_number_of_a_ladder_stands_on_a_bar_or_on_the_limit():
    axes = figure_of("ladder")[0].axes[0]
    numbers = [text for text in axes.texts if text.get_text() in ("1.0×", "200×", "250×")]
    assert len(numbers) == 3
    assert all(number.get_window_extent().x0 > axes.get_window_extent().x1 for number in numbers)


@pytest.mark.parametrize("name", ["recipes", "schedules", "loss_by_position", "losses"])
def test_no_two_words_of_a_figure_lie_on_each_other(name):
    figure = figure_of(name)[0]
    words = [text for axes in figure.axes for text in [*axes.texts, axes.xaxis.label]]
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    words += figure.texts + [text for legend in legends for text in legend.get_texts()]
    boxes = [Text.get_window_extent(word).padded(-1) for word in words if word.get_text()]
    assert not [1 for one, other in itertools.combinations(boxes, 2) if one.overlaps(other)]


@pytest.mark.parametrize(
    "colour", [style.BLUE, style.ORANGE, style.VERMILION, style.SKY, "white", "black"]
)
def test_words_in_cells_can_be_read(colour):
    assert colours.contrast(colours.ink_on(colour), colour) >= 4.5


def test_a_strip_without_differences_is_equal():
    same = {"label": "x", "text": "ab", "truth": "ab"}
    assert "✓ equal" in words(plots.token_strips([same], "t", 2))


def test_other_alphabets_are_drawn_without_a_flood_of_warnings(recwarn):
    style.to_png(plots.characters({"日": 3, "本": 2, "語": 1}))
    assert not recwarn.list


def test_of_many_characters_the_most_frequent_are_drawn():
    axes = plots.characters({chr(33 + i): 900 - i for i in range(90)}).axes[0]
    assert len(axes.patches) == len(axes.get_xticks()) == 70


def test_a_loss_that_rises_has_a_plus_and_one_that_falls_a_minus():
    text = words(plots.ideas([*IDEAS, {"name": "c", "loss": summary(1.8)}], "t"))
    assert "1.700  (−0.400)" in text
    assert "1.800  (+0.100)" in text


def test_equal_logits_have_no_place_on_a_log_scale():
    clouds = figure_of("precision")[0].axes[0].collections
    heights = [y for cloud in clouds for _, y in cloud.get_offsets().filled(float("nan"))]
    assert min(height for height in heights if height == height) >= 1e-6
