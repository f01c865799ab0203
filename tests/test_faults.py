"""Faults that are really caused: disks that fill up, folders that close, kills, cuts, clocks, bad servers.

After each one: an error that names the thing, what was there before still there to the byte, nothing
half-written beside it, and a next plain attempt that works.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import nbformat
import pytest
import torch
from conftest import tiny_model
from notebook_fixtures import code, output, write
from test_checkpoint import meta_of

from nanogpt.cli import run
from nanogpt.config import SIZES, GPTConfig, TrainConfig
from nanogpt.data import corpus
from nanogpt.data.corpus import CorpusError, fetch, load_corpus
from nanogpt.model.checkpoint import (
    CheckpointError,
    load_checkpoint,
    read_tensors,
    save_checkpoint,
    write_tensors,
)
from nanogpt.model.gpt import GPT
from nanogpt.publishing import publish, runner
from nanogpt.publishing.nbfile import METADATA
from nanogpt.system.device import Device
from nanogpt.system.files import ROOT, sha256, write_json
from nanogpt.training import loop, trainer
from nanogpt.training.loop import train
from nanogpt.training.pretrained import load_or_train
from nanogpt.training.state import state_path

try:
    import resource
except ImportError:  # Windows
    resource = None

CPU = Device(torch.device("cpu"), torch.float32, "tests")
RECIPE = TrainConfig(steps=12, batch_size=4, eval_every=4, eval_batches=1, warmup=3)


@pytest.fixture(autouse=True)
def little_corpus(tmp_path_factory, monkeypatch):
    path = tmp_path_factory.getbasetemp() / "little.txt"
    path.write_text("To be, or not to be.\n" * 100)
    monkeypatch.setenv("NANOGPT_DATA", str(path))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(loop, "headless", lambda: True)


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder, hidden ones too: any temporary file that is left shows here."""
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def untimed(files: dict[str, bytes]) -> dict:
    """The same, of each line of a log only what does not depend on the clock."""
    keys = ("step", "train", "val")
    return files | {
        name: [{key: line[key] for key in keys} for line in map(json.loads, log.splitlines())]
        for name, log in files.items()
        if name.endswith(".jsonl")
    }


# ------------------------------------------------------------------ disks and folders


def mount(*words) -> bool:
    if not sys.platform.startswith("linux") or os.geteuid():
        return False
    try:
        return subprocess.run(["mount", *map(str, words)], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def unmount(folder: Path) -> None:
    for words in (["umount", folder], ["umount", "--lazy", folder]):
        if subprocess.run(words, capture_output=True).returncode == 0:
            return


class Disk:
    """A place with little room: `fill(n)` leaves n bytes of it, `clear()` makes room again."""

    def __init__(self, folder: Path, limit: int | None = None):
        self.folder, self.mine, self.limit = folder, folder / "mine", limit
        self.mine.mkdir()

    def fill(self, leave: int) -> None:
        if self.limit is None:
            state = os.statvfs(self.folder)
            (self.folder / "others").write_bytes(bytes(state.f_bavail * state.f_frsize - leave))
        else:  # no file may grow beyond n bytes: the same refusal, without a file system of one's own
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (leave, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
            )

    def clear(self) -> None:
        (self.folder / "others").unlink(missing_ok=True)
        if self.limit is not None:
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (self.limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
            )


@pytest.fixture(params=["a full disk", "a limit on files"])
def disk(request, tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    if request.param == "a full disk":
        if not mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", folder):
            pytest.skip("only root, where it may mount, can have a small file system")
        yield Disk(folder)
        unmount(folder)
    else:
        if resource is None:
            pytest.skip("this system limits no files")
        limited = Disk(folder, resource.getrlimit(resource.RLIMIT_FSIZE)[0])
        yield limited
        limited.clear()


@contextlib.contextmanager
def read_only(folder: Path):
    """Nothing can be written into the folder meanwhile; root needs a mount for that."""
    if hasattr(os, "geteuid") and os.geteuid():
        folder.chmod(0o555)
        try:
            yield
        finally:
            folder.chmod(0o755)
        return
    if not mount("--bind", folder, folder):
        pytest.skip("root writes everywhere, and here it may not mount")
    try:
        assert mount("-o", "remount,ro,bind", folder)
        yield
    finally:
        unmount(folder)


# ------------------------------------------------------------------ checkpoints


def save(path: Path, step: int) -> None:
    model = tiny_model()
    save_checkpoint(path, model, meta_of(model, step=step))


def test_a_disk_that_is_full_keeps_the_checkpoint_before(disk):
    save(disk.mine / "fox", 1200)
    before = contents(disk.mine)
    disk.fill(16_384)  # half of what it needs
    with pytest.raises(OSError, match="make room"):
        save(disk.mine / "fox", 2400)
    assert contents(disk.mine) == before
    assert load_checkpoint(disk.mine / "fox").meta["step"] == 1200
    disk.clear()
    save(disk.mine / "fox", 2400)
    assert load_checkpoint(disk.mine / "fox").meta["step"] == 2400
    assert sorted(contents(disk.mine)) == ["fox.json", "fox.safetensors"]


def test_a_disk_with_room_for_the_weights_alone_holds_them_whole(tmp_path, disk):
    """The JSON is for readers: what is loaded needs the one file only."""
    save(tmp_path / "fox", 1200)
    size = (tmp_path / "fox.safetensors").stat().st_size
    if disk.limit is not None:
        pytest.skip("a limit on each file cannot stop the smaller one")
    disk.fill(-(-size // 4096) * 4096)
    with pytest.raises(OSError, match="space|write"):
        save(disk.mine / "fox", 1200)
    assert sorted(contents(disk.mine)) == ["fox.safetensors"]
    assert load_checkpoint(disk.mine / "fox").meta["step"] == 1200
    disk.clear()
    save(disk.mine / "fox", 1200)
    assert contents(disk.mine)["fox.json"] == (tmp_path / "fox.json").read_bytes()


def test_a_folder_that_was_closed_keeps_the_checkpoint_before(tmp_path):
    save(tmp_path / "run" / "fox", 1200)
    before = contents(tmp_path)
    with (
        read_only(tmp_path / "run"),
        pytest.raises(
            OSError, match=f"cannot write into {tmp_path / 'run'} .*choose another folder"
        ),
    ):
        save(tmp_path / "run" / "fox", 2400)
    assert contents(tmp_path) == before
    save(tmp_path / "run" / "fox", 2400)
    assert load_checkpoint(tmp_path / "run" / "fox").meta["step"] == 2400


def write_weights(path):
    write_tensors(path, tiny_model().state_dict(), {"step": 1})


def write_card(path):
    write_json(path, {"text": "x" * 40_000})


@pytest.mark.parametrize("kind", [write_weights, write_card], ids=["weights", "JSON"])
def test_a_full_disk_is_told_with_the_name_of_the_file(disk, kind):
    disk.fill(16_384)
    with pytest.raises(
        OSError, match=f"{re.escape(str(disk.mine / 'small'))}.*(space|large).*room"
    ):
        kind(disk.mine / "small")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """One small checkpoint, to be damaged: its bytes, and a path for the copies."""
    path = tmp_path_factory.mktemp("cuts") / "fox.safetensors"
    model = tiny_model(n_layer=1, n_head=1, n_embd=4, block_size=8)
    save_checkpoint(path, model, meta_of(model))
    return path.read_bytes(), path


def alter(path: Path, whole: bytes):
    """Alter one bit of each tenth byte in turn, in the file, and give its place."""
    for i in range(0, len(whole), 10):
        with open(path, "r+b", buffering=0) as file:
            file.seek(i)
            file.write(bytes([whole[i] ^ 1 << i // 10 % 8]))
            yield i
            file.seek(i)
            file.write(whole[i : i + 1])


def test_a_checkpoint_cut_at_any_tenth_byte_is_refused(kept):
    whole, path = kept
    for size in range(len(whole) - 10, -1, -10):
        os.truncate(path, size)
        with pytest.raises(
            CheckpointError, match="fox.safetensors is damaged or no safetensors file"
        ):
            load_checkpoint(path)
        assert path.read_bytes() == whole[:size], "it is the reader's file: nobody deletes it"
    path.write_bytes(whole)
    assert load_checkpoint(path).meta["step"] == 1200


def test_a_checkpoint_with_any_tenth_byte_altered_is_refused_or_the_same(kept):
    """The same: where it is a space, or the name of a part that nobody asks for."""
    whole, path = kept
    state, passed = load_checkpoint(path).model.state_dict(), []
    for i in alter(path, whole):
        try:
            found = load_checkpoint(path).model.state_dict()
        except CheckpointError as error:
            assert path.name in str(error)  # noqa: PT017
            continue
        passed.append(i)
        assert all(torch.equal(tensor, state[key]) for key, tensor in found.items())
    assert len(passed) < 5
    assert path.read_bytes() == whole
    load_checkpoint(path)


def test_a_checkpoint_of_a_newer_version_is_named_and_left_alone(tmp_path):
    model = tiny_model()
    save_checkpoint(
        tmp_path / "fox", model, meta_of(model, format="nanogpt-notebooks checkpoint 2")
    )
    before = contents(tmp_path)
    with pytest.raises(
        CheckpointError, match="fox.* has format '.* checkpoint 2', this version reads"
    ):
        load_checkpoint(tmp_path / "fox")
    assert contents(tmp_path) == before


def test_a_damaged_model_trained_before_is_never_replaced_unasked(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(loop, "PUBLISHED", tmp_path / "none")
    monkeypatch.delenv("NANOGPT_CHECKPOINT", raising=False)
    monkeypatch.setitem(SIZES, "small", GPTConfig(block_size=8, n_layer=1, n_head=2, n_embd=16))
    again = partial(load_or_train, corpus, RECIPE, keep=[tmp_path / "small"], device=CPU)
    good = again().sha256
    path = tmp_path / "small.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    before = contents(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"small.safetensors is damaged .*delete it to have a model"
    ):
        again()
    assert contents(tmp_path) == before
    path.unlink()
    assert again().sha256 == good


# ------------------------------------------------------------------ training


def fresh(corpus, **changes) -> GPT:
    shape = {
        "vocab_size": len(set(corpus.text)),
        "block_size": 8,
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 16,
    }
    return GPT(GPTConfig(**(shape | {"dropout": 0.1} | changes)))


def at_step(monkeypatch, step, what) -> None:
    """Do `what()` when the loop draws its batch number `step`, from 0."""
    drawn, plain = [], trainer.random_batch

    def batch(*arguments):
        drawn.append(None)
        if len(drawn) == step + 1:
            what()
        return plain(*arguments)

    monkeypatch.setattr(trainer, "random_batch", batch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, corpus):
    """The files of a run that nothing stopped."""
    out = tmp_path_factory.mktemp("whole") / "fox"
    train(fresh(corpus), corpus, RECIPE, out=out, device=CPU)
    return contents(out.parent)


STAGES = {"no room at all": 0.5, "room for the checkpoints, not for the state": 1.5}


@pytest.mark.parametrize("stage", STAGES)
def test_a_training_whose_disk_fills_up_goes_on_to_the_same_bits(
    disk, corpus, monkeypatch, whole, stage
):
    before, out = {}, disk.mine / "fox"
    leave = int(STAGES[stage] * len(whole["fox.safetensors"])) // 4096 * 4096

    def fill():
        before.update(contents(disk.mine))
        disk.fill(leave)

    model = fresh(corpus)
    with monkeypatch.context() as patch:
        at_step(patch, 6, fill)
        with pytest.raises(OSError, match="make room"):
            train(model, corpus, RECIPE, out=out, device=CPU)
    after = contents(disk.mine)
    assert sorted(after) == sorted(whole)
    assert after["fox-last.state.safetensors"] == before["fox-last.state.safetensors"]
    if stage == "no room at all":
        assert after == before
    assert {load_checkpoint(disk.mine / name).meta["step"] for name in ("fox", "fox-last")} <= {
        4,
        8,
    }
    disk.clear()
    train(fresh(corpus), corpus, RECIPE, out=out, device=CPU, resume=True)
    assert untimed(contents(disk.mine)) == untimed(whole)


@pytest.mark.parametrize("step", [0, 6])
def test_a_training_whose_folder_is_closed_goes_on_to_the_same_bits(
    tmp_path, corpus, monkeypatch, whole, step
):
    """At step 0 an earlier, whole run lies there; it is not touched."""
    folder = tmp_path / "run"
    folder.mkdir()
    if step == 0:
        for name, content in whole.items():
            (folder / name).write_bytes(content)
    with contextlib.ExitStack() as closed:
        close = partial(closed.enter_context, read_only(folder))
        if step == 0:
            close()
        else:
            at_step(closed.enter_context(monkeypatch.context()), step, close)
        with pytest.raises(OSError, match="cannot write into .*run.*choose another folder"):
            train(fresh(corpus), corpus, RECIPE, out=folder / "fox", device=CPU)
        after = contents(folder)
    assert sorted(after) == sorted(whole)
    assert step or after == whole
    train(fresh(corpus), corpus, RECIPE, out=folder / "fox", device=CPU, resume=True)
    assert untimed(contents(folder)) == untimed(whole)


@pytest.fixture
def state(tmp_path, corpus):
    """A state of two steps of a tiny run: (bytes, path, the call that goes on with it)."""
    small = {"n_layer": 1, "n_head": 1, "n_embd": 4}
    recipe = replace(RECIPE, steps=2)

    def go_on(resume=True):
        train(
            fresh(corpus, **small), corpus, recipe, out=tmp_path / "fox", device=CPU, resume=resume
        )

    go_on(resume=False)
    path = state_path(tmp_path / "fox")
    return path.read_bytes(), path, go_on


def test_a_state_cut_at_any_tenth_byte_is_refused(state):
    whole, path, go_on = state
    for size in range(len(whole) - 10, -1, -10):
        os.truncate(path, size)
        with pytest.raises(CheckpointError, match="state.safetensors is damaged"):
            read_tensors(path)
    everything = contents(path.parent)
    with pytest.raises(CheckpointError, match="state.safetensors is damaged"):
        go_on()
    assert contents(path.parent) == everything
    go_on(resume=False)
    assert path.read_bytes() == whole


def test_a_state_with_any_tenth_byte_altered_is_refused_or_the_same(state):
    whole, path, go_on = state
    (tensors, meta), passed = read_tensors(path), []
    for i in alter(path, whole):
        try:
            found, told = read_tensors(path)
        except CheckpointError as error:
            assert path.name in str(error)  # noqa: PT017
            continue
        passed.append(i)
        assert told == meta
        assert all(torch.equal(tensor, tensors[key]) for key, tensor in found.items())
    assert len(passed) < 5
    assert path.read_bytes() == whole
    go_on()


def test_a_state_of_a_newer_version_is_named_and_left_alone(state):
    whole, path, go_on = state
    tensors, meta = read_tensors(path)
    write_tensors(path, tensors, meta | {"format": "nanogpt-notebooks training state 3"})
    before = contents(path.parent)
    with pytest.raises(
        CheckpointError, match=r"has format '.* training state 3', this version reads '.* 2'"
    ):
        go_on()
    assert contents(path.parent) == before
    go_on(resume=False)
    assert path.read_bytes() == whole


# ------------------------------------------------------------------ a clock that goes backwards


def backwards(monkeypatch) -> list[float]:
    """Each look at the clock shows an hour less than the one before."""
    shown = [2e9]

    def look():
        shown.append(shown[-1] - 3600)
        return shown[-1]

    monkeypatch.setattr(time, "time", look)
    return shown


def test_nothing_in_the_package_asks_what_time_it_is():
    """Durations are those of a clock that only goes forward."""
    dates = r"\bdatetime\b(?! import timedelta\n)"  # a length of time is none
    asks = re.compile(rf"\btime\.time\b|\bfrom time import\b|{dates}|\blocaltime\b|\bgmtime\b")
    found = {
        path.name: asks.findall(path.read_text("utf-8"))
        for path in sorted((ROOT / "nanogpt").glob("*.py"))
    }
    assert {name: calls for name, calls in found.items() if calls} == {}


def test_a_clock_that_goes_backwards_changes_no_bit_of_a_training(
    tmp_path, corpus, monkeypatch, whole
):
    """Neither does a state from the future."""
    backwards(monkeypatch)
    out = tmp_path / "fox"
    with monkeypatch.context() as patch:
        at_step(patch, 6, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt, match="saved"):
            train(fresh(corpus), corpus, RECIPE, out=out, device=CPU)
    for path in tmp_path.iterdir():
        os.utime(path, (4e9, 4e9))
    train(fresh(corpus), corpus, RECIPE, out=out, device=CPU, resume=True)
    assert untimed(contents(tmp_path)) == untimed(whole)


# ------------------------------------------------------------------ the corpus and its server

TEXT = b"To be, or not to be.\n" * 10_000


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        status, headers, body = self.server.routes[self.path]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the client has seen enough
            self.wfile.write(body)
            self.wfile.flush()
            if self.path == self.server.stalls:
                self.server.over.wait(30)

    def log_message(self, *words):
        pass


class Server(ThreadingHTTPServer):
    """Answers each path as its `routes` say; the path `stalls` never ends."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.routes, self.stalls, self.over = {}, None, threading.Event()

    def url(self, path="/input.txt", host="127.0.0.1"):
        return f"http://{host}:{self.server_address[1]}{path}"


def body(content: bytes, says: int | None = None):
    return 200, {"Content-Length": str(len(content) if says is None else says)}, content


def moved(to: str):
    return 302, {"Location": to, "Content-Length": "0"}, b""


@pytest.fixture
def servers():
    """Two servers on this machine: two hosts, as far as a client can tell."""
    both = (Server(), Server())
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in both]
    for thread in threads:
        thread.start()
    yield both
    for server, thread in zip(both, threads, strict=True):
        server.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def get(url, target):
    return fetch(target, url, sha256(TEXT), len(TEXT))


REDIRECTS = {
    "to another file": ("{here}/other.txt", "not the file we know"),
    "to another host's other file": ("{there}/other.txt", "not the file we know"),
    "to a page that asks to log in": ("{there}/login", "cut: 20 of"),
    "to a larger file": ("{there}/larger", "larger than the"),
    "to itself": ("{here}/input.txt", "no file .*HTTPError"),
    "to a file of this machine": ("file:///etc/hostname", "no file .*not allowed"),
    "to a host that is not there": ("http://127.0.0.1:9/input.txt", "no connection: .*refused"),
    "to no address": pytest.param(
        ("http://[broken/input.txt", "no file|no connection"),
    ),
}


@pytest.mark.parametrize("case", REDIRECTS.values(), ids=REDIRECTS)
def test_a_download_that_is_sent_elsewhere_brings_the_known_file_or_none(servers, tmp_path, case):
    here, there = servers
    to, message = case
    for server in servers:
        server.routes = {
            "/other.txt": body(TEXT.replace(b"be", b"BE", 1)),
            "/login": body(b"<html>log in</html>\n"),
            "/larger": body(TEXT + b"!"),
            "/right": body(TEXT),
        }
    here.routes["/input.txt"] = moved(
        to.format(here=here.url(""), there=there.url("", "localhost"))
    )
    target = tmp_path / "input.txt"
    target.write_text("mine")
    with pytest.raises(CorpusError, match=message):
        get(here.url(), target)
    assert contents(tmp_path) == {"input.txt": b"mine"}
    here.routes["/input.txt"] = moved(there.url("/right"))
    assert get(here.url(), target).read_bytes() == TEXT, "the sum decides, not the address"
    assert sorted(contents(tmp_path)) == ["input.txt"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project without a corpus that asks the address given for one."""

    def ask(url, root=tmp_path / "project"):
        monkeypatch.setattr(corpus, "ROOT", root)
        monkeypatch.setattr(corpus, "fetch", lambda target: get(url, target))
        return load_corpus()

    (tmp_path / "project" / "data").mkdir(parents=True)
    monkeypatch.delenv("NANOGPT_DATA")
    monkeypatch.delenv("NANOGPT_OFFLINE", raising=False)
    monkeypatch.setattr(corpus, "TIMEOUT", 0.3)
    return ask


def test_after_each_failed_download_the_next_plain_one_works(servers, tmp_path, project):
    server = servers[0]
    server.stalls = "/stalled"
    server.routes = {
        "/cut": body(TEXT[:-1], says=len(TEXT)),
        "/altered": body(b"t" + TEXT[1:]),
        "/oversized": body(TEXT + b"\n"),
        "/stalled": body(TEXT[:1000], says=len(TEXT)),
        "/input.txt": body(TEXT),
    }
    local = tmp_path / "project" / "data" / "input.txt"
    urls = [server.url(path) for path in list(server.routes)[:-1]] + ["http://127.0.0.1:9/refused"]
    for url in urls:
        assert not project(url).real
        assert contents(tmp_path / "project") == {}, url
        assert project(server.url()).source == str(local)
        assert local.read_bytes() == TEXT
        assert project(urls[0]).real, "the file that is there is taken, and no download tried"
        local.unlink()


def test_a_disk_that_is_full_stops_no_run_for_want_of_a_corpus(servers, disk, project):
    servers[0].routes["/input.txt"] = body(TEXT)
    (disk.mine / "data").mkdir()
    (disk.mine / "data" / "notes.txt").write_text("mine")
    disk.fill(65_536)
    found = project(servers[0].url(), disk.mine)
    assert re.search("the download did not work .*(No space left|too large)", found.banner)
    assert contents(disk.mine) == {"data/notes.txt": b"mine"}
    disk.clear()
    assert project(servers[0].url(), disk.mine).real


def test_a_closed_folder_stops_no_run_for_want_of_a_corpus(servers, tmp_path, project):
    servers[0].routes["/input.txt"] = body(TEXT)
    with read_only(tmp_path / "project" / "data"):
        assert re.search(
            "did not work .*cannot write into .*project/data", project(servers[0].url()).banner
        )
    assert contents(tmp_path / "project") == {}
    assert project(servers[0].url()).real


# ------------------------------------------------------------------ notebooks

WORK = """
import os, pathlib, time
out = pathlib.Path(os.environ["NANOGPT_OUT"])
for name in ("figures/00_a.png", "checkpoints/small.safetensors"):
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text(f"new {n}")
"""
FAULT = """
if word == "kill":
    os.kill(os.getpid(), 9)
if word == "much":
    print("x" * 300_000)
if word and word.startswith("/"):
    pathlib.Path(word).write_text(str(os.getpid()))
    while not os.path.exists(word + "-go"):
        time.sleep(0.05)
print("done", n)
"""


@pytest.fixture
def sources(tmp_path):
    write(tmp_path / "notebooks" / "00_good.ipynb", WORK, FAULT)
    return tmp_path / "notebooks"


def earlier(out: Path) -> dict[str, bytes]:
    """Put there what an earlier run left, and return it: none of it may change before a run has passed."""
    files = ["00_good.ipynb", "figures/00_a.png", "checkpoints/small.safetensors"]
    write(out / files[0], code("1", "cell-1", [output("earlier")]))
    for file in files[1:]:
        (out / file).parent.mkdir(parents=True)
        (out / file).write_text(f"earlier {file}")
    before = {file: (out / file).read_bytes() for file in files}
    entry = {"notebook": "00_good", "ok": True, "error": None, "files": files}
    write_json(out / "manifest.json", {"profile": "smoke", "notebooks": [entry]})
    (out / ".lock").write_text("1")
    return before


def still(out: Path) -> dict[str, bytes]:
    """What stands there now for a user; fails for anything half-written, and for a broken manifest."""
    files = contents(out)
    assert not [name for name in files if ".running-" in name or name.endswith(".tmp")]
    assert json.loads(files["manifest.json"])["notebooks"][0]["notebook"] == "00_good"
    ours = ("failed/", "manifest.json", ".lock")
    return {name: content for name, content in files.items() if not name.startswith(ours)}


def command(sources, out, *words) -> list[str]:
    return [*words, "--source", str(sources), "--out", str(out), "--profile", "smoke", "--no-html"]


def attempt(sources, out, *words) -> int:
    try:
        return run.main(command(sources, out, *words))
    except SystemExit as stop:
        return stop.code


def passes(sources, out) -> None:
    """A plain run does what it should, and clears what the failed one left."""
    assert attempt(sources, out) == 0
    found = still(out)
    assert sorted(found) == ["00_good.ipynb", "checkpoints/small.safetensors", "figures/00_a.png"]
    assert found["figures/00_a.png"] == b"new 1"
    assert b"done 1" in found["00_good.ipynb"]
    assert not (out / "failed" / "00_good").exists()


def test_a_kernel_killed_in_the_middle_of_a_notebook_replaces_nothing(sources, tmp_path, capsys):
    before = earlier(tmp_path / "out")
    assert attempt(sources, tmp_path / "out", "-p", "word=kill", "-p", "n=2") == 1
    assert "00_good" in (said := capsys.readouterr().out)
    assert "FAILED  cell 'cell-2' killed its kernel" in said
    assert still(tmp_path / "out") == before
    passes(sources, tmp_path / "out")


def test_a_disk_that_fills_up_during_a_notebook_replaces_nothing(sources, disk, capsys):
    out = disk.mine / "out"
    before = earlier(out)
    disk.fill(131_072)
    code = attempt(sources, out, "-p", "word=much")
    disk.clear()
    assert code == 1
    said = capsys.readouterr()
    assert re.search(
        r"00_good.ipynb could not be written whole .*MB are free in .*make room", said.out
    ) or (re.search("run: .*No space left on device.*: what had passed before is kept", said.err))
    assert still(out) == before
    passes(sources, out)


def test_a_closed_output_folder_is_named_before_anything_is_replaced(sources, tmp_path, capsys):
    out = tmp_path / "out"
    before = earlier(out)
    with read_only(out):
        assert attempt(sources, out) in (1, 2)
        assert str(out) in capsys.readouterr().err
    assert still(out) == before
    passes(sources, out)


@pytest.mark.parametrize(
    "spec",
    [{"name": "julia-1.9", "language": "julia", "display_name": "Julia"}, None],
    ids=["julia", "none"],
)
def test_a_notebook_with_the_wrong_kernel_runs_in_ours(sources, tmp_path, spec):
    path = sources / "00_good.ipynb"
    nb = nbformat.read(path, 4)
    nb.metadata.pop("kernelspec")
    if spec:
        nb.metadata.kernelspec = spec
    nbformat.write(nb, path)
    before = path.read_bytes()
    passes(sources, tmp_path / "out")
    assert (
        nbformat.read(tmp_path / "out" / "00_good.ipynb", 4).metadata.kernelspec
        == METADATA["kernelspec"]
    )
    assert path.read_bytes() == before


def test_a_clock_that_goes_backwards_stops_no_notebook(sources, tmp_path, monkeypatch):
    earlier(tmp_path / "out")
    for path in (tmp_path / "out").rglob("*"):
        os.utime(path, (4e9, 4e9))
    backwards(monkeypatch)
    passes(sources, tmp_path / "out")
    assert (
        json.loads((tmp_path / "out" / "manifest.json").read_text())["notebooks"][0]["seconds"] > 0
    )


@pytest.fixture
def begin(sources, tmp_path):
    """Start a run of its own process, and wait until its notebook waits: (process, kernel's id, mark)."""
    started = []

    def begin():
        mark = tmp_path / "mark"
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "nanogpt",
                "run",
                *command(sources, tmp_path / "out", "-p", f"word={mark}"),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        started.append(process.pid)
        while not (mark.is_file() and mark.read_text()):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        started.append(int(mark.read_text()))
        return process, started[-1], mark

    yield begin
    for number in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def gone(number: int, within: float) -> bool:
    for _ in range(int(within / 0.1)):
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return True
        with contextlib.suppress(
            OSError, IndexError
        ):  # a zombie is gone, whoever should have buried it
            if Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        time.sleep(0.1)
    return False


def test_the_second_of_two_runs_is_refused_and_the_first_ends_well(
    sources, tmp_path, begin, capsys
):
    out = tmp_path / "out"
    before = earlier(out)
    first, _, mark = begin()
    assert attempt(sources, out) == 2
    assert f"another run (process {first.pid}) is writing into {out}" in capsys.readouterr().err
    assert {name: (out / name).read_bytes() for name in before} == before
    Path(f"{mark}-go").touch()
    printed, _ = first.communicate(timeout=60)
    assert first.returncode == 0, printed
    assert still(out)["figures/00_a.png"] == b"new 1"


def test_a_run_that_was_killed_is_followed_by_a_plain_one(sources, tmp_path, begin):
    out = tmp_path / "out"
    before = earlier(out)
    process, kernel, _ = begin()
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert {name: (out / name).read_bytes() for name in before} == before
    assert list(out.glob(".running-*")), "nobody was left to tidy up"
    assert gone(kernel, within=10), "its kernel lives on"
    passes(sources, out)


def test_a_ctrl_c_of_the_terminal_replaces_nothing(sources, tmp_path, begin):
    """A terminal sends it to the whole group of processes."""
    out = tmp_path / "out"
    before = earlier(out)
    process, kernel, _ = begin()
    os.killpg(process.pid, signal.SIGINT)
    printed, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "00_good" in printed
    assert "FAILED  interrupted" in printed
    assert str(ROOT / "nanogpt") not in said, "no trace of ours; the dying kernel may leave one"
    assert gone(kernel, within=5)
    assert still(out) == before
    passes(sources, out)


# ------------------------------------------------------------------ publishing


def published(outputs: Path) -> Path:
    """An outputs/ with a published run and a new one, complete: returns the published folder."""
    for name, text in (("published", "old"), ("run/publish", "new")):
        (outputs / name).mkdir(parents=True)
        (outputs / name / "which.txt").write_text(text)
    return outputs / "published"


def test_an_exchange_needs_no_room(disk):
    target = published(disk.mine / "outputs")
    disk.fill(0 if disk.limit is None else 4096)
    publish.exchange(disk.mine / "outputs" / "run" / "publish", target)
    assert contents(target.parent) == {"published/which.txt": b"new"}


def test_an_exchange_in_a_closed_folder_changes_nothing(tmp_path):
    target = published(tmp_path / "outputs")
    before = contents(tmp_path)
    with read_only(target.parent), pytest.raises(OSError, match="published"):
        publish.exchange(target.parent / "run" / "publish", target)
    assert contents(tmp_path) == before
    publish.exchange(target.parent / "run" / "publish", target)
    assert contents(target.parent) == {"published/which.txt": b"new"}


def test_an_exchange_that_cannot_fetch_the_new_run_puts_the_old_one_back(tmp_path):
    """As with outputs/run on a disk of its own, where no rename leads out of it."""
    target = published(tmp_path / "outputs")
    before = contents(tmp_path)
    with read_only(target.parent / "run"), pytest.raises(OSError, match="publish"):
        publish.exchange(target.parent / "run" / "publish", target)
    assert contents(tmp_path) == before


def test_an_exchange_that_failed_half_way_is_mended_by_the_next(tmp_path):
    target = published(tmp_path / "outputs")
    with read_only(target.parent / "run"), pytest.raises(OSError, match="publish"):
        publish.exchange(target.parent / "run" / "publish", target)
    publish.recover(target)
    assert (target / "which.txt").read_text() == "old"
    publish.exchange(target.parent / "run" / "publish", target)
    assert contents(target.parent) == {"published/which.txt": b"new"}


def test_a_disk_that_fills_up_while_publishing_leaves_what_is_published(
    disk, tmp_path, monkeypatch, capsys
):
    root = disk.mine
    target = published(root / "outputs")
    before = contents(target)
    notebook = root / "notebooks" / "01_train.ipynb"
    parameters = 'profile: str = "auto"\nn: int = 1\nword: str | None = '
    monkeypatch.setattr(runner, "ROOT", root)
    monkeypatch.setattr(runner, "PUBLISHED", target)
    monkeypatch.setattr(publish, "BUILD", root / "outputs" / "run" / "publish")
    monkeypatch.setattr(publish, "SHA256", load_corpus().sha256)
    write(notebook, WORK, FAULT, parameters=parameters + "'much'")
    disk.fill(131_072)
    try:
        code = run.main(["--publish"])
    except SystemExit as stop:
        code = stop.code
    disk.clear()
    assert code == 1
    assert re.search("could not be written whole|No space left", "".join(capsys.readouterr()))
    assert contents(target) == before
    assert sorted(path.name for path in target.parent.iterdir()) == ["published", "run"]
    write(notebook, WORK, FAULT, parameters=parameters + "None")
    assert run.main(["--publish"]) == 0
    assert (target / "html" / "01_train.html").is_file()
    assert not (target / "which.txt").exists()
