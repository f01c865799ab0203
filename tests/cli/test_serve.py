"""python -m nanogpt serve: our server and others', from a start to an end that leaves nothing."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_fixtures import meta_of
from conftest import tiny_model
from server_fixtures import until

from nanogpt.cli import main
from nanogpt.cli.serve import _compared
from nanogpt.model.checkpoint import load_checkpoint, save_checkpoint
from nanogpt.server import child, peers
from nanogpt.server.peers import PEERS, Peer
from nanogpt.server.running import bind
from nanogpt.system.files import ROOT

FAKE = """
import http.server, os, subprocess, sys, time
folder, port, fate, notes = sys.argv[1:]
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(notes, "w") as file:
    print(folder, os.path.isfile(folder + "/config.json"), grandchild.pid, file=file)
print("loading\\nout of luck", flush=True)
if fate == "dies": sys.exit(3)
if fate == "hangs": time.sleep(600)

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        if fate == "falls": os._exit(4)
        self.send_response(200 if fate == "answers" else 500); self.end_headers()
        self.wfile.write(b'data: {"choices": [{"text": "zz"}]}\\n\\ndata: [DONE]\\n\\n')

http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""


@pytest.fixture
def saved(tmp_path):
    model = tiny_model()
    save_checkpoint(tmp_path / "fox", model, meta_of(model))
    return tmp_path / "fox"


@pytest.fixture
def serve(saved, capsys):
    """The command with a tiny checkpoint, ended after its first text: its code and its words."""

    def run(*words):
        code = main(["serve", str(saved), "--port", "0", "--once", *words])
        return code, *capsys.readouterr()

    return run


def test_the_first_text_is_compared_with_generates(serve):
    before = signal.getsignal(signal.SIGTERM)
    code, out, err = serve("--backend", "modules")
    assert (code, err) == (0, "")
    assert "the same as generate's: 23 characters of 23" in out
    assert "curl http://127.0.0.1:" in out
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_port_in_use_and_a_missing_checkpoint_are_a_line(serve, tmp_path, capsys):
    (listener,) = bind("127.0.0.1", 0)
    with listener:
        port = str(listener.getsockname()[1])
        for server in ("nanogpt", "transformers"):
            code, _, err = serve("--with", server, "--port", port)
            assert code == 2
            assert f"port {port} of 127.0.0.1 is in use" in err
            assert len(err.splitlines()) == 1
    assert main(["serve", str(tmp_path / "none")]) == 2
    assert "no checkpoint at" in capsys.readouterr().err


def test_what_cannot_be_started_says_what_to_do(serve, monkeypatch):
    code, _, err = serve("--with", "vllm")
    assert code == 2
    assert "heads of 32, 64, … numbers, and these have 8" in err
    assert "train --size small --n-head 2" in err
    monkeypatch.setitem(
        PEERS, "transformers", Peer("it", ("json", "no_such_module"), "do so", list)
    )
    code, _, err = serve("--with", "transformers")
    assert code == 2
    assert "it needs no_such_module, which" in err
    assert err.endswith("do so\n")
    code, _, err = serve("--with", "transformers", "--python", "/no/such/python")
    assert code == 2
    assert "/no/such/python does not start (No such file" in err
    assert "--host ::1" in serve("--with", "transformers", "--host", "::1")[2]


def gone(pid: int) -> bool:
    """Whether a process has ended, perhaps not yet reaped by the one that inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize(
    ("fate", "code", "says"),
    [
        ("answers", 0, "NOT the same as generate's from character 0 on: it has 'z'"),
        ("refuses", 2, "answered 500"),
        ("falls", 1, "ended with code 4 at its first request"),
        ("dies", 1, "ended with code 3 while it started:\n  loading\n  out of luck"),
        ("hangs", 1, "was not ready after 0.5 s:\n"),
    ],
)
def test_another_server_and_all_that_it_started_end(serve, tmp_path, monkeypatch, fate, code, says):
    notes = tmp_path / "notes"

    def arguments(folder, host, port):
        return ["-c", FAKE, folder, str(port), fate, str(notes)]

    monkeypatch.setitem(PEERS, "transformers", Peer("fake", (), "", arguments))
    if fate == "hangs":
        real = peers.peer_server
        monkeypatch.setattr(peers, "peer_server", lambda *a, **k: real(*a, **k, limit=0.5))
    found, out, err = serve("--with", "transformers")
    assert found == code, err
    assert says in out + err
    folder, whole, pid = notes.read_text().split()
    assert whole == "True"
    assert not Path(folder).exists()
    until(lambda: gone(int(pid)))


def test_a_process_that_ignores_its_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(child, "PATIENCE", 0.2)
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('x', flush=True)"
    log = tmp_path / "log"
    with child.Child("deaf", [sys.executable, "-c", f"{deaf}; time.sleep(600)"], {}, log) as one:
        until(lambda: log.read_text())
    assert one.process.returncode == -signal.SIGKILL


def test_where_two_texts_part_is_explained_by_the_margin(saved):
    loaded = load_checkpoint(saved)
    assert "from character 2 on: it has 'x', ours 'c', by logits" in _compared(
        loaded, "a", "abc", "abx"
    )
    assert "from character 2 on: it has ''" in _compared(loaded, "a", "abc", "ab")


@pytest.mark.slow
def test_a_signal_ends_it_with_code_0(saved):
    command = [sys.executable, "-m", "nanogpt", "serve", str(saved), "--port", "0"]
    command += ["--backend", "modules"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        lines = iter(process.stdout.readline, "")
        assert any("Ctrl-C ends it" in line for line in lines)
        process.terminate()
        assert "ending" in process.stdout.read()
        assert process.wait(20) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_a_real_server_gives_our_text(name, saved, tmp_path, capsys):
    peer = PEERS[name]
    python = str(peer.home) if peer.home and peer.home.is_file() else sys.executable
    model = tiny_model(n_embd=64) if peer.heads else tiny_model()
    save_checkpoint(saved, model, meta_of(model))
    if why := peer.trouble(load_checkpoint(saved), python):
        pytest.skip(why)
    assert main(["serve", str(saved), "--with", name, "--port", "0", "--once"]) == 0
    out = capsys.readouterr().out
    assert "the same as generate's: 23 characters of 23" in out, out
