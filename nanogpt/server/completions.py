"""The completions part of OpenAI's interface: what a body asks for, and what an answer looks like.

Knows neither sockets nor threads. Beside the fields of that interface there is `top_k`, as other
servers have it, and every answer names its `seed`: the same request with it gives the same text.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass

from ..config.checks import check_int, check_number, check_switch
from ..data.tokenizer import CharTokenizer
from ..decoding.sampling import SamplingParams
from ..serving.request import Request

# Fields that this server does not have, and the values at which they ask for nothing.
ABSENT = {
    "n": 1,
    "best_of": 1,
    "echo": False,
    "logprobs": None,
    "suffix": None,
    "logit_bias": {},
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "min_p": 0,
    "min_tokens": 0,
}
UNUSED = {"user", "ignore_eos"}  # they change no token here
FIELDS = {"model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop"}
FIELDS |= {"stream", "stream_options", "timeout"}
STOPS = 4  # texts that may end an answer, as in OpenAI's interface
KINDS = {  # that interface's names of errors, by the status of HTTP
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class Refused(Exception):
    """A request that gets no answer: `status` is HTTP's, `param` the field that is wrong."""

    def __init__(self, status: int, message: str, param: str | None = None):
        super().__init__(message)
        self.status, self.param = status, param

    @property
    def outcome(self) -> str:
        """The word by which the metrics count it."""
        words = {429: "refused", 503: "refused", 504: "timeout", 500: "failed"}
        return words.get(self.status, "invalid")

    def body(self) -> dict:
        """The error as that interface writes it."""
        error = {
            "message": _short(str(self), 1000),
            "type": KINDS.get(self.status, "invalid_request_error"),
        }
        return {"error": {**error, "param": self.param, "code": self.status}}


@dataclass(frozen=True)
class Asked:
    """A completion that can be served."""

    request: Request
    stop: tuple[str, ...]
    stream: bool
    usage: bool  # whether a stream ends with the counts of tokens
    timeout: float  # seconds


class Reader:
    """Reads bodies for one model. A text has at most `longest` tokens, its last one not counted."""

    def __init__(self, tokenizer: CharTokenizer, name: str, longest: int, timeout: float):
        self.tokenizer, self.name, self.longest, self.timeout = tokenizer, name, longest, timeout

    def read(self, data: bytes) -> Asked:
        """The request of a body in JSON. Raises Refused, which names the field."""
        try:
            body = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is no JSON: {error}") from None
        if not isinstance(body, dict):
            raise Refused(400, 'the body must be a JSON object, as in {"prompt": "KING:"}')
        body = {name: value for name, value in body.items() if value is not None}
        self._check_names(body)
        part = Part(body)
        stream = part("stream", False, check_switch)
        options = body.get("stream_options", {})
        if not isinstance(options, dict):
            raise Refused(400, "stream_options must be an object", "stream_options")
        prompt = self._prompt(body.get("prompt"))
        limits = {"low": 1, "high": max(1, self.longest + 1 - len(prompt))}
        n_new = part("max_tokens", min(16, limits["high"]), check_int, **limits)
        seed = part("seed", secrets.randbits(31), check_int, low=-(2**63), high=2**64 - 1)
        request = Request(prompt, n_new, _sampling(part), seed, id=f"cmpl-{secrets.token_hex(12)}")
        try:
            request.check(len(self.tokenizer), self.longest)
        except ValueError as error:
            raise Refused(400, str(error).removeprefix(f"request {request.id!r}: ")) from None
        timeout = part("timeout", self.timeout, check_number, low=0.001, high=self.timeout)
        return Asked(request, _stops(body), stream, options.get("include_usage") is True, timeout)

    def _check_names(self, body: dict) -> None:
        """Raises Refused for what this server lacks, and for a field that nobody knows."""
        if (name := body.get("model", self.name)) != self.name:
            message = f"model {name!r} is not here: this server has {self.name!r}"
            raise Refused(404, message, "model")
        for name, value in body.items():
            if name in ABSENT and value not in (ABSENT[name], [], {}):
                message = f"{name}={value!r}: this server does not have it; leave {name} out"
                raise Refused(400, message, name)
            if name not in FIELDS | UNUSED | set(ABSENT):
                known = ", ".join(sorted(FIELDS))
                raise Refused(400, f"{name!r} is unknown; the fields are {known}", name)

    def _prompt(self, prompt):
        """The prompt's tokens (T,), of a text or a list of tokens."""
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
            prompt = prompt[0]
        several = isinstance(prompt, list) and any(isinstance(t, (str, list)) for t in prompt)
        if several or not isinstance(prompt, (str, list)):
            message = f"prompt={_short(repr(prompt))}: pass one text, or one list of tokens"
            raise Refused(400, message, "prompt")
        if len(prompt) > self.longest:
            message = f"a prompt of {len(prompt):,} tokens: the model reads {self.longest} at most"
            raise Refused(400, message, "prompt")
        try:
            if isinstance(prompt, str):
                return self.tokenizer.encode(prompt)
            for token in prompt:
                check_int("a token", token, 0, len(self.tokenizer) - 1)
            return self.tokenizer.encode("".join(self.tokenizer.chars[t] for t in prompt))
        except ValueError as error:
            raise Refused(400, str(error), "prompt") from None


class Part:
    """One field of a body after the other, checked."""

    def __init__(self, body: dict):
        self.body = body

    def __call__(self, name: str, default, check, **limits):
        value = self.body.get(name, default)
        try:
            check(name, value, **limits)
        except ValueError as error:
            raise Refused(400, str(error), name) from None
        return value


def _sampling(part: Part) -> SamplingParams:
    """Temperature 0 takes the likeliest token, and then top_p and top_k change nothing."""
    temperature = part("temperature", 1.0, check_number, low=0.0, high=1e6)
    if 0 < temperature < 1e-6:
        message = f"temperature={temperature}: must be 0 (the likeliest token) or in [1e-06, 1e+06]"
        raise Refused(400, message, "temperature")
    top_p = part("top_p", 1.0, check_number, low=1e-6, high=1.0)
    top_k = part("top_k", 0, check_int, low=-1)  # 0 and -1: all
    if temperature == 0:
        return SamplingParams(greedy=True)
    return SamplingParams(temperature, max(top_k, 0) or None, None if top_p == 1 else top_p)


def _stops(body: dict) -> tuple[str, ...]:
    stop = body.get("stop", [])
    stop = [stop] if isinstance(stop, str) else stop
    good = isinstance(stop, list) and len(stop) <= STOPS
    if not good or not all(isinstance(text, str) and text for text in stop):
        raise Refused(400, f"stop must be a text or up to {STOPS} of them, none empty", "stop")
    return tuple(stop)


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[:most] + "…"


class Writer:
    """The text of an answer, from its tokens. Holds back what may be the beginning of a stop."""

    def __init__(self, chars: str, stop: tuple[str, ...]):
        self.chars, self.stop = chars, stop
        self.held, self.n_new, self.reason = "", 0, None

    def add(self, token: int, last: bool) -> str:
        """What can be sent now. `reason` is set when the answer is complete."""
        self.n_new += 1
        self.held += self.chars[token]
        for stop in sorted(self.stop, key=len, reverse=True):
            if self.held.endswith(stop):
                self.held, self.reason = self.held[: -len(stop)], "stop"
                break
        if last and not self.reason:
            self.reason = "length"
        keep = 0 if self.reason else self._beginning()
        piece, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return piece

    def _beginning(self) -> int:
        """How many of the last characters may become a stop."""
        longest = min(len(self.held), max(map(len, self.stop), default=1) - 1)
        for n in range(longest, 0, -1):
            if any(stop.startswith(self.held[-n:]) for stop in self.stop):
                return n
        return 0


class Shapes:
    """The bodies that answer one request."""

    def __init__(self, name: str, asked: Asked):
        self.asked = asked
        self.head = {
            "id": asked.request.id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": name,
            "seed": asked.request.seed,
        }

    def choice(self, text: str, reason: str | None) -> dict:
        """A text: the whole answer, or the next piece of it."""
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        return {**self.head, "choices": [choice]}

    def usage(self, n_new: int) -> dict:
        """How many tokens were read and drawn."""
        n = len(self.asked.request.prompt)
        counts = {"prompt_tokens": n, "completion_tokens": n_new, "total_tokens": n + n_new}
        return {"usage": counts}


def event(data: dict | str) -> str:
    """One server-sent event."""
    return f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
