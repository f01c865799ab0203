"""What a load test measures: all schemes of our engine, or a server that is compared with a model.

The requests are in `arrivals`, the clock in `schemes`, the latencies in `replies`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch

from ..config import SIZES, check_int
from ..data import Corpus
from ..decoder.checkpoint import Checkpoint
from ..decoder.model import Decoder
from ..decoder.pack import as_decoder
from ..device import Device
from ..model import GPT, LanguageModel
from ..pretrained.padding import without_spare_tokens
from ..pretrained.tokenizer import PretrainedTokenizer
from ..serving.batch import BatchEngine
from ..serving.native_steps import BACKENDS, choose_backend
from ..serving.sequence import Request
from .arrivals import Prompt, pieces_of_text, poisson
from .ladder import sharpened
from .load import load
from .loaded_server import CHARS, LoadedServer, LoadedTokenServer
from .replies import Replies, System
from .roofline import peak_arithmetic, read_bandwidth
from .schemes import BLOCK_LEN, blocks_for, bound, drive, schemes

RUNNING = 32  # most texts per step
LIMITS = {"ttft": 0.5, "tpot": 0.05}  # seconds: limits that a good request meets
TEXT_TOKENS = 256  # the longest text for a pretrained model; our own models use their block size


@dataclass(frozen=True)
class Arrivals:
    """How many requests arrive, how fast, and how often that is repeated."""

    rates: Sequence[float]  # requests per second
    n: int  # requests at each rate
    repeats: int


# A pretrained model needs seconds for each request.
OWN_ARRIVALS = Arrivals((5.0, 20.0, 80.0, inf), 64, 3)
PRETRAINED_ARRIVALS = Arrivals((0.5, 2.0, inf), 16, 3)


@dataclass(frozen=True)
class Subject:
    """A model, if there is one, and the source of the texts that are asked for."""

    name: str
    model: LanguageModel | None
    block_size: int  # tokens of the longest text
    vocab_size: int
    n_params: int = 0  # of the model as stored; ruling out spare tokens adds a bias
    chars: str = CHARS  # for our own models
    tokenizer: PretrainedTokenizer | None = None
    corpus: Corpus | None = None  # the text that a pretrained model's prompts are cut from
    n_blocks: int | None = None  # blocks for keys and values; None: enough for block_size

    @property
    def prompt(self) -> Prompt | None:
        """The sampler of its prompts; None: any tokens."""
        if self.tokenizer is None or self.corpus is None:
            return None
        return pieces_of_text(self.tokenizer, self.corpus.text)

    @property
    def cache_gigabytes(self) -> float:
        """The most that its keys and values take."""
        assert self.model is not None
        assert self.n_blocks is not None
        return self.model.cache_bytes(self.n_blocks * BLOCK_LEN) / 1e9

    def about(self) -> dict[str, Any]:
        """The model's description in a result."""
        assert self.model is not None
        about: dict[str, Any] = {"model": self.name, "n_params": self.n_params}
        about["dtype"] = str(self.model.dtype).removeprefix("torch.")
        about["device"] = self.model.device.type
        if self.corpus:
            about |= {"corpus": self.corpus.name, "corpus_sha256": self.corpus.sha256}
        return about


def own_subject(name: str, size: str, saved: Checkpoint | None, device: Device) -> Subject:
    """A checkpoint, or a model of that size with random weights."""
    chars = saved.tokenizer.chars if saved else CHARS
    model = saved.model if saved else sharpened(GPT(SIZES[size]))
    packed = as_decoder(model).to(device.device).eval()  # the same function, faster
    return Subject(name, packed, packed.config.block_size, len(chars), packed.n_params, chars)


def texts_of_size(name: str, size: str) -> Subject:
    """No model, only texts that one of that size could be asked for: for a server."""
    return Subject(name, None, SIZES[size].block_size, len(CHARS))


def pretrained_subject(
    name: str,
    model: Decoder,
    tokenizer: PretrainedTokenizer,
    corpus: Corpus,
    text_tokens: int | None,
) -> Subject:
    """A pretrained model, served the way `serve --model` serves it. Raises ValueError."""
    block = model.config.block_size
    n = text_tokens or min(TEXT_TOKENS, block)
    check_int("text_tokens", n, 2, block)
    return Subject(
        name,
        without_spare_tokens(model, tokenizer),
        n,
        len(tokenizer),
        model.n_params,
        tokenizer=tokenizer,
        corpus=corpus,
        n_blocks=blocks_for(model, RUNNING, n),
    )


def load_of_server(url: str, subject: Subject, arrivals: Arrivals) -> dict[str, Any]:
    """The server at a URL, compared with the model's own texts if there is a model."""
    tokenizer = subject.tokenizer
    server: LoadedServer
    if tokenizer is None:
        server = LoadedServer(url, subject.chars)
    else:
        server = LoadedTokenServer(url)
    settings = _settings(subject, arrivals)
    rows = load(
        {server.model: server},
        arrivals.rates,
        vocab_size=subject.vocab_size,
        prompt=subject.prompt,
        greedy=True,
        reference=_reference(subject) if subject.model else None,
        **settings,
    )
    about = {"server": url, "model": server.model, "rows": rows, "errors": dict(server.errors)}
    return settings | about | ({"reference": subject.about()} if subject.model else {})


def load_of_schemes(subject: Subject, arrivals: Arrivals) -> dict[str, Any]:
    """All schemes of our engine, and the machine's bound for these requests."""
    # 1. The schemes.
    model = subject.model
    assert model is not None
    backend = choose_backend(model)[0]
    systems = schemes(model, backend=BACKENDS[backend], running=RUNNING, n_blocks=subject.n_blocks)
    asked: dict[str, Any] = {"vocab_size": subject.vocab_size, "prompt": subject.prompt}
    settings = _settings(subject, arrivals)
    rows = load(systems, arrivals.rates, **asked, **settings)
    # 2. The bound: what the same requests need, at the machine's limits.
    c = model.config
    block = subject.block_size
    read = read_bandwidth(c.cache_bytes(block // 3, RUNNING), device=model.device)["high"]
    peak = peak_arithmetic(device=model.device)["high"]
    requests = poisson(arrivals.n, inf, block_size=block, **asked)
    about = subject.about() | {"backend": backend, "running": RUNNING}
    about |= {"peak": peak, "bandwidth": read, "bound": bound(c, requests, peak, read)}
    return settings | about | {"rows": rows}


def _settings(subject: Subject, arrivals: Arrivals) -> dict[str, Any]:
    """What `load` is called with, and a result says."""
    counts = {"n": arrivals.n, "repeats": arrivals.repeats}
    return counts | {"limits": LIMITS, "block_size": subject.block_size}


def _reference(subject: Subject) -> System:
    """The model's own texts, as tokens and, if it is pretrained, also as strings."""
    model = subject.model
    assert model is not None
    backend = BACKENDS[choose_backend(model)[0]]

    def write(requests: list[Request]) -> Replies:
        engine = BatchEngine(model, backend=backend, n_blocks=subject.n_blocks, max_running=RUNNING)
        replies = drive(engine, requests)
        if subject.tokenizer is None:
            return replies
        texts = {}
        for i, reply in replies.items():
            tokens = torch.tensor(reply.tokens)
            texts[i] = reply._replace(text=subject.tokenizer.decode(tokens))
        return texts

    return write
