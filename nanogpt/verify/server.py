"""The referee for a server, which returns texts, perhaps with log-probabilities, but no logits."""

from __future__ import annotations

import ipaddress
import json
import os
import random
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException, HTTPResponse
from typing import Any, NamedTuple, Protocol

from ..kv_referee.errors import NotOffered
from ..kv_referee.report import Judgement, Report, TextTurn, Verdict, mark_known

BLOCKS = (16, 32)  # tokens of a KV block in most servers: prompts end before, at and after one
LONGER = (64, 128, 130, 255, 256, 257, 300)  # tokens of longer prompts
N_LETTERS = 10  # distinct characters of the prompts
LATIN = "abcdefghij"  # if the server accepts them; else the prompts are made of its own text
NEW = 12  # tokens of an answer
MANY = 40  # prompts that push others out of a pool of blocks
_LARGEST = 1 << 24  # most bytes of an answer that are read
_PATIENCE = 60  # seconds to wait for an answer
GREEDY = {"temperature": 0.0}
_DRAWN = {"temperature": 1.0}


_Json = dict[str, Any]


class Answering(Protocol):
    """A server as the referee sees it."""

    def ask(self, requests: list[_Json]) -> list[_Json]:
        """The answers to requests that are sent together: each a text, and logprobs or None."""


class Declined(ConnectionError):
    """An HTTP status of 400 to 499: the server is running, but declines the request."""


class Proxy(NamedTuple):
    """A proxy of the environment, for requests to one server."""

    address: str  # as it was set, perhaps with a password
    about: str  # the variable and its value without a password, and how to go without the proxy


def proxy_for(url: str) -> Proxy | None:
    """The proxy through which requests to this address go; None for a server on this machine.

    It is urllib's choice: HTTP_PROXY or HTTPS_PROXY, by the scheme of the address, unless NO_PROXY
    names the host. Raises ValueError for a malformed address.
    """
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    # 1. A proxy that is set for the network cannot reach this machine's loopback addresses.
    if _is_this_machine(host) or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    address = urllib.request.getproxies().get(parts.scheme)
    if not address:
        return None
    # 2. Which variable it was, for messages. In lower case it comes first, as in urllib and curl.
    names = (f"{parts.scheme}_proxy", f"{parts.scheme}_proxy".upper())
    variable = next((name for name in names if os.environ.get(name)), "of the system's settings")
    shown = re.sub(r"^([a-z][a-z0-9+.-]*://)?.*@", r"\1***@", address, flags=re.IGNORECASE)
    return Proxy(address, f"{variable}={shown:.200} (NO_PROXY={host:.200} goes without it)")


def _is_this_machine(host: str) -> bool:
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    # vLLM and uvicorn print http://0.0.0.0:8000 as their address, and so it is copied.
    return number.is_loopback or number.is_unspecified


class RemoteServer:
    """A server with /v1/completions. Raises ValueError for a bad address, else ConnectionError."""

    def __init__(self, url: str):
        try:
            scheme = urllib.parse.urlsplit(url).scheme
            self.proxy = proxy_for(url)
        except ValueError:  # a bracket that is not closed
            scheme = ""
        if scheme not in ("http", "https"):
            raise ValueError(f"{url!r:.200} is not a server's address: write http://HOST:PORT")
        self.name = url.rstrip("/").removesuffix("/v1")
        through = {scheme: self.proxy.address} if self.proxy else {}
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(through))
        self.resets = 0  # connections closed before an answer, whose requests were sent again
        try:
            (model, *_) = self._call("models")["data"]
            self.model = model["id"]
            longest = model.get("max_model_len")
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConnectionError(f"{url}/v1/models names no model: is it a server?") from None
        plausible = isinstance(longest, int) and longest > 1
        self.longest = longest if plausible else 256
        self.extras: _Json = {}
        try:
            self.letters = letters_of(self)
        except ConnectionError:  # the next request will say why
            self.letters = LATIN
        self.extras = {"logprobs": 1}
        try:
            self.ask([{"prompt": self.letters[0], "max_tokens": 1, **GREEDY}])
        except ConnectionError:  # it may not support them
            self.extras = {}

    def reads(self, chars: str) -> bool:
        """False for a server that declines prompts of these characters."""
        half = max(1, self.longest // 2)
        pieces = [chars[i : i + half] for i in range(0, len(chars), half)]
        try:
            _alone(self, [{"prompt": piece, "max_tokens": 1, **GREEDY} for piece in pieces])
        except Declined:
            return False
        except ConnectionError:  # another error, which the next request will report
            pass
        return True

    def ask(self, requests: list[_Json]) -> list[_Json]:
        """The answers to requests that are sent together: each a text, and logprobs or None."""
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(self._answer, requests))

    def _answer(self, request: _Json) -> _Json:
        answer = self._call("completions", {"model": self.model, **self.extras, **request})
        try:
            choice = answer["choices"][0]
            shown = choice.get("logprobs") or {}
            return {"text": choice["text"] + "", **_shown(shown)}
        except (KeyError, IndexError, TypeError, AttributeError):
            raise ConnectionError(f"{self.name} sent a bad answer: {_clean(str(answer))}") from None

    def _call(self, path: str, body: _Json | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        via = f" through the proxy {self.proxy.about}" if self.proxy else ""
        try:
            request = urllib.request.Request(f"{self.name}/v1/{path}", data, headers)
            try:
                answer = self._answered(request)
            except (OSError, HTTPException) as error:
                if not _was_reset(error):
                    raise
                self.resets += 1  # a busy server, or one that closes idle connections: try again
                answer = self._answered(request)
        except urllib.error.HTTPError as error:
            message = _clean(_body(error)) or _clean(str(error.reason))
            kind = Declined if 400 <= error.code < 500 else ConnectionError
            raise kind(f"{self.name}/v1/{path}{via}: HTTP {error.code}: {message}") from None
        except (OSError, ValueError, HTTPException) as error:
            reason = _clean(str(error))
            raise ConnectionError(f"no server answers at {self.name}{via}: {reason}") from None
        try:
            return json.loads(answer)
        except RecursionError:
            raise ConnectionError(f"{self.name}/v1/{path}: JSON nested too deeply") from None
        except ValueError as error:
            reason = _clean(str(error))
            raise ConnectionError(f"{self.name}/v1/{path} is not JSON: {reason}") from None

    def _answered(self, request: urllib.request.Request) -> bytes:
        with self._opener.open(request, timeout=_PATIENCE) as response:
            return _whole(response)


def letters_of(server: Answering) -> str:
    """Up to N_LETTERS characters that the server accepts: Latin ones, else some of its own text.

    A character-level model, such as the lectures', accepts only the characters it was trained on;
    its server then reads token numbers. Raises Declined if the server accepts neither,
    ConnectionError if it does not answer.
    """
    half = max(1, getattr(server, "longest", 256) // 2)
    try:
        server.ask([{"prompt": LATIN[:half], "max_tokens": 1, **GREEDY}])
        return LATIN
    except Declined as error:
        refusal = error
    # Texts drawn after token 0, which every vocabulary has.
    drawn = {"prompt": [0], "max_tokens": min(2 * NEW, half), **_DRAWN}
    answers = _alone(server, [drawn | {"seed": seed} for seed in range(8)])
    written = dict.fromkeys("".join(answer["text"] for answer in answers))
    if not written:
        raise refusal
    visible_first = sorted(written, key=lambda char: char.isspace() or not char.isprintable())
    return "".join(visible_first[:N_LETTERS])


def _shown(logprobs: _Json) -> _Json:
    """The log-probabilities and tokens of an answer, or None if they are malformed."""
    values: Any = logprobs.get("token_logprobs")
    tokens: Any = logprobs.get("tokens")
    usable = isinstance(values, list) and isinstance(tokens, list) and len(values) == len(tokens)
    if not usable or not all(isinstance(token, str) for token in tokens):
        return {"logprobs": None, "tokens": None}
    numbers = [value if isinstance(value, float) else None for value in values]
    return {"logprobs": numbers, "tokens": tokens}


def _was_reset(error: BaseException) -> bool:
    """Whether a connection was closed before its answer, rather than refused."""
    reason = getattr(error, "reason", error)
    return isinstance(reason, (ConnectionResetError, ConnectionAbortedError, BrokenPipeError))


def _whole(response: HTTPResponse) -> bytes:
    """A server's whole answer. Raises OSError if it does not end in time."""
    parts = []
    size = 0
    began = time.monotonic()
    while size < _LARGEST:
        part = response.read1(1 << 16)
        if not part:
            break
        parts.append(part)
        size += len(part)
        if time.monotonic() - began > _PATIENCE:
            raise OSError(f"after {_PATIENCE} s its answer has {size} bytes and has not ended")
    return b"".join(parts)


def _body(error: urllib.error.HTTPError) -> str:
    try:
        return error.read(200).decode(errors="replace")
    except (OSError, HTTPException):
        return "unreadable"


def _clean(words: str) -> str:
    """The words on one line, without characters that move a terminal's cursor."""
    return " ".join("".join(c if c.isprintable() else " " for c in words[:200]).split())


def referee_server(
    server: Answering | str, seed: int = 0, seconds: float = 60.0, known: Iterable[str] = ()
) -> Report:
    """Request the same texts in ways that must not matter. `server` is a URL, or has `ask`.

    The report names what was not started within `seconds`. Raises ConnectionError for a server
    that does not answer a simple request.
    """
    server = RemoteServer(server) if isinstance(server, str) else server
    report = Report(_clean(getattr(server, "name", type(server).__name__)))
    began = time.monotonic()
    longest = getattr(server, "longest", 256)
    new = min(NEW, longest // 2)
    if new < 1:
        raise ValueError(f"{report.model} reads {longest} tokens: 2 are needed")
    letters = getattr(server, "letters", None) or letters_of(server)
    requests = _requests(random.Random(seed), letters, longest, new)
    cold = _alone(server, requests)
    trials: dict[str, Callable[..., Iterable[Judgement]]] = {
        "other requests": _company,
        "a seed": _seeds,
        "echo": _echoes,
        "a shared prefix": _parted,
        "token ids": _token_ids,
    }
    for name, trial in trials.items():
        if time.monotonic() - began > seconds:
            report.unreached.append(name)
            continue
        try:
            for finding in trial(server, requests, cold):
                report.findings.append(finding)
        except NotOffered as refusal:
            report.notes.append(f"{name} is not offered: {refusal}")
        except ConnectionError as error:
            words = f"it answered before, but now: {error}"
            report.findings.append(Judgement(name, Verdict.BUG, words))
    resets = getattr(server, "resets", 0)
    if resets:
        times = "once" if resets == 1 else f"{resets} times"
        report.notes.append(f"a connection was reset {times}, and its request was sent again")
    if not any(answer["logprobs"] for answer in cold):
        words = "no log-probabilities are returned: a bug in fewer than half of the texts"
        report.notes.append(f"{words} cannot be told from rounding")
    for name in mark_known(report, known):
        report.notes.append(f"the known failure {name!r} did not occur")
    report.seconds = time.monotonic() - began
    return report


def _requests(pick: random.Random, letters: str, longest: int, new: int = NEW) -> list[_Json]:
    """Greedy requests. Each begins with its own letter, so none has a cached prefix at first."""
    phrases = ["".join(pick.choices(letters, k=5)) for _ in "ABC"]
    whole = "".join(pick.choice(phrases) for _ in range(60))
    ends = sorted({1, 2, 7, *(n + d for n in BLOCKS for d in (-1, 0, 1)), 50, *LONGER})
    count = len(letters)
    starts = (letters[i % count] * (1 + i // count) for i in range(len(ends)))
    prompts = [(a + whole)[:n] for a, n in zip(starts, ends, strict=True) if n + new <= longest]
    return [{"prompt": prompt, "max_tokens": new, **GREEDY} for prompt in prompts]


def _company(server: Answering, requests: list[_Json], cold: list[_Json]) -> Iterator[Judgement]:
    """Neither other requests nor a cached prompt may change a text."""
    again = "the same request again, its prompt now known"
    yield _compared(again, cold, _alone(server, requests))
    others = [requests[-1] | _DRAWN | {"seed": 7}, requests[-1]]
    yield _compared("alone, against all in company", cold, server.ask([*requests, *others]))
    yield _compared("after others, again alone", cold, _alone(server, requests))
    new = requests[0]["max_tokens"]
    half = new // 2
    if not half:
        return
    rest = [{"text": answer["text"][half:], "logprobs": None} for answer in cold]
    grown = [
        request | {"prompt": request["prompt"] + answer["text"][:half], "max_tokens": new - half}
        for request, answer in zip(requests, cold, strict=True)
    ]
    yield _compared("its own text given back as a prompt", rest, _alone(server, grown))


def _seeds(server: Answering, requests: list[_Json], _: list[_Json]) -> Iterator[Judgement]:
    """A seed gives the same text, whoever else is served; another seed gives another text."""
    last = requests[-1] | _DRAWN
    seeded = [request | _DRAWN | {"seed": 100 + i} for i, request in enumerate(requests[-6:])]
    try:
        first = _alone(server, seeded)
    except ConnectionError as error:
        raise NotOffered(error) from None
    yield _compared("a seed, twice", first, _alone(server, seeded))
    company = server.ask([*seeded, last | {"seed": 7}, requests[-1]])
    yield _compared("seeds, in the company of other seeds", first, company)
    beside = server.ask([*seeded, last])
    yield _compared("seeds, beside a neighbour without one", first, beside)
    six = _alone(server, [last | {"seed": seed} for seed in range(6)])
    together = "six requests without a seed, sent together,"
    for what, answers in {"six seeds": six, together: server.ask([last] * 6)}.items():
        text, *others = {answer["text"] for answer in answers}
        if not others and len(text) > 3:
            words = f"{what} got one text, {text[:20]!r}"
            yield Judgement("another draw, another text", Verdict.BUG, words)


def _echoes(server: Answering, requests: list[_Json], cold: list[_Json]) -> list[Judgement]:
    """A text given back as a prompt has the log-probabilities with which it was sampled."""
    apart = []
    how = {"max_tokens": 1, "echo": True, "logprobs": 1}
    for request, answer in zip(requests, cold, strict=True):
        values, tokens = (answer.get(key) or [] for key in ("logprobs", "tokens"))
        try:
            repeat = request | how | {"prompt": request["prompt"] + "".join(tokens[:-1])}
            echo = server.ask([repeat])[0] if tokens else {}
        except ConnectionError as error:
            raise NotOffered(error) from None
        n = len(tokens)  # the echo ends with the tokens given back, and one new sample
        if n > 1 and (echo.get("tokens") or [])[-n:-1] == tokens[:-1] and echo["logprobs"]:
            pairs = list(zip(values, echo["logprobs"][-n:-1], strict=False))
            shown = [abs(a - b) for a, b in pairs if a is not None and b is not None]
            apart += [max(shown)] if shown else []
    if not apart:
        raise NotOffered("it returns no log-probabilities")
    wrong = [x for x in apart if not x <= 0.1]
    worst = max(apart)
    verdict = Verdict.ROUNDING if worst > 1e-4 else Verdict.EQUAL
    if 2 * len(wrong) > len(apart) or worst > 1:
        verdict = Verdict.BUG
    words = f"{len(apart)} texts, up to {worst:.1e} nats apart"
    return [Judgement("log-probabilities drawn, against echoed", verdict, words)]


def _parted(server: Answering, requests: list[_Json], cold: list[_Json]) -> Iterator[Judgement]:
    """Prompts that diverge from an earlier one inside a block; then others, then these again."""
    longest = requests[-1]
    prompt = longest["prompt"]
    letters = _letters_in(requests)[::-1]
    points = [n for n in (1, 5, 15, 16, 17, 24, 33, 70, 130, 200) if n < len(prompt)]
    tail = letters * (len(prompt) // len(letters) + 1)
    branches = [longest | {"prompt": prompt[:n] + tail[: len(prompt) - n]} for n in points]
    if not branches:
        raise NotOffered("its prompts are too short")
    server.ask([longest])
    first = _alone(server, branches)
    starts = (_numbered(i, letters) for i in range(MANY))
    others = [longest | {"prompt": (a + tail)[: len(prompt)], "max_tokens": 1} for a in starts]
    for i in range(0, MANY, 8):
        server.ask(others[i : i + 8])
    yield _compared("prompts that leave an earlier one, and again", first, _alone(server, branches))
    pair = server.ask([*branches, *branches])
    yield _compared("the same, all at once and twice", first, pair[: len(branches)])
    yield _compared(
        "the first of these against the second", pair[: len(branches)], pair[len(branches) :]
    )
    after = _alone(server, requests)
    yield _compared(f"after {MANY} other prompts, again alone", cold, after)


def _token_ids(server: Answering, requests: list[_Json], _: list[_Json]) -> Iterator[Judgement]:
    """Prompts as token ids: the same text when sent again, alone or with other requests."""
    pick = random.Random(len(requests))
    longest = len(requests[-1]["prompt"])
    n_letters = len(_letters_in(requests))
    # A large vocabulary begins with special tokens; a small one may have no others.
    ids = range(3, 10) if n_letters >= N_LETTERS else range(n_letters)
    ends = [n for n in (2, 16, 17, 33, 130, 200) if n <= longest]
    prompts = [[ids[i % len(ids)], *pick.choices(ids, k=n - 1)] for i, n in enumerate(ends)]
    numbered = [requests[0] | {"prompt": prompt} for prompt in prompts]
    try:
        first = _alone(server, numbered)
    except (ConnectionError, TypeError, AttributeError) as error:
        raise NotOffered(error) from None
    yield _compared("prompts of token ids, again", first, _alone(server, numbered))
    yield _compared(
        "prompts of token ids, in company", first, server.ask([*numbered, requests[-1]])
    )


def _letters_in(requests: list[_Json]) -> str:
    return "".join(sorted(set("".join(request["prompt"] for request in requests))))


def _numbered(i: int, letters: str) -> str:
    """The number i with letters as digits: a different text for each i below len(letters)**6."""
    text = ""
    for _ in range(6):
        text += letters[i % len(letters)]
        i //= len(letters)
    return text


def _alone(server: Answering, requests: list[_Json]) -> list[_Json]:
    return [server.ask([request])[0] for request in requests]


def _compared(name: str, a: list[_Json], b: list[_Json]) -> Judgement:
    """The verdict on pairs of texts: rounding changes only a few, where two tokens nearly tie.

    Answers in `b` beyond the length of `a` belong to neighbours.
    """
    wrong = [(x, y) for x, y in zip(a, b, strict=False) if x["text"] != y["text"]]
    if not wrong:
        return Judgement(name, Verdict.EQUAL, f"{len(a)} of {len(a)} texts")
    turn = TextTurn(*(answer["text"] for answer in wrong[0]))
    words = f"{len(wrong)} of {len(a)} texts differ; the first: {turn.expected!r} and {turn.got!r}"
    tie = max(_tie(*pair) for pair in wrong)
    if tie:
        words += f"; the tokens at which they diverge are up to {tie:.1e} nats apart"
    bug = 2 * len(wrong) > len(a) or tie > 1
    verdict = Verdict.BUG if bug else Verdict.ROUNDING
    return Judgement(name, verdict, words, turn=turn)


def _tie(a: _Json, b: _Json) -> float:
    """How far apart the first two tokens that differ are, in nats; 0 if it is not known."""
    rows = zip(*(zip(x.get("tokens") or [], x.get("logprobs") or []) for x in (a, b)))  # noqa: B905
    apart = [(p, q) for (s, p), (t, q) in rows if s != t]
    if not apart or None in apart[0]:
        return 0.0
    p, q = apart[0]
    return float(abs(p - q))
