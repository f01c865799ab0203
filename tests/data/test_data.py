"""The corpus: found in the promised order, checked, never mistaken; then characters and batches."""

import functools
import socket
import socketserver
import subprocess
import sys
import threading

import hypothesis.strategies as st
import pytest
import torch
from conftest import seeded
from hypothesis import given

from nanogpt.data import corpus, synthetic, tokenizer
from nanogpt.data.batches import random_batch, split, windows
from nanogpt.data.corpus import (
    SHA256,
    CorpusError,
    fetch,
    load_corpus,
    practice_corpus,
    read_corpus,
)
from nanogpt.data.tokenizer import CharTokenizer
from nanogpt.system import files
from nanogpt.system.files import sha256

BODY = bytes(range(256)) * 1024  # 256 KiB that stand for the corpus


# ---------------------------------------------------- downloads from a server on this machine


class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        while self.rfile.readline().strip():
            pass
        self.server.asked += 1
        try:
            self.wfile.write(self.server.raw)
            self.wfile.flush()
            if self.server.stalls:
                self.server.over.wait(30)  # until the test ends, not for a time
        except ConnectionError:  # the client has seen enough
            pass


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = block_on_close = True
    raw, stalls, asked = b"", False, 0

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.over = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/input.txt"


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


def http(body: bytes, *headers: str, status="200 OK") -> bytes:
    return (
        "\r\n".join([f"HTTP/1.1 {status}", *headers, "Connection: close", "", ""]).encode() + body
    )


def length(n: int) -> str:
    return f"Content-Length: {n}"


def get(server, target):
    return fetch(target, server.url, sha256(BODY), len(BODY))


def test_a_good_download_is_there_whole_and_alone(server, tmp_path):
    server.raw = http(BODY, length(len(BODY)))
    target = tmp_path / "data" / "input.txt"
    assert get(server, target) == target
    assert target.read_bytes() == BODY
    assert list(target.parent.iterdir()) == [target]


HALF = len(BODY) // 2
FAILURES = {
    "cut, and the length says so": (
        http(BODY[:HALF], length(HALF)),
        f"cut: {HALF:,} of {len(BODY):,} bytes",
    ),
    "cut, and the length is that of the whole": (
        http(BODY[:HALF], length(len(BODY))),
        "cut|Incomplete",
    ),
    "cut, with no length": (http(BODY[:HALF]), "cut"),
    "cut within a chunk": (
        http(b"40000\r\n" + BODY[:HALF], "Transfer-Encoding: chunked"),
        "no file .Inco",
    ),
    "nothing at all": (http(b"", length(0)), "cut: 0 of"),
    "altered by one bit": (
        http(bytes([BODY[0] ^ 1]) + BODY[1:], length(len(BODY))),
        "not the file we know",
    ),
    "one byte too long": (http(BODY + b"!", length(len(BODY) + 1)), "larger than the"),
    "far too long": (http(BODY * 8), "larger than the"),
    "a page that says 404": (
        http(b"no", length(2), status="404 Not Found"),
        "no file .*404: Not Found",
    ),
    "a server in trouble": (http(b"no", length(2), status="500 Oh dear"), "no file .*500: Oh dear"),
    "no HTTP": (b"220 smtp.example.org ready\r\n\r\n", "no file .*220 smtp"),
    "a closed line": (b"", "no file .*closed connection"),
}


@pytest.mark.parametrize("there_before", [False, True])
@pytest.mark.parametrize("what", FAILURES)
def test_a_failed_download_says_why_and_leaves_nothing(server, tmp_path, what, there_before):
    server.raw, message = FAILURES[what]
    target = tmp_path / "input.txt"
    if there_before:
        target.write_text("mine")
    with pytest.raises(CorpusError, match=message):
        get(server, target)
    assert server.asked == 1
    assert list(tmp_path.iterdir()) == [target] * there_before
    assert not there_before or target.read_text() == "mine"


@pytest.mark.parametrize(
    "raw", [b"", http(BODY[:HALF], length(len(BODY)))], ids=["at once", "half-way"]
)
def test_a_stalled_download_is_given_up(server, tmp_path, monkeypatch, raw):
    monkeypatch.setattr(corpus, "TIMEOUT", 0.2)
    server.raw, server.stalls = raw, True
    with pytest.raises(CorpusError, match="timed out"):
        get(server, tmp_path / "input.txt")
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_trickles_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "DEADLINE", -1)
    server.raw, server.stalls = http(BODY[:HALF], length(len(BODY))), True
    with pytest.raises(CorpusError, match=f"took too long: .* of {len(BODY):,} bytes"):
        get(server, tmp_path / "input.txt")
    assert list(tmp_path.iterdir()) == []


def test_a_refused_connection_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(CorpusError, match="refused"):
        fetch(tmp_path / "input.txt", f"http://127.0.0.1:{port}/", "0", 1)
    assert list(tmp_path.iterdir()) == []


def test_a_download_into_an_impossible_folder_says_so(server, tmp_path):
    (tmp_path / "file").write_text("I am no folder")
    server.raw = http(BODY, length(len(BODY)))
    with pytest.raises(OSError, match="cannot write into .*choose another folder"):
        get(server, tmp_path / "file" / "input.txt")


# ------------------------------------------------------------------ which corpus


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A project folder with no corpus and no network."""
    monkeypatch.setattr(corpus, "ROOT", tmp_path)
    monkeypatch.delenv("NANOGPT_DATA", raising=False)
    monkeypatch.delenv("NANOGPT_OFFLINE", raising=False)
    monkeypatch.delenv("NANOGPT_OFFLINE_REASON", raising=False)
    monkeypatch.setattr(corpus, "fetch", no_network)
    (tmp_path / "data").mkdir()
    return tmp_path


def no_network(target):
    raise CorpusError("no connection: this test has none")


def put(path, text):
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_the_corpus_is_looked_for_in_the_order_that_is_written_down(root, monkeypatch):
    monkeypatch.setattr(corpus, "fetch", lambda target: put(target, "fetched"))
    assert load_corpus().text == "fetched"
    assert load_corpus(download=False).text == "fetched", "what was fetched stays"
    put(root / "data" / "input.txt", "local")
    assert load_corpus().text == "local"
    monkeypatch.setenv("NANOGPT_DATA", str(put(root / "env.txt", "env")))
    assert load_corpus().text == "env"
    mine = load_corpus(put(root / "mine.txt", "mine"))
    assert (mine.text, mine.name, mine.source) == ("mine", "mine.txt", str(root / "mine.txt"))
    assert load_corpus(str(root / "mine.txt")) == mine
    assert mine.real
    assert mine.banner == ""


@pytest.mark.parametrize("given_as", ["NANOGPT_DATA", "the path given"])
@pytest.mark.parametrize("what", ["absent.txt", "data"])
def test_a_corpus_that_is_named_and_not_there_is_an_error(root, monkeypatch, given_as, what):
    """Silence here would train on another text than the one asked for."""
    put(root / "data" / "input.txt", "local")
    path = root / what
    if given_as == "NANOGPT_DATA":
        monkeypatch.setenv("NANOGPT_DATA", str(path))
    with pytest.raises(CorpusError, match=f"{given_as} names .*{what}, which is not a file"):
        load_corpus(None if given_as == "NANOGPT_DATA" else path)


@pytest.mark.parametrize("download", [False, True])
def test_without_a_network_the_practice_corpus_steps_in_and_says_so(root, download):
    corpus = load_corpus(download=download)
    assert not corpus.real
    assert corpus.name == "practice corpus"
    assert corpus.banner.startswith("PRACTICE CORPUS, not Shakespeare: ")
    assert "NANOGPT_DATA" in corpus.banner
    assert ("this test has none" in corpus.banner) is download
    assert "practice corpus: 1,000,000 characters, 65 distinct" in str(corpus)
    assert list((root / "data").iterdir()) == [], "it must not be found as input.txt the next time"


@pytest.mark.parametrize("what", FAILURES)
def test_no_failure_of_the_network_stops_a_run(root, server, monkeypatch, what):
    server.raw, _ = FAILURES[what]
    monkeypatch.setattr(
        corpus,
        "fetch",
        functools.partial(fetch, url=server.url, digest=sha256(BODY), size=len(BODY)),
    )
    assert "the download did not work" in load_corpus().banner
    assert list((root / "data").iterdir()) == []


def test_a_folder_that_cannot_be_written_does_not_stop_a_run(root, server, monkeypatch):
    (root / "data").rmdir()
    (root / "data").write_text("I am no folder")
    server.raw = http(BODY, length(len(BODY)))
    monkeypatch.setattr(
        corpus,
        "fetch",
        functools.partial(fetch, url=server.url, digest=sha256(BODY), size=len(BODY)),
    )
    assert "cannot write into" in load_corpus().banner


FIRST = "First Citizen:\nBefore we proceed any further, hear me speak.\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (FIRST.encode(), "begins like Tiny Shakespeare but has 61 bytes.*a cut or altered copy"),
        (FIRST.replace("\n", "\r\n").encode(), "cut or altered"),
        (b"\xef\xbb\xbf" + FIRST.encode(), "cut or altered"),
        (b"abc\xff", r"not UTF-8 text: byte 3 of 4 is 0xff; save it as UTF-8"),
        ("é".encode("latin-1"), "byte 0 of 1 is 0xe9"),
        ("text".encode("utf-16"), "not UTF-8"),
        (b"", "is empty"),
    ],
)
def test_a_damaged_corpus_is_refused_with_advice(root, content, message):
    path = root / "data" / "input.txt"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        load_corpus()
    assert path.read_bytes() == content, "it is the reader's file: nobody deletes it"


def test_any_utf8_text_is_a_corpus_and_line_ends_become_one(root):
    path = root / "mine.txt"
    path.write_bytes("Grüße,\r\nπ ≈ 3\n".encode())
    corpus = load_corpus(path)
    assert corpus.text == "Grüße,\nπ ≈ 3\n"
    assert corpus.sha256 == sha256(path)
    assert len(CharTokenizer(corpus.text)) == len(set("Grüße,\nπ ≈ 3\n"))


def test_a_byte_order_mark_is_no_character(root):
    """Windows editors write one: it would be the 66th character of the vocabulary."""
    path = root / "mine.txt"
    path.write_bytes(b"\xef\xbb\xbfabc")
    assert load_corpus(path).text == "abc"
    path.write_bytes(b"\xef\xbb\xbf")
    with pytest.raises(CorpusError, match="is empty"):
        load_corpus(path)


def test_the_real_corpus_is_known_by_its_sum(shakespeare, root, monkeypatch):
    monkeypatch.setenv("NANOGPT_DATA", str(shakespeare))
    corpus = load_corpus()
    assert (corpus.name, corpus.real, corpus.banner) == ("Tiny Shakespeare", True, "")
    assert (corpus.sha256, len(corpus.text), len(set(corpus.text))) == (
        SHA256,
        1_115_394,
        65,
    )
    whole = shakespeare.read_bytes()
    for damaged in (
        whole[:-1],
        whole + b"\n",
        whole[:500_000],
        whole.replace(b"ROMEO", b"JULIO", 1),
    ):
        (root / "damaged.txt").write_bytes(damaged)
        with pytest.raises(CorpusError, match="cut or altered"):
            read_corpus(root / "damaged.txt")


# ------------------------------------------------------------------ the practice corpus

CHARACTERS = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def test_the_practice_corpus_is_the_same_everywhere():
    corpus = practice_corpus()
    assert corpus.text == synthetic.write() == practice_corpus().text
    assert corpus.sha256 == sha256(corpus.text.encode())
    assert corpus.sha256 == "b4e7db6616b9354b46822ed38a008bbbaefd7206d642cf49373b42f53ee804d7"
    assert "".join(sorted(set(corpus.text))) == CHARACTERS


@pytest.mark.parametrize("characters", [1, 2, 100, 4321])
def test_the_practice_corpus_is_as_long_as_asked(characters):
    text = synthetic.write(characters)
    assert len(text) == characters
    assert text.endswith("\n")
    assert text[:-1] == synthetic.write()[: characters - 1]


def test_another_seed_is_another_text():
    assert synthetic.write(1000, seed=1) != synthetic.write(1000, seed=2)


def test_the_practice_corpus_has_the_characters_of_shakespeare_and_none_of_its_lines(shakespeare):
    real = shakespeare.read_text(encoding="ascii")
    assert "".join(sorted(set(real))) == CHARACTERS
    lines = {line for line in synthetic.write().splitlines() if len(line) > 15}
    assert not lines & set(real.splitlines())


# ------------------------------------------------------------------ characters


@given(st.text(min_size=1))
def test_encoding_and_decoding_gives_the_text_back(text):
    tokenizer = CharTokenizer(text)
    encoded = tokenizer.encode(text)
    assert encoded.dtype == torch.int64
    assert encoded.shape == (len(text),)
    assert 0 <= int(encoded.min()) <= int(encoded.max()) < len(tokenizer) == len(set(text))
    assert tokenizer.decode(encoded) == tokenizer.decode(encoded[None]) == text
    assert tokenizer.decode(encoded.tolist()) == text
    assert tokenizer.decode([]) == tokenizer.decode(encoded[:0]) == ""


def test_tokens_are_the_sorted_characters_whatever_their_order_in_the_text():
    assert CharTokenizer("banana").chars == CharTokenizer("nab").chars == "abn"
    assert CharTokenizer("banana").encode("nab").tolist() == [2, 0, 1]


def test_a_character_never_trained_on_is_named_with_its_place():
    tokenizer = CharTokenizer("abc")
    with pytest.raises(
        ValueError, match=r"'X', 'é' not in the vocabulary \(first at character 2 of 5\).*'abc'"
    ):
        tokenizer.encode("abéaX")


def test_an_empty_prompt_and_an_empty_vocabulary_are_refused():
    with pytest.raises(ValueError, match="the prompt is empty.*at least one character"):
        CharTokenizer("abc").encode("")
    with pytest.raises(ValueError, match="at least one character"):
        CharTokenizer("")


# ------------------------------------------------------------------ splits and batches


@given(st.integers(1, 40), st.integers(0, 500))
def test_a_split_is_nine_to_one_or_an_error_whose_advice_works(block_size, n):
    advised = 10 * (block_size + 2)
    if n - int(0.9 * n) < block_size + 2:
        with pytest.raises(CorpusError, match=f"at least {advised:,} characters"):
            split(torch.arange(n), block_size)
        n = advised
    train, val = split(torch.arange(n), block_size)
    assert torch.equal(torch.cat([train, val]), torch.arange(n))
    assert len(train) == int(0.9 * n)
    for part in (train, val):
        random_batch(part, block_size, 2, seeded())


@pytest.mark.parametrize(("n", "part"), [(0, "training"), (100, "validation"), (119, "validation")])
def test_a_text_too_short_for_the_block_names_the_part(n, part):
    with pytest.raises(
        CorpusError, match=f"the {part} split has .* block_size=11 .*or a smaller block_size"
    ):
        split(torch.arange(n), 11)


def test_targets_are_the_inputs_shifted_by_one():
    x, y = windows(torch.arange(100), torch.tensor([0, 7, 91]), 8)
    assert x.tolist() == [list(range(s, s + 8)) for s in (0, 7, 91)]
    assert torch.equal(y, x + 1)


def test_batches_reach_every_window_and_no_further(ambient_rng):
    x, y = random_batch(torch.arange(20), 8, 2000, seeded(1))
    assert set(x[:, 0].tolist()) == set(range(12))
    assert int(y.max()) == 19
    assert torch.equal(random_batch(torch.arange(20), 8, 2000, seeded(1))[0], x)
    assert not torch.equal(random_batch(torch.arange(20), 8, 2000, seeded(2))[0], x)


def test_offline_means_that_no_download_is_tried(monkeypatch, tmp_path):
    monkeypatch.setattr(corpus, "ROOT", tmp_path)
    monkeypatch.delenv("NANOGPT_DATA", raising=False)
    monkeypatch.setenv("NANOGPT_OFFLINE", "1")
    monkeypatch.setattr(corpus, "fetch", lambda *_: pytest.fail("a download was tried"))
    assert not corpus.load_corpus().real


def test_a_token_of_another_vocabulary_is_named():
    with pytest.raises(ValueError, match=r"token -1 must be in \[0, 2\]"):
        tokenizer.CharTokenizer("abc").decode(torch.tensor([0, -1]))


@pytest.mark.parametrize(
    ("text", "message"), [("ab\0c", "NUL byte at 2"), ("aaaa", "repeats one character")]
)
def test_what_is_no_text_to_learn_from_is_refused(tmp_path, text, message):
    (tmp_path / "odd.txt").write_text(text)
    with pytest.raises(CorpusError, match=message):
        corpus.read_corpus(tmp_path / "odd.txt")


def test_the_reason_for_no_download_is_passed_on(monkeypatch, tmp_path):
    monkeypatch.setattr(corpus, "ROOT", tmp_path)
    monkeypatch.delenv("NANOGPT_DATA", raising=False)
    monkeypatch.setenv("NANOGPT_OFFLINE", "1")
    monkeypatch.setenv("NANOGPT_OFFLINE_REASON", "the download did not work (no connection).")
    assert "the download did not work (no connection)." in corpus.load_corpus().banner


def test_finding_a_corpus_needs_no_torch():
    code = "import sys, nanogpt.data.corpus; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=files.ROOT).returncode == 0
