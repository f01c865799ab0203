"""Every cell of the notebooks in RUN, then once more from the last to the first.

On a pretended GPU and a small profile, in this process: no kernel, no picture is drawn to its
last pixel. What a cell prints and draws must be the same both times, unless it is tagged
"timing": readers go back and run a cell again, after later cells have used its names.
"""

import contextlib
import io
import linecache
import re
import warnings
from dataclasses import replace
from importlib import import_module

import nbformat
import pytest
import torch
from notebook_fixtures import NOTEBOOKS, brief_referee, png
from pretend_cuda import PretendCuda
from training_fixtures import ctrl_c, stop_at

from nanogpt import config as shapes
from nanogpt.bench import roofline
from nanogpt.config import GPTConfig
from nanogpt.data import load_corpus
from nanogpt.device import Device
from nanogpt.files import ROOT
from nanogpt.model import GPT
from nanogpt.series import profiles
from nanogpt.site.nbfile import filled
from nanogpt.site.plots import style
from nanogpt.timing import summary
from nanogpt.training.loop import train
from nanogpt.training.recipes import TrainConfig

TINY = {"n_layer": 1, "n_head": 1, "n_embd": 16}
LESS = {"00": {"n_new": 12}, "01": {"steps": 4}, "08": {"n_long": 40}}  # parameters
RUN = "00 01 02 03 04 05 06 07 09 11 12 13".split()  # 08 takes minutes so, 10 starts torchrun
PICTURE = png()
# What the cells name themselves: one layer, and fewer tokens, which change no line that they run.
INSTEAD = {
    "02": {
        **{"(200, 1,": "(20, 1,", "text, 200,": "text, 20,", "text, 100,": "text, 20,"},
        "memory.data_ptr()": "id(held)",  # there no tensor has a place in memory
    },
    "04": {
        **{"draw_noise(20, 1": "draw_noise(6, 1", '"smoke" else 60': '"smoke" else 20'},
    },
    "05": {"run.check({*said": "({*said"},  # there PyTorch cannot count linear layers
    "08": {"assert reach == 4 * 15": "assert reach == 15"},
    "09": {
        **{"min(160,": "min(48,", "min(128,": "min(32,", "most=32": "most=16"},
        "served_model.config.block_size}": "24}",
        "crowd[:: 3 if": "crowd[:: 8 if",
        '"n": 6 if quick': '"n": 2 if quick',
        # The pretended device is there for one thread, and a server has a thread of its own.
        "client.submit(over_http, requests).result()": "drive(engine, requests)",
    },
    "11": {
        **{
            "= 12 if brief": "= 4 if brief",
            "(12, 2) if brief": "(4, 2) if brief",
            "20 if brief": "200 if brief",
        },
        "assert today ==": "assert today or today ==",  # the shapes are smaller here
    },
    "12": {'"smoke" else 40': '"smoke" else 12', ", 40": ", 10"},
}
TRAINING = TrainConfig(steps=4, batch_size=4, eval_every=2, eval_batches=1, zero_init=True)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A short text of every character, a tiny model of it, a `gpu` profile of little work."""
    folder = tmp_path_factory.mktemp("cells")
    text = folder / "text.txt"
    whole = load_corpus().text
    text.write_text("".join(sorted(set(whole))) + whole[:60_000], encoding="utf-8")
    gpu = replace(
        profiles.PROFILES["gpu"],
        name="smoke",  # cells that ask for it do less
        train=TRAINING,
        seeds=2,
        lengths=(1, 8),
        size="small",
        sizes=("article", "small"),
        batches=(1, 2),
        repeats=1,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOGPT_DATA", str(text))
        patch.setitem(profiles.PROFILES, "gpu", gpu)
        for name, shape in shapes.SIZES.items():
            patch.setitem(shapes.SIZES, name, replace(shape, **TINY))
        peak = summary([1e9]) | {"how": "not measured"}  # a large product takes seconds
        patch.setattr(roofline, "peak_arithmetic", lambda **_: peak)
        brief_referee(patch)
        patch.setattr(style, "to_png", drawn)
        patch.setattr(style, "to_apng", lambda figures, *_: drawn(figures[-1]))
        # Cells that name a shape leave the number of layers out.
        usual = GPTConfig.__init__.__defaults__
        patch.setattr(GPTConfig.__init__, "__defaults__", (*usual[:2], 1, *usual[3:]))
        corpus = load_corpus()
        cpu = Device(torch.device("cpu"), torch.float32, "tests")
        shape = replace(shapes.SIZES["small"], vocab_size=len(set(corpus.text)))
        train(GPT(shape), corpus, TRAINING, out=folder / "model", device=cpu)
        yield folder / "model"


@pytest.mark.release
@pytest.mark.parametrize("number", RUN)
def test_every_cell_says_the_same_after_all_the_others(number, small, tmp_path, monkeypatch):
    path = next(path for path in NOTEBOOKS if path.stem[:2] == number)
    monkeypatch.setenv("NANOGPT_OUT", str(tmp_path))
    monkeypatch.setenv("NANOGPT_CHECKPOINT", str(small))
    monkeypatch.chdir(ROOT / "notebooks")
    if number == "13":
        import_module("transformers.models.llama.modeling_llama")  # it names types of the real CUDA
    texts = "".join(cell.source for cell in nbformat.read(path, 4).cells)
    fewer = INSTEAD.get(number, {})
    assert all(theirs in texts for theirs in fewer)
    scope = {"__name__": "__main__"}
    gpu = PretendCuda()
    cells = [cell for cell in filled(nbformat.read(path, 4)).cells if cell.cell_type == "code"]

    def said(cell) -> str:
        compiles = "torch.compile(" in cell.source or "compiled(" in cell.source
        with contextlib.nullcontext() if compiles else gpu:
            text = printed(cell, scope, fewer)
        if "parameters" in cell.metadata.get("tags", []):
            scope.update(LESS.get(number, {}))
        return text

    first = {cell.id: said(cell) for cell in cells}
    again = {cell.id: said(cell) for cell in reversed(cells)}
    timed = {cell.id for cell in cells if "timing" in cell.metadata.get("tags", [])}
    assert {
        id: (first[id], again[id]) for id in first.keys() - timed if first[id] != again[id]
    } == {}


def drawn(figure, footer: str = "") -> bytes:
    """In place of a PNG: the words and the lines of a figure are printed."""
    for axes in figure.axes:
        print([axes.get_title(loc="left"), *(text.get_text() for text in axes.texts)])
        print([line.get_xydata().tolist() for line in axes.lines])
    return PICTURE


def printed(cell, scope: dict, fewer: dict) -> str:
    """What one run of a cell prints, its tables and pictures by their texts."""
    name = f"<cell {cell.id}>"
    out = io.StringIO()
    source = cell.source
    for theirs, here in fewer.items():
        source = source.replace(theirs, here)
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    quiet = contextlib.redirect_stderr(io.StringIO())
    with contextlib.redirect_stdout(out), quiet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(source, name, "exec"), scope)
    return re.sub(r"[^\n]*\r", "", out.getvalue())  # bars come and go


@pytest.mark.release
@pytest.mark.parametrize("stop_after", [0, 1, 2])
def test_a_training_that_is_interrupted_leaves_a_page_that_goes_on(
    small, stop_after, tmp_path, monkeypatch
):
    """As in JupyterLab: the cell of the training is stopped, and the reader runs those below it."""
    path = next(path for path in NOTEBOOKS if path.stem[:2] == "01")
    monkeypatch.setenv("NANOGPT_OUT", str(tmp_path))
    monkeypatch.setenv("NANOGPT_MINE", str(tmp_path / "mine"))
    monkeypatch.delenv("NANOGPT_HEADLESS", raising=False)
    monkeypatch.chdir(ROOT / "notebooks")
    scope = {"__name__": "__main__"}
    said = {}
    titles = {}
    stop_at(monkeypatch, stop_after, ctrl_c)
    for cell in filled(nbformat.read(path, 4)).cells:
        if cell.cell_type == "code":
            said[cell.id] = printed(cell, scope, {})
            titles[cell.id] = scope.get("title")
            if "parameters" in cell.metadata.get("tags", []):
                scope.update(LESS["01"], mine="false")
    done = len(scope["history"]["batch_loss"])
    assert done == stop_after + 1
    assert f"The rest of this notebook uses these {done:,} steps." in said["train"]
    assert f"{done:,} of 4 steps" in said["train"]
    assert titles["curve"].startswith(f"{done:,} steps: validation loss")
    assert f"--- after {done:,} steps" in said["samples"]
    assert f"in all {done:,} steps" in said["check"]
    assert "4 steps" not in said["samples"] + said["curve"] + said["measured"]
