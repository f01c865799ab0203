"""The completions part of OpenAI's interface: the bodies of requests, and the form of answers.

Knows neither sockets nor threads. Beside the fields of that interface there is `top_k`, as other
servers have it, and every answer names its `seed`: the same request with it gives the same text. Of
a list of prompts the i-th is drawn with seed + i.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable

from torch import Tensor

from ..config import check_int, check_number, check_switch, check_type
from ..data import CharTokenizer
from ..sampling import SamplingParams, check_seed
from .sequence import Logprob, Output, Request

# Fields that this server does not have, and the values at which they ask for nothing.
ABSENT = {"n": 1, "best_of": 1, "num_beams": 1, "presence_penalty": 0, "frequency_penalty": 0}
UNUSED = {"user", "ignore_eos"}  # they change no token here
STOPS = 16  # texts that may end an answer; OpenAI's interface has 4, lm-eval's tasks up to 6
LOGPROBS = 5  # most tokens beside which their log-probabilities stand, as there


class Refused(Exception):
    """A request that gets no answer: `status` is HTTP's, `param` the field that is wrong."""

    def __init__(self, status: int, message: str, param: str | None = None):
        super().__init__(message)
        self.status = status
        self.param = param

    def body(self) -> dict:
        """The error as that interface writes it."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"type": kind, "param": self.param, "code": self.status}
        return {"error": {"message": str(self)[:1000], **error}}


class Completion:
    """The answer to one prompt of a body, whose checked fields are `fields`.

    It shows max_tokens of the drawn tokens, with echo after the prompt. The engine's side calls
    `take` and `end`, which call `tell`, all in one event loop. A text that may be the beginning of
    a stop is held back.
    """

    def __init__(self, request: Request, fields: dict, chars: str, index: int):
        self.request = request
        self.fields = fields
        self.chars = chars
        self.index = index
        self.head = fields["head"] | {"seed": request.seed}
        # The text of every event of a stream, before its piece and after it.
        shape = {"index": index, "text": "\0", "logprobs": None, "finish_reason": None}
        self._shape = event({**self.head, "choices": [shape]}).rsplit(json.dumps("\0"), 1)
        self.begun = time.perf_counter()
        self.reason: str | None = None  # why the text has ended: "stop" or "length"
        self.error: Refused | None = None  # the reason of an early end
        self.tell: Callable[[Completion], None] = lambda _: None
        self._text = ""  # can be sent now
        self._held = ""  # may become a stop
        self.n_new = 0
        self._n_shown = 0
        self._logprobs: list[Logprob] = []  # of characters that are not sent yet

    def take(self, outputs: list[Output]) -> None:
        """The next tokens from the engine."""
        if self.reason:  # they were drawn behind a stop
            return
        if self.fields["echo"] and outputs[0].index == 0:
            prompt = self.request.prompt.tolist()
            self._text = "".join(self.chars[token] for token in prompt)
            self._logprobs = [Logprob(prompt[0], None, {})]  # nothing is before it
        for output in outputs:
            self._logprobs += output.logprobs
            if self.fields["max_tokens"]:  # else the prompt alone is asked for
                self.n_new += 1
                self._held += self.chars[output.token]
            stops = [stop for stop in self.fields["stop"] if self._held.endswith(stop)]
            if stops:
                self._held = self._held.removesuffix(max(stops, key=len))
                self.reason = "stop"
                break
        if outputs[-1].finished:
            self.reason = self.reason or "length"
        n = len(self._held) - (0 if self.reason else self._may_stop())
        self._text += self._held[:n]
        self._held = self._held[n:]
        self.tell(self)

    def end(self, error: Refused) -> None:
        """End it early."""
        self.error = self.error or error
        self.tell(self)

    def _may_stop(self) -> int:
        """How many of the last characters may become a stop."""
        stops = self.fields["stop"]
        longest = min(len(self._held), max(map(len, stops), default=0))
        for n in range(longest, 0, -1):
            if any(stop.startswith(self._held[-n:]) for stop in stops):
                return n
        return 0

    def event(self) -> str:
        """The next event of a streamed answer, if there is one to send."""
        if self.reason or (self._text and self.request.logprobs is not None):
            return event({**self.head, "choices": [self.choice()]})
        text = self._text
        self._text = ""
        return json.dumps(text).join(self._shape) if text else ""

    def choice(self) -> dict:
        """The text since the last event, or all of it."""
        text = self._text
        self._text = ""
        shown = None if self.request.logprobs is None else self._shown(len(text))
        return {"index": self.index, "text": text, "logprobs": shown, "finish_reason": self.reason}

    def _shown(self, n: int) -> dict:
        """The log-probabilities of the next n characters, each of which is a token."""
        logprobs = self._logprobs[:n]
        self._logprobs = self._logprobs[n:]
        start = self._n_shown
        self._n_shown += n
        values = []
        tops = []
        for logprob in logprobs:
            if logprob.value is None:  # of the first character: nothing is before it
                values.append(None)
                tops.append(None)
                continue
            top = {**logprob.top, logprob.token: logprob.value}
            # JSON has no infinite number, and no NaN.
            finite = {token: max(-9999.0, value) for token, value in top.items()}
            values.append(finite[logprob.token])
            tops.append({self.chars[token]: value for token, value in finite.items()})
        return {
            "tokens": [self.chars[p.token] for p in logprobs],
            "token_logprobs": values,
            "top_logprobs": tops,
            "text_offset": list(range(start, start + n)),
        }


class Reader:
    """Reads bodies for one model. A text has at most `longest` tokens, its last one not counted."""

    def __init__(self, tokenizer: CharTokenizer, name: str, longest: int):
        self.tokenizer = tokenizer
        self.name = name
        self.longest = longest

    def read(self, data: bytes) -> list[Completion]:
        """The completions that a body in JSON asks for. Raises Refused, which names the field."""
        try:
            body = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is no JSON: {error}") from None
        if not isinstance(body, dict):
            raise Refused(400, 'the body must be a JSON object, as in {"prompt": "KING:"}')
        body = {name: value for name, value in body.items() if value is not None}
        name = body.get("model", self.name)
        if name != self.name:
            message = f"model {json.dumps(name):.60} is not here: this server has {self.name!r}"
            raise Refused(404, message, "model")
        prompts = self._prompts(body.get("prompt"))
        fields = self._fields(body, self.longest + 1 - max(map(len, prompts)))
        n_top = fields["logprobs"]
        seed = fields["seed"]
        same = {"sampling": _sampling(fields), "max_new_tokens": max(fields["max_tokens"], 1)}
        same |= {"logprobs": n_top, "echo": fields["echo"] and n_top is not None}
        completions = []
        for i, prompt in enumerate(prompts):
            if i > 0:
                seed = (seed + 1) % 2**64
            request = Request(prompt, seed=seed, **same)
            completions.append(Completion(request, fields, self.tokenizer.chars, i))
        return completions

    def _fields(self, body: dict, most: int) -> dict:
        """All fields but the prompt, checked; at most so many tokens fit behind the longest one."""
        rules = {  # the value of a field that is left out, and the check of one that is not
            "max_tokens": (min(16, most), check_int, 0 if body.get("echo") else 1, most),
            "temperature": (1.0, check_number, 0.0, 1e6),
            "top_p": (1.0, check_number, 1e-6, 1.0),
            "top_k": (0, check_int, -1, len(self.tokenizer)),  # 0 and -1: all
            "seed": (secrets.randbits(31), check_seed),
            "stop": ([], _check_stop),
            "stream": (False, check_switch),
            "stream_options": ({}, check_type, dict),
            "logprobs": (None, check_int, 0, LOGPROBS),
            "echo": (False, check_switch),
        }
        names = {"model", "prompt", *rules}
        for name, value in body.items():
            if name not in names | UNUSED and value not in (ABSENT.get(name), [], {}):
                known = f"leave it out; the fields are {', '.join(sorted(names))}"
                reason = (
                    f"{name:.60}={json.dumps(value):.60}: this server does not have it: {known}"
                )
                raise Refused(400, reason, name)
        fields = {name: _field(body, name, *rule) for name, rule in rules.items()}
        if isinstance(fields["stop"], str):
            fields["stop"] = [fields["stop"]]
        about = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion"}
        return fields | {"head": about | {"created": int(time.time()), "model": self.name}}

    def _prompts(self, prompt) -> list[Tensor]:
        """The tokens (T,) of each prompt: a text or a list of tokens, or a list of either."""
        several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        try:
            prompts = prompt if several else [prompt]
            return [self._prompt(one) for one in prompts]
        except ValueError as error:
            raise Refused(400, str(error), "prompt") from None

    def _prompt(self, prompt) -> Tensor:
        tokens = isinstance(prompt, list) and all(type(token) is int for token in prompt)
        if not tokens and not isinstance(prompt, str):
            raise ValueError(f"prompt={json.dumps(prompt):.60}: pass text, tokens or lists of them")
        n = len(prompt)
        if n > self.longest:
            raise ValueError(f"a prompt of {n:,} tokens: the model reads {self.longest} at most")
        last = len(self.tokenizer) - 1
        unknown = [token for token in prompt if not 0 <= token <= last] if tokens else []
        if unknown:
            raise ValueError(f"token {unknown[0]!r:.60}: must be in [0, {last}]")
        return self.tokenizer.encode(self.tokenizer.decode(prompt) if tokens else prompt)


def _sampling(fields: dict) -> SamplingParams:
    """Below 1e-6 it takes the likeliest token, and then top_p and top_k change nothing."""
    if fields["temperature"] < 1e-6:
        return SamplingParams(greedy=True)
    top_k = max(fields["top_k"], 0) or None
    top_p = None if fields["top_p"] == 1 else fields["top_p"]
    return SamplingParams(fields["temperature"], top_k, top_p)


def _field(body: dict, name: str, default, check, *limits):
    """A field of a body, checked where it is there."""
    try:
        if name in body:
            check(name, body[name], *limits)
    except (TypeError, ValueError) as error:
        words = str(error).rpartition(": ")[2].lower()  # as JSON writes it: true, not True
        need = "must be an object" if check is check_type else words
        raise Refused(400, f"{name}={json.dumps(body[name]):.60}: {need}", name) from None
    return body.get(name, default)


def _check_stop(name: str, value) -> None:
    texts = [value] if isinstance(value, str) else value
    good = isinstance(texts, list) and len(texts) <= STOPS
    if not good or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"must be a text or up to {STOPS} of them, none empty")


def event(data: dict) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(data)}\n\n"
