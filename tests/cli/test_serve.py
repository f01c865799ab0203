"""python -m nanogpt serve: from a start to an end that leaves nothing."""

import json
import shlex
import socket
import subprocess
import sys

import pytest
from checkpoint_fixtures import meta_of
from conftest import tiny_model
from server_fixtures import ask, post

from nanogpt.cli import main
from nanogpt.cli import serve as command
from nanogpt.decoder.checkpoint import save_checkpoint
from nanogpt.files import ROOT
from nanogpt.serving.batch import BatchEngine
from nanogpt.serving.http import bind


@pytest.fixture
def saved(tmp_path):
    model = tiny_model()
    save_checkpoint(tmp_path / "fox", model, meta_of(model))
    return tmp_path / "fox"


@pytest.fixture
def serve(saved, capsys):
    """The command with a tiny checkpoint: its code and its words."""

    def run(*words):
        code = main(["serve", str(saved), "--port", "0", "--backend", "modules", *words])
        return code, *capsys.readouterr()

    return run


def test_serve_answers_its_own_example_request_until_ctrl_c(serve, monkeypatch, capsys):
    def ask_and_end(url, reader, real=command._introduce):
        real(url, reader)
        (curl,) = (line for line in capsys.readouterr().out.splitlines() if "curl" in line)
        _, address, *_, body = shlex.split(curl)
        assert json.loads(body)["prompt"].isalpha(), "the vocabulary begins with a space"
        code, answer = ask(address.removesuffix("/v1/completions"), "POST", "/v1/completions", body)
        assert (code, len(answer["choices"][0]["text"])) == (200, 16)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_introduce", ask_and_end)
    code, out, err = serve()
    assert (code, out.split(), err) == (0, ["ending"], "")


def test_the_first_name_is_in_responses_and_the_others_are_listed(serve, monkeypatch):
    def end(url, parser):
        listed = ask(url, "GET", "/v1/models")[1]["data"]
        found.extend(model["id"] for model in listed)
        found.append(post(url, prompt="a", model="gpt-4o-mini")[1]["model"])
        raise KeyboardInterrupt

    found = []
    monkeypatch.setattr(command, "_introduce", end)
    assert serve("--name", "reynard", "--name", "reynard:latest")[0] == 0
    assert found == ["reynard", "reynard:latest", "reynard"]


def test_a_server_that_cannot_start_fails_with_one_line(serve, tmp_path):
    (listener,) = bind("127.0.0.1", 0)
    with listener:
        port = str(listener.getsockname()[1])
        for words, says in (
            (["--port", port], f"port {port} (Address already in use)"),
            (["--port", "99999"], "--port 99999"),
            (["--host", "no.such.host.invalid"], "choose another --host"),
            (["--running", "0"], "--running 0"),
        ):
            code, _, err = serve(*words)
            assert (code, len(err.splitlines())) == (2, 1)
            assert says in err
    assert main(["serve", str(tmp_path / "none")]) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--allow-origin", "localhost:3000"], "write a scheme and a host, such as http://"),
        (["--allow-origin", "http://localhost/page"], "write a scheme and a host"),
        (["--name", ""], "--name '': write a name"),
        (["--port", "99999"], "--port 99999"),
    ],
)
def test_wrong_options_are_found_before_the_model_is_loaded(serve, tmp_path, capsys, words, says):
    assert main(["serve", str(tmp_path / "none"), *words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="one socket has one family here")
def test_the_address_of_all_is_that_of_both_families():
    (listener,) = bind("::", 0)
    with listener, socket.create_connection(("127.0.0.1", listener.getsockname()[1])):
        pass


def test_serve_ends_with_an_error_when_its_engine_has_died(serve, monkeypatch):
    def step(self):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(BatchEngine, "step", step)
    monkeypatch.setattr(command, "_introduce", lambda url, _: post(url, prompt="a"))
    code, _, err = serve()
    assert code == 1
    assert "error: the server failed (RuntimeError: out of luck)" in err


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_a_server_that_others_can_reach_says_so(serve, monkeypatch, host):
    def end(url, reader):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_introduce", end)
    code, out, _ = serve("--host", host)
    said = "open to everyone who can reach 0.0.0.0, without a password" in out
    assert (code, said) == (0, host == "0.0.0.0")


def test_a_signal_ends_it_with_code_0(saved):
    words = [sys.executable, "-m", "nanogpt", "serve", str(saved), "--port", "0"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8") as process:
        assert any("Ctrl-C ends it" in line for line in iter(process.stdout.readline, ""))
        process.terminate()
        assert "ending" in process.stdout.read()
        assert process.wait() == 0
