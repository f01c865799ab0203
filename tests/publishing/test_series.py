"""The series itself: every notebook, once, in a kernel of its own, doing as little as shows it."""

import json

import pytest
import torch
from notebook_fixtures import NOTEBOOKS, page_faults

from nanogpt.cli import main
from nanogpt.config import GPTConfig, TrainConfig
from nanogpt.data.corpus import load_corpus
from nanogpt.model.gpt import GPT
from nanogpt.system.device import Device
from nanogpt.training.loop import train

pytestmark = pytest.mark.slow
REAL_CORPUS = True
SMOKE, TRAINED = ["--profile", "smoke"], ["-p", "steps=24", "-p", "n_long=80"]  # of 01 and 08
LESS = ["-p", "n_new=60"]  # of notebook 00
NAMES = [path.stem for path in NOTEBOOKS]
ANY_MODEL = [name for name in NAMES if name[:2] not in ("01", "08", "11")]


@pytest.fixture(scope="module", autouse=True)
def short_corpus(tmp_path_factory):
    """A text of every character but fewer words, so that a loss over all of it is quick."""
    whole, path = load_corpus().text, tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("".join(sorted(set(whole))) + whole[:60_000], encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOGPT_DATA", str(path))
        yield


@pytest.fixture(scope="module")
def small_model(tmp_path_factory, short_corpus):
    """A checkpoint of 2 layers, hardly trained; as wide as "small": they share a native build."""
    out, corpus = tmp_path_factory.mktemp("small") / "model", load_corpus()
    shape = GPTConfig(len(set(corpus.text)), block_size=128, n_layer=2, n_head=3, n_embd=96)
    recipe = TrainConfig(steps=24, eval_every=24, eval_batches=1)
    cpu = Device(torch.device("cpu"), torch.float32, "tests")
    train(GPT(shape), corpus, recipe, out=out, device=cpu)
    return out


@pytest.fixture(scope="module")
def series(tmp_path_factory, small_model):
    """All notebooks, each once: the exit codes of two runs, and their output folder.

    Those that take any model are given a small one.
    """
    out = tmp_path_factory.mktemp("series")
    rest, folder = [name for name in NAMES if name not in ANY_MODEL], ["--out", str(out)]
    codes = [
        main(["run", *rest, *SMOKE, *TRAINED, *folder, "--no-html"]),
        main(["run", *ANY_MODEL, *SMOKE, *LESS, "-p", f"checkpoint={small_model}", *folder]),
    ]
    return codes, out


def test_every_notebook_runs_and_its_page_can_be_read_by_everyone(series):
    codes, out = series
    entries = json.loads((out / "manifest.json").read_text())["notebooks"]
    assert {e["notebook"]: e["error"] for e in entries} == dict.fromkeys(NAMES)
    assert codes == [0, 0]
    # Those that run scripts of their own: test_live.py and test_museum_page.py read them.
    others = {out / "html" / f"{name}.html" for name in ("live", "museum")}
    pages = sorted(set((out / "html").glob("*.html")) - others)
    assert [page.stem for page in pages] == [*NAMES, "index"]
    assert {page.name: page_faults(page) for page in pages} == {page.name: [] for page in pages}
