"""How many files a reader opens to follow the code: counted by running it."""

import os
import sys
from pathlib import Path

import pytest
import torch

import nanogpt
from nanogpt.config import SIZES, GPTConfig
from nanogpt.decoder.model import Decoder
from nanogpt.decoder.pack import as_decoder, build_model
from nanogpt.device import pick_device
from nanogpt.fitting import fit
from nanogpt.generation import generate
from nanogpt.model import GPT
from nanogpt.training.recipes import recipe_for
from nanogpt.training.trainer import Trainer

PACKAGE = Path(nanogpt.__file__).parent
DECODER = {"decoder/config.py", "decoder/layers.py", "decoder/model.py"}
# A forward pass of the model and its shape: counted on the path of a prompt.
FORWARD = {"config.py", "model.py", "attention.py"} | DECODER


def files_of(call) -> set[str]:
    """The files of the package whose functions run during the call."""
    files = set()
    inside = f"{PACKAGE}{os.sep}"

    def note(frame, event, arg):
        if event == "call" and frame.f_code.co_filename.startswith(inside):
            files.add(Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix())

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return files


@pytest.mark.parametrize("kind", [GPT, Decoder])
def test_from_a_prompt_to_its_token(kind):
    shape = GPTConfig(n_layer=1, block_size=32)
    model = GPT(shape) if kind is GPT else as_decoder(GPT(shape))
    prompt = torch.ones(1, 3, dtype=torch.int64)
    files = files_of(lambda: list(generate(model, prompt, 5)))
    assert {"generation.py", "model.py", "attention.py", "cache.py", "sampling.py"} <= files
    lesson = {name for name in files if "/" not in name}
    assert len(lesson) <= 8, files
    assert files - lesson == (set() if kind is GPT else DECODER)


def test_the_training_loop_of_the_lesson(corpus):
    model = GPT(GPTConfig(len(set(corpus.text)), block_size=16, n_layer=1, n_head=2, n_embd=8))
    files = files_of(lambda: fit(model, corpus, steps=2, eval_every=2, eval_batches=1))
    assert {"fitting.py", "data.py", "model.py", "attention.py"} <= files
    assert len(files) <= 8, files
    assert not [name for name in files if "/" in name], "all are files of the lesson"


@pytest.mark.parametrize("recipe", ["lecture", "fast", "sprint"])
def test_a_training_step(recipe):
    train, shape = recipe_for(recipe, SIZES["small"])
    data = torch.randint(65, (5000,))
    model = as_decoder(build_model(shape))  # as `train` packs a list of heads
    trainer = Trainer(model, data, train, torch.Generator(), pick_device("cpu"))
    files = files_of(lambda: trainer.step(3))
    assert {"training/trainer.py", "data.py", "model.py", "decoder/model.py"} <= files
    # trainer, optimizers, recipes, epochs (the batches), and data (their windows)
    assert len(files - FORWARD) <= 5, files
