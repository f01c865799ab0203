"""Every speedup quoted in the project, in one table, with its baseline and its source.

A row names a file below `outputs/` and the path to a summary inside it. The numbers are read from
there and never typed. `sync` writes the short form of the table into the README, and the site's
index shows all of it, with an anchor for each row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import PUBLISHED, ROOT
from ..timing import Summary

_Key = str | tuple[str, object]  # a key of a dict, or (key, value) of the wanted item of a list
BEGIN = "<!-- The speedups: written by `make sync` from nanogpt/site/speed.py -->"
TABLE_END = "<!-- End of the speedups -->"

EPYC = "AMD EPYC (Zen 4)"
XEON = "Intel Xeon with AMX"
H200 = "NVIDIA H200"
SETTINGS = dict.fromkeys((EPYC, XEON), "one thread") | {H200: "without TF32"}

_SMALL = "the lecture's GPT, 0.84M parameters"
LARGE = "the lecture's GPT, 10.8M parameters"
BUNDLED = "the bundled model, 0.80M parameters"
_SMOLLM2 = "SmolLM2-135M"

NO_CACHE = "the loop without a cache"
READ_ONCE = "computed: weights and cache are read once per token, at the measured bandwidth"
AFTER_512 = "decoding after a prompt of 512 tokens"
OTHER_Q8 = (
    "llama.cpp without its repacked formats, which crashed there; Q8_0 has a scale for every 32 "
    "weights, ours one for a row"
)
ADDED_UP = "steps timed at several lengths, those between interpolated, and all added up"
ALMOST = "with 8-bit weights the model is almost, but not exactly, the same"


@dataclass(frozen=True)
class Row:
    """A speedup, and the source of its number."""

    id: str  # its anchor, without "speed-"
    what: str
    against: str  # the baseline
    model: str
    tokens: int  # new tokens
    machine: str
    file: str  # below outputs/
    path: tuple[_Key, ...]  # to a summary of ratios, or of tokens per second
    over: tuple[_Key, ...] = ()  # to the summary of tokens per second to divide by, if any
    note: str = ""
    short: bool = False  # whether it is in the README's table
    weights: str = "float32"

    @property
    def settings(self) -> str:
        """The number of threads and the type of the weights, or what a GPU was told."""
        return f"{SETTINGS[self.machine]}, {self.weights}"

    @property
    def anchor(self) -> str:
        """The id of its row in a page and in the README."""
        return f"speed-{self.id}"


@dataclass(frozen=True)
class StoryPart:
    """A step of the story: some rows under a heading."""

    title: str
    says: str  # without numbers
    rows: tuple[Row, ...]


# Rungs are found by their labels: their numbers change when a rung is added or removed.
_FIRST = "per-Head, no cache"
_LOOP = "native loop"
_LOOP_8_BIT = "native loop, 8-bit weights"


def _rung(ladder: str, label: str, value: str = "speedup") -> tuple[_Key, ...]:
    return ("results", "ladder", ladder, "rungs", ("label", label), value)


def _real(value: str, label: str) -> tuple[_Key, ...]:
    return ("results", "ladder", "rungs", ("label", label), value)


def _peer(label: str) -> tuple[_Key, ...]:
    return ("rungs", ("label", label), "tokens_per_second")


def _alone(model: str, n_new: int) -> tuple[_Key, ...]:
    """The gain of one text in a result of `bench gain`."""
    return ("models", ("model", model), "rows", ("batch", 1), ("n_new", n_new), "gain")


N05 = "published/json/05.json"
N06 = "published/json/06.json"
N13 = "published/json/13.json"
_GPU = "gpu/NVIDIA-H200"
REAL_GAIN = ("results", "gain", "this model, 135M")
_RATE = "tokens_per_second"

STORY = (
    StoryPart(
        "A small model, from no cache to the limit",
        "All times here are compared with the time of a Python loop that recomputes the whole text "
        "for every token. A cache saves nearly all the arithmetic, but this model is so small that "
        "calling PyTorch's operations takes most of the time, and a cache saves no calls. The same "
        "loop in C++ makes no such calls. What is left is reading every weight once per token, "
        "from wherever the weights are: the processor's own cache, in a model of this size. How "
        "fast it can be read sets the limit. 8-bit weights mean fewer bytes to read.",
        (
            Row(
                "your-cache",
                "your cache, in your own loop",
                "your loop without a cache",
                _SMALL,
                255,
                EPYC,
                N05,
                ("results", "timing", "speedup"),
                short=True,
            ),
            Row(
                "cpp",
                "the cached loop without Python, in C++",
                NO_CACHE,
                _SMALL,
                255,
                EPYC,
                N06,
                _rung("0.84M parameters", _LOOP),
                short=True,
            ),
            Row(
                "limit",
                "the limit set by memory bandwidth, in float32",
                NO_CACHE,
                _SMALL,
                255,
                EPYC,
                N06,
                ("results", "ladder", "0.84M parameters", "limits", "roofline"),
                over=_rung("0.84M parameters", _FIRST, _RATE),
                note=READ_ONCE,
                short=True,
            ),
            Row(
                "8-bit",
                "C++ with 8-bit weights",
                NO_CACHE,
                _SMALL,
                255,
                EPYC,
                N06,
                _rung("0.84M parameters", _LOOP_8_BIT),
                note=ALMOST,
                weights="8-bit weights",
                short=True,
            ),
        ),
    ),
    StoryPart(
        "A larger model",
        "Each call has more to compute here, so Python's overhead matters less and C++ gains less. "
        "(All texts but the draft's are also shorter, which lowers every factor.) Most of the "
        "weights no longer fit in the caches near the core, and C++ runs at the memory-bandwidth "
        "limit, within the spread of the runs. Only fewer bytes or fewer passes can take it "
        "further: a small draft model proposes tokens, and the large one checks several "
        "of them in one pass.",
        (
            Row(
                "large-your-cache",
                "your cache, in your own loop",
                NO_CACHE,
                LARGE,
                64,
                EPYC,
                N06,
                _rung("10.8M parameters", "your loop (notebook 02)"),
            ),
            Row(
                "large-cpp",
                "the cached loop without Python, in C++",
                NO_CACHE,
                LARGE,
                64,
                EPYC,
                N06,
                _rung("10.8M parameters", _LOOP),
                short=True,
            ),
            Row(
                "large-limit",
                "the limit set by memory bandwidth, in float32",
                NO_CACHE,
                LARGE,
                64,
                EPYC,
                N06,
                ("results", "ladder", "10.8M parameters", "limits", "roofline"),
                over=_rung("10.8M parameters", _FIRST, _RATE),
                note=READ_ONCE,
            ),
            Row(
                "large-8-bit",
                "C++ with 8-bit weights",
                NO_CACHE,
                LARGE,
                64,
                EPYC,
                N06,
                _rung("10.8M parameters", _LOOP_8_BIT),
                note=ALMOST,
                weights="8-bit weights",
                short=True,
            ),
            Row(
                "draft",
                "C++ with a draft model of 0.34M parameters",
                "the same C++ loop without a draft",
                "the lecture's GPT, 10.7M parameters",
                255,
                XEON,
                "race/speculate.json",
                ("rows", ("draft", "a GPT of 0.34M"), ("k", 7), "speedup"),
                note="seven proposals per pass",
                short=True,
            ),
        ),
    ),
    StoryPart(
        "A real model",
        "SmolLM2-135M writes English. Recomputing its whole text is substantial arithmetic, not "
        "just call overhead, so the cache alone gives a much larger speedup, and the longer the "
        "text, the larger. The rows with 16 tokens are for a short text, where there is little to "
        "recompute; there, C++ is already close to the memory-bandwidth limit.",
        (
            Row(
                "smollm2-64",
                "the cache alone, in PyTorch",
                NO_CACHE,
                _SMOLLM2,
                64,
                EPYC,
                N13,
                (*REAL_GAIN, ("n_new", 64), "gain"),
                note=ADDED_UP,
            ),
            Row(
                "smollm2",
                "the cache alone, in PyTorch",
                NO_CACHE,
                _SMOLLM2,
                512,
                EPYC,
                N13,
                (*REAL_GAIN, ("n_new", 512), "gain"),
                note=ADDED_UP,
                short=True,
            ),
            Row(
                "smollm2-cpp",
                "the cached loop without Python, in C++",
                NO_CACHE,
                _SMOLLM2,
                16,
                EPYC,
                N13,
                _real("speedup", _LOOP),
            ),
            Row(
                "smollm2-limit",
                "the limit set by memory bandwidth, in float32",
                NO_CACHE,
                _SMOLLM2,
                16,
                EPYC,
                N13,
                ("results", "ladder", "limits", "roofline"),
                over=_real(_RATE, _FIRST),
                note=READ_ONCE,
            ),
            Row(
                "smollm2-8-bit",
                "C++ with 8-bit weights",
                NO_CACHE,
                _SMOLLM2,
                16,
                EPYC,
                N13,
                _real("speedup", _LOOP_8_BIT),
                note=ALMOST,
                weights="8-bit weights",
            ),
            Row(
                "smollm2-lookup",
                "prompt lookup, on a text that repeats its prompt",
                "the same PyTorch loop without it",
                _SMOLLM2,
                36,
                EPYC,
                N13,
                ("results", "lookup"),
            ),
            Row(
                "llama-f32",
                "our C++ loop in float32",
                "llama.cpp, F32",
                _SMOLLM2,
                48,
                XEON,
                "race/ladder-smollm2.json",
                _peer("native loop"),
                over=_peer("llama.cpp, F32"),
                note=AFTER_512,
                short=True,
            ),
            Row(
                "llama-q8",
                "our C++ loop with 8-bit weights",
                "llama.cpp, Q8_0",
                _SMOLLM2,
                48,
                XEON,
                "race/ladder-smollm2.json",
                _peer("native loop, 8-bit weights"),
                over=_peer("llama.cpp, Q8_0"),
                note=f"{AFTER_512}; {OTHER_Q8}",
                weights="8-bit weights",
                short=True,
            ),
        ),
    ),
    StoryPart(
        "Other numbers on these pages",
        "The same idea with a different model, loop or machine. A large GPU recomputes a whole "
        "text of these lengths in the time that PyTorch's calls take, so a cache alone gives no "
        "speedup for one sequence there (a factor below 1 is slower). The model at the top of this "
        "page runs in your own browser: the number that you see there is your own and does not "
        "appear in any table.",
        (
            Row(
                "race",
                "the package's cache and loop, in notebook 00",
                NO_CACHE,
                BUNDLED,
                255,
                EPYC,
                "published/json/00.json",
                ("results", "timing", "speedup"),
            ),
            Row(
                "bundled-cpp",
                "the cached loop without Python, in C++",
                NO_CACHE,
                BUNDLED,
                255,
                EPYC,
                "race/ladder-keeper.json",
                ("rungs", ("label", _LOOP), "speedup"),
                note="an earlier version, whose loop without a cache computed the heads one by one",
            ),
            Row(
                "h200-lecture",
                "the cache alone, in PyTorch",
                NO_CACHE,
                LARGE,
                255,
                H200,
                f"{_GPU}/gain-lecture.json",
                _alone("lecture", 255),
            ),
            Row(
                "h200-smollm2",
                "the cache alone, in PyTorch",
                NO_CACHE,
                "SmolLM2's shape, random weights",
                2047,
                H200,
                f"{_GPU}/gain-smollm2.json",
                _alone("smollm2", 2047),
                note=ADDED_UP,
                short=True,
            ),
            Row(
                "h200-graph",
                "16 cached steps as one CUDA graph",
                NO_CACHE,
                LARGE,
                255,
                H200,
                f"{_GPU}/ladder-lecture.json",
                ("rungs", ("label", "CUDA graph of 16 steps"), "speedup"),
                short=True,
            ),
        ),
    ),
)
ROWS = {row.id: row for part in STORY for row in part.rows}
# The number on each notebook's card (a row of the table), and its caption.
CARDS = {
    "00": ("race", "with a cache"),
    "05": ("your-cache", "with your cache, in your own loop"),
    "06": ("cpp", "with the loop in C++"),
    "07": ("draft", "with a draft, over C++ without one"),
    "13": ("smollm2", "with a cache alone, at 512 tokens"),
}


def find(data: Any, path: tuple[_Key, ...]) -> Any:
    """Follow a path; neighbouring pairs are conditions on one item. Raises LookupError."""
    wanted: list[tuple[str, object]] = []
    for key in (*path, ""):
        if isinstance(key, tuple):
            wanted.append(key)
            continue
        if wanted:
            items = [item for item in data if all(item.get(k) == v for k, v in wanted)]
            if len(items) != 1:
                raise LookupError(f"{len(items)} items with {dict(wanted)}, 1 is needed")
            data = items[0]
            wanted = []
        data = data[key] if key else data
    return data


def ratio(data: Any, row: Row) -> Summary:
    """The speedup of a row, from the contents of its file.

    The quotient of two summaries is the quotient of their medians, with the widest range.
    """
    own: Summary = find(data, row.path)
    if not row.over:
        return own
    base: Summary = find(data, row.over)
    return {
        "median": own["median"] / base["median"],
        "low": own["low"] / base["high"],
        "high": own["high"] / base["low"],
        "n": own["n"],
    }


def number(value: float) -> str:
    """A ratio with its sign, in about three digits: 0.93×, 2.2×, 13.4×, 124×."""
    digits = 2 if value < 1 else 1 if value < 20 else 0
    return f"{value:.{digits}f}×"


def spread(value: Summary) -> str:
    """The range of a summary, with the same number of digits as its median."""
    digits = 2 if value["median"] < 1 else 1 if value["median"] < 20 else 0
    return f"{value['low']:.{digits}f}–{value['high']:.{digits}f}"


def measured(published: Path = PUBLISHED) -> dict[str, Summary]:
    """The speedup of every row whose file exists, by id.

    `published` is the folder with the published run, which may not be in its final location yet.
    """
    found = {}
    for row in ROWS.values():
        folder, _, rest = row.file.partition("/")
        path = published / rest if folder == "published" else ROOT / "outputs" / row.file
        data = _contents(path) if path.is_file() else None
        if data is not None:
            found[row.id] = ratio(data, row)
    return found


def _contents(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


# ------------------------------------------------------------------ in the README


def with_speedups(readme: str) -> str:
    """The README's text, with the short table between its two marks, if it has them."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(TABLE_END)
    if not end:
        return readme
    return f"{before}{begin}\n\n{readme_table()}\n\n{end}{after}"


def readme_table() -> str:
    """The rows of the README as a Markdown table, each with an anchor."""
    values = measured()
    lines = [
        "| what is timed | speedup | compared with | model, new tokens | machine |",
        "|---|---|---|---|---|",
    ]
    for row in ROWS.values():
        if row.short and row.id in values:
            value = values[row.id]
            factor = f"**{number(value['median'])}** [{spread(value)}]"
            link = f'<a id="{row.anchor}"></a>[{row.what}](outputs/{row.file})'
            model = f"{row.model}, {row.tokens:,}"
            lines.append(f"| {link} | {factor} | {row.against} | {model} | {row.machine} |")
    return "\n".join(lines)
