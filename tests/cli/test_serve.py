"""python -m nanogpt serve: from a start to an end that leaves nothing."""

import signal
import subprocess
import sys

import pytest
from checkpoint_fixtures import meta_of
from conftest import tiny_model

from nanogpt.cli import main
from nanogpt.cli import serve as command
from nanogpt.model.checkpoint import save_checkpoint
from nanogpt.server.running import bind
from nanogpt.serving.batch import BatchEngine
from nanogpt.system.files import ROOT


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


def test_the_first_text_is_compared_with_generates(serve, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    code, out, err = serve("--once")
    assert (code, err) == (0, "")
    assert "the same as generate's: 23 characters of 23" in out
    assert "curl http://127.0.0.1:" in out
    assert signal.getsignal(signal.SIGTERM) == before
    real = command._expected
    monkeypatch.setattr(command, "_expected", lambda saved: (real(saved)[0], "?" * 23))
    assert "NOT the same as generate's from character 0 on" in serve("--once")[1]


def test_what_cannot_be_started_is_a_line(serve, tmp_path):
    (listener,) = bind("127.0.0.1", 0)
    with listener:
        port = str(listener.getsockname()[1])
        for words, says in (
            (["--port", port], f"port {port} of 127.0.0.1 is in use"),
            (["--port", "99999"], "port=99999"),
            (["--host", "no.such.host.invalid"], "choose another --host"),
            (["--running", "0"], "running=0"),
        ):
            code, _, err = serve(*words)
            assert (code, len(err.splitlines())) == (2, 1)
            assert says in err
    assert main(["serve", str(tmp_path / "none")]) == 2


@pytest.mark.parametrize("tokens", [0, 23], ids=["at its first text", "later"])
def test_it_ends_with_an_error_when_its_engine_has_died(serve, monkeypatch, tokens):
    real, drawn = BatchEngine.step, []

    def step(self):
        if len(drawn) >= tokens:
            raise RuntimeError("out of luck")
        drawn.extend(outputs := real(self))
        return outputs

    def first_and_another(url, *words, real=command._first):
        real(url, *words)
        with pytest.raises(OSError, match="500"):
            real(url, *words)

    monkeypatch.setattr(BatchEngine, "step", step)
    if tokens:
        monkeypatch.setattr(command, "_first", first_and_another)
    code, _, err = serve()
    assert code == 1
    assert "error: the engine failed (RuntimeError: out of luck)" in err


@pytest.mark.slow
def test_a_signal_ends_it_with_code_0(saved):
    words = [sys.executable, "-m", "nanogpt", "serve", str(saved), "--port", "0"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert any("Ctrl-C ends it" in line for line in iter(process.stdout.readline, ""))
        process.terminate()
        assert "ending" in process.stdout.read()
        assert process.wait() == 0
