"""Faults that are really caused: disks that fill up, folders that close, clocks, bad servers."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from nanogpt.system.device import Device

try:
    import resource
except ImportError:  # Windows
    resource = None


CPU = Device(torch.device("cpu"), torch.float32, "tests")


@pytest.fixture
def little_corpus(tmp_path_factory, monkeypatch):
    path = tmp_path_factory.getbasetemp() / "little.txt"
    path.write_text("To be, or not to be.\n" * 100)
    monkeypatch.setenv("NANOGPT_DATA", str(path))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("TQDM_DISABLE", "1")


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder, hidden ones too: any temporary file that is left shows here."""
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


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
        else:  # no file may grow beyond n bytes: the same refusal, on the same file system
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


def alter(path: Path, whole: bytes):
    """Alter one bit of each tenth byte in turn, in the file, and give its place."""
    for i in range(0, len(whole), 10):
        with open(path, "r+b", buffering=0) as file:
            file.seek(i)
            file.write(bytes([whole[i] ^ 1 << i // 10 % 8]))
            yield i
            file.seek(i)
            file.write(whole[i : i + 1])


def backwards(monkeypatch) -> list[float]:
    """Each look at the clock shows an hour less than the one before."""
    shown = [2e9]

    def look():
        shown.append(shown[-1] - 3600)
        return shown[-1]

    monkeypatch.setattr(time, "time", look)
    return shown


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
