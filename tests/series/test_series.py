"""The series itself: every notebook, once, doing as little as shows it.

In this process, on tiny models; one of them in a kernel; and all of them in kernels in a release
run. On a text that has most oddities of TEXTS at once; test_texts.py is about the others.
"""

import json
from dataclasses import replace

import pytest
import torch
from notebook_fixtures import NOTEBOOKS, brief_kernels, page_faults, tiny_series
from notebook_shell import no_kernels
from text_fixtures import hostile

from nanogpt.cli import main
from nanogpt.config import GPTConfig
from nanogpt.data import load_corpus
from nanogpt.device import Device
from nanogpt.files import PUBLISHED
from nanogpt.model import GPT
from nanogpt.series.findings import Finding
from nanogpt.site import reading
from nanogpt.site.nbfile import read
from nanogpt.training.loop import train
from nanogpt.training.recipes import TrainConfig

REAL_CORPUS = LIVE_PAGE = True
SMOKE = ["--profile", "smoke"]
TINY = ["-p", "steps=4", "-p", "n_new=12", "-p", "n_long=40"]
TRAINED = ["-p", "steps=24", "-p", "n_long=80"]  # in a kernel
LESS = ["-p", "n_new=60"]
NAMES = [path.stem for path in NOTEBOOKS]
ANY_MODEL = [name for name in NAMES if name[:2] not in ("01", "08", "11")]
QUICKEST = "00"  # in a kernel


@pytest.fixture(scope="module", autouse=True)
def short_corpus(tmp_path_factory):
    """A short text, over all of which a loss is quick."""
    path = tmp_path_factory.mktemp("corpus") / "hostile.txt"
    path.write_bytes(hostile().encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOGPT_DATA", str(path))
        brief_kernels(patch, path.parent)
        yield


@pytest.fixture(scope="module")
def small_model(tmp_path_factory, short_corpus):
    """A checkpoint of 2 layers, hardly trained; as wide as "small": they share a native build."""
    out = tmp_path_factory.mktemp("small") / "model"
    corpus = load_corpus()
    shape = GPTConfig(len(set(corpus.text)), block_size=256, n_layer=2, n_head=3, n_embd=96)
    recipe = TrainConfig(steps=24, eval_every=24, eval_batches=1)
    cpu = Device(torch.device("cpu"), torch.float32, "tests")
    train(GPT(shape), corpus, recipe, out=out, device=cpu)
    return out


def run_here(out) -> list[int]:
    """All notebooks in this process; the exit code of the run."""
    with pytest.MonkeyPatch.context() as patch:
        tiny_series(patch)
        no_kernels(patch)
        return [main(["run", *SMOKE, *TINY, "--out", str(out)])]


def run_in_kernels(out, small_model) -> list[int]:
    """Each notebook in a kernel, those that take any model with a small one; two exit codes."""
    rest = [name for name in NAMES if name not in ANY_MODEL]
    folder = ["--out", str(out)]
    return [
        main(["run", *rest, *SMOKE, *TRAINED, *folder, "--no-html"]),
        main(["run", *ANY_MODEL, *SMOKE, *LESS, "-p", f"checkpoint={small_model}", *folder]),
    ]


@pytest.fixture(scope="module", params=["here", pytest.param("kernels", marks=pytest.mark.release)])
def series(request, tmp_path_factory):
    """All notebooks, each once: the exit codes of the runs, and their output folder."""
    out = tmp_path_factory.mktemp("series")
    if request.param == "here":
        return run_here(out), out
    return run_in_kernels(out, request.getfixturevalue("small_model")), out


def test_every_notebook_runs_and_its_page_can_be_read_by_everyone(series):
    codes, out = series
    entries = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["notebooks"]
    assert {e["notebook"]: e["error"] for e in entries} == dict.fromkeys(NAMES)
    assert codes == [0] * len(codes)
    # Those that run scripts of their own: test_live.py and test_museum_page.py read them.
    others = {"api", "live", "museum", "your_cache", *reading.PAGES}
    pages = sorted(page for page in (out / "html").glob("*.html") if page.stem not in others)
    assert [page.stem for page in pages] == [*NAMES, "index"]
    assert {page.name: page_faults(page) for page in pages} == {page.name: [] for page in pages}


def test_a_notebook_runs_in_a_kernel(tmp_path, series):
    model = series[1] / "checkpoints" / "small"
    words = ["run", QUICKEST, *SMOKE, "-p", "n_new=12", "-p", f"checkpoint={model}", "--no-html"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    (entry,) = json.loads((tmp_path / "out" / "manifest.json").read_text("utf-8"))["notebooks"]
    assert entry["error"] is None
    assert f"json/{QUICKEST}.json" in entry["files"]


# Sentences that once stood beside numbers that said the reverse, by the notebook.
OUTRIGHT = {
    "05": ["must grow with its place", "a cache can lose for two reasons"],
    "06": ["written by me: nothing"],
    "07": ["which of them knows names?"],
    "10": ["the first number is rounding"],
    "11": ["beyond a seed", "hurts most: "],
}


def printed(path) -> str:
    """All that the cells of an executed notebook have printed."""
    outputs = [out for cell in read(path).cells for out in cell.get("outputs", [])]
    return "".join(out.get("text", "") for out in outputs if out.output_type == "stream")


def test_a_short_run_claims_nothing_that_its_numbers_do_not_show(series):
    """Every finding stands in its notebook in the words that its numbers allow, and no other."""
    _, out = series
    count = 0
    for path in sorted(out.glob("[0-9][0-9]_*.ipynb")):
        said = printed(path)
        findings = json.loads((out / "json" / f"{path.name[:2]}.json").read_text(encoding="utf-8"))[
            "findings"
        ]
        for row in findings:
            finding = Finding(**row)
            assert str(finding) in said, (path.stem, finding.name)
            claimed = f"\n{replace(finding, enough=True, holds=True)}"
            assert finding.supported or claimed not in f"\n{said}", (path.stem, finding.name)
        count += len(findings)
        assert not [words for words in OUTRIGHT.get(path.name[:2], []) if words in said]
    assert count >= 20


def test_the_published_run_supports_what_it_claims():
    for path in sorted((PUBLISHED / "json").glob("[0-9][0-9].json")):
        for row in json.loads(path.read_text(encoding="utf-8")).get("findings", []):
            assert Finding(**row).enough, (path.stem, row["name"], row["needs"])
