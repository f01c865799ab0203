"""minimal.py: it runs alone on any text, and computes what the package's model computes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import seeded, tokens

from nanogpt import minimal
from nanogpt.config import GPTConfig
from nanogpt.generation import complete
from nanogpt.model import GPT
from nanogpt.sampling import draw_noise

GREEK = (
    "ἄνδρα μοι ἔννεπε, μοῦσα, πολύτροπον, ὃς μάλα πολλὰ\nπλάγχθη, ἐπεὶ Τροίης ἱερὸν πτολίεθρον\n"
    * 20
)
VOCAB = 13


def run(folder, *args, **variables):
    """The file alone, copied out of the package, as a user would run it, with fewer batches."""
    text = Path(minimal.__file__).read_text(encoding="utf-8")
    assert "\neval_iters = 20 " in text
    script = folder / "copied.py"
    script.write_text(text.replace("\neval_iters = 20 ", "\neval_iters = 1 "), encoding="utf-8")
    inherited = {key: x for key, x in os.environ.items() if key != "NANOGPT_DATA"}
    command = [sys.executable, str(script), *args]
    settings = {"cwd": folder, "env": inherited | {"PYTHONIOENCODING": "utf-8"} | variables}
    return subprocess.run(command, capture_output=True, encoding="utf-8", **settings)


def test_the_script_trains_on_any_alphabet_and_generates_with_a_cache(tmp_path):
    (tmp_path / "odyssey.txt").write_text(GREEK, encoding="utf-8")
    done = run(tmp_path, "--steps", "2", NANOGPT_DATA="odyssey.txt")
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"^step 2: train loss \d\.\d+, val loss \d\.\d+, 0 seconds left$", done.stdout, re.M
    )
    text = done.stdout.partition("equal texts:\n")[2].removesuffix("\n")
    assert len(text) == minimal.block_size + 1
    assert set(text) <= set(GREEK)


MISTAKES = {  # arguments, and what the error says of them
    "no text": ([], "no file data/input.txt: name any UTF-8 text"),
    "a missing file": (["missing.txt"], "no file missing.txt"),
    "a short text": (["short.txt"], "short.txt has 9 characters: block_size 128 needs 1,300"),
    "an image": (["image.txt"], "image.txt is not a readable UTF-8 text"),
    "a folder": (["."], ". is not a readable UTF-8 text"),
    "no steps": (["short.txt", "--steps", "0"], "--steps 0: train for at least 1 step"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_main_reports_a_mistake_in_one_line(tmp_path, monkeypatch, capsys, mistake):
    arguments, words = MISTAKES[mistake]
    (tmp_path / "short.txt").write_text("too short", encoding="utf-8")
    (tmp_path / "image.txt").write_bytes(b"\x89PNG\xff" * 1000)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NANOGPT_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", ["minimal.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        minimal.main()
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert said.err.startswith(f"error: {words}")
    assert said.err.count("\n") == 1


# ------------------------------------------------------------------ the same model


@pytest.fixture
def pair(monkeypatch):
    """The file's model, and the package's, of the same weights: strictly, in both directions."""
    shape = {"block_size": 24, "n_layer": 2, "n_head": 2, "n_embd": 16, "dropout": 0.2}
    for name, value in shape.items():
        monkeypatch.setattr(minimal, name, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ours = minimal.GPTLanguageModel(VOCAB).eval()
    for weight in ours.parameters():
        weight.data *= 20 if weight.ndim > 1 else 1  # so that a wrong mask shows
    theirs = GPT(GPTConfig(VOCAB, **shape)).eval()
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def test_logits_loss_and_gradients_match_the_package(pair):
    x = tokens(3, 24)
    y = tokens(3, 24, seed=1)
    losses = []
    for model in pair:
        logits, loss = model(x, y)
        loss.backward()
        losses.append(loss)
        assert model(x)[1] is None
    torch.testing.assert_close(pair[0](x)[0], pair[1](x)[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(*losses, rtol=0, atol=1e-6)
    gradients = [[weight.grad for weight in model.parameters()] for model in pair]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n_prompt", [1, 7])
def test_cached_and_uncached_tokens_match_the_package(pair, n_prompt):
    ours, theirs = pair
    prompt = tokens(2, n_prompt)
    noise = draw_noise(25 - n_prompt, 2, VOCAB, seeded(3))
    expected = complete(theirs, prompt, len(noise), noise=noise)
    for cached in (False, True):
        assert torch.equal(minimal.generate(ours, prompt, noise, cached), expected)
    assert all(head.cache is None for head in ours.modules() if isinstance(head, minimal.Head))


def test_a_cached_generation_reads_each_token_once(pair):
    read = []
    pair[0].register_forward_pre_hook(lambda model, args: read.append(args[0].shape[1]))
    minimal.generate(pair[0], tokens(1, 4), draw_noise(3, 1, VOCAB, seeded()), cached=True)
    assert read == [4, 1, 1]


def test_training_does_not_use_a_cache(pair):
    head = pair[0].blocks[0].sa.heads[0].train()
    head.cache = minimal.KVCache()
    head(torch.zeros(1, 3, 16))
    assert head.cache.k is None


def test_a_text_longer_than_the_position_table_is_refused(pair):
    with pytest.raises(AssertionError, match="longer than block_size"):
        minimal.generate(pair[0], tokens(1, 4), torch.ones(22, 1, VOCAB), cached=True)
