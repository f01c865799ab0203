"""Throughput and latency under load: requests that arrive whether or not the server is ready.

Arrivals are data: a Poisson process sampled with a seed. On the virtual clock, steps take their
measured time and waiting takes none, so a quiet minute takes only its seconds of work to measure.

The terms are those of vLLM's serving benchmark. TTFT, time to first token, counts from the arrival,
including time in the queue. TPOT of a request of n tokens is (E2EL - TTFT) / (n - 1), undefined for
n = 1. ITL is every gap of every request. Goodput counts the requests per second that meet every
limit.
"""

from __future__ import annotations

import json
import random
import string
import time
import urllib.error
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from http.client import HTTPException
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..config import GPTConfig, ParameterError, check_positive
from ..decoder.config import DecoderConfig, decoder_config
from ..model import LanguageModel
from ..pretrained.tokenizer import PretrainedTokenizer
from ..sampling import SamplingParams
from ..serving.batch import BatchEngine
from ..serving.memory import fitting_blocks
from ..serving.modules import ModuleBackend
from ..serving.sequence import Request
from ..timing import Summary, interleave, summary
from ..verify.server import RemoteServer
from .roofline import positions_seen
from .tables import number_of

CHARS = "\n !$&',-.3:;?" + string.ascii_uppercase + string.ascii_lowercase  # Tiny Shakespeare's
LATENCIES = ("ttft", "tpot", "itl", "e2el")
_PATIENCE = 600.0  # seconds without a byte from a server, after which a request has failed


@dataclass(frozen=True)
class Scheme:
    """A scheme for sharing one model among requests, as options of the engine."""

    max_running: int | None = None  # most texts per step; None: as in the other schemes
    static: bool = False  # a batch starts when the previous one has ended
    budget: int | None = None  # most tokens per step; None: no chunked prefill
    reuse: bool = False  # prompts with a common prefix share keys and values


SCHEMES = {
    "one at a time": Scheme(max_running=1),
    "static batches": Scheme(static=True),
    "continuous": Scheme(),
    "chunked prefill": Scheme(budget=64),
    "prefix reuse": Scheme(budget=64, reuse=True),
}


class Reply(NamedTuple):
    """A request's reply: tokens, and when they arrived, in seconds after the start.

    A server may send several tokens at once, so there may be fewer moments than tokens. A token is
    None if the server did not say which it was. `text` is the reply's text if only that is known.
    """

    tokens: list[int | None]
    moments: list[float]
    text: str | None = None


Replies = dict[Hashable, Reply]  # one run's replies, by request id
System = Callable[[list[Request]], Replies]  # serves the requests of one run
Prompt = Callable[[random.Random, int], list[int]]  # samples a prompt of n tokens


def random_tokens(vocab_size: int) -> Prompt:
    """Prompts of independently sampled tokens."""

    def prompt(draw: random.Random, n: int) -> list[int]:
        return [draw.randrange(vocab_size) for _ in range(n)]

    return prompt


def pieces_of_text(tokenizer: PretrainedTokenizer, text: str) -> Prompt:
    """Prompts cut from a text: each starts at a random word and is tokenized like a new text."""

    def prompt(draw: random.Random, n: int) -> list[int]:
        start = draw.randrange(len(text))
        start = text.find(" ", start, len(text) - 1) + 1 or start  # the next word, if any
        return first_tokens(tokenizer, text[start : start + 8 * n], n).tolist()

    return prompt


def first_tokens(tokenizer: PretrainedTokenizer, text: str, n: int) -> Tensor:
    """The first n tokens of a text, which is repeated if it has fewer.  -> (n,)"""
    tokens = tokenizer.encode(text)
    while len(tokens) < n:
        text += text
        tokens = tokenizer.encode(text)
    return tokens[:n]


def poisson(
    n: int,
    rate: float,
    vocab_size: int,
    block_size: int,
    greedy: bool = False,
    prompt: Prompt | None = None,
) -> list[Request]:
    """n requests at `rate` per second (inf: all at once). Only the arrivals depend on the rate.

    A prompt is 1/16 to 1/2 of `block_size` long, uniformly; half of them share a prefix of 1/4. The
    number of new tokens is exponential with a mean of 1/6 and a maximum of 1/2, so that some are
    far above the mean. Prompts are sampled by `prompt`; None: uniformly from the vocabulary. Raises
    ValueError if the rate is not positive.
    """
    prompt = prompt or random_tokens(vocab_size)
    if rate != inf:
        check_positive("rates", rate)
    draw = random.Random(1)
    gaps = random.Random(2)
    arrival = 0.0
    out = []
    common = prompt(draw, block_size // 4)
    for i in range(n):
        length = draw.randint(max(1, block_size // 16), max(1, block_size // 2))
        tokens = prompt(draw, length)
        if draw.random() < 0.5:
            tokens[: len(common)] = common[:length]
        n_new = min(1 + int(draw.expovariate(6 / block_size)), max(1, block_size // 2))
        arrival += gaps.expovariate(1.0) / rate
        sampling = SamplingParams(greedy=greedy)
        out.append(Request(torch.tensor(tokens), n_new, sampling, seed=i, arrival=arrival, id=i))
    return out


def load(
    systems: dict[str, System],
    rates: Sequence[float],
    *,
    n: int = 64,
    vocab_size: int,
    block_size: int,
    greedy: bool = False,
    repeats: int = 3,
    limits: dict[str, float] | None = None,
    prompt: Prompt | None = None,
    reference: System | None = None,
) -> list[dict[str, Any]]:
    """Serve the same n requests with every system, at each rate (per second; inf: at once).

    The systems are those of `schemes`, or a server. They are interleaved, repeat by repeat, after a
    warm-up with at most 8 requests. See `measures` for `limits` and `poisson` for `prompt`.

    Returns plain data, a row for each rate and system: summaries of all measures over the repeats,
    and the number of `failed` requests. `differ` counts the texts that differ from those of the
    `reference`, a system that is not timed, or without one from those of the first system; None if
    there is neither. With several systems, `ratio` is the speedup over the first one, pair by pair.
    Raises ValueError.
    """
    shape = (vocab_size, block_size, greedy, prompt)
    requests_at = {rate: poisson(n, rate, *shape) for rate in rates}
    every = poisson(n, inf, *shape)
    for system in systems.values():
        system(every[:8])
    texts = reference(every) if reference else None
    rows = []
    for rate, requests in requests_at.items():
        turns = {name: partial(system, requests) for name, system in systems.items()}
        done = interleave(turns, repeats, warmup=0)
        if len(systems) > 1:
            texts = texts or next(iter(done.values()))[0]
        for row in _rows(requests, done, texts, limits or {}):
            rows.append({"rate": None if rate == inf else rate, **row})
    return rows


def _rows(
    requests: list[Request],
    done: dict[str, list[Replies]],
    texts: Replies | None,
    limits: dict[str, float],
) -> Iterator[dict[str, Any]]:
    """One row per system at one rate, from all its runs."""
    base: list[float] = []
    for name, runs in done.items():
        speeds = [_tokens_per_second(replies) for replies in runs]
        base = base or speeds
        row: dict[str, Any] = {
            "scheme": name,
            "failed": max(len(requests) - len(replies) for replies in runs),
            "differ": None,
            "ratio": None,
        }
        if texts:
            row["differ"] = max(_n_different(replies, texts) for replies in runs)
        if len(done) > 1:
            row["ratio"] = summary(a / b for a, b in zip(speeds, base, strict=True))
        each = [measures(requests, replies, limits) for replies in runs]
        for key in each[0]:
            row[key] = _summary_of_known([one[key] for one in each])
        yield row


def _n_different(replies: Replies, texts: Replies) -> int:
    return sum(_differs(reply, texts[i]) for i, reply in replies.items())


def _differs(reply: Reply, right: Reply) -> bool:
    """Whether a reply differs; compares its text if no tokens are known."""
    if reply.text is not None:
        return reply.text != right.text
    return reply.tokens != right.tokens


def _summary_of_known(values: list[float | None]) -> Summary | None:
    """A summary, or None if a run had nothing to measure."""
    known = [value for value in values if value is not None]
    return summary(known) if len(known) == len(values) else None


# ------------------------------------------------------------------ the schemes of our engine


BLOCK_LEN = 16  # positions of a block of keys and values


def blocks_for(model: LanguageModel, running: int, text_tokens: int) -> int:
    """The number of blocks for `running` texts of at most `text_tokens` tokens.

    They take at most half of the available memory, as in a server. Raises ValueError if one such
    text does not fit.
    """
    for_one = -(-text_tokens // BLOCK_LEN)
    n = fitting_blocks(model, BLOCK_LEN, running * for_one)
    if n < for_one:
        raise ParameterError(
            f"text_tokens={text_tokens}: half of the available memory holds only "
            f"{n * BLOCK_LEN:,} tokens: use fewer, or close other programs",
            "text_tokens",
        )
    return n


def schemes(
    model: LanguageModel,
    *,
    backend: Any = ModuleBackend,
    running: int = 32,
    n_blocks: int | None = None,
) -> dict[str, System]:
    """Every scheme of SCHEMES, on the virtual clock, with at most `running` texts in a step.

    `n_blocks` is passed to BatchEngine; None: enough for texts of block_size.
    """

    def serve(scheme: Scheme, requests: list[Request]) -> Replies:
        engine = BatchEngine(
            model,
            backend=backend,
            n_blocks=n_blocks,
            block_len=BLOCK_LEN,
            max_running=scheme.max_running or running,
            budget=scheme.budget,
            reuse=scheme.reuse,
        )
        return drive(engine, requests, running if scheme.static else None)

    return {name: partial(serve, scheme) for name, scheme in SCHEMES.items()}


def bound(
    config: GPTConfig | DecoderConfig, requests: Sequence[Request], peak: float, bandwidth: float
) -> float:
    """Upper bound on sampled tokens per second if all requests arrive at once and share no prompt.

    Each token read costs two operations per matrix weight, at `peak` operations per second. Each
    token sampled after a request's first reads the keys and values in its window, in float32, at
    `bandwidth` bytes per second. Reading the weights is shared within a step and not counted.
    """
    c = decoder_config(config)
    lengths = [(len(request.prompt), request.max_new_tokens - 1) for request in requests]
    seen = sum(positions_seen(c, i, T, n) for T, n in lengths for i in range(c.n_layer))
    seconds = 2 * c.matrix_weights * sum(map(sum, lengths)) / peak
    seconds += 4 * 2 * c.kv_heads * c.head_size * seen / bandwidth
    return sum(n + 1 for _, n in lengths) / seconds


def drive(
    engine: BatchEngine, requests: Sequence[Request], static_batch: int | None = None
) -> Replies:
    """Serve the requests as they arrive, on the virtual clock `now`: idle time is skipped.

    With `static_batch`, at most that many of the waiting requests form a batch once the previous
    one has ended, and every text stays in it until the longest ends: the padding is also computed,
    but not counted.
    """
    wanted = {request.id: request.max_new_tokens for request in requests}
    replies = {request.id: Reply([], []) for request in requests}
    coming = deque(sorted(requests, key=lambda r: r.arrival))
    arrived: deque[Request] = deque()
    now = 0.0
    while coming or arrived or engine.busy:
        if not arrived and not engine.busy:
            now = max(now, coming[0].arrival)
        while coming and coming[0].arrival <= now:
            arrived.append(coming.popleft())
        before = time.perf_counter()
        _admit(engine, arrived, static_batch)
        outputs = engine.step()
        now += time.perf_counter() - before
        for output in outputs:
            reply = replies[output.request.id]
            if len(reply.tokens) < wanted[output.request.id]:
                reply.tokens.append(output.token)
                reply.moments.append(now)
    return replies


def _admit(engine: BatchEngine, arrived: deque[Request], static_batch: int | None) -> None:
    if static_batch is None:
        while arrived:
            engine.add(arrived.popleft())
    elif not engine.busy:
        batch = [arrived.popleft() for _ in range(min(len(arrived), static_batch))]
        longest = max(request.max_new_tokens for request in batch)
        limit = engine.config.max_positions
        for request in batch:
            n_new = longest
            if limit is not None:
                n_new = min(longest, limit + 1 - len(request.prompt))
            # The seed is unchanged, and so are the first tokens.
            engine.add(replace(request, max_new_tokens=n_new))


# ------------------------------------------------------------------ a server, ours or another


class LoadedServer(RemoteServer):
    """A server with /v1/completions. Calling it with greedy requests returns the complete replies.

    Each request is sent when it arrives, whether or not others have been answered. `errors` counts
    failed requests by reason. A reply's token is the index of its character in `chars`, or -1. A
    server with another vocabulary gets prompts of a few characters of its own text. Raises
    ValueError, ConnectionError.
    """

    def __init__(self, url: str, chars: str = CHARS):
        super().__init__(url)
        self.chars = chars if self.reads(chars) else self.letters
        self.errors: Counter[str] = Counter()

    def __call__(self, requests: list[Request]) -> Replies:
        replies: Replies = {}
        start = time.perf_counter()

        def serve(request: Request) -> None:
            time.sleep(max(0.0, start + request.arrival - time.perf_counter()))
            try:
                replies[request.id] = self._reply(request, start)
            except (OSError, HTTPException, ValueError) as error:
                self.errors[f"{type(error).__name__}: {error}"] += 1

        # A thread for each request, so that none waits for another; almost always it sleeps.
        with ThreadPoolExecutor(len(requests)) as clients:
            list(clients.map(serve, requests))
        if not replies:
            reason = list(self.errors)[-1]
            raise ConnectionError(f"{self.name}: no request was answered: {reason}")
        return replies

    def _reply(self, request: Request, start: float) -> Reply:
        """One streamed completion."""
        body = {
            "model": self.model,
            **self._prompt(request),
            "max_tokens": request.max_new_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"Content-Type": "application/json"}
        url = f"{self.name}/v1/completions"
        asked = urllib.request.Request(url, json.dumps(body).encode(), headers)
        # While other requests are timed, chunks are only collected, with the times they came at.
        chunks: list[tuple[float, bytes]] = []
        try:
            with self._opener.open(asked, timeout=_PATIENCE) as response:
                while data := response.read1(2**16):
                    chunks.append((time.perf_counter() - start, data))
        except urllib.error.HTTPError as error:
            message = error.read(200).decode(errors="replace")
            raise ConnectionError(f"HTTP {error.code}: {message}") from None
        return self._read(chunks)

    def _prompt(self, request: Request) -> dict[str, Any]:
        """The prompt's fields of the request body."""
        n = len(self.chars)
        return {"prompt": "".join(self.chars[token % n] for token in request.prompt.tolist())}

    def _reply_of(self, text: str, n: int | None, moments: list[float]) -> Reply:
        """The reply for a text of n tokens, if the server counted them."""
        if n not in (None, len(text)):
            return Reply([None] * n, moments)
        return Reply([self.chars.find(char) for char in text], moments)

    def _read(self, chunks: list[tuple[float, bytes]]) -> Reply:
        """The reply's text, and the time of each event that had text.

        If the stream reports usage, that is the number of tokens. Raises ConnectionError.
        """
        text = ""
        moments = []
        end = None
        n = None
        for moment, event in _events(chunks):
            n = (event.get("usage") or {}).get("completion_tokens", n)
            for choice in event.get("choices", []):
                piece = choice.get("text")
                if piece:
                    text += piece
                    moments.append(moment)
                if choice.get("finish_reason") is not None:
                    end = moment
        if n and end is not None and not moments:  # control tokens have no text
            moments.append(end)
        if end is None or not moments:
            after = number_of(len(moments), "event")
            raise ConnectionError(f"the reply stopped after {after} and is incomplete")
        return self._reply_of(text, n, moments)


class LoadedTokenServer(LoadedServer):
    """A server of a pretrained model, which accepts token prompts and replies with text.

    It continues after an end token, so that every request gets all of its new tokens.
    """

    def _prompt(self, request: Request) -> dict[str, Any]:
        return {"prompt": request.prompt.tolist(), "ignore_eos": True}

    def _reply_of(self, text: str, n: int | None, moments: list[float]) -> Reply:
        """The reply for a text whose tokens are unknown; without usage each event counts as one."""
        return Reply([None] * (n or len(moments)), moments, text)


def _events(chunks: list[tuple[float, bytes]]) -> Iterator[tuple[float, dict[str, Any]]]:
    """The events up to [DONE]: JSON objects with their times. Raises ConnectionError."""
    rest = b""
    for moment, piece in chunks:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            if line.startswith(b"data:"):  # otherwise an empty line or a comment
                event = json.loads(data)
                if event.get("error"):
                    raise ConnectionError(f"the server sent {data.decode()[:200]}")
                yield moment, event


# ------------------------------------------------------------------ measures


def measures(
    requests: Sequence[Request], replies: Replies, limits: dict[str, float]
) -> dict[str, float | None]:
    """Throughput, goodput and latencies (p50 and p95, in seconds) of one run.

    `limits` are seconds for ttft, tpot and e2el; a good request meets all of them. Requests without
    a reply are left out, and do not count as good.
    """
    each = [_latencies(r.arrival, replies[r.id]) for r in requests if r.id in replies]
    good = sum(all(max(one[key], default=0) <= limits[key] for key in limits) for one in each)
    out: dict[str, float | None] = {
        "tokens_per_second": _tokens_per_second(replies),
        "goodput": good / _end(replies),
    }
    for key in LATENCIES:
        values = torch.tensor([x for one in each for x in one[key]], dtype=torch.float64)
        for percent in (50, 95):
            quantile = values.quantile(percent / 100).item() if len(values) else None
            out[f"{key}_p{percent}"] = quantile
    return out


def _end(replies: Replies) -> float:
    """Seconds from the start to the last token."""
    return max(reply.moments[-1] for reply in replies.values())


def _tokens_per_second(replies: Replies) -> float:
    return sum(len(reply.tokens) for reply in replies.values()) / _end(replies)


def _latencies(arrival: float, reply: Reply) -> dict[str, list[float]]:
    """One request's latencies: every gap for itl, at most one value for the others."""
    n = len(reply.tokens)
    moments = reply.moments
    ttft = moments[0] - arrival
    e2el = moments[-1] - arrival
    tpot = [(e2el - ttft) / (n - 1)] if n > 1 else []
    itl = [b - a for a, b in zip(moments, moments[1:], strict=False)]
    return {"ttft": [ttft], "tpot": tpot, "itl": itl, "e2el": [e2el]}
