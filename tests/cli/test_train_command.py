"""python -m nanogpt.train: a recipe by name, options, a log to follow, a stop and a resume."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from nanogpt.cli.train import main
from nanogpt.config import MODERN, RECIPES, SIZES, TrainConfig, recipe_for
from nanogpt.data.corpus import practice_corpus
from nanogpt.model.checkpoint import load_checkpoint

QUICK = [
    "--size",
    "article",
    "--steps",
    "6",
    "--eval-every",
    "2",
    "--eval-batches",
    "1",
    "--batch-size",
    "2",
]


@pytest.fixture(autouse=True)
def text(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_text(practice_corpus().text[:20_000], encoding="utf-8")
    monkeypatch.setenv("NANOGPT_DATA", str(path))
    return path


def log_of(out):
    return [
        json.loads(line) for line in out.with_name(f"{out.name}.jsonl").read_text().splitlines()
    ]


def test_a_run_leaves_weights_and_a_log_of_its_evaluations(tmp_path, capsys):
    out = tmp_path / "runs" / "one"
    assert main([*QUICK, "--out", str(out), "--seed", "5"]) == 0
    said = capsys.readouterr().out
    assert "at block 32" in said
    assert f"{out}.safetensors" in said
    found, log = load_checkpoint(f"{out}-last"), log_of(out)
    assert [line["step"] for line in log] == [0, 2, 4, 6]
    assert found.meta["losses"] == {"train": log[-1]["train"], "val": log[-1]["val"]}
    expected = {"steps": 6, "eval_every": 2, "batch_size": 2, "seed": 5}
    assert found.meta["train"] == {**vars(RECIPES["fast"].train), **expected, "eval_batches": 1}


def test_a_recipe_is_the_lectures_unless_told_otherwise(tmp_path, capsys):
    out = tmp_path / "lecture"
    assert main([*QUICK, "--recipe", "lecture", "--no-decay", "--out", str(out)]) == 0
    train = load_checkpoint(out).meta["train"]
    assert (train["muon_lr"], train["lr"], train["zero_init"], train["decay"]) == (
        None,
        1e-3,
        False,
        False,
    )
    assert main([*QUICK, "--no-muon", "--no-zero-init", "--out", str(out), "--replace"]) == 0
    train = load_checkpoint(out).meta["train"]
    assert (train["muon_lr"], train["lr"], train["zero_init"]) == (None, 8e-3, False)


@pytest.mark.parametrize("recipe", ["fast", "sprint", "sprint+"])
def test_a_recipe_takes_as_many_characters_a_step_whatever_the_block(recipe):
    shapes = [replace(SIZES["small"], block_size=block) for block in (32, 256, 4096)]
    assert [recipe_for(recipe, shape)[0].batch_size for shape in shapes] == [32, 4, 1]


def test_a_recipe_changes_the_shape_only_in_what_it_names():
    shape = SIZES["small"]
    assert recipe_for("lecture", shape) == (RECIPES["lecture"].train, shape)
    assert recipe_for("fast", shape)[1] == shape
    assert recipe_for("sprint", shape)[1] == replace(shape, **MODERN)
    assert recipe_for("sprint+", shape)[1] == replace(shape, **MODERN, ngrams=3)
    with pytest.raises(
        ValueError, match=r"recipe='fats' is unknown: choose lecture, fast, sprint, sprint\+"
    ):
        recipe_for("fats", shape)


@pytest.mark.parametrize("recipe", ["sprint", "sprint+"])
def test_a_newer_architecture_is_trained_by_name_and_loads_again(tmp_path, capsys, recipe):
    out = tmp_path / "run"
    assert (
        main([*QUICK, "--recipe", recipe, "--out", str(out), "--accumulate", "2", "--clip", "1"])
        == 0
    )
    found = load_checkpoint(out)
    assert f"{found.model.n_params:,} parameters" in capsys.readouterr().out
    assert found.model.config.beyond_lecture == RECIPES[recipe].model
    assert (found.meta["train"]["accumulate"], found.meta["train"]["clip"]) == (2, 1.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "0"], "steps=0"),
        (["--lr", "-1"], "lr=-1.0"),
        (["--threads", "0"], "--threads 0"),
        (["--data", "/no/such/file"], "which is no file"),
        (["--device", "cuda"], "no CUDA device"),
        (["--out", "/proc/none/x"], "none"),
    ],
)
def test_what_cannot_begin_says_why_and_writes_nothing(tmp_path, capsys, words, message):
    if words[1] == "cuda":
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is one")
    out = [] if "--out" in words else ["--out", str(tmp_path / "x" / "y")]
    assert main([*QUICK, *out, *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("x/*"))


def test_a_misspelt_recipe_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--recipe", "fats"])
    assert "invalid choice: 'fats'" in capsys.readouterr().err


def test_resuming_with_another_recipe_is_refused(tmp_path, capsys):
    out = str(tmp_path / "run")
    assert main([*QUICK, "--out", out]) == 0
    assert main([*QUICK, "--out", out, "--resume", "--lr", "0.5"]) == 2
    assert "train lr 0.008, not 0.5" in capsys.readouterr().err


def test_a_loss_that_is_no_number_ends_with_1(tmp_path, capsys):
    assert (
        main([*QUICK, "--out", str(tmp_path / "run"), "--lr", "1e25", "--no-muon", "--steps", "40"])
        == 1
    )
    assert "the loss is" in capsys.readouterr().err


def test_ctrl_c_then_resume_gives_the_same_bits_and_the_same_log(tmp_path, text):
    words = [*QUICK, "--steps", "90", "--eval-every", "5"]  # of an option twice, the last counts
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    part = subprocess.Popen(
        [sys.executable, "-m", "nanogpt", "train", *words, "--out", str(tmp_path / "part")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while "step    10" not in part.stdout.readline():
        pass
    part.send_signal(signal.SIGINT)
    said = part.communicate(timeout=120)[1]
    assert part.returncode == 130
    assert "the same command with --resume goes on" in said
    assert (tmp_path / "part-last.state.safetensors").is_file()
    assert main([*words, "--out", str(tmp_path / "part"), "--resume"]) == 0
    for suffix in (".safetensors", "-last.safetensors"):
        assert (tmp_path / f"part{suffix}").read_bytes() == (
            tmp_path / f"whole{suffix}"
        ).read_bytes()
    part, whole = (
        [[line[key] for key in ("step", "train", "val")] for line in log_of(tmp_path / name)]
        for name in ("part", "whole")
    )
    assert part == whole


def test_every_field_of_a_recipe_is_an_option(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert all("--" + name.replace("_", "-") in said for name in TrainConfig.__dataclass_fields__)


def test_a_run_that_lies_there_is_not_replaced_unasked(tmp_path, capsys):
    out = tmp_path / "one"
    assert main([*QUICK, "--out", str(out)]) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert main([*QUICK, "--out", str(out), "--seed", "9"]) == 2
    assert "holds a run: --resume goes on with it, --replace starts anew" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_resume_where_nothing_lies_says_so(tmp_path, capsys):
    assert main([*QUICK, "--out", str(tmp_path / "nowhere"), "--resume"]) == 0
    assert (
        f"no run was saved at {tmp_path / 'nowhere'}: starting at step 0" in capsys.readouterr().out
    )


def test_a_name_with_its_suffix_is_the_name_without(tmp_path, capsys):
    assert main([*QUICK, "--out", str(tmp_path / "one.safetensors")]) == 0
    assert (
        f"of step 6: {tmp_path / 'one.safetensors'}; the log: {tmp_path / 'one.jsonl'}"
        in capsys.readouterr().out
    )
    assert (tmp_path / "one-last.safetensors").is_file()


def test_the_options_of_a_recipe_are_explained(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out.split("what the recipe says", 1)[1]
    for name in vars(TrainConfig()):
        option = name.replace("_", "-")
        assert re.search(rf"--(no-)?{option}( N)?\s+[a-zA-Z]\S* \S+ ", said), name
