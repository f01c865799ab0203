"""The reader's code at work: training, and the commands' --lesson."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import safe_open, save_file

from nanogpt import GPT, SIZES, SamplingParams, load_corpus, train
from nanogpt.cli import main
from nanogpt.course import lesson as mine
from nanogpt.course import program
from nanogpt.course.blanks import BLANKS
from nanogpt.course.practice import lesson_of, model_with, trainer_with
from nanogpt.course.solutions import lesson_names
from nanogpt.decoder.checkpoint import load_checkpoint
from nanogpt.files import KEEPER, LECTURE_FORM
from nanogpt.serving.batch import serve
from nanogpt.serving.sequence import Request
from nanogpt.site.nbfile import solution
from nanogpt.training.recipes import recipe_for
from nanogpt.training.trainer import Trainer

REAL_CORPUS = True
NAMES = [name for name, one in BLANKS.items() if one.notebook in ("01", "02", "05", "06")]


def whole() -> str:
    """A lesson in which everything is the reader's."""
    text = program.begin()
    for name in NAMES:
        text, _ = program.merge(text, solution(name), name, [*BLANKS])
    return text


@pytest.fixture
def lesson(tmp_path):
    path = tmp_path / "lesson.py"
    path.write_text(whole(), encoding="utf-8")
    return path


def loss_after(steps: int, trainer) -> float:
    """The validation loss after so many steps of a small model by this trainer."""
    corpus = load_corpus()
    recipe = recipe_for("fast", SIZES["article"])[0]
    short = replace(recipe, steps=steps, eval_every=steps, eval_batches=1, batch_size=4)
    model = GPT(replace(SIZES["article"], vocab_size=len(set(corpus.text))))
    return train(model, corpus, short, trainer=trainer)["val"][-1]


def test_the_readers_step_trains_as_the_package_does_and_a_frozen_one_does_not():
    scope = lesson_names()
    theirs = trainer_with(scope["attention_weights"], scope["one_step"])
    frozen = trainer_with(
        scope["attention_weights"], lambda model, opt, x, y: model(x, y)[1].item()
    )
    ours = loss_after(20, Trainer)
    assert abs(loss_after(20, theirs) - ours) < 1e-3
    assert loss_after(20, frozen) > ours + 0.1


def test_a_whole_lesson_imports_the_model_around_its_heads_alone_and_stays_short():
    text = whole()
    assert text.count("nanogpt.") == text.count("from nanogpt.course.solutions import *") == 1
    assert text.count("from nanogpt import GPT, GPTConfig, kv_cache") == 1
    assert len([line for line in text.splitlines() if line.strip()]) < 200
    assert mine.Lesson(text).check().yours == NAMES


# What a program of 0.2.0 and notebook 01 say beside the shape.
EARLIER = {"head_size": 16}
NOTEBOOK = {"rms_norm": False, "n_kv_head": None, "per_head": True}


@pytest.mark.parametrize("more", [{}, EARLIER, NOTEBOOK], ids=["its own", "0.2.0", "notebook 01"])
def test_the_program_of_a_lesson_trains_saves_and_loads_with_its_heads(more, tmp_path, capsys):
    program = mine.Lesson(whole(), tmp_path / "a" / "b" / "lesson.py").written
    path = tmp_path / "model.safetensors"
    program["train"]("to be, or not to be\n" * 20, path, steps=2, batch=2)
    assert "step    0 of 2: the loss of this batch is " in capsys.readouterr().out
    with safe_open(path, "pt") as file:
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = json.loads(file.metadata()["nanogpt"])
    about["config"] |= more
    save_file(state, path, {"nanogpt": json.dumps(about)})
    model, chars = program["load"](path)
    assert chars == "\n ,benort"
    assert isinstance(model.blocks[3].sa.heads[3], program["Head"])
    plain = GPT(model.config).eval()
    plain.load_state_dict(state)
    idx = torch.arange(8)[None]
    torch.testing.assert_close(model(idx)[0], plain(idx)[0])


def test_generate_with_a_lesson_writes_the_texts_of_the_package(lesson, tmp_path):
    sums = []
    for more in ([], ["--lesson", str(lesson)]):
        out = tmp_path / f"texts{len(more)}"
        given = ["--checkpoint", str(LECTURE_FORM), "--samples", "2", "--max-new-tokens", "20"]
        given += ["--temperature", "0.8", "--out", str(out)]
        assert not main(["generate", *given, *(more or ["--backend", "modules"])])
        backend = "lesson" if more else "modules"
        settings = json.loads((out / "job.json").read_text(encoding="utf-8"))
        assert settings["backend"] == backend
        sums.append((out / "shards" / "00000.jsonl").read_bytes())
    assert sums[0] == sums[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["generate", "--top-k", "3"], "leave out --workers"),
        (["generate", "--backend", "native"], "and --backend native"),
        (["generate", "--checkpoint", f"{KEEPER}.safetensors"], "your Head is the lecture's"),
        (["export", f"{KEEPER}.safetensors"], "your Head is the lecture's"),
    ],
)
def test_commands_that_a_lesson_does_not_support_say_so(words, said, lesson, tmp_path, capsys):
    out = ["--out", str(tmp_path / "out")]
    assert main([*words, *out, "--lesson", str(lesson)]) == 2
    assert said in capsys.readouterr().err


def test_export_checks_the_readers_heads(lesson, tmp_path, capsys):
    assert not main(["export", "--lesson", str(lesson), "--out", str(tmp_path / "out")])
    assert "with your heads these weights give the same logits" in capsys.readouterr().out
    lesson.write_text(
        whole().replace("F.dropout(weights, ", "F.dropout(weights * 0.9, "), encoding="utf-8"
    )
    assert main(["export", "--lesson", str(lesson), "--out", str(tmp_path / "out2")]) == 2
    assert "Your Head" in capsys.readouterr().err


def test_requests_served_by_the_readers_heads_get_the_packages_tokens(lesson):
    model = load_checkpoint(LECTURE_FORM).model
    theirs = model_with(lesson_of(lesson, "Head"), model)
    plain = SamplingParams()
    requests = [Request(torch.arange(3 + i), 9, plain, seed=i, id=i) for i in range(3)]
    texts = []
    for subject in (model, theirs):
        found = sorted((x.request.id, x.token) for x in serve(subject, requests))
        texts.append(found)
    assert texts[0] == texts[1]
    assert len(texts[0]) == 27
