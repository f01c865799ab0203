"""The referee of a server, which shows texts, and perhaps log-probabilities, and no logits."""

from __future__ import annotations

import json
import random
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException

from .report import Finding, Report

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
            self.ask([{"prompt": "a", "max_tokens": 1, **GREEDY}])

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
    case = _Texts(server, seed)
    case.run()
    return case.result


class _Texts:
    """One server's texts, asked for in pairs."""

    def __init__(self, server, seed: int):
        self.server, self.result = server, Report(getattr(server, "name", type(server).__name__))
        pick, longest = random.Random(seed), getattr(server, "longest", 256)
        phrases = ["".join(pick.choices("abcdefghij", k=5)) for _ in "ABC"]
        whole = "".join(pick.choice(phrases) for _ in range(60))
        ends = {1, 2, 7, *(n + d for n in BLOCKS for d in (-1, 0, 1)), 50}
        # Each begins with a letter of its own, so that the first time each is cold.
        self.prompts = [
            chr(97 + i) + whole[: n - 1] for i, n in enumerate(sorted(ends)) if n + NEW <= longest
        ]

    def run(self) -> None:
        """All comparisons."""
        cold = self.alone(self.prompts)
        self.compare("the same request again, its prompt now known", cold, self.alone(self.prompts))
        self.compare("alone, against all in company", cold, self.together(self.prompts))
        self.compare("after others, again alone", cold, self.alone(self.prompts))
        half = NEW // 2
        rest = [{"text": a["text"][half:], "logprobs": None} for a in cold]
        grown = [p + a["text"][:half] for p, a in zip(self.prompts, cold, strict=True)]
        self.compare("its own text given back as a prompt", rest, self.alone(grown, NEW - half))
        self.seeds()
        self.echoes(cold)
        if not any(answer["logprobs"] for answer in cold):
            words = "no log-probabilities are shown: a bug in fewer than half of the texts"
            self.result.note(f"{words} cannot be told from rounding")

    def seeds(self) -> None:
        """A seed means the same text, whoever else is served; another seed, another text."""
        prompts = self.prompts[-6:]
        how = [DRAWN | {"seed": 100 + i} for i in range(len(prompts))]
        try:
            first = self.alone(prompts, how=how)
        except ConnectionError as error:
            self.result.note(f"seeds are not offered: {error}")
            return
        self.compare("a seed, twice", first, self.alone(prompts, how=how))
        self.compare("seeds, in the company of other seeds", first, self.together(prompts, how))
        beside = self.together(prompts, how, [DRAWN])
        self.compare("seeds, beside a neighbour without one", first, beside)
        one = [self.ask([prompts[-1]], [DRAWN | {"seed": s}])[0]["text"] for s in range(6)]
        free = [answer["text"] for answer in self.ask([prompts[-1]] * 6, [DRAWN] * 6)]
        asked = {"six seeds": one, "six requests without a seed, sent together,": free}
        for what, texts in asked.items():
            if len(set(texts)) == 1 and len(texts[0]) > 3:
                words = f"{what} got one text, {texts[0][:20]!r}"
                self.result.add(Finding("another draw, another text", "bug", words))

    def echoes(self, drawn: list[dict]) -> None:
        """A text given back as a prompt has the log-probabilities with which it was drawn."""
        apart, how = [], {"echo": True, "logprobs": 1, **GREEDY}
        for prompt, answer in zip(self.prompts, drawn, strict=True):
            values, tokens = (answer.get(key) or [] for key in ("logprobs", "tokens"))
            try:
                asked = prompt + "".join(tokens[:-1])
                back = self.ask([asked], [how], 1)[0] if tokens else {}
            except ConnectionError as error:
                self.result.note(f"echo is not offered: {error}")
                return
            n = len(tokens)  # its last ones are those given back, and one more that was drawn
            if n > 1 and (back.get("tokens") or [])[-n:-1] == tokens[:-1] and back["logprobs"]:
                pairs = zip(values, back["logprobs"][-n:-1], strict=False)
                apart.append(max(abs(a - b) for a, b in pairs))
        if not apart:
            self.result.note("echo is not offered with log-probabilities")
            return
        wrong, worst = [x for x in apart if not x <= 0.1], max(apart)
        bug = 2 * len(wrong) > len(apart) or worst > 1
        verdict = "bug" if bug else "rounding" if worst > 1e-4 else "equal"
        words = f"{len(apart)} texts, up to {worst:.1e} nats apart"
        self.result.add(Finding("log-probabilities drawn, against echoed", verdict, words))

    def ask(self, prompts: list[str], how: list[dict], n: int = NEW) -> list[dict]:
        pairs = zip(prompts, how, strict=True)
        return self.server.ask([{"prompt": p, "max_tokens": n, **h} for p, h in pairs])

    def alone(self, prompts, n: int = NEW, how=None) -> list[dict]:
        """One request after the other."""
        how = how or [GREEDY] * len(prompts)
        return [self.ask([p], [h], n)[0] for p, h in zip(prompts, how, strict=True)]

    def together(self, prompts, how=None, others=(DRAWN | {"seed": 7}, GREEDY)) -> list[dict]:
        """All at once, beside neighbours whose answers are not looked at."""
        how = how or [GREEDY] * len(prompts)
        return self.ask([*prompts, *(prompts[-1] for _ in others)], [*how, *others])[: len(prompts)]

    def compare(self, way: str, a: list[dict], b: list[dict]) -> None:
        """The verdict on pairs of texts: rounding changes few, where two tokens nearly tie."""
        wrong = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x["text"] != y["text"]]
        if not wrong:
            self.result.add(Finding(way, "equal", f"{len(a)} of {len(a)} texts"))
            return
        x, y = a[wrong[0]], b[wrong[0]]
        texts = f"{x['text']!r} and {y['text']!r}"
        words = f"{len(wrong)} of {len(a)} texts differ; the first: {texts}"
        if ties := [tie for i in wrong if (tie := _tie(a[i], b[i])) is not None]:
            words += f"; the tokens that part them are up to {max(ties):.1e} nats apart"
        bug = 2 * len(wrong) > len(a) or any(tie > 1 for tie in ties)
        verdict, turn = "bug" if bug else "rounding", (x["text"], y["text"])
        self.result.add(Finding(way, verdict, words, turn=turn))


def _tie(a: dict, b: dict) -> float | None:
    """How far apart the first two tokens that differ are, in nats; None where it is not shown."""
    rows = zip(*(zip(x.get("tokens") or [], x.get("logprobs") or []) for x in (a, b)))  # noqa: B905
    return next((abs(p - q) for (s, p), (t, q) in rows if s != t), None)
