"""The corpus, a character tokenizer, and batches of training windows.

`load_corpus` tries, in this order: the path argument, the file named by NANOGPT_DATA,
data/input.txt, a download of Tiny Shakespeare. Without a network it falls back to a practice corpus
that this module generates and that is never mistaken for the real one.
"""

import http.client
import json
import os
import random
import re
import urllib.request
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from .config import check_type
from .files import ROOT, path_in, sha256, user_path, write_whole

GRAMMAR = Path(__file__).with_name("practice.json")
# Andrej Karpathy's concatenation of Shakespeare, from char-rnn (2015) at a fixed commit.
URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/"
    "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt"
)
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SIZE = 1_115_394  # bytes, and characters: the text is ASCII
TIMEOUT = 10  # seconds, to connect and between two reads
SHOWN = 10  # the most characters listed in a message: a vocabulary may have thousands


class CorpusError(ValueError):
    """A corpus that is missing, damaged, not text, or too short; the message says what to do."""


@dataclass(frozen=True)
class Corpus:
    """A text with its name."""

    text: str = field(repr=False)  # may be many megabytes
    name: str
    sha256: str
    note: str = ""  # for the practice corpus: why it is used
    real: bool = True  # False only for the practice corpus; a user's file may share its name

    @property
    def banner(self) -> str:
        """The warning to show above every result; set only for the practice corpus, else empty."""
        if self.real:
            return ""
        warning = "Every loss below is a loss on generated text. For the real corpus"
        cure = "put input.txt into data/ (see data/README.md) or set NANOGPT_DATA to your copy."
        return f"PRACTICE CORPUS, not Shakespeare: {self.note}\n{warning}, {cure}"

    def __str__(self) -> str:
        size = f"{len(self.text):,} characters, {len(set(self.text))} distinct"
        return f"{self.name}: {size}, sha256 {self.sha256[:12]}…"


def load_corpus(path: str | Path | None = None) -> Corpus:
    """Find the corpus, in the order given at the top of this module.

    Raises CorpusError for a named file that is missing, not UTF-8, or a damaged copy of Tiny
    Shakespeare. A failed download raises nothing: the practice corpus is used instead, with a note.
    With NANOGPT_OFFLINE=1 no download is tried; the note is then NANOGPT_OFFLINE_REASON.
    """
    check_type("path", path, (str, Path, type(None)))
    # 1. A file named by the caller or in NANOGPT_DATA: use it or fail. Nobody would notice training
    #    on another text instead.
    file = path_in("NANOGPT_DATA") if path is None else user_path(path)
    if file:
        if not file.is_file():
            source = "NANOGPT_DATA: " if path is None else ""
            raise CorpusError(f"{source}{file} is not a file: correct the path or leave it out")
        return read_corpus(file)
    # 2. Tiny Shakespeare in data/, if somebody put it there or it was downloaded before.
    local = ROOT / "data" / "input.txt"
    if local.is_file():
        return read_corpus(local)
    # 3. Download it, unless switched off. If that fails, generate a practice corpus.
    if downloads_off():
        reason = "data/input.txt is missing, and downloads are switched off."
        return practice_corpus(os.environ.get("NANOGPT_OFFLINE_REASON") or reason)
    try:
        return read_corpus(fetch(local))
    except (CorpusError, OSError) as error:
        return practice_corpus(f"the download failed ({error}).")


def downloads_off() -> bool:
    """Whether NANOGPT_OFFLINE is set to anything but 0: then no download is tried."""
    return os.environ.get("NANOGPT_OFFLINE", "0") not in ("", "0")


def read_corpus(path: Path) -> Corpus:
    """Read a UTF-8 text as a corpus. Raises CorpusError for a file unfit for training."""
    # Recognise Tiny Shakespeare by its digest, whatever the file is called.
    data = path.read_bytes()
    digest = sha256(data)
    if digest == SHA256:
        return Corpus(data.decode("ascii"), "Tiny Shakespeare", digest)
    # Any other text: strip the byte order mark, and end each line with a single character.
    try:
        text = data.decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path} is not UTF-8 text: byte {error.start} of {len(data):,} is "
            f"{data[error.start]:#04x}; save it as UTF-8"
        ) from None
    place = text.find("\0")
    if place >= 0:
        raise CorpusError(f"{path} is not text: it has a NUL byte at {place}; name a text file")
    if len(set(text)) < 2:
        raise CorpusError(f"{path} has no two distinct characters: put a text there or delete it")
    # It begins like Tiny Shakespeare but differs: a truncated download, or an edited copy.
    if text.startswith("First Citizen:\nBefore we proceed any further"):
        raise CorpusError(
            f"{path} is a truncated or altered Tiny Shakespeare, {len(data):,} bytes of {SIZE:,}, "
            f"sha256 {digest[:12]}…; delete it to download it again"
        )
    return Corpus(text, path.name, digest)


def practice_corpus(note: str = "asked for.") -> Corpus:
    """About 1 MB of play-like text in Tiny Shakespeare's 65 characters, the same everywhere."""
    text = practice_text()
    return Corpus(text, "practice corpus", sha256(text.encode()), note, real=False)


def fetch(target: Path, url: str = URL, digest: str = SHA256, size: int = SIZE) -> Path:
    """Download to `target`, check the digest, and write the file atomically.

    Raises CorpusError for any network failure, OSError if the folder cannot be written.
    """
    # Read at most one byte more than the file has: a wrong response may be endless.
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            data = answer.read(size + 1)
    except (OSError, http.client.HTTPException) as error:
        raise CorpusError(f"no file received ({type(error).__name__}: {error})") from error
    if sha256(data) != digest:
        raise CorpusError(
            f"the download is not Tiny Shakespeare: {len(data):,} bytes of {size:,}, "
            f"sha256 {sha256(data)[:12]}…; try again"
        )
    # Check first, then write atomically, so that no later run finds a damaged file.
    write_whole(target, data)
    return target


# ------------------------------------------------------------------ characters as numbers


def some_of(chars: Iterable[str]) -> str:
    """List characters for a message, quoted and sorted: at most SHOWN, then how many more."""
    distinct = sorted(set(chars))
    shown = ", ".join(map(repr, distinct[:SHOWN]))
    more = len(distinct) - SHOWN
    return f"{shown} and {more:,} more" if more > 0 else shown


class CharTokenizer:
    """One integer for each distinct character, in sorted order."""

    def __init__(self, vocabulary: str):
        check_type("vocabulary", vocabulary, str)
        self.chars = "".join(sorted(set(vocabulary)))
        if not self.chars:
            raise ValueError("a vocabulary needs at least one character; the text given is empty")
        self.index = {char: i for i, char in enumerate(self.chars)}

    def __len__(self) -> int:
        return len(self.chars)

    def encode(self, text: str) -> Tensor:
        """Text to tokens, (T,) int64. Raises ValueError if empty or if a character is unknown."""
        check_type("text", text, str)
        if not text:
            raise ValueError("the prompt is empty: give at least one character, such as a newline")
        # A character outside the vocabulary has no number. Leaving it out would change the text.
        unknown = set(text) - set(self.chars)
        if unknown:
            known = f"from {self.chars[0]!r} to {self.chars[-1]!r}"
            if len(self) <= SHOWN:
                known = repr(self.chars)
            raise ValueError(
                f"{some_of(unknown)} not in the vocabulary: "
                f"the model knows only the {len(self):,} characters {known}"
            )
        # An array takes 8 bytes for each character; a list of int objects would take up to 40.
        return torch.frombuffer(array("q", map(self.index.__getitem__, text)), dtype=torch.int64)

    def decode(self, tokens: Tensor) -> str:
        """Tokens, of any shape or as a list, to text. Raises ValueError for unknown tokens."""
        # Check first: indexing with -1 would silently return the last character.
        numbers = token_numbers(tokens)
        wrong = [i for i in numbers if type(i) is not int or not 0 <= i < len(self)]
        if wrong:
            raise ValueError(f"token {wrong[0]}: must be an integer in [0, {len(self) - 1}]")
        return "".join(self.chars[i] for i in numbers)


def token_numbers(tokens) -> list:
    """Tokens of any shape, or lists of them, as one list. Raises TypeError for anything else."""
    try:
        return torch.as_tensor(tokens).flatten().tolist()
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"tokens must be a tensor or a list of integers: {tokens!r:.80}") from None


# ------------------------------------------------------------------ batches of windows


def fewest_characters(block_size: int) -> int:
    """The shortest text whose last tenth has room for a window of block_size, and some more."""
    return 10 * (block_size + 2)


def split(tokens: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """The first 90 % for training, the rest for validation. Raises CorpusError if too short."""
    # Training never sees the end of the text, so its loss shows what was learned, not memorised.
    cut = int(0.9 * len(tokens))
    train = tokens[:cut]
    val = tokens[cut:]
    for name, part in (("training", train), ("validation", val)):
        if len(part) < block_size + 2:
            raise CorpusError(
                f"the {name} split is too short for block_size={block_size}: {len(part):,}; use "
                f"at least {fewest_characters(block_size):,} characters, or a smaller block_size"
            )
    return train, val


def windows(data: Tensor, starts: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Inputs, and targets shifted by one.  (N,), (B,) -> (B, T), (B, T)"""
    # One character more than a window: the target of each position is the next character.
    rows = data[starts[:, None] + torch.arange(block_size + 1)]  # (B, T + 1)
    return rows[:, :-1], rows[:, 1:]


def random_batch(
    data: Tensor, block_size: int, batch: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """A batch of windows at random offsets, from a CPU generator.  (N,) -> (B, T), (B, T)"""
    # The last possible start leaves room for block_size characters and the last one's target.
    starts = torch.randint(len(data) - block_size, (batch,), generator=generator)
    return windows(data, starts, block_size)


def send(x: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to a device; from the CPU to a GPU asynchronously."""
    if device.type == "cuda" and x.is_cpu:
        # Pinned memory stores every element, so make an expanded tensor contiguous first.
        return x.contiguous().pin_memory().to(device, non_blocking=True)
    return x.to(device)


# ------------------------------------------------------------------ the practice corpus


def practice_text(characters: int = 1_000_000, seed: int = 1337) -> str:
    """Generate play-like text; the same seed gives the same text everywhere.

    The grammar is in practice.json. Each {name} has lists of a weight followed by the texts that
    can replace it. `random()` is the same in all versions of Python.
    """
    # A text with weight five is in its list five times.
    rules = {}
    for rule, lists in json.loads(GRAMMAR.read_text(encoding="utf-8")).items():
        rules[rule] = [text for count, *texts in lists for text in texts * count]
    rng = random.Random(seed)
    name = re.compile(r"\{(\w+)\}")

    # Replace a {name} by one of its texts, and expand that text recursively.
    def expand(match) -> str:
        options = rules[match[1]]
        return name.sub(expand, options[int(rng.random() * len(options))])

    parts = []
    length = 0
    while length < characters:
        parts.append(name.sub(expand, "{speech}"))
        length += len(parts[-1])
    return "".join(parts)[: characters - 1] + "\n"
