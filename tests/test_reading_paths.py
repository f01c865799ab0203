"""How many files a reader opens to follow the code: counted by running it."""

import sys
import threading
from pathlib import Path

import pytest
import torch

import nanogpt
from nanogpt.config import SIZES, GPTConfig, recipe_for
from nanogpt.device import pick_device
from nanogpt.generation import generate
from nanogpt.model import GPT
from nanogpt.trainer import Trainer

PACKAGE = Path(nanogpt.__file__).parent


def files_of(call) -> set[str]:
    """The files of the package whose functions run during the call, in all threads."""
    files = set()

    def note(frame, event, arg):
        path = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            files.add(path.relative_to(PACKAGE).as_posix())

    before = sys.getprofile()
    sys.setprofile(note)
    threading.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return files


def test_from_a_prompt_to_its_token():
    model = GPT(GPTConfig(n_layer=1, block_size=32))
    prompt = torch.ones(1, 3, dtype=torch.int64)
    files = files_of(lambda: list(generate(model, prompt, 5)))
    assert {"generation.py", "model.py", "attention.py", "cache.py", "sampling.py"} <= files
    assert len(files) <= 8, files
    assert not [name for name in files if "/" in name], "all are files of the lesson"


@pytest.mark.parametrize("recipe", ["lecture", "fast"])
def test_a_training_step(recipe):
    train, shape = recipe_for(recipe, SIZES["small"])
    data = torch.randint(65, (5000,))
    trainer = Trainer(GPT(shape), data, train, torch.Generator(), pick_device("cpu"))
    files = files_of(lambda: trainer.step(3))
    assert {"trainer.py", "data.py", "model.py", "attention.py"} <= files
    assert len(files) <= 6, files
    assert not [name for name in files if "/" in name], "all are files of the lesson"
