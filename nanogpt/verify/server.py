"""The referee of a server, which shows texts, and perhaps log-probabilities, and no logits."""

from __future__ import annotations

import json
import random
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException

from .report import Finding, Report
from .subjects import NotOffered

BLOCKS = (16, 32)  # tokens of a KV block, in most servers: prompts end before, at and after one
NEW = 12  # tokens of an answer
GREEDY, DRAWN = {"temperature": 0.0}, {"temperature": 1.0}


class HTTPServer:
    """A server with /v1/completions. Raises ValueError for no address, else ConnectionError."""

    def __init__(self, url: str):
        if not url.lower().startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is no server's address: write http://HOST:PORT")
        self.name = url.rstrip("/").removesuffix("/v1")
        try:
            (model, *_) = self._call("models")["data"]
            self.model, self.longest = model["id"], model.get("max_model_len") or 256
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConnectionError(f"{url}/v1/models names no model: is it a server?") from None
        self.extras = {"logprobs": 1}
        try:
            self.ask([{"prompt": "a", "max_tokens": 1, **GREEDY}])
        except ConnectionError:  # it may have none
            self.extras = {}

    def ask(self, requests: list[dict]) -> list[dict]:
        """The answers to requests that are sent together: each a text, and logprobs or None."""
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(self._answer, requests))

    def _answer(self, request: dict) -> dict:
        answer = self._call("completions", {"model": self.model, **self.extras, **request})
        try:
            choice = answer["choices"][0]
            shown = choice.get("logprobs") or {}
            more = {"logprobs": shown.get("token_logprobs"), "tokens": shown.get("tokens")}
            return {"text": choice["text"] + "", **more}
        except (KeyError, IndexError, TypeError, AttributeError):
            raise ConnectionError(f"{self.name} answers nonsense: {str(answer)[:100]}") from None

    def _call(self, what: str, body: dict | None = None):
        data, head = body and json.dumps(body).encode(), {"Content-Type": "application/json"}
        try:
            request = urllib.request.Request(f"{self.name}/v1/{what}", data, head)
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            said = " ".join(error.read(200).decode(errors="replace").split())
            raise ConnectionError(f"{self.name}/v1/{what}: HTTP {error.code}: {said}") from None
        except (OSError, ValueError, HTTPException) as error:
            raise ConnectionError(f"no server answers at {self.name}: {error}") from None


def referee_server(server, seed: int = 0) -> Report:
    """Ask for the same texts in ways that must not matter. `server` is a URL, or has `ask`."""
    server = HTTPServer(server) if isinstance(server, str) else server
    report = Report(getattr(server, "name", type(server).__name__))
    requests = _requests(random.Random(seed), getattr(server, "longest", 256))
    cold = _alone(server, requests)
    for what, findings in {"company": _company, "a seed": _seeds, "echo": _echoes}.items():
        try:
            report.findings += findings(server, requests, cold)
        except NotOffered as why:
            report.notes.append(f"{what} is not offered: {why}")
    if not any(answer["logprobs"] for answer in cold):
        words = "no log-probabilities are shown: a bug in fewer than half of the texts"
        report.notes.append(f"{words} cannot be told from rounding")
    return report


def _requests(pick: random.Random, longest: int) -> list[dict]:
    """Greedy ones. Each begins with a letter of its own, so that the first time each is cold."""
    phrases = ["".join(pick.choices("abcdefghij", k=5)) for _ in "ABC"]
    whole = "".join(pick.choice(phrases) for _ in range(60))
    ends = sorted({1, 2, 7, *(n + d for n in BLOCKS for d in (-1, 0, 1)), 50})
    prompts = [chr(97 + i) + whole[: n - 1] for i, n in enumerate(ends) if n + NEW <= longest]
    return [{"prompt": prompt, "max_tokens": NEW, **GREEDY} for prompt in prompts]


def _company(server, requests: list[dict], cold: list[dict]) -> Iterator[Finding]:
    """Neither other requests nor what is known of a prompt may change a text."""
    again = "the same request again, its prompt now known"
    yield _compared(again, cold, _alone(server, requests))
    others = [requests[-1] | DRAWN | {"seed": 7}, requests[-1]]
    yield _compared("alone, against all in company", cold, server.ask([*requests, *others]))
    yield _compared("after others, again alone", cold, _alone(server, requests))
    half = NEW // 2
    rest = [{"text": answer["text"][half:], "logprobs": None} for answer in cold]
    grown = [
        request | {"prompt": request["prompt"] + answer["text"][:half], "max_tokens": NEW - half}
        for request, answer in zip(requests, cold, strict=True)
    ]
    yield _compared("its own text given back as a prompt", rest, _alone(server, grown))


def _seeds(server, requests: list[dict], _) -> Iterator[Finding]:
    """A seed means the same text, whoever else is served; another seed, another text."""
    last = requests[-1] | DRAWN
    seeded = [request | DRAWN | {"seed": 100 + i} for i, request in enumerate(requests[-6:])]
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
            yield Finding("another draw, another text", "bug", words)


def _echoes(server, requests: list[dict], cold: list[dict]) -> list[Finding]:
    """A text given back as a prompt has the log-probabilities with which it was drawn."""
    apart, how = [], {"max_tokens": 1, "echo": True, "logprobs": 1}
    for request, answer in zip(requests, cold, strict=True):
        values, tokens = (answer.get(key) or [] for key in ("logprobs", "tokens"))
        try:
            asked = request | how | {"prompt": request["prompt"] + "".join(tokens[:-1])}
            back = server.ask([asked])[0] if tokens else {}
        except ConnectionError as error:
            raise NotOffered(error) from None
        n = len(tokens)  # its last ones are those given back, and one more that was drawn
        if n > 1 and (back.get("tokens") or [])[-n:-1] == tokens[:-1] and back["logprobs"]:
            pairs = zip(values, back["logprobs"][-n:-1], strict=False)
            apart.append(max(abs(a - b) for a, b in pairs))
    if not apart:
        raise NotOffered("there are no log-probabilities with it")
    wrong, worst = [x for x in apart if not x <= 0.1], max(apart)
    bug = 2 * len(wrong) > len(apart) or worst > 1
    verdict = "bug" if bug else "rounding" if worst > 1e-4 else "equal"
    words = f"{len(apart)} texts, up to {worst:.1e} nats apart"
    return [Finding("log-probabilities drawn, against echoed", verdict, words)]


def _alone(server, requests: list[dict]) -> list[dict]:
    return [server.ask([request])[0] for request in requests]


def _compared(way: str, a: list[dict], b: list[dict]) -> Finding:
    """The verdict on pairs of texts: rounding changes few, where two tokens nearly tie.

    What `b` has beyond `a` are answers to neighbours.
    """
    wrong = [(x, y) for x, y in zip(a, b, strict=False) if x["text"] != y["text"]]
    if not wrong:
        return Finding(way, "equal", f"{len(a)} of {len(a)} texts")
    texts = tuple(answer["text"] for answer in wrong[0])
    words = f"{len(wrong)} of {len(a)} texts differ; the first: {texts[0]!r} and {texts[1]!r}"
    if tie := max(_tie(*pair) for pair in wrong):
        words += f"; the tokens that part them are up to {tie:.1e} nats apart"
    bug = 2 * len(wrong) > len(a) or tie > 1
    return Finding(way, "bug" if bug else "rounding", words, turn=texts)


def _tie(a: dict, b: dict) -> float:
    """How far apart the first two tokens that differ are, in nats; 0 where it is not shown."""
    rows = zip(*(zip(x.get("tokens") or [], x.get("logprobs") or []) for x in (a, b)))  # noqa: B905
    return next((abs(p - q) for (s, p), (t, q) in rows if s != t), 0.0)
