"""How many files a reader opens to follow the code: counted by running it."""

import http.client
import json
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from notebook_fixtures import write
from server_fixtures import Counted

import nanogpt
from nanogpt.config import SIZES, GPTConfig
from nanogpt.decoder.model import Decoder
from nanogpt.decoder.pack import as_decoder, build_model
from nanogpt.device import pick_device
from nanogpt.fitting import fit
from nanogpt.generation import generate
from nanogpt.model import GPT
from nanogpt.series.execute import Strict, execute
from nanogpt.serving.http import listening
from nanogpt.serving.modules import ModuleBackend
from nanogpt.serving.native_steps import NativeBackend
from nanogpt.training.recipes import recipe_for
from nanogpt.training.trainer import Trainer

PACKAGE = Path(nanogpt.__file__).parent
DECODER = {"decoder/config.py", "decoder/layers.py", "decoder/model.py"}
# A forward pass of the model and its shape: counted on the path of a prompt.
FORWARD = {"model.py", "attention.py"} | DECODER


@contextmanager
def noted():
    """The calls into the package, in all threads: each as its file and the levels above it."""
    calls = set()

    def note(frame, event, arg):
        path = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            calls.add((path.relative_to(PACKAGE).as_posix(), levels(frame)))

    before = sys.getprofile()
    sys.setprofile(note)
    threading.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def levels(frame) -> tuple[str, ...]:
    """The functions of the package that have called each other, this one last."""
    names = []
    while frame:
        if PACKAGE in Path(frame.f_code.co_filename).parents:
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    return tuple(reversed(names))


def files_of(call) -> set[str]:
    """The files of the package whose functions run during the call, in all threads."""
    with noted() as calls:
        call()
    return {file for file, _ in calls.copy()}


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


@pytest.mark.parametrize("backend", [ModuleBackend, NativeBackend])
def test_a_request_over_http(backend):
    """From its first byte, on a connection that is open, to the last token of its answer."""
    body = json.dumps({"prompt": "abc", "max_tokens": 4, "temperature": 0.9, "seed": 1})

    def ask(connection):
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        assert answer["usage"]["completion_tokens"] == 4, answer

    with noted() as calls, listening(Counted(backend=backend)) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
        ask(connection)
        calls.clear()
        ask(connection)
        files = {file for file, _ in calls.copy()}
        connection.close()
    assert {"serving/http.py", "serving/batch.py", "serving/sequence.py"} <= files
    assert len(files - FORWARD) <= 13, files
    names = [file for file in files if file.startswith("serving/")]
    assert len(names) <= 8, f"the names that a reader has to know: {names}"


@pytest.mark.slow
def test_a_notebook(tmp_path):
    """From its file to its first cell, and to the file with its outputs."""
    source = write(tmp_path / "00_one.ipynb", "print(1)")
    with noted() as calls:
        execute(source, tmp_path / "out.ipynb", {})
    files = {file for file, _ in calls.copy()}
    assert len(files) <= 8, files
    paths = [path for _, path in calls if path[-1] == "execute_cell"]
    steps = ("execute", Strict.execute_managed_notebook.__name__, "execute_cell")
    assert {tuple(name for name in path if name in steps) for path in paths} == {steps}
    assert max(map(len, paths)) <= 4, paths
