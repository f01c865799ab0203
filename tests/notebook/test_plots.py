"""Every figure is drawn from plain data, to equal bytes, with its finding in the title."""

import io
import json

import pytest
from PIL import Image

from nanogpt.notebook.plots import attention as plots_attention
from nanogpt.notebook.plots import engines, equality, speed, style
from nanogpt.notebook.plots import training as plots_training


def summary(value):
    return {"median": value, "low": 0.9 * value, "high": 1.1 * value, "n": 5}


def system(gap, n=20, slope=0.0):
    itl = [gap + slope * i for i in range(n - 1)]
    return {
        "ttft": summary(gap),
        "e2el": summary(gap + sum(itl)),
        "tpot": summary(sum(itl) / len(itl)),
        "itl": itl,
    }


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
REPORT = {
    "equal": True,
    "n_new": 3,
    "first_divergence": None,
    "logit_diffs": [0.0, 1e-6, 2e-6],
    "margins": [0.5, 1.0, 0.01],
    "min_margin": 0.01,
    "max_logit_diff": 2e-6,
}
STEPS = [
    {"before": 0, "after": 3, "label": "prefill", "bytes": 384},
    {"before": 3, "after": 4, "label": "decode", "bytes": 512},
]
WALK = [
    {
        "name": "query",
        "prefill": "(1, 9, 16)",
        "decode": "(1, 1, 16)",
        "prefill_numel": 144,
        "decode_numel": 16,
    }
]
CELLS = [
    {"row": "small", "n_new": 1, "speedup": summary(0.8)},
    {"row": "small", "n_new": 8, "speedup": summary(2.0)},
    {"row": "article", "n_new": 1, "speedup": summary(0.9)},
]
STRIP = {"label": "x", "text": "ab\n", "truth": "ac\n"}
ROWS = [[[1.0, 0.0], [0.4, 0.6]], [[0.2, 0.3, 0.5]]]
CASE = {"label": "1 + 9", "ttft": 1.0, "e2el": 4.0}
TRIAL = {"rate": [0.5, 1.0, 0.5], "step": [0, 1, 2, 3], "val": [4.2, 3.0, 2.9, 2.5]}
LINE = {"label": "lecture", "loss": 1.81, "curve": [[0.0, 4.2], [9.0, 2.0], [96.0, 1.81]]}
PANELS = [
    {"title": "block 32", "lines": [LINE, {**LINE, "label": "sprint+"}]},
    {"title": "block 64", "lines": [LINE | {"label": "a new one"}]},
]
IDEAS = [{"name": "a", "loss": summary(2.1)}, {"name": "b", "loss": summary(1.7)}]

LIMITS = {
    "floor": summary(900.0),
    "read": summary(2e11),
    "peak": summary(2e11),
    "weight_bytes": 800_000,
}
PARTS = {"arithmetic": 1e-6, "memory": 2e-6, "overhead": 1e-5}
LADDER = {
    "limits": LIMITS,
    "rungs": [
        {
            "rung": "1",
            "label": "per-Head",
            "speedup": summary(1.0),
            "tokens_per_second": summary(3.0),
            "split": PARTS,
        },
        {"rung": "6", "label": "compiled step", "unavailable": "no compiler"},
        {
            "rung": "7",
            "label": "native",
            "speedup": summary(200.0),
            "tokens_per_second": summary(600.0),
            "split": PARTS,
        },
        {
            "rung": "8",
            "label": "native, 8-bit weights",
            "speedup": summary(250.0),
            "tokens_per_second": summary(750.0),
        },
    ],
}
BATCHES = [
    {
        "label": label,
        "batch": batch,
        "tokens_per_second": summary(9.0 * batch),
        "step": summary(2.0),
    }
    for label in ("static", "native")
    for batch in (1, 8)
]
BYTES = [{"label": "GPT-2", "lengths": [1, 1024], "bytes": [73_728, 75_497_472]}]

MASK = {"label": "a ring", "q": [3], "k": [0, 2, 3, -1], "mask": [[False, True, True, False]]}
COSTS = [
    {"name": "MHA", "loss": summary(1.7), "bytes": 2e6, "table": True},
    {"name": "MQA", "loss": summary(1.6), "bytes": 8e3, "table": False, "up": 8},
]
CURVES = {"table": [2.0, 1.9], "rotary": [2.0, 1.9, 3.0, 3.5], "window": [2.0, 1.9, 1.9, 1.8]}
CONTEXT = [
    {"label": label, "seconds": [summary(2.0), summary(2.0 * grows)], "bytes": [9e3, 9e3 * grows]}
    for label, grows in (("all", 9), ("ring", 1))
]
DRAFTED = {"label": "a table", "text": "ab\n", "drafted": [True, False, True]}
PASSES = {
    "label": "a table",
    "agreement": 0.64,
    "k": [1, 4],
    "measured": [1.6, 2.1],
    "predicted": [1.6, 2.2],
}
NO_DRAFT = {"label": "no draft", "plain": True, "speedup": {"median": 1.0, "low": 1.0, "high": 1.0}}
LEAP = {"label": "8 bits, k = 4", "speedup": summary(2.0)}

BITS = [
    {"label": "usual", "apart": [[0, 1, 3], [0, 0, 4000]]},
    {"label": "exact", "apart": [[0] * 3] * 2},
]

FIGURES = {
    "ladder": (lambda: engines.ladder([LADDER], ["small"], "200× at the top"), "200× at the top"),
    "ladder, two sizes": (lambda: engines.ladder([LADDER] * 2, ["a", "b"], "both"), "both"),
    "time_split": (lambda: engines.time_split([LADDER], ["small"], "77% overhead"), "77% overhead"),
    "throughput": (lambda: engines.throughput(BATCHES, "8 texts, 8×"), "8 texts, 8×"),
    "cache_bytes": (lambda: speed.cache_bytes(BYTES, "half a megabyte"), "half a megabyte"),
    "update_cost": (
        lambda: speed.update_cost([64, 99], {"cat": [2, 8], "static": [1, 1]}, "4×"),
        "4×",
    ),
    "two_bars": (
        lambda: speed.two_bars(DUEL, 20, True),
        "The same 20 tokens, 2.9× (2.6–3.2, n = 5)",
    ),
    "two_bars, unequal": (lambda: speed.two_bars(DUEL, 20, False), "NOT the same"),
    "typing_race": (lambda: speed.typing_race("some text " * 2, DUEL, 0.5), "2.9×"),
    "characters": (
        lambda: plots_training.characters({"a": 6, "B": 2, "\n": 1, " ": 1}),
        "4 characters",
    ),
    "batch": (lambda: plots_training.batch(["ab c"], ["b c\n"]), "4 lessons"),
    "losses": (
        lambda: plots_training.losses(HISTORY, {"ln 65": 4.17}, "2.70 at last"),
        "2.70 at last",
    ),
    "schedules": (lambda: plots_training.schedules({"a": TRIAL, "b": TRIAL}, "b falls"), "b falls"),
    "recipes": (lambda: plots_training.recipes(PANELS, "15 times sooner"), "15 times sooner"),
    "ideas": (lambda: plots_training.ideas(IDEAS, "from 2.1 to 1.7"), "from 2.1 to 1.7"),
    "prefill_and_decode": (
        lambda: plots_attention.prefill_and_decode(ROWS, ["p", "d"]),
        "computes 2 rows",
    ),
    "cache_rows": (
        lambda: plots_attention.cache_rows(STEPS, "abcd", "The cache", 4),
        "wrote 1 row (orange)",
    ),
    "shapes": (lambda: plots_attention.shapes(WALK), "one token"),
    "token_strips": (lambda: equality.token_strips([STRIP], "one trap", 3), "one trap"),
    "margins": (lambda: equality.margins(REPORT), "5,000 times"),
    "precision": (lambda: equality.precision({"float32": REPORT}), "precision"),
    "last_bits": (lambda: equality.last_bits(BITS, "3 differ"), "3 differ"),
    "last_bits, none": (lambda: equality.last_bits(BITS[1:], "0 differ"), "0 differ"),
    "masks": (lambda: plots_attention.masks([MASK] * 4, "one rule"), "one rule"),
    "bytes_and_loss": (lambda: plots_attention.bytes_and_loss(COSTS, "4× less"), "MQA: 1.600"),
    "loss_by_position": (
        lambda: plots_attention.loss_by_position(CURVES, 8, 16, "it ends"),
        "no row past 16",
    ),
    "context_cost": (lambda: speed.context_cost([64, 512], CONTEXT, "9×"), "9×"),
    "drafted": (lambda: engines.drafted([DRAFTED] * 2, "two of three"), "67%"),
    "tokens_per_pass": (
        lambda: engines.tokens_per_pass([PASSES] * 2, "up to 2.1"),
        "a table: 64% agree",
    ),
    "speculation_speed": (
        lambda: engines.speculation_speed([NO_DRAFT, LEAP], 1.3, "2× the best rung"),
        "2.00×",
    ),
    "per_token": (lambda: speed.per_token(DUEL, "slopes"), "slopes"),
    "speedup_map": (
        lambda: speed.speedup_map(CELLS, ["small", "article"], [1, 8], "a map"),
        "a map",
    ),
    "prefill_split": (lambda: speed.prefill_split([CASE], "a split"), "a split"),
}


def words(figure):
    texts = [figure.get_suptitle(), *(axes.get_title(loc="left") for axes in figure.axes)]
    return " ".join(texts + [text.get_text() for axes in figure.axes for text in axes.texts])


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_states_its_finding_and_is_drawn_to_equal_bytes(name):
    draw, finding = FIGURES[name]
    assert finding in words(draw())
    png = style.to_png(draw(), "a footer")
    assert png == style.to_png(draw(), "a footer")
    assert png != style.to_png(draw(), "another footer")
    assert Image.open(io.BytesIO(png)).size[0] == round(style.WIDTH * style.DPI)
    assert len(png) < 150_000


def test_the_reader_s_own_style_changes_no_figure():
    import matplotlib

    draw = FIGURES["per_token"][0]
    ours = style.to_png(draw())
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        assert style.to_png(draw()) == ours


def test_every_figure_function_is_drawn_here():
    drawn = {name.split(",")[0] for name in FIGURES}
    assert drawn == {name for name, thing in vars(figures).items() if hasattr(thing, "__wrapped__")}


def test_data_for_figures_is_plain_json():
    json.dumps([DUEL, HISTORY, REPORT, STEPS, WALK, CELLS], allow_nan=False)


def test_an_animation_is_one_png_with_all_its_frames():
    frames = [
        plots_attention.cache_rows(STEPS[: i + 1], "abcd", "The cache", 4, room=2) for i in range(2)
    ]
    image = Image.open(io.BytesIO(style.to_apng(frames, "a footer")))
    assert image.format == "PNG"
    assert image.n_frames == 2


def test_the_race_rests_when_the_first_is_finished():
    text = words(speed.typing_race("x" * 20, DUEL))
    assert "with it: 20 of 20 tokens   ✓ finished" in text
    assert "without the cache: 20 of 20" not in text


def test_what_loses_is_marked_and_what_was_not_measured_is_a_dash():
    text = words(speed.speedup_map(CELLS, ["small", "article"], [1, 8], "a map"))
    assert "▼ 0.80×" in text
    assert "2.00×" in text
    assert "–" in text.split()


def test_a_strip_counts_what_differs():
    assert "✗ 1 of 3" in words(FIGURES["token_strips"][0]())
    same = equality.token_strips([{"label": "x", "text": "ab", "truth": "ab"}], "t", 2)
    assert "✓ equal" in words(same)


DOLLARS = "$3_a $$_$ \\x"


@pytest.mark.parametrize(
    "draw",
    [
        lambda: speed.typing_race(DOLLARS, DUEL),
        lambda: plots_training.characters(dict.fromkeys(DOLLARS, 2)),
        lambda: plots_training.batch([DOLLARS], [DOLLARS]),
        lambda: equality.token_strips([{"label": "x", "text": DOLLARS, "truth": DOLLARS}], "t", 5),
        lambda: plots_attention.cache_rows(
            [{**STEPS[1], "label": f"decode {DOLLARS!r}"}], DOLLARS, "The cache", 4
        ),
    ],
)
def test_a_text_with_dollars_is_no_formula(draw):
    assert style.to_png(draw())


def test_other_alphabets_are_drawn_without_a_flood_of_warnings(recwarn):
    style.to_png(plots_training.characters({chr(0x4E00 + i): 900 - i for i in range(900)}))
    assert not recwarn.list


def test_a_loss_that_rises_has_a_plus_and_one_that_falls_a_minus():
    text = words(plots_training.ideas([*IDEAS, {"name": "c", "loss": summary(1.8)}], "t"))
    assert "1.700  (−0.400)" in text
    assert "1.800  (+0.100)" in text


def test_equal_logits_have_no_place_on_a_log_scale():
    figure = equality.precision({"float32": REPORT})
    heights = [
        y
        for points in figure.axes[0].collections
        for _, y in points.get_offsets().filled(float("nan"))
    ]
    assert min(height for height in heights if height == height) >= 1e-6
