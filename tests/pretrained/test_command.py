"""generate --model and serve --model: the text of `generate`, errors in one line."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest
from conftest import seeded
from pretend_cuda import PretendCuda
from pretrained_fixtures import change_json
from server_fixtures import ask

from nanogpt import Native8, SamplingParams, complete, generate, load_pretrained
from nanogpt.cli import main
from nanogpt.cli import serve as serve_command
from nanogpt.engines.decoder_library import decoder_library
from nanogpt.files import ROOT
from nanogpt.pretrained.padding import without_spare_tokens

CALL = ["generate", "--max-new-tokens", "12", "--backend", "modules"]


def skip_if_uncompiled(backend: str) -> None:
    """Native code is skipped on a machine without a compiler."""
    if backend == "native":
        decoder_library()


def text_of(folder, chat: bool, sampling: SamplingParams, seed: int = 0) -> str:
    """What the library writes for the same prompt."""
    model, tokenizer = load_pretrained(folder)
    model = without_spare_tokens(model, tokenizer)
    encoded = (
        tokenizer.chat([{"role": "user", "content": "the"}]) if chat else tokenizer.encode("the")
    )
    tokens = generate(model, encoded[None], 12, sampling, generator=seeded(seed))
    return ("" if chat else "the") + "".join(tokenizer.stream(tokens)) + "\n"


@pytest.mark.parametrize("backend", ["modules", "auto", "native"])
@pytest.mark.parametrize("chat", [False, True])
def test_generate_prints_the_text_of_the_library(chat, backend, kept_folders, capsys):
    skip_if_uncompiled(backend)
    folder = kept_folders("qwen3")
    words = [*CALL, "--model", str(folder), "--prompt", "the", "--greedy", "--backend", backend]
    assert main(words + ["--chat"] * chat) == 0
    said = capsys.readouterr()
    assert said.out == text_of(folder, chat, SamplingParams(greedy=True))
    assert f"{folder}: " in said.err
    assert "a vocabulary of 320" in said.err


def test_sampling_and_the_seed_are_those_of_generate(kept_folders, capsys):
    folder = kept_folders("llama")
    words = [*CALL, "--model", str(folder), "--prompt", "the", "--seed", "5", "--top-k", "9"]
    assert main([*words, "--temperature", "1.5"]) == 0
    sampling = SamplingParams(temperature=1.5, top_k=9)
    assert capsys.readouterr().out == text_of(folder, False, sampling, seed=5)


@pytest.mark.release
def test_a_command_warns_of_unknown_fields_in_one_line(own_folder):
    folder = own_folder("llama")
    change_json(folder / "config.json", trained_by="me")
    words = [*CALL, "--model", str(folder), "--prompt", "the"]
    done = subprocess.run(
        [sys.executable, "-m", "nanogpt", *words], capture_output=True, encoding="utf-8", cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    (warning,) = (line for line in done.stderr.splitlines() if "trained_by" in line)
    assert warning.startswith(f"warning: {folder / 'config.json'}: trained_by: unknown")
    assert len(done.stderr.splitlines()) == 2  # and the model's size


@pytest.mark.parametrize("backend", ["modules", "native"])
@pytest.mark.parametrize("draft", ["lookup", "the model itself", "gpt2"])
def test_a_draft_changes_no_text(draft, backend, kept_folders, capsys):
    skip_if_uncompiled(backend)
    folder = kept_folders("llama")
    source = {"lookup": "lookup", "the model itself": str(folder)}.get(draft)
    source = source or str(kept_folders(draft))
    words = [*CALL, "--model", str(folder), "--prompt", "the", "--backend", backend]
    assert main([*words, "--draft", source]) == 0
    assert capsys.readouterr().out == text_of(folder, False, SamplingParams())


@pytest.mark.parametrize(
    ("options", "backend"), [([], "auto"), (["--draft", "lookup"], "modules")], ids=str
)
def test_on_a_gpu_it_prints_the_same_text(options, backend, kept_folders, capsys):
    words = ["--model", str(kept_folders("llama")), "--prompt", "the", *options]
    assert main([*CALL, *words]) == 0
    expected = capsys.readouterr().out
    with PretendCuda():
        assert main([*CALL, *words, "--device", "cuda", "--backend", backend]) == 0
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("draft", [[], ["--draft", "lookup"]])
def test_weights_of_8_bits_give_the_text_of_native8(draft, kept_folders, capsys):
    skip_if_uncompiled("native")
    folder = kept_folders("qwen2")
    model, tokenizer = load_pretrained(folder)
    model = without_spare_tokens(model, tokenizer)
    prompt = tokenizer.encode("the")[None]
    expected = complete(model, prompt, 12, engine=Native8, generator=seeded(0))
    words = [*CALL, "--model", str(folder), "--prompt", "the", "--backend", "auto", "--bits", "8"]
    assert main([*words, *draft]) == 0
    tokens = tokenizer.stream(expected[0, prompt.shape[1] :])
    assert capsys.readouterr().out == "the" + "".join(tokens) + "\n"


def test_8_bits_need_compiled_code(kept_folders, capsys):
    words = [*CALL, "--model", str(kept_folders("llama")), "--prompt", "the", "--bits", "8"]
    assert main(words) == 2
    assert "--bits 8 is for compiled code: leave out --backend modules" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "nowhere", "--prompt", "x"], "error: source='nowhere': no model there"),
        (["--model", "nowhere"], "error: --model continues a text: add --prompt TEXT"),
        (["--model", "nowhere", "--prompt", "x", "--out", "y"], "error: --out y: --model"),
        (["--prompt", "x"], "error: --prompt x: only with --model"),
        (["--bits", "8"], "--bits 8: only with --model"),
        (["--model", "x", "--prompt", "x", "--temperature", "0"], "error: --temperature 0.0"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(options, words, capsys):
    assert main(["generate", *options]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert words in said.err


def test_a_text_ends_with_the_context(kept_folders, capsys):
    folder = kept_folders("llama")
    model, tokenizer = load_pretrained(folder)
    room = model.config.block_size + 1 - len(tokenizer.encode("the"))
    words = ["generate", "--model", str(folder), "--prompt", "the", "--max-new-tokens"]
    assert main([*words, str(room)]) == 0
    capsys.readouterr()
    assert main([*words, str(room + 1)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"--max-new-tokens {room + 1}: after a prompt of" in said.err
    assert f"has room for {room}" in said.err


# ------------------------------------------------------------------ serve --model


@pytest.mark.parametrize("backend", ["modules", "native"])
def test_serve_answers_what_it_proposes(backend, kept_folders, capsys, monkeypatch):
    skip_if_uncompiled(backend)
    folder = kept_folders("llama 3.2")
    answers = []

    def ask_and_end(url, reader, real=serve_command._introduce):
        real(url, reader)
        (curl,) = (line for line in capsys.readouterr().out.splitlines() if "curl" in line)
        _, address, *_, body = shlex.split(curl)
        assert address == f"{url}/v1/chat/completions"
        body = json.dumps(json.loads(body) | {"temperature": 0})
        answers.append(ask(url, "POST", "/v1/chat/completions", body))
        raise KeyboardInterrupt

    monkeypatch.setattr(serve_command, "_introduce", ask_and_end)
    assert main(["serve", "--model", str(folder), "--port", "0", "--backend", backend]) == 0
    ((status, answer),) = answers
    assert (status, answer["model"]) == (200, folder.name)
    model, tokenizer = load_pretrained(folder)
    question = "What is the capital of France?"
    prompt = tokenizer.chat([{"role": "user", "content": question}])
    tokens = generate(
        without_spare_tokens(model, tokenizer), prompt[None], 16, SamplingParams(greedy=True)
    )
    expected = "".join(tokenizer.stream(tokens))
    assert expected
    assert answer["choices"][0]["message"]["content"] == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "nowhere"], "error: source='nowhere': no model there"),
        (["fox", "--model", "nowhere"], "nowhere and the checkpoint fox: only one model"),
        (["--lesson", "--model", "nowhere"], "nowhere and --lesson: only one model"),
    ],
)
def test_a_model_that_cannot_be_served_is_refused_in_one_line(options, words, capsys):
    assert main(["serve", "--port", "0", *options]) == 2
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    assert words in said.err
