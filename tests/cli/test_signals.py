"""Ctrl-C, kill, a closed terminal: each stops every command alike, keeps its results, and says so.

The signal comes at a state, not at a time: from within the function that is named.
"""

import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checkpoint_fixtures import meta_of
from conftest import tiny_model
from notebook_fixtures import write as write_notebook
from training_fixtures import step_of

from nanogpt.cli import main
from nanogpt.decoder.checkpoint import save_checkpoint
from nanogpt.files import ROOT
from nanogpt.serving import jobs
from nanogpt.training import signals
from nanogpt.training.trainer import Trainer

try:
    import fcntl
    import pty
    import termios
except ImportError:  # Windows
    pty = None

SIGNALS = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
TRAIN = "train --size article --steps 6 --eval-every 2 --eval-batches 1 --batch-size 2"


def options(words, here):
    """The words of a command line, with this folder, whose path may have spaces, for each {h}."""
    return [word.format(h=here) for word in words.split()]


COMMANDS = {  # the command, where the signal comes, what it says, and what it leaves
    "train": (
        f"{TRAIN} --data {{h}}/text.txt --out {{h}}/out",
        (Trainer, "step"),
        "resumes from this step",
        "out-last.state.safetensors",
    ),
    "generate": (
        "generate --checkpoint {h}/fox --prompts {h}/p.txt --out {h}/out --backend modules"
        " --max-new-tokens 2 --shard-size 1",
        (jobs.ShardWriter, "continuations"),
        "1 of 2 shards are kept",
        "out/shards/00000.jsonl",
    ),
    "bench": ("bench ladder --size article --json {h}/out.json", "ladder", "nothing was", None),
    "verify sweep": (
        "verify sweep --json {h}/out.json --sequences 10",
        "sweep",
        "nothing was",
        None,
    ),
    "verify model": ("verify model {h}/fox --json {h}/out.json", "referee", "nothing was", None),
    "serve": ("serve {h}/fox --port 0 --backend modules", "introduce", "", None),
}
FUNCTIONS = {
    "ladder": "nanogpt.cli.bench.ladder",
    "sweep": "nanogpt.verify.sweep.sweep",
    "referee": "nanogpt.verify.referee.referee",
    "introduce": "nanogpt.cli.serve._introduce",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("To be, or not to be.\n" * 250, encoding="utf-8")
    (tmp_path / "p.txt").write_text("a\nb", encoding="utf-8")
    model = tiny_model()
    save_checkpoint(tmp_path / "fox", model, meta_of(model))
    monkeypatch.setenv("TQDM_DISABLE", "1")
    before = {number: signal.getsignal(number) for number in signals.STOPS}
    for number in before:  # as main does for a process of its own
        signal.signal(number, signals.interrupt)
    yield tmp_path
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP")
@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("command", COMMANDS)
def test_each_signal_stops_each_command_alike(here, monkeypatch, capsys, command, name):
    words, place, says, left = COMMANDS[command]
    calls = []

    def stop():
        os.kill(os.getpid(), getattr(signal, name))

    if isinstance(place, tuple):
        plain = getattr(*place)

        def second(*given):  # at the second call: there is a first result then
            calls.append(None)
            if len(calls) == 2:
                stop()
            return plain(*given)

        monkeypatch.setattr(*place, second)
    else:
        monkeypatch.setattr(FUNCTIONS[place], lambda *given, **how: stop())
    code = main(options(words, here))
    said = capsys.readouterr()
    assert code == (0 if command == "serve" else SIGNALS[name])
    assert says in said.err
    assert not list(here.rglob("*.tmp")) + list(here.rglob("*.lock"))
    if left:
        assert (here / left).is_file()
        assert main([*options(words, here), *["--resume"] * (command == "train")]) == 0
    else:
        assert not (here / "out.json").exists()


# ------------------------------------------------------------------ whole processes

STOPPED = """
import os, runpy, signal, sys
class Finder:
    def find_spec(name, *_):
        if name == "{module}":
            sys.meta_path.remove(Finder)
            os.kill(os.getpid(), signal.{name})
sys.meta_path.insert(0, Finder)
runpy.run_module("nanogpt", run_name="__main__", alter_sys=True)
"""


@pytest.mark.release
@pytest.mark.parametrize(("name", "ignored"), [("SIGTERM", False), ("SIGHUP", True)])
def test_a_signal_within_an_import_is_one_line_and_its_code(tmp_path, name, ignored):
    """Or nothing at all where it is ignored, as SIGHUP is under nohup."""

    def arrange():
        signal.signal(getattr(signal, name), signal.SIG_IGN if ignored else signal.SIG_DFL)

    code = STOPPED.format(module="nanogpt.pretrained.write", name=name)
    done = subprocess.run(
        [sys.executable, "-c", code, "export", "--out", str(tmp_path / "out")],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        cwd=ROOT,
        preexec_fn=arrange,
    )
    said = "" if ignored else "\nstopped: nothing was written\n"
    assert (done.returncode, done.stderr) == (0 if ignored else SIGNALS[name], said)


SCRIPT = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from training_fixtures import CPU, do_at, fresh
from nanogpt import TrainConfig, train
from nanogpt.data import read_corpus
corpus = read_corpus(Path({text!r}))
do_at(2, lambda: os.kill(os.getpid(), signal.SIGTERM))
recipe = TrainConfig(steps=9, batch_size=4, eval_every=9, eval_batches=1, warmup=3)
train(fresh(corpus), corpus, recipe, out={out!r}, device=CPU)
"""


@pytest.mark.release
def test_train_in_a_script_saves_its_state_and_then_the_signal_ends_the_process(here):
    text = SCRIPT.format(
        tests=str(ROOT / "tests"), text=str(here / "text.txt"), out=str(here / "o")
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, cwd=ROOT, timeout=200)
    assert done.returncode == -signal.SIGTERM
    assert step_of(here / "o") == 3


@pytest.mark.release
@pytest.mark.skipif(pty is None, reason="needs a terminal of POSIX")
def test_a_terminal_that_closes_while_a_model_trains_loses_no_step(here):
    words = f"{TRAIN} --steps 100000 --eval-every 100000 --data {{h}}/text.txt --out {{h}}/out"
    master, terminal = pty.openpty()

    def attach():
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    env = {**os.environ, "TQDM_DISABLE": "0"}
    with subprocess.Popen(
        [sys.executable, "-m", "nanogpt", *options(words, here)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=ROOT,
        env=env,
        preexec_fn=attach,
    ) as process:
        os.close(terminal)
        said = b""
        while b"loss" not in said.replace(b"losses", b""):  # the bar of a step
            said += os.read(master, 10_000)
        os.close(master)  # the kernel sends SIGHUP
        assert process.wait(timeout=100) == SIGNALS["SIGHUP"]
    assert step_of(here / "out") > 0
    assert not list(here.glob("*.lock")) + list(here.glob(".*.lock"))


RUN = "run --source {h}/nb --out {h}/out --profile smoke --no-html"
SLEEPS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
with open({path!r}, "w") as file:
    file.write(f"{{child.pid}}\\n")
time.sleep(300)
"""


# `make` and `timeout` each send the signal: the second one comes while the first is answered.
AGAIN = """
import os, signal, sys
from nanogpt.cli import main
from nanogpt.series import execute
end = execute.kill_all
def kill_all():
    os.kill(os.getpid(), signal.SIGTERM)
    end()
execute.kill_all = kill_all
sys.exit(main())
"""


@pytest.mark.release
@pytest.mark.parametrize(
    ("name", "program"),
    [("SIGTERM", ["-m", "nanogpt"]), ("SIGHUP", ["-m", "nanogpt"]), ("SIGTERM", ["-c", AGAIN])],
    ids=["SIGTERM", "SIGHUP", "SIGTERM twice"],
)
def test_a_run_of_notebooks_keeps_those_that_passed_and_ends_what_their_cells_have_started(
    here, name, program
):
    path = here / "pid"
    write_notebook(here / "nb" / "00_one.ipynb", "x = 1")
    write_notebook(here / "nb" / "01_two.ipynb", SLEEPS.format(path=str(path)))
    words = options(RUN, here)
    with subprocess.Popen(
        [sys.executable, *program, *words],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        while not path.is_file() or "\n" not in path.read_text(encoding="utf-8"):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(getattr(signal, name))
        assert process.wait(timeout=200) == SIGNALS[name]
        assert "1 of 2 notebooks had passed and are kept" in process.stderr.read()
    assert (here / "out" / "00_one.ipynb").is_file()
    child = Path("/proc", path.read_text(encoding="utf-8").strip(), "status")
    while child.is_file() and "State:\tZ" not in child.read_text(encoding="utf-8"):
        time.sleep(0.01)  # it ends, or this test does not
    assert not list((here / "out").glob(".*"))
