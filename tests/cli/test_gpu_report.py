"""The report of a GPU: refused without one; with a pretended one, whole or not there."""

import json
from dataclasses import replace
from types import SimpleNamespace

import papermill
import pytest
import torch
from conftest import tiny_model
from notebook_fixtures import execute_here, write
from pretend_cuda import PretendCuda

from nanogpt.benchmarks import roofline, training
from nanogpt.benchmarks.timing import summary
from nanogpt.cli import gpu_report
from nanogpt.cli import main as nanogpt
from nanogpt.config import shapes
from nanogpt.config.shapes import GPTConfig
from nanogpt.data.corpus import practice_corpus
from nanogpt.verify import devices

TINY = GPTConfig(block_size=16, n_layer=1, n_head=2, n_embd=8)
QUICK = {"seeds": 1, "repeats": 1, "sizes": "small"}


@pytest.fixture
def go(tmp_path, monkeypatch):
    """Runs the command on a pretended GPU, with little work; returns its exit code."""
    text = tmp_path / "text.txt"
    text.write_text(practice_corpus().text[:3000], encoding="utf-8")
    monkeypatch.setenv("NANOGPT_DATA", str(text))
    monkeypatch.setattr(papermill, "execute_notebook", execute_here)
    monkeypatch.setattr(gpu_report, "WORK", tmp_path / "outputs" / "work")
    monkeypatch.setattr(gpu_report, "REPORTS", tmp_path / "outputs" / "gpu")
    monkeypatch.setattr(gpu_report, "ROOT", tmp_path)
    peak = summary([1e9]) | {"how": "not measured"}  # a large product takes seconds
    monkeypatch.setattr(roofline, "peak_arithmetic", lambda **_: peak)
    monkeypatch.setattr(training, "TURNS", 2)
    race = [replace(e, train={"steps": 1, "batch_size": 2}) for e in gpu_report.RACE[:2]]
    monkeypatch.setattr(gpu_report, "RACE", race)
    saved = SimpleNamespace(model=tiny_model(block_size=16))
    monkeypatch.setattr(gpu_report, "load_checkpoint", lambda _: saved)
    monkeypatch.setitem(shapes.SIZES, "article", TINY)
    monkeypatch.setitem(shapes.SIZES, "small", TINY)

    def command(*cells) -> int:
        write(tmp_path / "notebooks" / "00_small.ipynb", *cells)
        words = [f"--{name}={value}" for name, value in QUICK.items()]
        with PretendCuda(name="Pretended GPU 24GB"):
            return nanogpt(["gpu", "report", *words, "--source", str(tmp_path / "notebooks")])

    return command


def test_without_a_gpu_it_is_refused_in_one_line_that_says_what_to_do(capsys):
    assert nanogpt(["gpu", "report"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: gpu report needs an NVIDIA GPU")
    assert "run it on a machine that has one" in said
    assert said.count("\n") == 1


@pytest.mark.slow
def test_one_folder_under_the_name_of_the_machine_is_ready_to_be_published(go, tmp_path, capsys):
    assert go("import torch\nprint(torch.ones(2, device='cuda').sum().item(), profile)") == 0
    folder = tmp_path / "outputs" / "gpu" / "pretended-gpu-24gb"
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    made = {f"gpu/{name}.json" for name in ("equality", "ladder-small", "race")}
    assert {"README.md", "manifest.json", "00_small.ipynb", "html/index.html"} | made <= found
    assert "git add outputs/gpu/pretended-gpu-24gb" in capsys.readouterr().out
    same = json.loads((folder / "gpu" / "equality.json").read_text())
    assert (same["equal"], same["environment"]["device"]) == (same["texts"], "cuda")
    text = (folder / "README.md").read_text()
    assert text.startswith("# Pretended GPU 24GB\n")
    assert "4 of 4 texts of 16 tokens are equal" in text
    assert "CUDA graph of 16 steps" in text
    assert "one thread" not in text
    assert "2.0 gpu" in (folder / "00_small.ipynb").read_text()
    assert not gpu_report.WORK.exists()


@pytest.mark.slow
def test_nothing_is_published_where_a_notebook_fails_or_a_text_is_wrong(go, tmp_path, monkeypatch):
    assert go("1 / 0") == 1
    wrong = devices._difference("cache", 1, *torch.tensor([[1.0, 2], [1, 3], [5, 5]]), 0.1)
    same = gpu_report.across_devices
    monkeypatch.setattr(
        gpu_report, "across_devices", lambda *how: same(*how) | {"differences": wrong}
    )
    assert go("1 + 1") == 1
    assert not (tmp_path / "outputs" / "gpu").exists()
    assert "MORE THAN ROUNDING DOES" in (gpu_report.WORK / "README.md").read_text()


def test_a_difference_that_rounding_can_make_is_explained():
    text, got, margins = torch.tensor([1, 2, 3]), torch.tensor([1, 4, 3]), torch.tensor([9, 0.1, 9])
    (row,) = devices._difference("cache", 1, text, got, margins, 0.06)
    assert (row["token"], row["explained"]) == (1, True)
    assert not devices._difference("cache", 1, text, got, margins, 0.04)[0]["explained"]
    assert devices._difference("cache", 1, text, text, margins, 0.06) == []
