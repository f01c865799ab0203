"""python -m nanogpt train: recipes, options, the log, Ctrl-C and --resume."""

import re
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import pytest
import torch
from training_fixtures import contents, ctrl_c, log_of, stop_at

from nanogpt.cli import main
from nanogpt.config import SIZES
from nanogpt.data import practice_corpus
from nanogpt.decoder.checkpoint import load_checkpoint
from nanogpt.decoder.config import beyond_lecture, decoder_config
from nanogpt.training.recipes import MODERN, RECIPES, TrainConfig, recipe_for

QUICK = "--size article --steps 6 --eval-every 2 --eval-batches 1 --batch-size 2".split()
WORDS = [*QUICK, *"--seed 5 --recipe sprint --accumulate 2".split()]


@pytest.fixture(autouse=True, scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(practice_corpus().text[:20_000], encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOGPT_DATA", str(path))
        patch.setenv("TQDM_DISABLE", "1")
        yield


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One finished run: its path, files and output."""
    out = tmp_path_factory.mktemp("runs") / "one"
    said = StringIO()
    with redirect_stdout(said):
        assert main(["train", *WORDS, "--out", f"{out}.safetensors"]) == 0
    files = {p: p.read_bytes() for p in out.parent.iterdir()}
    return SimpleNamespace(out=out, files=files, said=said.getvalue())


def test_a_run_writes_weights_and_a_log(ran):
    found = load_checkpoint(f"{ran.out}-last")
    log = log_of(ran.out)
    assert [row["step"] for row in log] == [0, 2, 4, 6]
    expected = {"steps": 6, "eval_every": 2, "batch_size": 2, "seed": 5, "eval_batches": 1}
    expected |= {"accumulate": 2}
    expected |= {"stages": [[0.5, 8], [0.85, 16]]}  # quarters and halves of the block of 32
    assert found.meta["train"] == {**vars(RECIPES["sprint"].train), **expected}
    assert beyond_lecture(found.model.config) == RECIPES["sprint"].model
    assert f"{found.model.n_params:,} parameters" in ran.said
    assert re.search(f"weights: {ran.out}.safetensors; the log: {ran.out}.jsonl", ran.said)


@pytest.mark.parametrize("no_muon", ["--no-muon", "--muon-lr none"])
def test_options_that_switch_off(tmp_path, no_muon):
    words = [*no_muon.split(), *"--recipe fast --no-zero-init --no-decay".split()]
    assert main(["train", *QUICK, *words, "--out", str(tmp_path / "run")]) == 0
    train = load_checkpoint(tmp_path / "run").meta["train"]
    assert (train["muon_lr"], train["zero_init"], train["decay"]) == (None, False, False)


def test_a_recipe_changes_only_what_it_names():
    shape = SIZES["small"]
    assert recipe_for("lecture", shape) == (RECIPES["lecture"].train, shape)
    assert recipe_for("fast", shape)[1] == shape
    assert recipe_for("sprint", shape)[1] == replace(decoder_config(shape), **MODERN)
    shapes = [replace(shape, block_size=block) for block in (32, 256, 4096)]
    assert [recipe_for("fast", shape)[0].batch_size for shape in shapes] == [24, 3, 1]
    with pytest.raises(ValueError, match=r"recipe='fats' .*lecture, fast, sprint, keeper$"):
        recipe_for("fats", shape)


REFUSED = {  # a row for each place that refuses: settings, shape, text, device, path
    ("--steps", "0"): "--steps 0: ",
    ("--lr", "none"): "--lr None: must be a number in [1e-30",
    ("--batch-size", "100000000000"): "--batch-size 100000000000: must be an integer in [1, ",
    ("--threads", "0"): "--threads 0: ",
    ("--n-head", "3"): "every head gets an equal share, for example with --n-head 2",
    ("--data", "/no/such/file"): "error: /no/such/file is not a file",
    ("--device", "cuda"): "no CUDA device",
    ("--out", "/proc/none/x"): "none",
    ("--out", ""): "--out '': name a file, without its suffix",
    ("--out", "x/y/.safetensors"): "--out 'x/y/.safetensors': name a file",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_an_impossible_run_is_refused_and_writes_nothing(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    if words[1] == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one")
    out = [] if "--out" in words else ["--out", str(tmp_path / "x" / "y")]
    assert main(["train", *QUICK, *out, *words]) == 2
    assert REFUSED[words] in capsys.readouterr().err
    assert not list(tmp_path.glob("x/*"))


def test_ctrl_c_then_resume_gives_the_same_bits_and_the_same_log(
    ran, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "one"
    words = ["train", *WORDS, "--out", str(out), "--resume"]
    with monkeypatch.context() as patch:
        stop_at(patch, 2, ctrl_c)
        assert main(words) == 130
    said = capsys.readouterr()
    assert f"no run was saved at {out}: starting at step 0" in said.out
    assert said.err == "\nstopped: the same command with --resume resumes from this step\n"
    assert main(words) == 0
    assert contents(out) == contents(ran.out)
    assert [row["val"] for row in log_of(out)] == [row["val"] for row in log_of(ran.out)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "9"], "holds a run: --resume resumes it, --overwrite starts a new one"),
        (["--resume", "--lr", "0.5"], "began with --lr 0.008, not 0.5: resume with the same"),
    ],
)
def test_a_saved_run_is_not_replaced_without_overwrite_nor_resumed_as_another(
    ran, capsys, words, message
):
    assert main(["train", *WORDS, "--out", str(ran.out), *words]) == 2
    assert message in capsys.readouterr().err
    assert {p: p.read_bytes() for p in ran.out.parent.iterdir()} == ran.files


def test_every_field_of_a_recipe_is_an_option_with_help(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = capsys.readouterr().out.split("changes to the recipe", 1)[1]
    for name in TrainConfig.__dataclass_fields__:
        option = name.replace("_", "-")
        assert re.search(rf"--(no-)?{option}( \S+)?\s+[a-zA-Z]\S* \S+ ", said), name
    assert "None" not in said
