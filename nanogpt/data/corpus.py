"""Where the text to train on comes from. Knows files and one address; nothing of tensors.

`load_corpus` looks in this order: a path given, the file that NANOGPT_DATA names, data/input.txt,
a download of Tiny Shakespeare. Without a network it takes a practice corpus that the package writes
itself; it is never mistaken for the real one.
"""

from __future__ import annotations

import codecs
import http.client
import os
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from ..system.files import ROOT, sha256, write_whole
from . import synthetic

# Andrej Karpathy's concatenation of Shakespeare, from char-rnn (2015) at a fixed commit.
URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/"
    "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt"
)
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SIZE = 1_115_394  # bytes, and characters: the text is ASCII
TIMEOUT = 10  # seconds, to connect and between two reads


class CorpusError(ValueError):
    """A corpus that is missing, damaged, not text, or too short; the message says what to do."""


@dataclass(frozen=True)
class Corpus:
    """A text with its name. Only the practice corpus is not `real`."""

    text: str
    name: str
    sha256: str
    note: str = ""  # for the practice corpus: why it is used

    @property
    def real(self) -> bool:
        return self.name != synthetic.NAME

    @property
    def banner(self) -> str:
        """What a reader must know before anything else; empty for a real text."""
        if self.real:
            return ""
        cure = "put input.txt into data/ (see data/README.md) or set NANOGPT_DATA to your copy."
        what = "Every loss below is a loss on generated text. For the real corpus"
        return f"PRACTICE CORPUS, not Shakespeare: {self.note}\n{what}, {cure}"

    def __str__(self) -> str:
        size = f"{len(self.text):,} characters, {len(set(self.text))} distinct"
        return f"{self.name}: {size}, sha256 {self.sha256[:12]}…"


def load_corpus(path: str | Path | None = None) -> Corpus:
    """Find the corpus, in the order given at the top of this module.

    Raises CorpusError for a file that was named and is missing, not UTF-8, or a damaged copy of
    Tiny Shakespeare. A failed download raises nothing: the practice corpus takes its place, with a
    note. With NANOGPT_OFFLINE=1 no download is tried; the note is then NANOGPT_OFFLINE_REASON.
    """
    if named := path or os.environ.get("NANOGPT_DATA"):
        if not (file := Path(named).expanduser()).is_file():
            who = "" if path else "NANOGPT_DATA: "
            raise CorpusError(f"{who}{file} is no file: correct the path or leave it out")
        return read_corpus(file)
    local = ROOT / "data" / "input.txt"
    if local.is_file():
        return read_corpus(local)
    if os.environ.get("NANOGPT_OFFLINE", "0") not in ("", "0"):
        reason = "data/input.txt is missing, and no download was wanted."
        return practice_corpus(os.environ.get("NANOGPT_OFFLINE_REASON") or reason)
    try:
        return read_corpus(fetch(local))
    except (CorpusError, OSError) as error:
        return practice_corpus(f"the download did not work ({error}).")


def read_corpus(path: Path) -> Corpus:
    """Any UTF-8 text as a corpus. Raises CorpusError when it is unfit to train on.

    That is: not UTF-8, empty, one character repeated, with NUL bytes, or a cut Tiny Shakespeare.
    """
    data = path.read_bytes()
    digest = sha256(data)
    if digest == SHA256:
        return Corpus(data.decode("ascii"), "Tiny Shakespeare", digest)
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        byte = f"byte {error.start} of {len(data):,} is {data[error.start]:#04x}"
        raise CorpusError(f"{path} is not UTF-8 text: {byte}; save it as UTF-8") from None
    if (place := text.find("\0")) >= 0:
        raise CorpusError(f"{path} is not a text: it has a NUL byte at {place}; name a text file")
    if len(set(text)) < 2:
        raise CorpusError(f"{path} has no two different characters: put a text there or delete it")
    if text.startswith("First Citizen:\nBefore we proceed any further"):
        found = f"{len(data):,} bytes and sha256 {digest[:12]}…, not {SIZE:,} and {SHA256[:12]}…"
        why = f"{path} begins like Tiny Shakespeare but has {found}: a cut or altered copy"
        raise CorpusError(f"{why}; delete it to fetch it again")
    return Corpus(text, path.name, digest)


def practice_corpus(note: str = "asked for.") -> Corpus:
    """About 1 MB of play-like text in Tiny Shakespeare's 65 characters, equal on every machine."""
    text = synthetic.write()
    return Corpus(text, synthetic.NAME, sha256(text.encode()), note)


def fetch(target: Path, url: str = URL, digest: str = SHA256, size: int = SIZE) -> Path:
    """Download to `target`, whole and checked.

    Raises CorpusError for whatever the network and the server do, OSError for a folder that cannot
    be written; nothing is left behind.
    """
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            data = answer.read(size + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: no address
        raise CorpusError(f"no file came ({type(error).__name__}: {error})") from error
    if sha256(data) != digest:
        came = f"{len(data):,} bytes of {size:,}, sha256 {sha256(data)[:12]}…, not {digest[:12]}…"
        raise CorpusError(f"what came is not the file we know: {came}; try again")
    write_whole(target, data)
    return target
