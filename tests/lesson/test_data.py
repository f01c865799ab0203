"""The corpus: where it is found, what is refused; the tokenizer, splits and batches."""

import functools
import socket
import socketserver
import threading

import hypothesis.strategies as st
import pytest
import torch
from conftest import seeded
from fault_fixtures import contents
from hypothesis import given

from nanogpt import data as corpus
from nanogpt.data import (
    CharTokenizer,
    CorpusError,
    fetch,
    load_corpus,
    practice_corpus,
    practice_text,
    random_batch,
    read_corpus,
    split,
)
from nanogpt.files import sha256

BODY = b"To be, or not to be.\n" * 10_000  # stands for the corpus


# ---------------------------------------------------- downloads from a server on this machine


class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        path = self.rfile.readline().split()[1].decode()
        while self.rfile.readline().strip():
            pass
        try:
            self.wfile.write(self.server.answers[path])
            self.wfile.flush()
            if self.server.stalls:
                self.server.over.wait(30)  # until the test ends, not for a time
        except ConnectionError:  # the client has seen enough
            pass


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = block_on_close = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.answers = {}
        self.stalls = False
        self.over = threading.Event()

    def url(self, path="/input.txt", host="127.0.0.1") -> str:
        return f"http://{host}:{self.server_address[1]}{path}"

    def get(self, target):
        return fetch(target, self.url(), sha256(BODY), len(BODY))


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.over.set()
        server.shutdown()
        thread.join()


def http(body: bytes, *headers: str, length: int | None = None, status="200 OK") -> bytes:
    headers += ("Connection: close",) if length is None else (f"Content-Length: {length}",)
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode() + body


def moved(to: str) -> bytes:
    return http(b"", f"Location: {to}", length=0, status="302 Found")


WHOLE = len(BODY)
HALF = len(BODY) // 2
GOOD = http(BODY, length=WHOLE)
FAILURES = {  # broken lines, wrong files, captive portals, hosts that are gone
    "cut, and the length is that of the whole": (http(BODY[:HALF], length=WHOLE), "bytes of"),
    "cut, with no length": (http(BODY[:HALF]), f"{HALF:,} bytes of {WHOLE:,}"),
    "altered by one bit": (http(b"t" + BODY[1:], length=WHOLE), "is not Tiny Shakespeare"),
    "a page that says 404": (http(b"no", length=2, status="404 Not Found"), "404: Not Found"),
    "sent to a host that is not there": (moved("http://127.0.0.1:9/input.txt"), "refused"),
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_failed_download_is_explained_leaves_no_file_and_can_be_repeated(server, tmp_path, what):
    raw, message = FAILURES[what]
    server.answers = {"/input.txt": raw}
    target = tmp_path / "data" / "input.txt"
    for before in ({}, {"input.txt": b"mine"}):
        with pytest.raises(CorpusError, match=message):
            server.get(target)
        assert contents(tmp_path / "data") == before
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(b"mine")
    server.answers = {"/input.txt": moved(server.url("/right", "localhost")), "/right": GOOD}
    assert server.get(target) == target
    assert contents(tmp_path) == {"data/input.txt": BODY}, "the sum decides, not the address"


@pytest.mark.parametrize("raw", [b"", http(BODY[:HALF], length=WHOLE)], ids=["at once", "half-way"])
def test_a_stalled_download_times_out(server, tmp_path, monkeypatch, raw):
    monkeypatch.setattr(corpus, "TIMEOUT", 0.2)
    server.answers = {"/input.txt": raw}
    server.stalls = True
    with pytest.raises(CorpusError, match="TimeoutError"):
        server.get(tmp_path / "input.txt")
    assert contents(tmp_path) == {}


# ------------------------------------------------------------------ which corpus


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A project folder with no corpus and no network."""
    monkeypatch.setattr(corpus, "ROOT", tmp_path / "project")
    for name in ("NANOGPT_DATA", "NANOGPT_OFFLINE", "NANOGPT_OFFLINE_REASON"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(corpus, "fetch", functools.partial(fetch, url=url))
    (tmp_path / "project" / "data").mkdir(parents=True)
    return tmp_path / "project"


def put(path, text):
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_load_corpus_searches_in_the_documented_order(root, monkeypatch):
    monkeypatch.setattr(corpus, "fetch", lambda target: put(target, "fetched"))
    monkeypatch.setenv("NANOGPT_OFFLINE", "1")
    monkeypatch.setenv("NANOGPT_OFFLINE_REASON", "of a reason")
    assert "of a reason" in load_corpus().banner
    monkeypatch.delenv("NANOGPT_OFFLINE")
    assert load_corpus().text == "fetched"
    put(root / "data" / "input.txt", "local")
    assert load_corpus().text == "local"
    monkeypatch.setenv("NANOGPT_DATA", str(put(root / "env.txt", "env")))
    assert load_corpus().text == "env"
    mine = load_corpus(put(root / "mine.txt", "mine"))
    assert (mine.text, mine.name) == ("mine", "mine.txt")
    assert load_corpus(str(root / "mine.txt")) == mine
    assert (mine.real, mine.banner) == (True, "")


@pytest.mark.parametrize("what", ["absent.txt", "data"])
def test_a_missing_file_that_was_named_is_an_error(root, monkeypatch, what):
    """Another corpus would be trained on silently."""
    put(root / "data" / "input.txt", "local")
    with pytest.raises(CorpusError, match=f"{what} is not a file"):
        load_corpus(root / what)
    with pytest.raises(CorpusError, match="is not a file"):
        load_corpus("")  # as in `train --data "$UNSET"`
    monkeypatch.setenv("NANOGPT_DATA", str(root / what))
    with pytest.raises(CorpusError, match=f"NANOGPT_DATA: .*{what} is not a file"):
        load_corpus()


def test_the_practice_corpus_is_used_without_a_network(root):
    found = load_corpus()
    assert (found.real, found.name) == (False, "practice corpus")
    assert found.banner.startswith("PRACTICE CORPUS, not Shakespeare: the download failed")
    assert "refused" in found.banner
    assert "NANOGPT_DATA" in found.banner
    assert contents(root) == {}, "it must not be found as input.txt the next time"


def test_a_file_with_the_name_of_the_practice_corpus_is_a_real_text(root):
    found = load_corpus(put(root / practice_corpus().name, "mine"))
    assert (found.text, found.name, found.real) == ("mine", "practice corpus", True)
    assert found.banner == ""


FIRST = "First Citizen:\nBefore we proceed any further, hear me speak.\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (FIRST.encode(), "a truncated or altered Tiny Shakespeare, 61 bytes.*delete it"),
        (FIRST.replace("\n", "\r\n").encode(), "truncated or altered"),
        (b"abc\xff", r"byte 3 of 4 is 0xff; save it as UTF-8"),
        (b"\xef\xbb\xbfabc\xff", r"byte 6 of 7 is 0xff; save it as UTF-8"),
        (b"", "no two distinct characters"),
        (b"ab\0c", "NUL byte at 2"),
        (b"aaaa", "no two distinct characters"),
    ],
)
def test_a_damaged_corpus_is_refused_and_kept(root, content, message):
    path = root / "data" / "input.txt"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        load_corpus()
    assert path.read_bytes() == content, "it is the reader's file: nobody deletes it"


def test_tiny_shakespeare_is_recognised_by_its_digest(shakespeare, root):
    found = load_corpus(shakespeare)
    assert (found.name, found.real, found.banner) == ("Tiny Shakespeare", True, "")
    assert (found.sha256, len(found.text), len(set(found.text))) == (corpus.SHA256, 1_115_394, 65)
    (root / "cut.txt").write_bytes(shakespeare.read_bytes()[:-1])
    with pytest.raises(CorpusError, match="truncated or altered"):
        read_corpus(root / "cut.txt")


# ------------------------------------------------------------------ the practice corpus

CHARACTERS = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def test_the_practice_corpus_is_reproducible():
    found = practice_corpus()
    assert found.text == practice_text()
    assert found.sha256 == sha256(found.text.encode())
    assert found.sha256 == "3ae4c02bc222839c3b220862f2e0030348f6a7e5989aa5a85884c42eef55eeed"
    assert "".join(sorted(set(found.text))) == CHARACTERS
    assert "practice corpus: 1,000,000 characters, 65 distinct" in str(found)
    assert practice_text(1000, seed=1) != practice_text(1000, seed=2)


def test_the_practice_corpus_shares_characters_and_no_lines_with_shakespeare(shakespeare):
    real = shakespeare.read_text(encoding="ascii")
    assert "".join(sorted(set(real))) == CHARACTERS
    lines = {line for line in practice_text().splitlines() if len(line) > 15}
    assert not lines & set(real.splitlines())


# ------------------------------------------------------------------ characters


@given(st.text(min_size=1))
def test_decode_inverts_encode(text):
    tokenizer = CharTokenizer(text)
    encoded = tokenizer.encode(text)
    assert tokenizer.chars == "".join(sorted(set(text)))
    assert (encoded.dtype, encoded.shape) == (torch.int64, (len(text),))
    assert encoded.tolist() == [tokenizer.chars.index(char) for char in text]
    assert tokenizer.decode(encoded) == tokenizer.decode(encoded[None]) == text
    assert tokenizer.decode(encoded.tolist()) == text
    assert tokenizer.decode([]) == tokenizer.decode(encoded[:0]) == ""


def test_unknown_characters_and_tokens_are_named():
    tokenizer = CharTokenizer("abc")
    for call, message in [
        (lambda: tokenizer.encode("abéaX"), "'X', 'é' not in .*'abc'"),
        (lambda: tokenizer.encode(""), "the prompt is empty"),
        (lambda: CharTokenizer(""), "at least one character"),
        (
            lambda: tokenizer.decode(torch.tensor([0, -1])),
            r"token -1: must be an integer in \[0, 2\]",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


# ------------------------------------------------------------------ splits and batches


@given(st.integers(1, 40), st.integers(0, 500))
def test_split_is_nine_to_one_or_an_error_whose_advice_works(block_size, n):
    if n - int(0.9 * n) < block_size + 2:
        n, short = 10 * (block_size + 2), n
        part = "training" if int(0.9 * short) < block_size + 2 else "validation"
        with pytest.raises(CorpusError, match=f"the {part} split .*at least {n:,} characters"):
            split(torch.arange(short), block_size)
    train, val = split(torch.arange(n), block_size)
    assert torch.equal(torch.cat([train, val]), torch.arange(n))
    assert len(train) == int(0.9 * n)
    for part in (train, val):
        random_batch(part, block_size, 2, seeded())


def test_random_batches_cover_every_window(ambient_rng):
    x, y = random_batch(torch.arange(20), 8, 2000, seeded(1))
    assert set(x[:, 0].tolist()) == set(range(12))
    assert torch.equal(y, x + 1)
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert torch.equal(random_batch(torch.arange(20), 8, 2000, seeded(1))[0], x)
    assert not torch.equal(random_batch(torch.arange(20), 8, 2000, seeded(2))[0], x)
